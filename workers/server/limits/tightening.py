"""How long a model may be silent while others wait for it: a limit between two bounds that tightens as its queue grows. Pure.

    rho    = clamp((wait - from) / (to - from), 0, 1)
    target = clamp(max(1.5 * p99, most - rho * (most - least)), least, most)

`wait` is the wait of a task that is submitted now, `p99` the time of the answers' 99th percentile.
In each round the limit moves towards the target, by a fifth of itself at most: no single look at the queue decides much.

The ramp between two thresholds is RED's (Floyd, Jacobson: Random Early Detection Gateways for Congestion Avoidance, 1993), over
a wait and not a length, as in CoDel (Nichols, Jacobson: Controlling Queue Delay, 2012). That a limit stays above a percentile of
what is measured is AWS's advice (Builders' Library: Timeouts, retries, and backoff with jitter); 1.5 is the tolerance of
Netflix's concurrency-limits (Gradient2Limit).

An attempt that a limit ended counts as one that took as long as the limit. So if a tightened limit ends more than one in a
hundred, p99 is that limit, the target half as much again, and the limit goes up: it cannot tighten itself to the bottom.
"""

import enum
from dataclasses import dataclass

from fairlane.workers.server.limits.answers import Answers

TOLERANCE = 1.5
STEP = 0.2
"""The part of the limit by which it moves in a round, at most."""
FEWEST_ANSWERS = 50
"""With fewer it is unknown what is safe."""


class Why(enum.StrEnum):
    """The reason of a limit, or of its movement."""

    FIXED = "fixed"
    """It follows nothing: no lower bound is configured."""
    SHORT_QUEUE = "short_queue"
    LONG_QUEUE = "long_queue"
    ANSWERS = "answers"
    """The queue would tighten it further, but answers take longer."""
    FEW_ANSWERS = "few_answers"
    """The queue is long, but too few answers are known."""
    PAUSED = "paused"
    """The model is stopped; it begins nothing, so no task is served sooner."""
    COOLDOWN = "cooldown"
    THROTTLED = "throttled"
    NO_WORKER = "no_worker"
    BREAKER = "breaker_open"
    """The breakers of all its upstreams are open."""
    UNKNOWN = "unknown"
    """How long the queue makes wait: the store does not answer, or has seen too little."""


STOPPED = {why.value: why for why in (Why.PAUSED, Why.COOLDOWN, Why.THROTTLED, Why.NO_WORKER, Why.BREAKER)}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a limit, ms."""

    least: int
    most: int

    def clamp(self, ms: float) -> float:
        return min(max(ms, self.least), self.most)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Waits (ms) between which limits tighten; the second is the larger one."""

    from_ms: int
    to_ms: int

    def part(self, wait_ms: float) -> float:
        """How far to tighten: from 0, not at all, to 1, as far as may be."""
        return min(max((wait_ms - self.from_ms) / (self.to_ms - self.from_ms), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class EffectiveLimit:
    """A limit in effect, and its target; ms."""

    ms: float
    target_ms: float
    why: Why
    p99_ms: float | None = None
    """None: not known."""
    answers: int = 0
    """Answers whose time is known."""


def target(
    bounds: Bounds, ramp: Ramp, stopped: Why | None, wait_ms: float | None, answers: Answers
) -> tuple[float, Why]:
    """Where a limit should go. Whatever is not known relaxes it.

    1 The model begins nothing (`stopped`): no task is served sooner by ending attempts earlier. 2 It is unknown how long the
    queue makes wait. 3 No task waits for long. 4 Too few answers are known. 5 The time of answers, if it is longer than 6 the
    target of the ramp.
    """
    if stopped is not None:  # 1
        return bounds.most, stopped
    if wait_ms is None:  # 2
        return bounds.most, Why.UNKNOWN
    part = ramp.part(wait_ms)
    if part == 0:  # 3
        return bounds.most, Why.SHORT_QUEUE
    p99 = answers.p99_ms
    if p99 is None or answers.number < FEWEST_ANSWERS:  # 4
        return bounds.most, Why.FEW_ANSWERS
    ramped = bounds.most - part * (bounds.most - bounds.least)
    safe = TOLERANCE * p99
    return bounds.clamp(max(safe, ramped)), Why.ANSWERS if safe > ramped else Why.LONG_QUEUE  # 5, 6


def step(ms: float, target_ms: float) -> float:
    """The limit after one more round."""
    return min(max(target_ms, ms * (1 - STEP)), ms * (1 + STEP))


def follow(
    ms: float, bounds: Bounds, ramp: Ramp, stopped: Why | None, wait_ms: float | None, answers: Answers
) -> EffectiveLimit:
    """Return the limit of the next round, given `ms` in this one. Newly configured bounds apply immediately."""
    target_ms, why = target(bounds, ramp, stopped, wait_ms, answers)
    return EffectiveLimit(step(bounds.clamp(ms), target_ms), target_ms, why, answers.p99_ms, answers.number)
