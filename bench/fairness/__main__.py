"""`python -m bench.fairness [--only NAME …] [--dry]`: the experiments, the tables of RESULTS.md, plots, and the gates."""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.contract.store.store import World
from tests.support.servers import redis_binary, running_server, valkey_binary

from bench.fairness import gaming, isolation, report, shares, starvation
from bench.fairness.checks import Check, Maker
from bench.fairness.comparison import (
    FAIRLANE,
    PLAIN,
    Row,
    compare,
    next_to_vtc,
    replication,
    trace_rows,
    traces_next_to_vtc,
    weighted_shares,
    work_conservation,
)
from bench.fairness.fairlane import Fairlane
from bench.fairness.plots import plot
from bench.fairness.simulator import Policy
from bench.fairness.waiting import honesty
from bench.fairness.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = Path(__file__).with_name("RESULTS.md")
PLOTS = ROOT / "build" / "fairness"


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fairness",
        description="Compare Fairlane's scheduling with other policies in a simulation, and check the gates.",
        epilog="Workloads: " + ", ".join(WORKLOADS),
    )
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, metavar="NAME", help="only these workloads, no document"
    )
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is, and draw no plots")
    return parser.parse_args(argv)


class Lab:
    """Runs the experiments one after the other, says what it finds, and remembers it for the document."""

    def __init__(self, fairlane: Maker) -> None:
        self.fairlane = fairlane
        self.makers: Mapping[str, Maker] = {make().name: _without_queues(make) for make in PLAIN} | {
            FAIRLANE: fairlane
        }
        self.checks: list[Check] = []
        self.blocks: dict[str, str] = {}
        self._begun = time.monotonic()

    def check(self, checks: Iterable[Check]) -> None:
        """Print checks as they come."""
        for check in checks:
            self.checks.append(check)
            verdict = "pass" if check.passed else "FAIL"
            print(f"{verdict}  {check.gate:<15} {check.what}: {check.measured} ({check.limit})", flush=True)

    def rows(self, names: Iterable[str]) -> list[Row]:
        """The paper's workloads."""
        rows = []
        for name in names:
            row = compare(WORKLOADS[name](), self.fairlane)
            rows.append(row)
            found = ", ".join(
                f"{policy} {report.cell(row.differences[policy])}" for policy in report.SIMULATED
            )
            print(f"      {self._elapsed()} {name}: {found}")
            for gate in (replication, next_to_vtc, weighted_shares, work_conservation):
                self.check(gate(row))
        self.blocks |= {
            "workloads": report.workload_table(row.workload for row in rows),
            "rows": report.row_table(rows),
            "waiting": report.honesty_table(
                {f"`{row.workload.name}`": honesty([row.runs[FAIRLANE]]) for row in rows}
            ),
        }
        return rows

    def gates(self) -> None:
        """Everything that is not a workload of the paper."""
        traces = trace_rows(self.fairlane)
        self.blocks["traces"] = report.trace_table(traces)
        self.check(traces_next_to_vtc(traces))
        for gate in (
            shares.shares,
            shares.equal_users,
            isolation.isolation,
            starvation.joining,
            starvation.priority_spam,
            starvation.lift,
        ):
            self.check(gate(self.fairlane))
            print(f"      {self._elapsed()}")
        self.check(self._gaming())
        self.blocks["isolation"] = report.isolation_table(
            {
                name: (
                    isolation.waits(make, isolation.LENGTH_S, flooded=False),
                    isolation.waits(make, isolation.LENGTH_S, flooded=True),
                )
                for name, make in self.makers.items()
            },
            {name: starvation.returning(make) for name, make in self.makers.items()},
        )

    def _gaming(self) -> Iterator[Check]:
        gains = {
            name: [gaming.play(make, trick) for trick in gaming.TRICKS] for name, make in self.makers.items()
        }
        self.blocks["gaming"] = report.gaming_table(gains)
        return gaming.verdicts(gains[FAIRLANE])

    def _elapsed(self) -> str:
        return f"[{time.monotonic() - self._begun:.0f} s]"

    def write(self, rows: Iterable[Row]) -> None:
        """Put the tables into the document, and draw the plots."""
        document = DOCUMENT.read_text()
        for name, text in (self.blocks | {"gates": report.check_table(self.checks)}).items():
            document = report.put(document, name, text)
        DOCUMENT.write_text(document)
        PLOTS.mkdir(parents=True, exist_ok=True)
        for row in rows:
            plot(row, PLOTS / f"{row.workload.name}.svg")


def _without_queues(make: type[Policy]) -> Maker:
    def maker(slots: int, queues: Mapping[str, float]) -> Policy:  # noqa: ARG001 - plain policies know of neither
        return make()

    return maker


def main(argv: list[str]) -> int:
    given = arguments(argv)
    binary = redis_binary() or valkey_binary()
    if binary is None:
        print("neither redis-server nor Valkey is installed", file=sys.stderr)
        return 2
    with running_server(binary) as server:
        world = World(server.socket_path)
        lab = Lab(lambda slots, queues: Fairlane(world, slots, queues))
        rows = lab.rows(given.only or WORKLOADS)
        if not given.only:
            lab.gates()
            if not given.dry:
                lab.write(rows)
        world.close()
    failed = sum(not check.passed for check in lab.checks)
    print(f"{len(lab.checks) - failed} of {len(lab.checks)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
