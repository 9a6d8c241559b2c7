"""Every call by method and path, found by one look-up in a dictionary, or by a few patterns."""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from fairlane.gateway.access import Access
from fairlane.gateway.errors import ABSENT, ApiError, no_such_path, wrong_method
from fairlane.gateway.features import feature_of_path

MAX_PATH = 2048
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `path` is its pattern, as metrics and documents name it."""

    path: str
    access: Access
    answer: Callable[..., Awaitable[None]] | None = None
    """The raw ASGI handler, called with (tasks, caller, request). None: FastAPI answers."""
    submits: bool = False
    any_method: bool = False
    """All methods have the same answer."""


class Calls:
    """The calls of an application."""

    def __init__(self, disabled: frozenset[str] = frozenset()) -> None:
        self.disabled = disabled
        """The features whose calls are left out."""
        self.exact: dict[tuple[str, str], Call] = {}
        """The calls without parameters, by method and path."""
        self._patterns: list[tuple[str, re.Pattern[str], Call]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """(method, path) of each call."""
        yield from ((method, call.path) for (method, _), call in self.exact.items())
        yield from ((method, call.path) for method, _, call in self._patterns)

    def add(self, method: str, path: str, call: Call) -> None:
        """Add a call; `path` is in FastAPI's notation: `{name}` is a part of a path, `{name:path}` the rest, neither empty."""
        if "{" not in path:
            self.exact[method, path] = call
            return
        fixed = _PARAMETER.split(path)
        pattern = re.escape(fixed[0])
        for name, rest, text in zip(fixed[1::3], fixed[2::3], fixed[3::3], strict=True):
            pattern += f"(?P<{name}>{'.+' if rest else '[^/]+'}){re.escape(text)}"
        self._patterns.append((method, re.compile(pattern), call))

    def find(self, method: str, path: str) -> tuple[Call, dict[str, str]]:
        """Return the call and the parameters of its path. Raise ApiError: 404, 405, 414, 426."""
        call = self.exact.get((method, path))
        if call is not None:
            return call, {}
        if len(path) > MAX_PATH:
            raise ApiError(414, "PATH_TOO_LONG", "The path is too long")
        allowed = {known for known, exact in self.exact if exact == path}
        for known in allowed:
            if self.exact[known, path].any_method:
                return self.exact[known, path], {}
        for known, pattern, call in self._patterns:
            match = pattern.fullmatch(path)
            if match:
                if known == method or call.any_method:
                    return call, match.groupdict()
                allowed.add(known)
        if allowed and path not in ABSENT:
            raise wrong_method(method, path, sorted(allowed))
        if path == "/ws":
            raise ApiError(
                426,
                "UPGRADE_REQUIRED",
                "Workers connect to this path by WebSocket",
                headers=[(b"upgrade", b"websocket"), (b"connection", b"upgrade")],
            )
        if feature := feature_of_path(path, self.disabled):
            raise ApiError(
                404, "NOT_FOUND", f"There is no {method} {path}: this gateway has {feature} disabled"
            )
        raise no_such_path(method, path)
