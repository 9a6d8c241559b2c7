"""A model's limits on its first output and on silence, to the moment: a timer for each attempt of a model that has one.

Where these limits follow the model's queue (`limits/`), an attempt keeps those that held at its grant, and how long it took is
reported: to its first output and between two outputs, if it completed or a limit ended it. What ended otherwise says nothing
of how long an answer takes.
"""

import asyncio

from fairlane.workers.server.limits.answers import Measure
from fairlane.workers.server.limits.congestion import Congestion
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.steps import BEFORE_THE_END, Phase

SOON_S = 0.05
"""After this time, a worker that has not acknowledged its task is checked again."""


class OutputTimeouts:
    """See the module. Removing an attempt cancels its timer."""

    def __init__(self, settings: DispatchSettings, congestion: Congestion) -> None:
        self._settings = settings
        self._congestion = congestion
        self._loop = asyncio.get_running_loop()

    def begin(self, attempt: Attempt) -> None:
        """An attempt begins: give it the limits that hold now."""
        if not self._settings.output_limits:
            return  # those that come while it runs are found by maintenance
        attempt.limits = self._congestion.held(attempt.grant.model)
        self.check(attempt)

    def check(self, attempt: Attempt) -> None:
        """End an attempt whose model was silent for too long, else check again when that may be. May be called at any time."""
        attempt.cancel_timer()
        limits = attempt.limits or self._settings.limits_of(attempt.grant)
        if limits is None or attempt.phase not in BEFORE_THE_END:
            return
        has_output, now = attempt.writer.chunks > 0, self._loop.time()
        limit_ms = limits.silence_ms if has_output else limits.first_output_ms
        if not limit_ms:
            return
        over_at = (attempt.output_at if has_output else attempt.started_at) + limit_ms / 1000
        if now < over_at or attempt.phase is not Phase.RUNNING:
            attempt.timer = self._loop.call_at(max(over_at, now + SOON_S), self.check, attempt)
        elif has_output:
            text = f"The model sent nothing for {self._words(limit_ms, attempt, 'gap')}"
            self._over(attempt, "gap", limit_ms)
            attempt.fail("STREAM_STALLED", text, retryable=False, stop="timeout")
        else:
            text = f"The model did not begin to answer within {self._words(limit_ms, attempt, 'first')}"
            self._over(attempt, "first", limit_ms)
            attempt.fail("FIRST_TOKEN_TIMEOUT", text, retryable=False, stop="timeout")

    def began_output(self, attempt: Attempt) -> None:
        """Its first output has come: silence counts from now on."""
        if attempt.limits is not None:
            self._took_to_begin(attempt, attempt.first_output_at)
        elif not self._settings.output_limits:
            return
        self.check(attempt)

    def completed(self, attempt: Attempt) -> None:
        """It has answered, perhaps with nothing but its result."""
        if attempt.limits is None:
            return
        if attempt.first_output_at:
            self._congestion.took(attempt.grant.model, "gap", attempt.longest_gap * 1000)
        else:
            self._took_to_begin(attempt, attempt.output_at)

    def _took_to_begin(self, attempt: Attempt, at: float) -> None:
        self._congestion.took(attempt.grant.model, "first", (at - attempt.started_at) * 1000)

    def _over(self, attempt: Attempt, measure: Measure, limit_ms: int) -> None:
        if attempt.limits is not None:
            self._congestion.took(attempt.grant.model, measure, limit_ms)

    def _words(self, limit_ms: int, attempt: Attempt, measure: Measure) -> str:
        """A limit, in no brackets: behind one operators may see nothing (`queues/logs/sentences.py`)."""
        configured = attempt.limits and self._settings.output_limits.get(attempt.grant.model)
        most = configured and (configured.first_output_ms if measure == "first" else configured.silence_ms)
        return f"{limit_ms} ms, tightened from {most} ms" if most and limit_ms < most else f"{limit_ms} ms"
