"""A model's limits on its first output and on silence, to the moment: a timer for each attempt of a model that has one.

The limits in effect when an attempt is checked count: where they follow the model's queue (`congestion.py`) they move.
"""

import asyncio

from fairlane.workers.server.hooks.congestion import Congestion
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import BEFORE_THE_END

SOON_S = 0.05
"""After this time, a worker that has not acknowledged its task is checked again."""


class Silence:
    """See the module. Removing an attempt cancels its timer."""

    def __init__(self, congestion: Congestion) -> None:
        self._congestion = congestion
        self._loop = asyncio.get_running_loop()

    def check(self, attempt: Attempt) -> None:
        """End an attempt whose model was silent for too long, else check again when that may be. May be called at any time."""
        if attempt.timer is not None:
            attempt.timer.cancel()
            attempt.timer = None
        limits = self._congestion.limits_of(attempt.grant.model)
        if limits is None or attempt.phase not in BEFORE_THE_END:
            return
        has_output, now = attempt.writer.chunks > 0, self._loop.time()
        limit_ms = limits.silence_ms if has_output else limits.first_output_ms
        if not limit_ms:
            return
        over_at = (attempt.output_at if has_output else attempt.started_at) + limit_ms / 1000
        if now < over_at or attempt.phase != "running":
            attempt.timer = self._loop.call_at(max(over_at, now + SOON_S), self.check, attempt)
            return
        code = "STREAM_STALLED" if has_output else "FIRST_TOKEN_TIMEOUT"
        what = "sent nothing for" if has_output else "did not begin to answer within"
        reduced = ", reduced as the queue is long" if limits.reason == "long_queue" else ""
        attempt.fail(code, f"The model {what} {limit_ms} ms{reduced}", retryable=False, stop="timeout")
