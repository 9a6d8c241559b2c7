"""Time limits on a model's silence that follow its queue: the longer new tasks wait, the sooner a silent worker is given up.

`adaptive_timeouts` of a model switches it on. Each replica reads the model's expected wait every ROUND_S. Up to SHORT_MS of it
the configured limits hold; from there to LONG_MS they fall in a straight line to LEAST of themselves. The ramp between two
thresholds is RED's (Floyd, Jacobson: Random Early Detection Gateways for Congestion Avoidance, 1993), over a wait and not a
length, as in CoDel (Nichols, Jacobson: Controlling Queue Delay, 2012).

Where ending attempts serves no task sooner, as the model starts none, and where the wait is unknown, the configured limits hold.
"""

import asyncio
from dataclasses import dataclass

from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.load import ModelLoad
from fairlane.queues.loops import Periodic
from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.settings import DispatchSettings, OutputLimits

ROUND_S = 5.0
SHORT_MS, LONG_MS = 2_000, 20_000
LEAST = 0.25
MAX_CONCURRENT = 50
"""Models that the store is asked about in one write, so that others are served between."""
UNKNOWN = ModelLoad("unknown", None)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for attempts of a model that begin now, ms; None: no limit."""

    first_output_ms: int | None
    silence_ms: int | None
    reason: str = "fixed"
    """`fixed`: not adaptive. `short_queue`: the configured limits. `long_queue`: reduced. Else why they are not reduced."""
    wait_ms: int | None = None
    """The expected wait of a new task. None: unknown, or the limits do not follow it."""


def limits_at(configured: OutputLimits, load: ModelLoad) -> ModelLimits:
    """Return the limits of a model with adaptive limits under this load."""
    first, silence, wait = configured.first_output_ms, configured.silence_ms, load.wait_ms
    if load.stopped or wait is None:
        return ModelLimits(first, silence, load.stopped or "unknown", wait)
    ramp = min(max((wait - SHORT_MS) / (LONG_MS - SHORT_MS), 0.0), 1.0)
    part = 1 - ramp * (1 - LEAST)
    first, silence = (None if ms is None else round(ms * part) for ms in (first, silence))
    return ModelLimits(first, silence, "long_queue" if ramp else "short_queue", wait)


class Congestion(Periodic):
    """See the module. `start` begins it, `close` ends it."""

    name = "dispatch-congestion"
    interval_s = ROUND_S

    def __init__(self, scheduler: Scheduler, settings: DispatchSettings) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._loads: dict[str, ModelLoad] = {}

    def limits_of(self, model: str) -> ModelLimits | None:
        """Return the limits of attempts that begin now; None: the model has none."""
        configured = self._settings.output_limits.get(model)
        if configured is None:
            return None
        if not configured.adaptive:
            return ModelLimits(configured.first_output_ms, configured.silence_ms)
        return limits_at(configured, self._loads.get(model, UNKNOWN))

    def effective_limits(self) -> dict[str, ModelLimits]:
        """Return the limits in effect by model, of models with a limit."""
        return {model: limits for model in self._settings.output_limits if (limits := self.limits_of(model))}

    async def step(self) -> None:
        """Read the load of the models whose limits follow their queues."""
        names = [name for name, limits in self._settings.output_limits.items() if limits.adaptive]
        loads: list[ModelLoad] = []
        for at in range(0, len(names), MAX_CONCURRENT):
            loads += await asyncio.gather(*(self._read(name) for name in names[at : at + MAX_CONCURRENT]))
        self._loads = dict(zip(names, loads, strict=True))

    async def _read(self, name: str) -> ModelLoad:
        try:
            return await self._scheduler.model_load(name)
        except StoreError:
            return UNKNOWN
