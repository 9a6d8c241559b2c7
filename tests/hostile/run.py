"""A whole run: the stage, the well-behaved, the attackers, and what holds at the end."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.holds import IDLE_S, Holds
from tests.hostile.report import Outcome, no_faults, quantile, within_a_fifth
from tests.hostile.spec import Spec
from tests.hostile.stage import Stage, attack, stage
from tests.hostile.wellbehaved import Callers, Worker, workers

SHARES = {"wire": 0.80, "rogues": 0.13, "generated": 0.07}
"""Of the requests, by attacker. What schemathesis makes takes the longest to make."""
SOCKETS = {"wire": 96, "rogues": 32, "generated": 16}
WARM_UP_S = 4.0
LONG_WARM_UP_S = 20.0
"""Well-behaved callers alone: the start is a gateway that has worked, not one that has just been started."""
FULL_RUN = 100_000
"""From so many requests on a run waits until every held socket has had its time."""
QUIET_S = 60.0
"""Tasks, results and sockets are gone so long after the last attacker."""
MEMORY_S = 30.0
OF_A_TASK = frozenset(["task", "payload", "log", "flow", "busy", "slots", "flows", "due", "taken"])
"""Kinds of keys that a task leaves when it is over for longer than its result is kept: none."""
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
    began = time.monotonic()
    async with stage(folder) as scene, workers(scene.gateway.ws) as good:
        callers = Callers(scene.gateway.url)
        callers.start()
        await scene.warm_up()
        await asyncio.sleep(LONG_WARM_UP_S if size.requests >= FULL_RUN else WARM_UP_S)
        connected = (await scene.scrape()).value("fairlane_connected_workers")
        callers.forget()
        start = Start(scene.rss_bytes, scene.files, scene.keys(), connected)
        holds = Holds(scene.gateway.port)
        holds.start()
        sampler = asyncio.create_task(scene.sample())
        try:
            parts = await asyncio.gather(*(attack(name, _spec(name, size, scene)) for name in SHARES))
            await callers.stop()
            outcome = Outcome(size.seed, 0, list(parts))
            _well_behaved(outcome, callers, good)
            await _held(outcome, holds, size)
        finally:
            sampler.cancel()
            await holds.close()
            await callers.stop()
        await _aftermath(outcome, scene, start)
        outcome.seconds = time.monotonic() - began
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
        outcome.facts[f"well-behaved {name}"] = (
            f"{len(seconds)} calls, p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms"
        )
    lost = [worker.lost for worker in good if worker.lost]
    answered = sum(worker.answered for worker in good)
    outcome.check("well-behaved workers kept their connections", not lost, lost or f"{answered} tasks")


async def _held(outcome: Outcome, holds: Holds, size: Size) -> None:
    if size.requests >= FULL_RUN:
        end = time.monotonic() + IDLE_S + 5
        while holds.judged() < len(holds.all) and time.monotonic() < end:
            await asyncio.sleep(1)
    late = holds.too_long()
    figure = ", ".join(f"{number} x {kind}" for kind, number in late.items()) or f"{holds.judged()} judged"
    outcome.check("held sockets were closed in time", not late, figure)


async def _aftermath(outcome: Outcome, scene: Stage, start: Start) -> None:
    """What is left when nobody asks for anything any more."""
    goes_on = await _quiet(scene, start)
    after = await _memory(scene, start.bytes)
    outcome.check("no answer that must not be", *no_faults(outcome.parts))
    outcome.check("everything came to its end", not goes_on, goes_on or "nothing waits, runs or is open")
    figure = f"{start.bytes / MIB:.0f} MiB before, {scene.peak_bytes / MIB:.0f} at the peak, {after / MIB:.0f} after"
    outcome.check("memory is back within 20 % of the start", within_a_fifth(start.bytes, after), figure)
    files = scene.files
    figure = f"{start.files} open files before, {files} after"
    outcome.check("sockets were closed", files <= start.files + MAX_FILES, figure)
    await _stalls(outcome, scene)
    _keys(outcome, scene, start)
    tracebacks, errors = scene.complaints()
    outcome.check("no tracebacks in the log", not tracebacks, dict(tracebacks.most_common(5)) or "none")
    outcome.facts["other errors in the log"] = str(dict(errors.most_common(5)) or "none")


async def _stalls(outcome: Outcome, scene: Stage) -> None:
    """What the gateway's own watch says. Only computing is its fault: the attackers want the processor, too."""
    told = await scene.scrape()
    computing, waiting = (
        told.value("fairlane_loop_stalls_total", cause=cause) for cause in ("computing", "waiting")
    )
    longest = max((line["late_ms"] for line in scene.stalls()), default=0)
    figure = f"{computing:.0f} stalls" + (f", the longest {longest} ms" if computing else "")
    outcome.check("the loop was never held for 250 ms by computing", not computing, figure)
    outcome.facts["stalls while it waited for the processor"] = f"{waiting:.0f}" + (
        f", the longest at most {longest} ms" if waiting else ""
    )


def _keys(outcome: Outcome, scene: Stage, start: Start) -> None:
    left = scene.keys()
    tasks = {kind: number for kind, number in left.items() if kind in OF_A_TASK}
    outcome.check("tasks left nothing in Redis", not tasks, tasks or "nothing")
    grown = left["model"] - start.keys["model"]
    outcome.check(
        "invented names left nothing in Redis", grown <= MAX_MODELS, f"{grown} models more than before"
    )
    outcome.facts["keys in Redis"] = (
        f"{sum(start.keys.values())} before, {sum(left.values())} after: {dict(left.most_common(8))}"
    )


async def _quiet(scene: Stage, start: Start) -> str:
    """Wait until nothing goes on; what still does, after that time."""
    end = time.monotonic() + QUIET_S
    while True:
        told = await scene.scrape()
        found = {
            "answers open": told.value("fairlane_http_requests_open"),
            "attempts": told.value("fairlane_attempts"),
            "tasks wait": sum(told.values("fairlane_tasks_waiting")),
            "tasks run": sum(told.values("fairlane_tasks_running")),
            # (while there are endpoints, which an attacker with an admin's key may add, the gateway has a worker for them)
            "workers too many": max(told.value("fairlane_connected_workers") - start.workers - 1, 0),
            "keys of tasks": sum(number for kind, number in scene.keys().items() if kind in OF_A_TASK),
        }
        if not any(found.values()):
            return ""
        if time.monotonic() > end:
            return ", ".join(f"{number:.0f} {what}" for what, number in found.items() if number)
        await asyncio.sleep(1)


async def _memory(scene: Stage, before: int) -> int:
    """Memory once it is back, or after a while."""
    end = time.monotonic() + MEMORY_S
    while not within_a_fifth(before, scene.rss_bytes) and time.monotonic() < end:
        await asyncio.sleep(1)
    return scene.rss_bytes
