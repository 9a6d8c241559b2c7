"""`python -m bench.fairness.live_waits`: the estimated waits of real gateways against the real ones.

Four loads at the same time, each on a model of its own. Prints a table, and writes it into RESULTS.md.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.fairness.checks import ONE_QUEUE, TIERS
from bench.fairness.live_clients import Reading, clients
from bench.fairness.live_experiments import Arrival, Experiment, Scale, as_run
from bench.fairness.live_stack import Stack, running
from bench.fairness.report import honesty_table, put
from bench.fairness.shares import lognormal
from bench.fairness.simulator import SECOND, Request
from bench.fairness.waiting import Honesty, honesty

DOCUMENT = Path(__file__).with_name("RESULTS.md")
SECONDS = 75.0
DRAIN_S = 60.0
SPARE_SLOTS = 4
TOKEN_US, TOKENS_IN, TOKENS_OUT = 20_000, 64, 25
USERS = 5
"""Of each queue."""


@dataclass(frozen=True)
class Load:
    """The arrivals of users. Times are parts of the experiment, 0 to 1; rates multiples of what the slots can do."""

    name: str
    about: str
    slots: int
    rate: Callable[[float], float]
    size: Callable[[float], float] = lambda at: 1.0  # noqa: ARG005
    """How many times the usual length answers are in the mean."""
    bursts: int = 0
    """How often one user sends six seconds of work in one burst."""
    queues: Sequence[str] = tuple(TIERS)


LOADS = (
    Load("steady", "four queues, 95 % of what the slots can do", 6, lambda at: 0.95),  # noqa: ARG005
    Load(
        "changing",
        "four queues, 30 % and 170 % in turns, answers twice as long from the middle on",
        6,
        lambda at: (0.3, 1.7)[int(8 * at) % 2] / (1 if at < 0.5 else 2),
        lambda at: 1 if at < 0.5 else 2,
    ),
    Load(
        "bursts",
        "one queue, 50 %, and six bursts of one user",
        4,
        lambda at: 0.5,  # noqa: ARG005
        bursts=6,
        queues=tuple(ONE_QUEUE),
    ),
    Load("growing", "one queue, from 50 % to 150 %", 4, lambda at: 0.5 + at, queues=tuple(ONE_QUEUE)),
)


def experiment(load: Load, seconds: float, seed: int = 11) -> Experiment:
    """The tasks of a load: at random times, of random lengths, of users in turn."""
    rng = random.Random(f"{load.name} {seed}")
    service_s = TOKENS_OUT * TOKEN_US / SECOND
    capacity = load.slots / service_s

    def request(at_s: float, queue: str, user: int) -> Arrival:
        length = lognormal(rng, TOKENS_OUT * load.size(at_s / seconds))
        client = f"{load.name}-{queue.replace('_', '-')}-{user}"
        sent = Request(round(at_s * SECOND), client, TOKENS_IN, length, queue=queue, token_us=TOKEN_US)
        return sent, Reading.LATER

    arrivals = []
    most, at = 2.0, 0.0
    while (at := at + rng.expovariate(most * capacity)) < seconds:
        if rng.random() * most < load.rate(at / seconds):
            arrivals.append(request(at, rng.choice(load.queues), rng.randrange(USERS)))
    for n in range(load.bursts):
        begin = (n + 0.5) / load.bursts * seconds
        arrivals += [request(begin, load.queues[0], n % USERS) for _ in range(round(6 * capacity))]
    arrivals.sort(key=lambda arrival: arrival[0].at_us)
    scale = Scale(load.slots, TOKEN_US, seconds)
    return Experiment(
        load.name, load.about, scale, arrivals, {name: TIERS[name] for name in load.queues}, service_s
    )


async def carry_out(stack: Stack, one: Experiment) -> Honesty:
    """Send an experiment's tasks, wait for all of them, and compare each estimate with the wait."""
    await stack.set(one.name, concurrency=one.scale.slots)
    async with clients(stack.urls, one.keys, one.name) as callers:
        await callers.send(one.arrivals)
        await callers.answered(callers.calls, DRAIN_S)
        failed = [call.status for call in callers.calls if call.status != "completed"]
        if failed:
            raise RuntimeError(f"{one.name}: {len(failed)} calls of {len(callers.calls)}: {failed[0]}")
        return honesty([as_run(callers.calls, stack.records(one.name), callers.began_ns)])


async def run_all(experiments: Sequence[Experiment]) -> list[Honesty]:
    """All experiments at the same time, on one stack."""
    keys = {client: key for one in experiments for client, key in one.keys.items()}
    slots = sum(one.scale.slots for one in experiments) + SPARE_SLOTS
    with tempfile.TemporaryDirectory(prefix="fairlane-waits-", ignore_cleanup_errors=True) as folder:
        async with running(Path(folder), keys.values(), slots) as stack:
            return await asyncio.gather(*(carry_out(stack, one) for one in experiments))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness.live_waits")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of the experiments")
    parser.add_argument("--seed", type=int, default=11, help="of the random times and lengths")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args(argv)
    experiments = [experiment(load, given.seconds, given.seed) for load in LOADS]
    found = asyncio.run(run_all(experiments))
    table = honesty_table({one.about: told for one, told in zip(experiments, found, strict=True)})
    print(table)
    if not given.dry:
        DOCUMENT.write_text(put(DOCUMENT.read_text(), "live-waiting", table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
