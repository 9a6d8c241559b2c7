"""`python -m bench.fairness.live [--only NAME …] [--minutes M] [--dry]`: the experiments end to end, next to the simulation.

Prints a table, writes it into RESULTS.md, and ends with 1 when a figure is further from the simulation's than it may be.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
from tests.contract.store.store import World
from tests.support.servers import redis_binary, running_server, valkey_binary

from bench.fairness.checks import Check
from bench.fairness.live_clients import Reading
from bench.fairness.live_experiments import (
    Experiment,
    Figure,
    Live,
    Scale,
    a_little_off,
    as_they_came,
    carry_out,
    figures,
    isolation,
    shares,
    simulated,
    waited,
    waited_in_store,
)
from bench.fairness.live_stack import running
from bench.fairness.live_watch import GATE
from bench.fairness.measures import percentile
from bench.fairness.report import check_table, put, table
from bench.fairness.simulator import Run

DOCUMENT = Path(__file__).with_name("RESULTS.md")
OFF = 5.0
"""Per cent that a figure may be off the simulation's."""
SPARE_SLOTS = 4
"""Of the workers, beyond the model's concurrency."""
MINUTES = 3.5
LONGER = 3
"""Factor of the length of the experiment whose largest waits count: the 99th percentile of few says little."""
REPLAYS = 5
"""Simulations of the requests as they came."""


class Compared(NamedTuple):
    """A figure end to end and in the simulation."""

    figure: Figure
    planned: float
    """In the simulation of the requests as they are planned."""
    replays: tuple[float, ...]
    """In those of the requests as they came, and again each a little off."""

    @property
    def simulated(self) -> float:
        """The mean of the replays, which the figure has to be near to."""
        return sum(self.replays) / len(self.replays)

    @property
    def scale(self) -> float:
        """What its deviation is a part of."""
        return self.figure.scale or self.simulated

    @property
    def off(self) -> float:
        """How far the figure is from the simulation's, per cent."""
        return 100 * (self.figure.value - self.simulated) / self.scale


def compare(experiment: Experiment, live: Live, planned: Run, world: World) -> list[Compared]:
    """All figures, in the order of `figures`."""
    came = as_they_came(experiment, live)
    runs = [planned, simulated(experiment, world, came)]
    runs += [simulated(experiment, world, a_little_off(came, seed)) for seed in range(1, REPLAYS)]
    own = figures(experiment, live.run, waited_in_store(live))
    of_runs = (figures(experiment, run, waited(run)) for run in runs)
    return [
        Compared(figure, before.value, tuple(replay.value for replay in replays))
        for figure, before, *replays in zip(own, *of_runs, strict=True)
    ]


def verdicts(experiment: Experiment, compared: Iterable[Compared]) -> Iterator[Check]:
    """Every figure within 5 % of the simulation's."""
    for one in compared:
        against = "the mean service time" if one.figure.scale else "it"
        what = f"{experiment.name}: {one.figure.name}, off the simulation's"
        yield Check(GATE, what, f"{one.off:+.2f} %", f"± {OFF:g} % of {against}", abs(one.off) <= OFF)


def told(experiment: Experiment, live: Live) -> Iterator[Check]:
    """`x-fairlane-waited-ms` of sync answers against the time from the caller's sending to the worker's beginning.

    The way through HTTP and WebSocket makes the second the longer one: by how much at the worst moments is the machine's matter.
    """
    begun = {record.number: record.begun_ns for record in live.ledger.records}
    more_ms = [
        (begun[call.number] - call.sent_ns) / 1e6 - call.waited_ms
        for call in live.ledger.calls
        if call.reading is Reading.SYNC and call.status == "completed"
    ]
    what = (
        f"{experiment.name}: callers' own measurement beyond x-fairlane-waited-ms, {len(more_ms):,} answers"
    )
    middle, limit = percentile(more_ms, 0.5), OFF / 100 * experiment.mean_service_s * 1000
    measured = f"{middle:.0f} ms (p95 {percentile(more_ms, 0.95):.0f} ms)"
    yield Check(GATE, f"{what}, median", measured, f"≤ {limit:g} ms", middle <= limit)
    yield Check(GATE, f"{what}, least", f"{min(more_ms):.1f} ms", "≥ -2 ms", min(more_ms) >= -2)


