"""`python -m bench.fairness.live [--only NAME …] [--minutes M] [--dry]`: the experiments end to end, beside the simulation.

Prints a table, writes it into docs/fairness.md, and ends with 1 when a figure is further from the simulation's than it may be.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from tests.support.direct import World
from tests.support.servers import redis_binary, running_server, valkey_binary

from bench.fairness.checks import Check, at_least, at_most
from bench.fairness.live_clients import Reading
from bench.fairness.live_experiments import (
    Experiment,
    Figure,
    Live,
    Scale,
    carry_out,
    figures,
    isolation,
    replays,
    shares,
)
from bench.fairness.live_stack import NoStore, running
from bench.fairness.live_watch import GATE
from bench.fairness.measures import percentile
from bench.fairness.report import check_table, put, table
from bench.fairness.simulator import Run

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "fairness.md"
OFF = 5.0
"""Per cent that a figure may be off the simulation's."""
SPARE_SLOTS = 4
"""Of the workers, beyond the model's concurrency."""
MINUTES = 3.5


class Compared(NamedTuple):
    """A figure end to end and in the simulation."""

    figure: Figure
    simulated: Sequence[float]
    """In each replay."""

    @property
    def middle(self) -> float:
        return sum(self.simulated) / len(self.simulated)

    @property
    def off(self) -> float:
        """How far the live figure is from the mean of the replays', per cent of what the figure is measured against."""
        return 100 * (self.figure.value - self.middle) / (self.figure.scale or self.middle)

    @property
    def beyond(self) -> float:
        """The same, from the nearest of the replays; 0 among them."""
        value, least, most = self.figure.value, min(self.simulated), max(self.simulated)
        return 100 * (value - min(max(value, least), most)) / (self.figure.scale or self.middle)


def compare(experiment: Experiment, live: Live, simulated: Sequence[Run]) -> list[Compared]:
    """All figures of an experiment."""
    found = [list(figures(experiment, run)) for run in simulated]
    return [
        Compared(figure, [run[n].value for run in found])
        for n, figure in enumerate(figures(experiment, live.run, live))
    ]


def verdicts(experiment: Experiment, compared: Iterable[Compared]) -> Iterator[Check]:
    """Every figure within its 5 % of the simulation's replays."""
    for one in compared:
        against = "of the mean service time" if one.figure.scale else "of it"
        yield Check(
            GATE,
            f"{experiment.name}: {one.figure.name}, off the simulation's replays",
            f"{one.beyond:+.2f} %",
            f"± {OFF:g} % {against}",
            abs(one.beyond) <= OFF,
        )


def waits_told(experiment: Experiment, live: Live) -> Iterator[Check]:
    """`x-fairlane-waited-ms` of sync answers against the time from the caller's sending to the worker's beginning."""
    begun = {record.number: record.begun_ns for record in live.ledger.records}
    off_ms = [
        (begun[call.number] - call.sent_ns) / 1e6 - call.waited_ms
        for call in live.ledger.calls
        if call.reading is Reading.SYNC and call.status == "completed"
    ]
    limit = OFF / 100 * experiment.mean_service_s * 1000
    what = (
        f"{experiment.name}: x-fairlane-waited-ms below the caller's own measurement, {len(off_ms):,} answers"
    )
    yield at_most(GATE, f"{what}, median", percentile(off_ms, 0.5), limit, " ms")
    yield at_most(GATE, f"{what}, p95", percentile(off_ms, 0.95), limit, " ms")
    yield at_least(GATE, f"{what}, least (ms)", min(off_ms), -2)


def growth(found: Mapping[str, Sequence[Compared]], mean_service_s: float) -> Iterator[Check]:
    """The victims' p99 wait grows by at most one mean service time, end to end too."""
    alone, flooded = (found[name][1].figure.value for name in ("isolation-alone", "isolation-flooded"))
    what = "growth of the victims' p99 wait beside a flooder, end to end"
    yield at_most(GATE, what, flooded - alone, mean_service_s, " s")


