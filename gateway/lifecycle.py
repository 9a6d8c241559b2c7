"""Start and end of a gateway process."""

import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from fairlane.gateway.errors import SECOND_MS, ApiError, stopping


class Component(Protocol):
    """A part of the gateway that starts and stops with it."""

    def start(self) -> Awaitable[None] | None: ...

    def close(self) -> Awaitable[None] | None: ...


class Lifecycle:
    """Whether this gateway drains, and until when. `Shutdown.run` begins the drain."""

    def __init__(self) -> None:
        self.draining = False
        self.peer_available = False
        """Whether another replica accepts the calls that this one rejects."""
        self._until = 0.0

    def drain(self, drain_ms: int) -> None:
        """Accept nothing new from now on. Running work may finish within `drain_ms`."""
        self.draining = True
        self._until = time.monotonic() + drain_ms / 1000

    @property
    def deadline_passed(self) -> bool:
        """Whether the time to finish is over."""
        return time.monotonic() >= self._until

    @property
    def left_ms(self) -> int:
        """Return the rest of the time to finish."""
        return max(int((self._until - time.monotonic()) * 1000), 0)

    def rejection(self, task_id: str | None = None) -> ApiError:
        """Return the error of a draining gateway: retry at another replica immediately, or at the successor after the drain."""
        return stopping(SECOND_MS if self.peer_available else self.left_ms, task_id)


T = TypeVar("T")


class Part(Protocol):
    """See `Gateway.part`."""

    def __call__(self, kind: type[T]) -> T: ...
