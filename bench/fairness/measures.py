"""What a run shows: service over time, the paper's service difference, shares, waits. Pure."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.fairness.policies import INPUT_PRICE, OUTPUT_PRICE
from bench.fairness.simulator import SECOND, Run, Task

WINDOW_S, WARM_UP_S, TICKS = 60, 30, 20


class Difference(NamedTuple):
    """Service difference in tokens per second: the largest and the mean over the windows of a run."""

    most: float
    mean: float


def cost(task: Task, output: int | None = None) -> int:
    """Service of a task that produced `tokens` tokens (default: all): input + 2 x output."""
    return INPUT_PRICE * task.request.input + OUTPUT_PRICE * (
        task.request.output if output is None else output
    )


def service(run: Run, begin_us: float, end_us: float) -> dict[str, float]:
    """Service by client between two instants; a task's counts evenly from its grant to its end, its prompt too."""
    got = dict.fromkeys((task.client for task in run.tasks), 0.0)
    for task in run.tasks:
        if 0 <= task.granted_us < end_us:
            length = task.request.output * task.request.token_us
            ended = task.ended_us if task.ended_us >= 0 else task.granted_us + length
            overlap = min(end_us, ended) - max(begin_us, task.granted_us)
            if overlap > 0:
                got[task.client] += cost(task) * overlap / length
    return got


def demand(run: Run, begin_us: float, end_us: float) -> dict[str, float]:
    """What the clients asked for between two instants, in the same unit."""
    asked = dict.fromkeys((task.client for task in run.tasks), 0.0)
    arrivals = [task.request.at_us for task in run.tasks]
    for task in run.tasks[bisect_left(arrivals, begin_us) : bisect_right(arrivals, end_us)]:
        asked[task.client] += cost(task)
    return asked


def service_difference(run: Run, length_s: float, weights: Mapping[str, float] | None = None) -> Difference:
    """The metric of the VTC paper's artifact (fair_bench/plot): how far clients are from the one served best.

    At 19 instants of the run, over a window of 60 s whose middle is the instant + 30 s: the sum over the clients of
    min(largest service - service, |demand - service|), per second. With `weights` all of these are divided by the weight.
    """
    sums = []
    for tick in range(1, TICKS):
        middle = (length_s - WARM_UP_S) / TICKS * tick + WARM_UP_S
        begin, end = (middle - WINDOW_S / 2) * SECOND, (middle + WINDOW_S / 2) * SECOND
        scale = {client: 1 / WINDOW_S / (weights or {}).get(client, 1.0) for client in clients(run)}
        served = {client: s * scale[client] for client, s in service(run, begin, end).items()}
        asked = {client: d * scale[client] for client, d in demand(run, begin, end).items()}
        best = max(served.values())
        sums.append(sum(min(best - s, abs(asked[client] - s)) for client, s in served.items()))
    return Difference(max(sums), sum(sums) / len(sums))


def clients(run: Run) -> list[str]:
    """All clients that sent a request."""
    return sorted({task.client for task in run.tasks})


def throughput(run: Run) -> float:
    """Tokens in and out per second, from the first arrival to the last end."""
    ended = [task for task in run.tasks if task.ended_us >= 0 and not task.cancelled]
    tokens = sum(task.request.input + task.request.output for task in ended)
    return tokens * SECOND / max((task.ended_us for task in ended), default=SECOND)


def curves(run: Run, length_s: float, step_s: float) -> dict[str, list[float]]:
    """Cumulative service by client, every `step_s`."""
    sums = {client: [0.0] for client in clients(run)}
    for at in range(math.ceil(length_s / step_s)):
        for client, more in service(run, at * step_s * SECOND, (at + 1) * step_s * SECOND).items():
            sums[client].append(sums[client][-1] + more)
    return sums


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 when all are equal, 1/n when one has everything."""
    given = list(values)
    squares = sum(value * value for value in given)
    return sum(given) ** 2 / (len(given) * squares) if squares else 1.0


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the part `q` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]
