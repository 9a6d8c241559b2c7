"""One gateway with one pool of Redis and with several: `python -m bench.pools [--pools 1,4] [--processes N] [--seconds S]`.

The models, workers and clients are the same for each number of pools; only the Redis servers differ. Run it on a machine with
8 or more cores to see how much more several pools serve. On two cores, the CPU time of a task shows what pools cost.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

import msgspec

from bench import procstat
from bench.specs import LoadSpec, WorkerSpec
from bench.stack import SERVE, SETTINGS, BenchError, Cores, Stack, free_port, raise_file_limit, until
from fairlane.gateway.settings.model import named_pools
from fairlane.queues.placement import Placement

CONNECTIONS = 64
"""Of clients, per process of the gateway."""
SLOTS = 2 * CONNECTIONS
WORKERS = 2
"""Connections of workers, per model and process of the gateway: each process gets some of each model."""
WARM_UP_S = 2.0


class Round(msgspec.Struct, frozen=True):
    """What one number of pools did in one measurement."""

    tasks_per_s: float
    redis_ms: float
    """CPU time of all Redis servers per task, milliseconds."""
    gateway_ms: float
    busiest_redis: float
    """The share of a core that the busiest Redis used: one that uses a whole core is the limit."""
    workers_and_load: float
    """Cores that the simulated workers and clients used."""


FIGURES = (
    ("tasks/s", "tasks_per_s"),
    ("Redis CPU, ms per task", "redis_ms"),
    ("gateway CPU, ms per task", "gateway_ms"),
    ("busiest Redis, cores", "busiest_redis"),
    ("workers and clients, cores", "workers_and_load"),
)


def models_of(pools: int, count: int) -> tuple[str, ...]:
    """Return `count` names of models, as many of each pool as of the others."""
    placement = Placement(named_pools(pools))
    names: list[list[str]] = [[] for _ in range(pools)]
    number = 100
    while min(len(of_pool) for of_pool in names) < count // pools:
        number += 1
        names[placement.of_model(f"bench-{number}")].append(f"bench-{number}")
    return tuple(name for of_pool in names for name in of_pool[: count // pools])


async def measure(pools: int, models: tuple[str, ...], processes: int, seconds: float) -> Round:
    """Start a gateway with N pools, load it, and end it. Raise BenchError if a call failed."""
    cores = os.sched_getaffinity(0)
    clients = max(1, processes // 2)
    """Processes of workers, and of clients."""
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-", ignore_cleanup_errors=True) as name:
        stack = Stack(Path(name), Cores(min(cores), frozenset(cores)), free_port())
        try:
            options = ["--processes", str(processes), "--pools", str(pools), "--data-dir", f"{name}/data"]
            stack.gateway = await stack.start(
                [*SERVE, "--port", str(stack.port), *options], cores=cores, environ=SETTINGS, lines=False
            )
            await until(stack.ready, "the gateway to be ready")
            stack.watch |= watched(stack.pid)
            connections = WORKERS * processes * len(models) // clients
            worker = WorkerSpec(stack.port, connections, SLOTS, models)
            of_workers = [(await stack.workers(worker)).child.process.pid for _ in range(clients)]
            stack.watch.pop("workers")
            stack.watch |= {f"workers {number}": pid for number, pid in enumerate(of_workers)}
            load = LoadSpec(
                stack.port,
                "closed",
                CONNECTIONS * processes // clients,
                warm_up_s=WARM_UP_S,
                seconds=seconds,
                watch=stack.watch,
                models=models,
            )
            results = await asyncio.gather(*(stack.load(load) for _ in range(clients)))
        finally:
            await stack.close()
    for result in results:
        if result.errors:
            raise BenchError(f"{result.errors} calls failed, the first: {result.error}")
    first = results[0]
    tasks_per_s = sum(result.tasks / result.seconds for result in results)

    def used(who: str) -> list[float]:
        return [cpu_s / first.seconds for name, cpu_s in first.cpu_s.items() if name.startswith(who)]

    return Round(
        tasks_per_s,
        redis_ms=1000 * sum(used("redis")) / tasks_per_s,
        gateway_ms=1000 * sum(used("gateway")) / tasks_per_s,
        busiest_redis=max(used("redis")),
        workers_and_load=sum(used("workers")) + sum(r.cpu_s["load"] / r.seconds for r in results),
    )


def watched(pid: int) -> dict[str, int]:
    """Return the processes of a gateway: itself, its own, and its Redis servers."""
    found = {"gateway": pid}
    for number, child in enumerate(procstat.children(pid)):
        is_redis = "-server" in Path(f"/proc/{child}/cmdline").read_text().partition("\0")[0]
        found[f"{'redis' if is_redis else 'gateway'} {number}"] = child
    return found


def table(rounds: dict[int, list[Round]]) -> str:
    """Return the medians for each number of pools, and what each is of the first one's."""
    first, *_ = rounds
    heads = [f"{pools} pools" if pools > 1 else "1 pool" for pools in rounds]
    ratios = [f"{pools} ÷ {first}" for pools in rounds if pools != first]
    lines = ["".join([" " * 28, *(head.rjust(24) for head in heads), *(ratio.rjust(8) for ratio in ratios)])]
    for title, name in FIGURES:
        values = {pools: [getattr(each, name) for each in of_pools] for pools, of_pools in rounds.items()}
        cells = [f"{median(of):.4g} ({min(of):.4g} … {max(of):.4g})".rjust(24) for of in values.values()]
        baseline = median(values[first])
        cells += [f"{median(of) / baseline:.2f}".rjust(8) for pools, of in values.items() if pools != first]
        lines.append("".join([title.ljust(28), *cells]))
    return "\n".join(lines)


async def main(given: argparse.Namespace) -> int:
    """Measure each number of pools in turn, as often as there are rounds, and print the medians."""
    numbers = [int(number) for number in given.pools.split(",")]
    rounds: dict[int, list[Round]] = {pools: [] for pools in numbers}
    for _ in range(given.rounds):
        for pools in numbers:
            models = models_of(pools, max(numbers) // pools * pools)
            found = await measure(pools, models, given.processes, given.seconds)
            print(f"{pools}: {msgspec.json.encode(found).decode()}", file=sys.stderr, flush=True)
            rounds[pools].append(found)
    print(f"{os.cpu_count()} cores, {procstat.cpu_model()}; {given.processes} processes of the gateway")
    print(table(rounds))
    return 0


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pools", description="Compare numbers of Redis pools behind one gateway."
    )
    parser.add_argument("--pools", default="1,4", help="numbers of pools; the first is the baseline (1,4)")
    parser.add_argument(
        "--processes",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 2),
        help="of the gateway (half the cores)",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (5)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts (3)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise_file_limit()
    sys.exit(asyncio.run(main(arguments(sys.argv[1:]))))
