"""Nine users who use 57 % of the server, alone and next to one who floods it with five times what it can do."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from bench.fairness.checks import ONE_QUEUE, Check, Maker, at_most
from bench.fairness.measures import percentile
from bench.fairness.shares import lognormal
from bench.fairness.simulator import SECOND, SLOTS, TOKEN_US, Request, simulate

TOKENS_IN, TOKENS_OUT = 100, 189
SERVICE_S = TOKENS_OUT * TOKEN_US / SECOND
"""Mean service time, 8.5 s."""
CAPACITY = SLOTS / SERVICE_S
"""Requests per second."""
VICTIMS = 9
LOAD, FLOOD = 0.57, 5.0
LENGTH_S = 900


@dataclass(frozen=True)
class Waits:
    """The victims' waits, s."""

    median: float
    p99: float


def victims(length_s: float, seed: int) -> list[Request]:
    """Nine users who send at random."""
    rng = random.Random(seed)
    requests = []
    for n in range(VICTIMS):
        at = 0.0
        while (at := at + rng.expovariate(LOAD * CAPACITY / VICTIMS)) < length_s:
            requests.append(
                Request(round(at * SECOND), f"victim {n + 1}", TOKENS_IN, lognormal(rng, TOKENS_OUT))
            )
    return requests


def flood(length_s: float, seed: int) -> list[Request]:
    """One user who sends at an even rate, five times what the server can do."""
    rng = random.Random(seed)
    gap = SECOND / (FLOOD * CAPACITY)
    return [
        Request(round(n * gap), "flooder", TOKENS_IN, lognormal(rng, TOKENS_OUT))
        for n in range(int(length_s * SECOND / gap))
    ]


def waits(make: Maker, length_s: float, *, flooded: bool) -> Waits:
    """What the victims wait, with or without the flooder."""
    requests = victims(length_s, 5) + (flood(length_s, 6) if flooded else [])
    requests.sort(key=lambda request: request.at_us)
    run = simulate(make(SLOTS, ONE_QUEUE), requests, until_us=round((length_s + 120) * SECOND))
    waited = [task.wait_us / SECOND for task in run.granted() if task.client != "flooder"]
    return Waits(percentile(waited, 0.5), percentile(waited, 0.99))


def isolation(fairlane: Maker, length_s: float = LENGTH_S) -> Iterator[Check]:
    """The victims' p99 wait grows by at most one mean service time."""
    alone, flooded = (waits(fairlane, length_s, flooded=flooded) for flooded in (False, True))
    what = "growth of the victims' p99 wait next to a flooder"
    yield at_most("3 isolation", what, flooded.p99 - alone.p99, SERVICE_S, " s")
