"""A whole run: the stage, the well-behaved, the attackers, and what holds at the end."""

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.report import Outcome, no_faults, quantile
from tests.hostile.spec import Spec
from tests.hostile.stage import Stage, attack, stage
from tests.hostile.wellbehaved import Callers, Worker, workers
from tests.support.serving import until

SHARES = {"wire": 0.85, "rogues": 0.15}
"""Of the requests, by attacker."""
SOCKETS = {"wire": 96, "rogues": 32}
WARM_UP_S = 4.0
LONG_WARM_UP_S = 20.0
"""Well-behaved callers alone: the start is a gateway that has worked, not one that has just been started."""
FULL_RUN = 100_000
"""A run of this size measures a gateway that has worked for longer."""
QUIET_S = 60.0
"""Tasks, results and sockets are gone so long after the last attacker."""
MEMORY_S, MEMORY_RATIO = 30.0, 1.3
OF_A_TASK = frozenset(["task", "log", "flow", "busy", "slots", "flows", "due", "taken"])
"""Kinds of keys that a task leaves when it is over for longer than its result is kept: none."""
MAX_GROWTH = 4 << 20
"""Of the memory in the last half of a long run: what is loaded or cached once is there before."""
MAX_MODELS = 20
MAX_FILES = 8
"""Open files more than before that are no leak."""
MIB = 1 << 20


@dataclass(frozen=True)
class Size:
    """How much, and for how long at most."""

    requests: int
    seconds: float
    seed: int


@dataclass(frozen=True)
class Start:
    """The gateway before the attack: memory, open files, keys in Redis by kind, workers."""

    bytes: int
    files: int
    keys: Counter[str]
    workers: float


async def run(size: Size, folder: Path) -> Outcome:
    """Attack a gateway; what was seen."""
    async with stage(folder) as scene, workers(scene.gateway.ws) as good:
        callers = Callers(scene.gateway.url)
        callers.start()
        await scene.warm_up()
        await asyncio.sleep(LONG_WARM_UP_S if size.requests >= FULL_RUN else WARM_UP_S)
        connected = (await scene.scrape()).value("fairlane_connected_workers")
        callers.forget()
        start = Start(scene.rss_bytes, scene.files, scene.keys(), connected)
        sampler = asyncio.create_task(scene.sample())
        try:
            parts = await asyncio.gather(*(attack(name, _spec(name, size, scene)) for name in SHARES))
            await callers.stop()
            outcome = Outcome(size.seed, list(parts))
            _well_behaved(outcome, callers, good)
        finally:
            sampler.cancel()
            await callers.stop()
        await _aftermath(outcome, scene, start)
        return outcome


def _spec(name: str, size: Size, scene: Stage) -> Spec:
    requests = max(round(size.requests * SHARES[name]), 1)
    return Spec(scene.gateway.port, size.seed, requests, size.seconds, SOCKETS[name])


def _well_behaved(outcome: Outcome, callers: Callers, good: list[Worker]) -> None:
    figure = f"{callers.calls} of {callers.calls + len(callers.wrong)}" + "".join(
        f"; {text}" for text in callers.wrong[:3]
    )
    outcome.check("well-behaved callers got right answers", not callers.wrong, figure)
    for name, seconds in [*sorted(callers.seconds.items()), ("health", callers.health)]:
        p50, p99, longest = (quantile(seconds, share) * 1000 for share in (0.5, 0.99, 1))
        outcome.facts.append(
            f"well-behaved {name}: {len(seconds)} calls, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms"
        )
    lost = [worker.lost for worker in good if worker.lost]
    answered = sum(worker.answered for worker in good)
    outcome.check("well-behaved workers kept their connections", not lost, lost or f"{answered} tasks")


async def _aftermath(outcome: Outcome, scene: Stage, start: Start) -> None:
    """Check what is left after the attack."""
    unfinished = await _quiet(scene, start)
    after = await _memory(scene, start.bytes)
    outcome.check("no answer that must not be", *no_faults(outcome.parts))
    outcome.check(
        "everything came to its end", not unfinished, unfinished or "nothing waits, runs or is open"
    )
    figure = f"{start.bytes / MIB:.0f} MiB before, {max(scene.samples) / MIB:.0f} at the peak, {after / MIB:.0f} after"
    outcome.check("memory is back within 30 % of the start", after <= start.bytes * MEMORY_RATIO, figure)
    quarter = len(scene.samples) // 4
    third, last = min(scene.samples[-2 * quarter : -quarter]), min(scene.samples[-quarter:])
    flat = last - third <= MAX_GROWTH or sum(part.total for part in outcome.parts) < FULL_RUN
    figure = f"{(last - third) / MIB:.1f} MiB more at the least in the last quarter than in the one before"
    outcome.check("memory does not grow in the last half", flat, figure)
    files = scene.files
    figure = f"{start.files} open files before, {files} after"
    outcome.check("sockets were closed", files <= start.files + MAX_FILES, figure)
    _keys(outcome, scene, start)
    tracebacks, errors = scene.complaints()
    outcome.check("no tracebacks in the log", not tracebacks, dict(tracebacks.most_common(5)) or "none")
    outcome.facts.append(f"other errors in the log: {dict(errors.most_common(5))}")


def _keys(outcome: Outcome, scene: Stage, start: Start) -> None:
    left = scene.keys()
    tasks = {kind: number for kind, number in left.items() if kind in OF_A_TASK}
    outcome.check("tasks left nothing in Redis", not tasks, tasks or "nothing")
    grown = left["model"] - start.keys["model"]
    outcome.check(
        "invented names left nothing in Redis", grown <= MAX_MODELS, f"{grown} models more than before"
    )
    outcome.facts.append(
        f"keys in Redis: {sum(start.keys.values())} before, {sum(left.values())} after: {dict(left.most_common(8))}"
    )


async def _quiet(scene: Stage, start: Start) -> str:
    """Wait until everything has ended. Return what still runs after that time."""
    end = time.monotonic() + QUIET_S
    while True:
        metrics = await scene.scrape()
        found = {
            "answers open": metrics.value("fairlane_http_requests_open"),
            "attempts": metrics.value("fairlane_attempts"),
            "tasks wait": sum(metrics.values("fairlane_tasks_waiting")),
            "tasks run": sum(metrics.values("fairlane_tasks_running")),
            # (while there are endpoints, which an attacker with an admin's key may add, the gateway has a worker for them)
            "workers too many": max(metrics.value("fairlane_connected_workers") - start.workers - 1, 0),
            "keys of tasks": sum(number for kind, number in scene.keys().items() if kind in OF_A_TASK),
        }
        if not any(found.values()):
            return ""
        if time.monotonic() > end:
            return ", ".join(f"{number:.0f} {what}" for what, number in found.items() if number)
        await asyncio.sleep(1)


async def _memory(scene: Stage, before: int) -> int:
    """Return the memory once it is back, or after a while."""
    with contextlib.suppress(AssertionError):
        await until(lambda: scene.rss_bytes <= before * MEMORY_RATIO, "the memory to be back", MEMORY_S)
    return scene.rss_bytes