def compared_table(found: Mapping[str, Sequence[Compared]]) -> str:
    """Markdown of all figures."""

    def value(figure: Figure, amount: float) -> str:
        return f"{amount:.3f} {figure.unit}" if figure.unit else f"{amount:.4f}"

    return table(
        (
            "experiment",
            "figure",
            "simulated as planned",
            "simulated as it came (least – most)",
            "end to end",
            "off",
            "5 % are",
        ),
        (
            (
                name if n == 0 else "",
                one.figure.name,
                value(one.figure, one.planned),
                f"{value(one.figure, one.simulated)} ({value(one.figure, min(one.replays))} – "
                f"{value(one.figure, max(one.replays))})",
                value(one.figure, one.figure.value),
                f"{one.off:+.2f} %",
                value(one.figure, one.scale * OFF / 100),
            )
            for name, compared in found.items()
            for n, one in enumerate(compared)
        ),
    )


def experiments(minutes: float) -> dict[str, Experiment]:
    """All of them, by name."""
    one_size, many_sizes = (
        Scale(length_s=60 * minutes),
        Scale(token_us=40_000, length_s=60 * minutes, warm_up_s=15),
    )
    made = (
        isolation(one_size, flooded=False),
        isolation(replace(one_size, length_s=LONGER * one_size.length_s), flooded=True),
        shares(many_sizes, large_where_heavy=True),
        shares(many_sizes, large_where_heavy=False),
    )
    return {experiment.name: experiment for experiment in made}


def arguments(argv: list[str], names: Iterable[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness.live",
        description="Run the isolation and share experiments on real gateways, and compare them with the simulation.",
    )
    parser.add_argument("--only", nargs="+", choices=[*names], metavar="NAME", help="only these, no document")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="length of each experiment")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    return parser.parse_args(argv)


async def run_all(
    chosen: Sequence[Experiment], world: World
) -> tuple[dict[str, list[Compared]], list[Check]]:
    """Run the experiments one after another on one stack, and print each result immediately. `world` is for the simulations."""
    found: dict[str, list[Compared]] = {}
    checks: list[Check] = []
    planned = {experiment.name: simulated(experiment, world) for experiment in chosen}
    keys = {client: key for experiment in chosen for client, key in experiment.keys.items()}
    slots = max(experiment.scale.slots for experiment in chosen) + SPARE_SLOTS
    with tempfile.TemporaryDirectory(prefix="fairlane-live-", ignore_cleanup_errors=True) as folder:
        async with running(Path(folder), keys.values(), slots) as stack:
            for experiment in chosen:
                begun = time.monotonic()
                psutil.cpu_percent()
                live = await carry_out(stack, experiment)
                print(
                    f"\n{experiment.name}: {len(live.ledger.calls):,} calls in {time.monotonic() - begun:.0f} s, "
                    f"{live.slots.total / live.slots.samples:.2f} slots in use in the mean, "
                    f"the machine {psutil.cpu_percent():.0f} % busy"
                )
                compared = await asyncio.to_thread(compare, experiment, live, planned[experiment.name], world)
                found[experiment.name] = compared
                print(compared_table({experiment.name: compared}))
                own = [
                    *verdicts(experiment, compared),
                    *(told(experiment, live) if len(experiment.queues) == 1 else ()),
                    *live.ledger.checks(experiment.name, live.slots),
                ]
                for check in own:
                    verdict = "pass" if check.passed else "FAIL"
                    print(f"{verdict}  {check.what}: {check.measured} ({check.limit})", flush=True)
                checks += own
    return found, checks


def main(argv: list[str]) -> int:
    every = experiments(MINUTES)
    given = arguments(argv, every)
    if not 0.3 <= given.minutes <= 60:
        print("--minutes must be from 0.3 to 60", file=sys.stderr)
        return 2
    chosen = [
        experiment for name, experiment in experiments(given.minutes).items() if name in (given.only or every)
    ]
    binary = redis_binary() or valkey_binary()
    if binary is None:
        print("neither redis-server nor Valkey is installed", file=sys.stderr)
        return 2
    with running_server(binary) as server:
        world = World(server.socket_path)
        found, checks = asyncio.run(run_all(chosen, world))
        world.close()
    if not (given.only or given.dry):
        document = put(DOCUMENT.read_text(), "live", compared_table(found))
        DOCUMENT.write_text(put(document, "live-checks", check_table(checks)))
    failed = sum(not check.passed for check in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
