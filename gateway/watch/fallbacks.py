"""Lines in the log of tasks that went on to another model: for each pair of models the first one at once, then one a minute."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger("fairlane.tasks")

AGAIN_S = 60.0


@dataclass(slots=True)
class _Pair:
    since: float
    told_at: float
    all: int = 0
    untold: Counter[str] = field(default_factory=Counter)


class Fallbacks:
    """What went on from which model to which. Pairs are those of the configuration, and forgotten when nothing goes on any more.
    `now` in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._pairs: dict[tuple[str, str], _Pair] = {}

    def fell(self, model: str, other: str, cause: str, number: int) -> None:
        """So many tasks went on from a model to another one."""
        now = self._now()
        pair = self._pairs.get((model, other))
        if pair is None:
            pair = self._pairs[model, other] = _Pair(now, now)
            _tell(model, other, {cause: number}, 0)
        else:
            pair.untold[cause] += number
        pair.all += number

    def add_up(self) -> None:
        """Write how many went on since the line before, where that is a minute ago, or that none did. Call it now and then."""
        now = self._now()
        for (model, other), pair in list(self._pairs.items()):
            if now - pair.told_at < AGAIN_S:
                continue
            if pair.untold:
                _tell(model, other, dict(pair.untold), now - pair.since)
                pair.told_at = now
                pair.untold.clear()
            else:
                del self._pairs[model, other]
                log.info("no more tasks go on to another model", model=model, to=other, tasks=pair.all)


def _tell(model: str, other: str, causes: dict[str, int], since_s: float) -> None:
    """A line. `since_s`: how long ago the first one was."""
    log.warning(
        "tasks go on to another model",
        model=model,
        to=other,
        tasks=sum(causes.values()),
        causes=causes,
        since_s=round(since_s),
    )
