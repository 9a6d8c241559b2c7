"""The time limits of one request to an upstream."""

import asyncio
from dataclasses import dataclass

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
        self._started = self._loop.time()
        self._total_at = self._started + min(limits.total_ms / 1000, remaining_s)
        self._of_task = remaining_s * 1000 <= limits.total_ms
        self._limit = "TOTAL_TIMEOUT", ""
        self._asked_at = self._started
        self._silent_s = 0.0

    def until_answer(self) -> asyncio.Timeout:
        """For the wait until the answer's head."""
        return self._sooner(*self._first_output())

    def until_next(self) -> asyncio.Timeout:
        """For one read of the answer's body."""
        if not self._stream:
            return self._sooner(None)
        self._asked_at = self._loop.time()
        idle_at = self._asked_at + self._limits.idle_ms / 1000 - self._silent_s
        first_at, *first = self._first_output()
        if self.has_output or first_at is None or idle_at < first_at:
            sentence = f"The upstream was silent for {self._limits.idle_ms} ms."
            code = "STREAM_STALLED" if self.has_output else "FIRST_TOKEN_TIMEOUT"
            return self._sooner(idle_at, code, sentence)
        return self._sooner(first_at, *first)

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
        code, sentence = self._limit
        return TaskError(code, sentence, retryable=not (code == "TOTAL_TIMEOUT" and self._of_task))

    def _first_output(self) -> tuple[float | None, str, str]:
        if not self._stream:
            return None, "", ""
        limit_ms = self._limits.ttft_ms
        sentence = f"The upstream gave no output within {limit_ms} ms."
        return self._started + limit_ms / 1000, "FIRST_TOKEN_TIMEOUT", sentence

    def _sooner(self, at: float | None, code: str = "", sentence: str = "") -> asyncio.Timeout:
        if at is None or self._total_at <= at:
            at, code = self._total_at, "TOTAL_TIMEOUT"
            sentence = f"The upstream was not done after {round((at - self._started) * 1000)} ms."
        self._limit = code, sentence
        return asyncio.timeout_at(at)
