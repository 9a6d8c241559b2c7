"""The limits in effect on the silence of models whose limits follow their queues: looked at again every ROUND_S.

Each replica does so by itself, and all read the same: the wait and the answers are the whole store's. So where these stand still
all come to the same limits. While they move, two replicas look at them up to a round apart, and their limits differ by a step (a
fifth) and by what a wait can change in a round. One that has just started begins with what is configured at most, and is with the
others when it has made the same way: a tenth of it in eleven rounds.

While the store does not answer, nothing is known of the queue, so limits relax, a step in each round; what was measured meanwhile
is reported when it is back.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.load import ModelLoad
from fairlane.queues.loops import cancel_and_wait, run_periodically
from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.limits.answers import Answers, Measure, name_of
from fairlane.workers.server.limits.tightening import STOPPED, Bounds, EffectiveLimit, Ramp, Why, follow
from fairlane.workers.server.settings import DispatchSettings, OutputLimits

log = structlog.get_logger("fairlane.workers")

ROUND_S = 5.0
PERIOD_MS = 600_000
"""Length of a period in which answers are counted together; those of two to three periods show what is safe."""
MAX_CONCURRENT = 50
"""Models that the store is asked about in one write, so that others are served between."""
NOTHING_KNOWN = ModelLoad("", None, {})


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for attempts of a model that begin now; None: no limit."""

    first_output: EffectiveLimit | None
    silence: EffectiveLimit | None
    wait_ms: int | None = None
    """How long its queue makes wait, as it was last looked at. None: not known, or nothing follows it."""


@dataclass(slots=True)
class _Status:
    """The limits of one model."""

    configured: OutputLimits
    limits: ModelLimits
    held: OutputLimits
    """The same as attempts keep them from their grant on."""
    seen: Counter[str] = field(default_factory=Counter)
    """Answers here that are not in the store yet; as many names as there are bins, at most."""


class Congestion:
    """See the module. `start` begins it, `close` ends it; a round that fails is made again."""

    def __init__(self, scheduler: Scheduler, settings: DispatchSettings) -> None:
        self._scheduler = scheduler
        self._settings = settings
        self._statuses: dict[str, _Status] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = run_periodically("dispatch-congestion", ROUND_S, self.look)

    async def close(self) -> None:
        """End."""
        await cancel_and_wait(self._task)

    # ---- calls by other parts ----------

    def held(self, model: str) -> OutputLimits | None:
        """What an attempt that begins now keeps to its end; None: its model's limits do not follow its queue."""
        status = self._statuses.get(model)
        return status.held if status else None

    def took(self, model: str, measure: Measure, ms: float) -> None:
        """Count an answer that took this long here, or was ended after this time."""
        if status := self._statuses.get(model):
            status.seen[name_of(measure, ms)] += 1

    def effective_limits(self) -> dict[str, ModelLimits]:
        """Return the limits in effect by model, of models with a limit."""
        found = {}
        for model, configured in self._settings.output_limits.items():
            status = self._statuses.get(model)
            if status is not None and configured.follows:
                found[model] = status.limits
            else:
                found[model] = ModelLimits(
                    _fixed(configured.first_output_ms), _fixed(configured.silence_ms), None
                )
        return found

    # ---- rounds ----------

    async def look(self) -> None:
        """One round: read how long the queues are that limits follow, and move these by a step. Nothing where none does."""
        following = {name: limits for name, limits in self._settings.output_limits.items() if limits.follows}
        for name in self._statuses.keys() - following.keys():
            del self._statuses[name]
        for name, configured in following.items():
            status = self._statuses.get(name)
            if status is None or status.configured != configured:
                self._statuses[name] = _reconfigured(configured, status)
        names = list(following)
        for at in range(0, len(names), MAX_CONCURRENT):
            some = names[at : at + MAX_CONCURRENT]
            found = await asyncio.gather(*(self._read(name) for name in some))
            for name, load in zip(some, found, strict=True):
                self._move(name, load)

    async def _read(self, name: str) -> ModelLoad:
        status = self._statuses[name]
        counted, status.seen = status.seen, Counter()
        try:
            return await self._scheduler.model_load(name, PERIOD_MS, counted)
        except StoreError:
            status.seen.update(counted)
            return NOTHING_KNOWN

    def _move(self, name: str, load: ModelLoad) -> None:
        status = self._statuses[name]
        configured, before = status.configured, status.limits
        stopped, ramp = (
            STOPPED.get(load.stopped),
            Ramp(configured.tightens_from_ms, configured.tightens_to_ms),
        )

        def moved(
            limit: EffectiveLimit | None, bounds: Bounds | None, measure: Measure
        ) -> EffectiveLimit | None:
            if limit is None or bounds is None:
                return limit
            answers = Answers.of(measure, load.answers)
            return follow(limit.ms, bounds, ramp, stopped, load.wait_ms, answers)

        status.limits = ModelLimits(
            moved(before.first_output, _bounds_of_first(configured), "first"),
            moved(before.silence, _bounds_of_silence(configured), "gap"),
            load.wait_ms,
        )
        status.held = _held(status)
        _log_change(name, before, status)


def _reconfigured(configured: OutputLimits, before: _Status | None) -> _Status:
    """Return the state of a model with new bounds: limits within them stay."""

    def begun(bounds: Bounds | None, most: int | None, limit: EffectiveLimit | None) -> EffectiveLimit | None:
        if most is None or bounds is None:
            return _fixed(most)
        at = bounds.clamp(limit.ms) if limit is not None and limit.why is not Why.FIXED else bounds.most
        return EffectiveLimit(at, bounds.most, Why.UNKNOWN)

    was = before.limits if before else ModelLimits(None, None)
    limits = ModelLimits(
        begun(_bounds_of_first(configured), configured.first_output_ms, was.first_output),
        begun(_bounds_of_silence(configured), configured.silence_ms, was.silence),
    )
    status = _Status(configured, limits, configured, before.seen if before else Counter())
    status.held = _held(status)
    return status


def _held(status: _Status) -> OutputLimits:
    first, silence = status.limits.first_output, status.limits.silence
    return replace(
        status.configured,
        first_output_ms=round(first.ms) if first else None,
        silence_ms=round(silence.ms) if silence else None,
    )


def _fixed(ms: int | None) -> EffectiveLimit | None:
    return None if ms is None else EffectiveLimit(ms, ms, Why.FIXED)


def _bounds_of_first(limits: OutputLimits) -> Bounds | None:
    return _bounds(limits.first_output_least_ms, limits.first_output_ms)


def _bounds_of_silence(limits: OutputLimits) -> Bounds | None:
    return _bounds(limits.silence_least_ms, limits.silence_ms)


def _bounds(least: int | None, most: int | None) -> Bounds | None:
    return Bounds(least, most) if least is not None and most is not None else None


def _log_change(name: str, before: ModelLimits, status: _Status) -> None:
    """A line when limits of a model begin to tighten, and when they are all back."""

    def tight(limits: ModelLimits) -> bool:
        most = (status.configured.first_output_ms, status.configured.silence_ms)
        both = zip((limits.first_output, limits.silence), most, strict=True)
        return any(limit is not None and at is not None and limit.ms < at for limit, at in both)

    was, now = tight(before), tight(status.limits)
    if was != now:
        log.info(
            "a model's time limits tighten, as its queue is long"
            if now
            else "a model's time limits are back",
            model=name,
            wait_ms=status.limits.wait_ms,
            first_output_ms=status.held.first_output_ms,
            silence_ms=status.held.silence_ms,
        )
