"""Tricks that would pay under a naive rule. Nine honest users and one who tries: what does the trick gain?

All ten always wait. The measure is service after the first minute, the one's against the mean of the honest ones'. It may exceed
that by one request of each, which is the bound of start-time fair queueing for two flows at any instant: a bound that does not
grow with time, so no trick changes the share.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from bench.fairness.checks import ONE_QUEUE, Check, Maker, at_most
from bench.fairness.measures import cost, service
from bench.fairness.simulator import SECOND, SLOTS, Request, Task, simulate

HONEST = 9
TOKENS_IN, TOKENS_OUT = 64, 256
CHEAT = "cheat"


@dataclass(frozen=True)
class Trick:
    """What one user does differently."""

    name: str
    request: Request
    times: int = 1
    """Requests of a cheating user, as a multiple of an honest user's."""
    again: bool = False
    """Each cancelled one is sent again."""


PLAIN = Request(0, CHEAT, TOKENS_IN, TOKENS_OUT)
TRICKS = (
    Trick("floods", PLAIN, times=10),
    Trick("says max_tokens 1", replace(PLAIN, max_output=1)),
    Trick("says max_tokens 100,000", replace(PLAIN, max_output=100_000)),
    Trick("cancels what waits and sends it again", replace(PLAIN, patience_us=3 * SECOND), again=True),
    Trick("cancels before the end and sends again", replace(PLAIN, stop_after=TOKENS_OUT - 1), again=True),
    Trick("holds streams open: ten times as long", replace(PLAIN, output=10 * TOKENS_OUT)),
    Trick("sends crumbs: a sixteenth as long", replace(PLAIN, output=TOKENS_OUT // 16), times=20),
    Trick("marks everything as urgent", replace(PLAIN, priority=5)),
)


@dataclass(frozen=True)
class Gain:
    """What a trick brought: service of the one and of an honest user, and what it may differ by."""

    trick: str
    own: float
    honest: float
    bound: float

    @property
    def percent(self) -> float:
        return 100 * (self.own / self.honest - 1)


def play(make: Maker, trick: Trick, length_s: int = 900) -> Gain:
    """Run a trick among nine honest users."""
    each = int(1.4 * SLOTS * length_s / (TOKENS_OUT * 0.045) / (HONEST + 1))
    requests = [
        Request(0, f"user {n + 1}", TOKENS_IN, TOKENS_OUT) for _ in range(each) for n in range(HONEST)
    ]
    requests += [trick.request] * (trick.times * each)
    random.Random(13).shuffle(requests)  # the order of arrival at the beginning

    def again(task: Task) -> Iterable[Request]:
        return [task.request] if trick.again and task.cancelled else []

    run = simulate(make(SLOTS, ONE_QUEUE), requests, until_us=length_s * SECOND, after=again)
    got = service(run, 60 * SECOND, length_s * SECOND)
    honest = [got[client] for client in got if client != CHEAT]
    largest: dict[bool, int] = {}
    for task in run.tasks:
        largest[task.client == CHEAT] = max(largest.get(task.client == CHEAT, 0), cost(task))
    return Gain(trick.name, got[CHEAT], sum(honest) / len(honest), sum(largest.values()))


def gaming(fairlane: Maker, length_s: int = 900) -> Iterator[Check]:
    """No trick brings more than the bound."""
    return verdicts(play(fairlane, trick, length_s) for trick in TRICKS)


def verdicts(gains: Iterable[Gain]) -> Iterator[Check]:
    """The checks of what was played."""
    for gain in gains:
        what = f"who {gain.trick}: service beyond an honest user's"
        yield at_most("5 gaming", what, gain.own - gain.honest, gain.bound)
