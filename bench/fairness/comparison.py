"""The paper's experiments: each workload under each policy, and how Fairlane must stand next to VTC."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

from bench.fairness.checks import ONE_QUEUE, Check, Maker, around, at_most
from bench.fairness.measures import WINDOW_S, Difference, cost, service, service_difference, throughput
from bench.fairness.policies import Fcfs, Lcf, RoundRobin, Vtc
from bench.fairness.simulator import SECOND, SLOTS, Policy, Run, simulate
from bench.fairness.workloads import Workload, trace_like, with_max_output

FAIRLANE, FAIRLANE_TOLD = "Fairlane", "Fairlane, max_tokens"
"""Nothing is known of the lengths at the beginning; or clients say what the output will be at most."""
FAIRLANES = (FAIRLANE, FAIRLANE_TOLD)
PLAIN: tuple[type[Policy], ...] = (Fcfs, RoundRobin, Lcf, Vtc)
VTC_EVERY_5_S = "VTC, updated every 5 s"
TRACE = "trace-like"
SEEDS = range(1, 9)


class RemoteVtc(Vtc):
    """VTC that is informed of the tokens as often as a gateway's leases are renewed, not inside the engine."""

    name = VTC_EVERY_5_S
    report_us = 5 * SECOND


@dataclass(frozen=True)
class Row:
    """A workload under all policies."""

    workload: Workload
    runs: dict[str, Run]
    differences: dict[str, Difference]

    @property
    def fairlanes(self) -> list[str]:
        """Fairlane's runs, by name."""
        return [name for name in FAIRLANES if name in self.runs]

    @classmethod
    def of(cls, workload: Workload, runs: Iterable[Run]) -> Self:
        """A row of runs, named by their policies."""
        named = {run.policy: run for run in runs}
        return cls(workload, named, {name: difference(workload, run) for name, run in named.items()})


def compare(workload: Workload, fairlane: Maker) -> Row:
    """Run a workload under every policy."""
    plain = [simulate(make(), workload.requests) for make in (*PLAIN, RemoteVtc)]
    cold = simulate(fairlane(SLOTS, ONE_QUEUE), workload.requests)
    told = simulate(fairlane(SLOTS, ONE_QUEUE), with_max_output(workload).requests)
    return Row.of(workload, [*plain, replace(cold, policy=FAIRLANE), replace(told, policy=FAIRLANE_TOLD)])


def difference(workload: Workload, run: Run) -> Difference:
    """The metric of a run of a workload."""
    return service_difference(run, workload.measured_s, workload.weights)


def resolution(row: Row) -> float:
    """The resolution of the metric: one request, the most expensive, on this or that side of a window's edge. Tokens/s."""
    return max(cost(task) / task.request.weight for task in row.runs["VTC"].tasks) / WINDOW_S


def replication(row: Row) -> Iterator[Check]:
    """The simulator's FCFS is within a tenth of what the artifact measured."""
    if row.workload.name in ("overload", "on_off_overload"):
        found, there = row.differences["FCFS"], row.workload.artifact["FCFS"]
        for what, a, b in (("most", found.most, there.most), ("mean", found.mean, there.mean)):
            name = f"{row.workload.name}: simulated FCFS as the artifact's, {what}"
            yield around("1 replication", name, a, b, b / 10)


def next_to_vtc(row: Row) -> Iterator[Check]:
    """At most a quarter of the artifact's VTC where all requests are equal, and nowhere worse than the simulator's VTC."""
    vtc, slack = row.differences["VTC"], resolution(row)
    for name in row.fairlanes:
        found = row.differences[name]
        if row.workload.fixed_length:
            there = row.workload.artifact["VTC"]
            what = f"{row.workload.name}: {name}, a quarter of the artifact's VTC"
            yield at_most("1 next to VTC", f"{what}, most", found.most, there.most / 4)
            yield at_most("1 next to VTC", f"{what}, mean", found.mean, there.mean / 4)
        if row.workload.name == TRACE:
            continue  # chance decides a single run of it: see `trace_rows`
        what = f"{row.workload.name}: {name}, the simulator's VTC + one request"
        yield at_most("1 next to VTC", f"{what}, most", found.most, vtc.most + slack)
        yield at_most("1 next to VTC", f"{what}, mean", found.mean, vtc.mean + slack)


def work_conservation(row: Row) -> Iterator[Check]:
    """No slot stays free while a task waits."""
    for name in row.fairlanes:
        idle = row.runs[name].idle_slot_violations
        yield at_most("6 no idling", f"{row.workload.name}: {name}, slots free while a task waits", idle, 0)


def weighted_shares(row: Row) -> Iterator[Check]:
    """Where clients have weights, service follows them while all of them wait."""
    weights = row.workload.weights
    for name in row.fairlanes if weights else ():
        got = service(row.runs[name], 60 * SECOND, 360 * SECOND)
        for client, weight in weights.items():
            due = 100 * weight / sum(weights.values())
            share = 100 * got[client] / sum(got.values())
            yield around(
                "2 shares", f"{row.workload.name}: {name}, share of {client}", share, due, due / 100, " %"
            )


@dataclass(frozen=True)
class Traces:
    """Mean service difference by policy over several draws of the trace-like workload."""

    differences: dict[str, Difference]
    throughputs: dict[str, float]


def trace_rows(fairlane: Maker) -> Traces:
    """Eight draws of the trace-like workload. Of one draw the result says little: most clients send a few long requests."""
    rows = [compare(trace_like(seed), fairlane) for seed in SEEDS]
    names = list(rows[0].differences)
    return Traces(
        {
            name: Difference(
                sum(row.differences[name].most for row in rows) / len(rows),
                sum(row.differences[name].mean for row in rows) / len(rows),
            )
            for name in names
        },
        {name: sum(throughput(row.runs[name]) for row in rows) / len(rows) for name in names},
    )


def traces_next_to_vtc(traces: Traces) -> Iterator[Check]:
    """Not worse than the simulator's VTC in the mean over the draws, within the 5 % that eight draws can resolve."""
    vtc = traces.differences["VTC"]
    for name in FAIRLANES:
        found = traces.differences[name]
        what = f"trace-like: {name}, the simulator's VTC + 5 %"
        yield at_most("1 next to VTC", f"{what}, most", found.most, vtc.most * 1.05)
        yield at_most("1 next to VTC", f"{what}, mean", found.mean, vtc.mean * 1.05)