def compared_table(found: Mapping[str, Sequence[Compared]]) -> str:
    """Markdown of all figures."""

    def value(figure: Figure, amount: float) -> str:
        return f"{amount:.4f}" if not figure.unit else f"{amount:.3f} {figure.unit}"

    return table(
        (
            "experiment",
            "figure",
            "simulation (least – most)",
            "end to end",
            "off the mean",
            "off the nearest",
            "5 % are",
        ),
        (
            (
                name if n == 0 else "",
                one.figure.name,
                f"{value(one.figure, one.middle)} "
                f"({value(one.figure, min(one.simulated))} – {value(one.figure, max(one.simulated))})",
                value(one.figure, one.figure.value),
                f"{one.off:+.2f} %",
                f"{one.beyond:+.2f} %",
                value(one.figure, (one.figure.scale or one.middle) * OFF / 100),
            )
            for name, compared in found.items()
            for n, one in enumerate(compared)
        ),
    )


def experiments(scale: Scale) -> dict[str, Experiment]:
    """All of them, by name."""
    made = (
        isolation(scale, flooded=False),
        isolation(scale, flooded=True),
        shares(scale, large_where_heavy=True),
        shares(scale, large_where_heavy=False),
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
    parser.add_argument("--dry", action="store_true", help="leave docs/fairness.md as it is")
    return parser.parse_args(argv)


def simulations(chosen: Iterable[Experiment]) -> dict[str, list[Run]]:
    """The replays of each, on a Redis of their own."""
    binary = redis_binary() or valkey_binary()
    if binary is None:
        raise NoStore
    with running_server(binary) as server:
        world = World(server.socket_path)
        try:
            return {experiment.name: replays(experiment, world) for experiment in chosen}
        finally:
            world.close()


async def run_all(
    chosen: Sequence[Experiment], simulated: Mapping[str, Sequence[Run]]
) -> tuple[dict[str, list[Compared]], list[Check]]:
    """Each experiment after the other on one stack, with what was found printed at once."""
    found: dict[str, list[Compared]] = {}
    checks: list[Check] = []
    keys = {client: key for experiment in chosen for client, key in experiment.keys.items()}
    slots = max(experiment.scale.slots for experiment in chosen) + SPARE_SLOTS
    with tempfile.TemporaryDirectory(prefix="fairlane-live-", ignore_cleanup_errors=True) as folder:
        async with running(Path(folder), keys.values(), slots) as stack:
            for experiment in chosen:
                begun, before = time.monotonic(), psutil.cpu_times()
                live = await carry_out(stack, experiment)
                busy = 100 * (
                    1
                    - (psutil.cpu_times().idle - before.idle)
                    / (time.monotonic() - begun)
                    / (psutil.cpu_count() or 1)
                )
                found[experiment.name] = compare(experiment, live, simulated[experiment.name])
                own = [
                    *verdicts(experiment, found[experiment.name]),
                    *(waits_told(experiment, live) if len(experiment.queues) == 1 else ()),
                    *live.ledger.checks(experiment.name, live.slots),
                ]
                if {"isolation-alone", "isolation-flooded"} <= found.keys() and experiment.queues.keys() == {
                    "free_batch"
                }:
                    own += growth(found, experiment.mean_service_s)
                print(
                    f"\n{experiment.name}: {len(live.ledger.calls):,} calls in {time.monotonic() - begun:.0f} s, "
                    f"{live.slots.total / live.slots.samples:.2f} slots in use in the mean, the machine {busy:.0f} % busy"
                )
                print(compared_table({experiment.name: found[experiment.name]}))
                for check in own:
                    print(
                        f"{'pass' if check.passed else 'FAIL'}  {check.what}: {check.measured} ({check.limit})",
                        flush=True,
                    )
                checks += own
    return found, checks


def main(argv: list[str]) -> int:
    every = experiments(Scale())
    given = arguments(argv, every)
    if not 0.3 <= given.minutes <= 60:
        print("--minutes must be from 0.3 to 60", file=sys.stderr)
        return 2
    chosen = [
        experiment
        for name, experiment in experiments(Scale(length_s=60 * given.minutes)).items()
        if name in (given.only or every)
    ]
    try:
        simulated = simulations(chosen)
        print("simulated", flush=True)
        found, checks = asyncio.run(run_all(chosen, simulated))
    except NoStore:
        print("neither redis-server nor Valkey is installed", file=sys.stderr)
        return 2
    if not (given.only or given.dry):
        document = put(DOCUMENT.read_text(), "live", compared_table(found))
        DOCUMENT.write_text(put(document, "live-checks", check_table(checks)))
    failed = sum(not check.passed for check in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
