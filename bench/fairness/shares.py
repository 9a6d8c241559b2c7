"""Do tokens follow the weights, whatever the sizes of the requests? And are equal users equal?"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from bench.fairness.checks import ONE_QUEUE, TIERS, Check, Maker, at_least, at_most
from bench.fairness.measures import cost, jain, service
from bench.fairness.simulator import SECOND, SLOTS, Request, simulate

GATE = "2 shares"
SIZES = (100, 200, 400, 800)
LAYOUTS = {"large where heavy": SIZES[::-1], "large where light": SIZES}
SPREAD = 0.5
"""Deviation of the logarithm of a request's length."""


def lognormal(rng: random.Random, mean: float) -> int:
    """A random length with this mean."""
    return max(round(mean * rng.lognormvariate(-(SPREAD**2) / 2, SPREAD)), 1)


def backlog(sizes: Mapping[str, int], dispatches: int, rng: random.Random) -> list[Request]:
    """More requests than are needed, all there from the beginning, of five users per queue."""
    per_token = {queue: TIERS[queue] / size for queue, size in sizes.items()}
    requests = []
    for queue, size in sizes.items():
        count = int(1.3 * dispatches * per_token[queue] / sum(per_token.values())) + 60
        requests += [Request(0, f"user {n % 5}", 0, lognormal(rng, size), queue=queue) for n in range(count)]
    rng.shuffle(requests)
    return requests


def shares(
    fairlane: Maker, dispatches: int = 5000, layouts: Iterable[str] = tuple(LAYOUTS)
) -> Iterator[Check]:
    """Weights 8:4:2:1, sizes up to eight times apart, once the large ones where the weight is, once where it is not.

    The limit is 1 % of the share; or two of the queue's largest requests, one that runs and one to be settled, where these are
    more: the lightest queue with the largest requests gets sixty of the 5,000.
    """
    for layout in layouts:
        requests = backlog(dict(zip(TIERS, LAYOUTS[layout], strict=True)), dispatches, random.Random(7))
        run = simulate(fairlane(SLOTS, TIERS), requests, dispatches=dispatches)
        got: Counter[str] = Counter()
        largest: Counter[str] = Counter()
        for task in run.granted():
            got[task.request.queue] += cost(task)
            largest[task.request.queue] = max(largest[task.request.queue], cost(task))
        for queue, weight in TIERS.items():
            due = got.total() * weight / sum(TIERS.values())
            limit = max(1.0, 200 * largest[queue] / due)
            off = 100 * abs(got[queue] / due - 1)
            yield at_most(
                GATE, f"{layout}: {queue} off its share after {dispatches:,} dispatches", off, limit, " %"
            )


def equal_users(fairlane: Maker, length_s: int = 900) -> Iterator[Check]:
    """Ten users of one queue who always wait, with lengths up to eight times apart: Jain's index over their service."""
    rng = random.Random(11)
    requests = []
    for n in range(10):
        size = SIZES[n % len(SIZES)]
        count = int(1.5 * SLOTS * length_s / (0.045 * size) / 10)
        requests += [Request(0, f"user {n}", 50, lognormal(rng, size)) for _ in range(count)]
    rng.shuffle(requests)
    run = simulate(fairlane(SLOTS, ONE_QUEUE), requests, until_us=length_s * SECOND)
    granted = Counter(task.client for task in run.granted())
    got = service(run, 0, length_s * SECOND)
    often = [got[client] for client, count in granted.items() if count >= 50]
    yield at_least(
        "3 isolation", f"Jain's index over the {len(often)} users with 50 dispatches", jain(often), 0.99
    )
