"""The time limits of one request to an upstream."""

import asyncio
import math
from dataclasses import dataclass
from operator import itemgetter

from fairlane.workers.sdk.errors import TaskError


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an upstream may take, in milliseconds.

    `ttft_ms` to the first output (FIRST_TOKEN_TIMEOUT) and `idle_ms` of silence (STREAM_STALLED; before the first output
    FIRST_TOKEN_TIMEOUT) hold for streams, `total_ms` for all tasks (TOTAL_TIMEOUT); the task's own remaining time shortens them,
    and when that is over no retry helps. Silence: before the first output nothing came at all, after it no output; comments and
    pings that keep a connection open are none.
    """

    ttft_ms: int = 60_000
    idle_ms: int = 30_000
    total_ms: int = 300_000


class Clock:
    """The three limits of one request.

    They count only while something is awaited: a handler that is held up between two reads is not the
    upstream's silence.
    """

    def __init__(self, limits: Limits, remaining_s: float, *, stream: bool) -> None:
        self.has_output = False
        self._limits = limits
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._started = self._asked_at = self._loop.time()
        self._total_at = self._started + min(limits.total_ms / 1000, remaining_s)
        self._of_task = remaining_s * 1000 <= limits.total_ms
        self._limit = ""
        """The limit that was waited for last: `total`, `first` or `idle`."""
        self._silent_s = 0.0

    def until_answer(self) -> asyncio.Timeout:
        """For the wait until the answer's head."""
        return self._until(math.inf)

    def until_next(self) -> asyncio.Timeout:
        """For one read of the answer's body."""
        self._asked_at = self._loop.time()
        return self._until(self._asked_at + self._limits.idle_ms / 1000 - self._silent_s)

    def _until(self, idle_at: float) -> asyncio.Timeout:
        at, self._limit = self._total_at, "total"
        if self._stream:
            first_at = math.inf if self.has_output else self._started + self._limits.ttft_ms / 1000
            at, self._limit = min((at, "total"), (first_at, "first"), (idle_at, "idle"), key=itemgetter(0))
        return asyncio.timeout_at(at)

    def came(self) -> None:
        """Record that bytes have arrived."""
        if self.has_output:
            self._silent_s += self._loop.time() - self._asked_at

    def output(self) -> None:
        """It was output."""
        self.has_output = True
        self._silent_s = 0.0

    def failure(self) -> TaskError:
        """The failure for the limit that was waited for last."""
        if self._limit == "total":
            sentence = f"The upstream was not done after {round((self._total_at - self._started) * 1000)} ms."
            return TaskError("TOTAL_TIMEOUT", sentence, retryable=not self._of_task)
        sentence = f"The upstream was silent for {self._limits.idle_ms} ms."
        if self._limit == "first":
            sentence = f"The upstream gave no output within {self._limits.ttft_ms} ms."
        code = "STREAM_STALLED" if self.has_output else "FIRST_TOKEN_TIMEOUT"
        return TaskError(code, sentence, retryable=True)
