"""Start and end of a gateway process."""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from fairlane.gateway.errors import SECOND_MS, ApiError, stopping
from fairlane.streaming.hub import LiveLog


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


class OpenAnswers:
    """The answers under way in a gateway: each ends when the gateway stops."""

    def __init__(self) -> None:
        self.now = False
        self._answers: dict[Callable[[], None], LiveLog | None] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def patience(self, queued: bool) -> bool:
        """Return whether a client that cannot resume waits for a task that runs, here or elsewhere, or, with `queued`, waits."""
        feeds = self._answers.values()
        return any(feed is not None and (feed.top or queued) and not feed.ended for feed in feeds)

    def add(self, wake: Callable[[], None], last_chance: LiveLog | None = None) -> None:
        """Call `wake` when the gateway stops. `last_chance`: the task's feed, when the answer cannot be resumed."""
        self._answers[wake] = last_chance
        if self.now:
            wake()

    def discard(self, wake: Callable[[], None]) -> None:
        self._answers.pop(wake, None)

    def begin(self) -> None:
        """End every answer as soon as possible."""
        self.now = True
        for wake in list(self._answers):
            wake()


T = TypeVar("T")


class Part(Protocol):
    """See `Gateway.part`."""

    def __call__(self, kind: type[T]) -> T: ...
