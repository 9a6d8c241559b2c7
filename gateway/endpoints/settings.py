"""Settings of endpoints: external HTTP interfaces that are called in turn. Pure."""

from ipaddress import ip_network
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from fairlane.gateway.endpoints.endpoints import METHODS, Endpoint, Method
from fairlane.gateway.endpoints.headers import MAX_CHARS, MAX_SET, PASSING, own_header, passing_name
from fairlane.gateway.settings.parts import (
    Count,
    Identifier,
    ModelSettings,
    Ms,
    Networks,
    SettingsPart,
    Windows,
)
from fairlane.gateway.settings.units import MIB, MINUTE_MS, SECOND_MS, Amount
from fairlane.workers.adapters.endpoints.addresses import addresses_said, read_networks, why_refused
from fairlane.workers.adapters.endpoints.calls import IDEMPOTENT
from fairlane.workers.adapters.targets import Pattern, read_target

MAX_ENDPOINTS = 256
"""A worker that calls all endpoints asks for the models of all of them."""

HeaderName = Annotated[str, Field(min_length=1, max_length=100)]


def _own_headers(value: dict[str, SecretStr]) -> dict[str, SecretStr]:
    found: dict[str, SecretStr] = {}
    for name, secret in value.items():
        lower, text = own_header(name, secret.get_secret_value())
        if lower in found:
            raise ValueError(f"{lower} is given twice")
        found[lower] = SecretStr(text)
    if sum(len(name) + len(secret.get_secret_value()) for name, secret in found.items()) > MAX_CHARS:
        raise ValueError(f"may have {MAX_CHARS} characters together")
    return found


PatternText = Annotated[
    str, Field(min_length=1, max_length=2048), AfterValidator(lambda url: Pattern.read(url).text)
]
Methods = Annotated[
    list[Method],
    Field(min_length=1, max_length=len(METHODS)),
    AfterValidator(lambda named: [method for method in METHODS if method in named]),
]
PassingHeaders = Annotated[
    list[HeaderName],
    Field(max_length=64),
    AfterValidator(lambda names: sorted({passing_name(name) for name in names})),
]
OwnHeaders = Annotated[dict[HeaderName, SecretStr], Field(max_length=MAX_SET), AfterValidator(_own_headers)]


class EndpointSettings(SettingsPart):
    """One interface that workers call, or that permits are issued for. It is queued as the model `http:NAME`."""

    url: PatternText
    """URLs: `https://host:port/path/*`, with an exact scheme, host and port. In the path `*` stands for one segment, at the end
    for the rest. Any query is allowed. The most specific pattern counts.
    """

    methods: Methods = Field(default=["GET", "POST"])
    """Allowed HTTP methods."""

    headers: PassingHeaders = Field(default=list(PASSING))
    """Headers of requests that pass. Headers of the connection, credentials (`Authorization`, `Cookie`, `X-Api-Key`) and
    those of proxies (`X-Forwarded-For`) never do.
    """

    set_headers: OwnHeaders = Field(default={})
    """Headers that each request gets, such as `Authorization`, over the client's. They go to the worker with each task, and are
    neither shown nor stored with it.
    """

    windows: Windows | None = None
    """Strict limit of requests within any such time, over all replicas: `50/1s`, or up to three, `5/200ms, 1000/1h`. Not set:
    no limit.
    """

    concurrency: Count | None = None
    """Requests at the same time. Not set: the workers' slots."""

    mean_ms: Ms | None = None
    """Duration of a request until one is measured, for estimates. Not set: no estimate."""

    timeout_ms: Annotated[int, Amount("ms", 100, 10 * MINUTE_MS)] = 30 * SECOND_MS
    """Time of a request, from the connection to the last byte of the response."""

    retries: Annotated[int, Field(ge=0, le=5)] = 0
    """Retries of a request without a response, or with a server error (5xx). Only of idempotent methods (GET, HEAD, OPTIONS, PUT,
    DELETE); each retry waits in the queue and counts in the windows.
    """

    max_body_bytes: Annotated[int, Amount("bytes", 0, 16 * MIB)] = MIB
    """Maximum size of the body of a request, and of a response after decompression. A larger request is rejected with 413, a
    larger response fails the task.
    """

    allow_private: Networks = Field(default=[])
    """Private networks (`10.1.0.0/16`) that the host can be in; other private, local and metadata addresses are rejected.
    Each request is checked, when its name is resolved.
    """

    keys: Annotated[list[Identifier], Field(max_length=1000)] = Field(default=[])
    """Ids of the keys that can use it. None: all."""

    tiers: Annotated[list[Identifier], Field(max_length=64)] = Field(default=[])
    """Tiers whose clients can use it. None: all."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.retries and not IDEMPOTENT & set(self.methods):
            raise ValueError("retries are for idempotent methods alone (GET, HEAD, OPTIONS, PUT, DELETE)")
        return self

    @property
    def unreachable(self) -> str:
        """The networks that `allow_private` has to name, if the URL says private addresses itself; empty: none."""
        addresses = addresses_said(
            read_target(self.url).host
        )  # where other names lead is the worker's to see
        allowed = read_networks(self.allow_private)
        if not any(why_refused(address, allowed) for address in addresses):
            return ""
        return ", ".join(f'"{ip_network(address)}"' for address in addresses)

    def made(self, name: str) -> Endpoint:
        """The endpoint that they come to."""
        return Endpoint(
            name,
            Pattern.read(self.url),
            methods=tuple(self.methods),
            headers=frozenset(self.headers),
            set_headers=tuple((name, secret.get_secret_value()) for name, secret in self.set_headers.items()),
            windows=self.windows or "",
            concurrency=self.concurrency or 0,
            mean_ms=self.mean_ms or 0,
            timeout_ms=self.timeout_ms,
            retries=self.retries,
            max_body_bytes=self.max_body_bytes,
            allow_private=tuple(self.allow_private),
            keys=frozenset(self.keys),
            tiers=frozenset(self.tiers),
        )

    @property
    def of_model(self) -> ModelSettings:
        """The settings of its model."""
        return ModelSettings(concurrency=self.concurrency, cost="requests", windows=self.windows)
