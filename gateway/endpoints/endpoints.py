"""The endpoints: interfaces of other people that are called in turn, each a line of its own; and which one a URL means. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from fairlane.gateway.endpoints.headers import PASSING
from fairlane.queues.keys import ENDPOINT, is_reserved
from fairlane.queues.windows import read_windows
from fairlane.workers.adapters.endpoints.calls import IDEMPOTENT
from fairlane.workers.adapters.endpoints.headers import Header
from fairlane.workers.adapters.targets import BadTarget, Pattern, Target, read_target

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
METHODS: tuple[Method, ...] = get_args(Method)
MIB = 1024 * 1024


class EndpointError(Exception):
    """No endpoint serves a request; the sentence says why."""


class BadUrl(EndpointError):
    """The URL itself is invalid."""


class NoEndpoint(EndpointError):
    """No endpoint matches the URL."""


class WrongMethod(EndpointError):
    """The endpoint accepts other methods."""

    def __init__(self, sentence: str, endpoints: "tuple[Endpoint, ...]") -> None:
        super().__init__(sentence)
        self.endpoints = endpoints
        """The endpoints that match the URL."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An interface, and what is allowed there. Times in ms; 0 and () = not set."""

    name: str
    pattern: Pattern
    methods: tuple[str, ...] = ("GET", "POST")
    headers: frozenset[str] = frozenset(PASSING)
    """The headers that clients may send, in lower case."""
    set_headers: tuple[Header, ...] = field(default=(), repr=False)
    """The operator's, which may hold secrets: they go to the worker with the task, and are shown and kept nowhere else."""
    windows: str = ""
    """The most requests within any such time, such as `50/1s, 1000/1m`."""
    concurrency: int = 0
    mean_ms: int = 0
    """The duration of a request until one is measured."""
    timeout_ms: int = 30_000
    retries: int = 0
    """Retries of idempotent methods."""
    max_body_bytes: int = MIB
    """Of a request, and of a response after decompression."""
    allow_private: tuple[str, ...] = ()
    """Networks that the address of the host may lie in, though they are private."""
    keys: frozenset[str] = frozenset()
    """The ids of those keys that may use it; empty: all."""
    tiers: frozenset[str] = frozenset()
    """The tiers whose callers may use it; empty: all."""

    @property
    def model(self) -> str:
        """The name of the model for the scheduler."""
        return ENDPOINT + self.name

    def max_tries(self, method: str) -> int:
        """Return how often a request may be sent: once if it is not idempotent."""
        return 1 + self.retries if method in IDEMPOTENT else 1

    def may_use(self, key_id: str, tier: str) -> bool:
        """Return whether a caller may use the endpoint."""
        return (not self.keys or key_id in self.keys) and (not self.tiers or tier in self.tiers)


class Endpoints:
    """The endpoints of one configuration."""

    def __init__(self, endpoints: Iterable[Endpoint] = ()) -> None:
        self._named = {endpoint.name: endpoint for endpoint in endpoints}
        self._by_origin: dict[str, list[Endpoint]] = {}
        for endpoint in sorted(self._named.values(), key=lambda one: one.pattern.precision, reverse=True):
            self._by_origin.setdefault(endpoint.pattern.origin, []).append(endpoint)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._named.values())

    def __len__(self) -> int:
        return len(self._named)

    def named(self, name: str) -> Endpoint | None:
        """Return the endpoint of this name."""
        return self._named.get(name)

    def of_model(self, model: str) -> Endpoint | None:
        """Return the endpoint that is scheduled as this model."""
        return self._named.get(model[len(ENDPOINT) :]) if is_reserved(model) else None

    def find(self, url: str, method: str) -> tuple[Endpoint, Target]:
        """Return the endpoint of a URL, and the URL in its normal form. The most exact pattern counts, also
        when another one would take the method. `method`: '' is any. Raise BadUrl, NoEndpoint or WrongMethod."""
        target = target_of(url)
        meant = [one for one in self._by_origin.get(target.origin, ()) if one.pattern.matches(target)]
        if not meant:
            raise NoEndpoint("No endpoint is configured for this URL")
        nearest = meant[0].pattern.segments
        same = [one for one in meant if one.pattern.segments == nearest]
        taken = {one: endpoint for endpoint in reversed(same) for one in endpoint.methods}
        for one in (method,) if method else METHODS:
            if one in taken:
                return taken[one], target
        methods = ", ".join(name for name in METHODS if name in taken)
        raise WrongMethod(f"This URL takes {methods}, not {method[:20]}", tuple(same))

    def check(self, endpoint: Endpoint, url: str, method: str) -> Target:
        """Return the target of a request to this very endpoint; of any method: ''. Raise BadUrl, NoEndpoint or WrongMethod."""
        target = target_of(url)
        if not endpoint.pattern.matches(target):
            raise NoEndpoint(f"The endpoint {endpoint.name} is for {endpoint.pattern.text}, not for this URL")
        if method and method not in endpoint.methods:
            sentence = f"The endpoint {endpoint.name} takes {', '.join(endpoint.methods)}, not {method[:20]}"
            raise WrongMethod(sentence, (endpoint,))
        return target


def target_of(url: str) -> Target:
    """Return the target of a URL. Raise BadUrl."""
    try:
        return read_target(url)
    except BadTarget as error:
        raise BadUrl(str(error)) from None


def per_second(slots: int, mean_ms: float | None, windows: str) -> float | None:
    """Return Q, the requests a second that an endpoint takes in the long run: C / T of `slots` that take `mean_ms` each, or what
    its narrowest window lets through, whichever is less; None if neither is known."""
    found = [window.requests * 1000 / window.ms for window in read_windows(windows)] if windows else []
    if slots and mean_ms:
        found.append(slots * 1000 / mean_ms)
    return min(found, default=None)
