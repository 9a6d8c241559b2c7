"""A model's limits on its first output and on silence, to the moment: a timer for each attempt of a model that has one."""

import asyncio

from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.steps import BEFORE_THE_END, Phase

SOON_S = 0.05
"""A worker that has not said that it has begun is looked at again after so long."""


class Silence:
    """See the module. Whoever forgets an attempt cancels its timer."""

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()

    def look(self, attempt: Attempt) -> None:
        """End an attempt whose model was silent for too long; look again when that may be. Any number of times."""
        attempt.cancel_timer()
        limits = self._settings.limits_of(attempt.grant)
        if limits is None or attempt.phase not in BEFORE_THE_END:
            return
        has_output, now = attempt.writer.has_output, self._loop.time()
        limit_ms = limits.silence_ms if has_output else limits.first_output_ms
        if not limit_ms:
            return
        over_at = (attempt.output_at if has_output else attempt.started_at) + limit_ms / 1000
        if now < over_at or attempt.phase is not Phase.RUNNING:
            attempt.timer = self._loop.call_at(max(over_at, now + SOON_S), self.look, attempt)
        elif has_output:
            attempt.fail("STREAM_STALLED", "The model stopped answering", retryable=False, stop="timeout")
        else:
            text = "The model did not begin to answer in time"
            attempt.fail("FIRST_TOKEN_TIMEOUT", text, retryable=False, stop="timeout")
