"""A backlog that goes on to another model: thousands of tasks wait for one that breaks, and others call meanwhile.

Who sends the thousands uses aiohttp, which takes a third of httpx2's processor time.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import httpx2
from tests.drill.stage import OTHER, SITE, SPARE, STUCK, Stage
from tests.hostile.report import quantile
from tests.integration.metrics.scraping import scrape
from tests.integration.native.keys import secret
from tests.support.rawworkers import bearer
from tests.support.serving import DEADLINE_S, WORKER_TOKEN, http_client, until

from fairlane.queues.keys import Keys, pool_prefix
from fairlane.workers.sdk import Context, Task, Worker
from fairlane.workers.sdk.handlers import Handler

USERS = 10
SLOTS = 64
"""Of the worker that runs what has gone on."""
MAX_OF_A_PASS = 100
LOGGED_US = 300
"""Redis logs what took longer: any pass of the sweep that moves some dozens, and hardly anything else."""
LONGEST_MS = 600_000
"""Of a task, from submission on."""
MOVE_S = 300.0
DRAIN_S = 600.0


@dataclass
class Backlog:
    """What was seen."""

    waiting: int
    submitted: dict[str, list[str]] = field(default_factory=dict)
    """User -> tasks, in order."""
    before: dict[str, list[str]] = field(default_factory=dict)
    """The same, as they stand in the line of their model in Redis."""
    after: dict[str, list[str]] = field(default_factory=dict)
    """The same, as they stand in the line of the other model when all have gone on."""
    begun: Counter[str] = field(default_factory=Counter)
    """How often the other model's worker was given each task."""
    moved_s: float = 0.0
    left: int = 0
    """That did not go on."""
    ended: Counter[str] = field(default_factory=Counter)
    """States of the tasks at the end."""
    models: Counter[str] = field(default_factory=Counter)
    others: list[float] = field(default_factory=list)
    """How long calls of another model took meanwhile, seconds."""
    alive: list[float] = field(default_factory=list)
    """How long health checks took meanwhile, seconds."""
    refused: Counter[str] = field(default_factory=Counter)
    """What others were answered that they should not be."""
    stalls: int = 0
    """Of the gateways' loops, by computing, as they say themselves."""
    passes: list[float] = field(default_factory=list)
    """How long passes of the sweep took in Redis that did something, seconds."""
    command: tuple[float, str] = 0.0, ""
    """The single command that took longest meanwhile, seconds: what it takes beyond some us, the machine took."""

    def wrong(self) -> list[str]:
        """What is not as it must be, whatever the machine's speed."""
        found = [f"{number} x {why} of another model" for why, number in self.refused.items()]
        if self.left:
            found.append(f"{self.left} tasks did not go on")
        for lines, when in ((self.before, "stood"), (self.after, "went on")):
            for user, tasks in self.submitted.items():
                if lines.get(user) != tasks:
                    found.append(
                        f"the tasks of {user} {when} in another order than they came, or not all of them"
                    )
        if twice := sum(number > 1 for number in self.begun.values()):
            found.append(f"{twice} tasks began twice")
        if self.ended != {"completed": self.waiting} or self.models != {SPARE: self.waiting}:
            found.append(f"ended as {dict(self.ended)}, by {dict(self.models)}")
        if len(self.passes) * MAX_OF_A_PASS < self.waiting - self.left:
            found.append(f"{len(self.passes)} passes moved {self.waiting - self.left} tasks")
        if not self.others:
            found.append("nobody called another model meanwhile")
        return found

    def render(self) -> str:
        """In words."""
        others, alive, passes = (
            f"{len(seconds)}, p50 {quantile(seconds, 0.5) * 1000:.0f} ms, p99 {quantile(seconds, 0.99) * 1000:.0f} ms, "
            f"longest {quantile(seconds, 1) * 1000:.0f} ms"
            for seconds in (self.others, self.alive, self.passes)
        )
        return "\n".join(
            [
                f"{self.waiting} waiting tasks of {len(self.submitted)} users went on in {self.moved_s:.1f} s",
                f"  calls of another model meanwhile: {others}",
                f"  health checks meanwhile: {alive}",
                f"  stalls of the gateways' loops above 250 ms by their own computing: {self.stalls}",
                f"  passes of the sweep in Redis: {passes} (longest of a single command: {self.command[1]} "
                f"{self.command[0] * 1000:.0f} ms)",
                *(f"BROKEN backlog: {what}" for what in self.wrong()),
            ]
        )


async def move_backlog(scene: Stage, waiting: int) -> Backlog:
    """Have so many tasks wait, break their model, and let another one run them."""
    seen, release = Backlog(waiting), asyncio.Event()
    a, b = scene.gateways

    async def patient(task: Task, context: Context) -> Any:
        """Takes the slot of its model until all have gone on."""
        await release.wait()
        return {"content": "first"}

    async def at_once(task: Task, context: Context) -> Any:
        seen.begun[task.task_id] += 1
        return {"content": "gone on"}

    async def beside(task: Task, context: Context) -> Any:
        return {"content": "here"}

    async with contextlib.AsyncExitStack() as stack:
        http = [
            await stack.enter_async_context(http_client(url, headers=bearer(secret(SITE)), timeout=60))
            for url in scene.urls
        ]
        await stack.enter_async_context(_worker(scene, a.url, STUCK, 1, patient, upstream="stuck"))
        await stack.enter_async_context(_worker(scene, b.url, SPARE, 1, patient))
        await stack.enter_async_context(_worker(scene, b.url, OTHER, 4, beside))
        first = [await _submit(http[0], model, "first") for model in (STUCK, SPARE)]
        for task in first:
            await until(partial(_is, http[0], task, "executing"), "the slots to be taken")
        many = [
            await stack.enter_async_context(aiohttp.ClientSession(url, headers=bearer(secret(SITE))))
            for url in scene.urls
        ]
        await _submit_all(many, seen)
        await _move(scene, http, seen)
        await stack.enter_async_context(_worker(scene, b.url, SPARE, SLOTS, at_once))
        await until(lambda: len(seen.begun) >= waiting - seen.left, "all to begin", DRAIN_S)
        await _ends(scene, seen)
        release.set()
        for task in first:
            await until(partial(_is, http[0], task, "completed"), "the first to end")
    return seen


@contextlib.asynccontextmanager
async def _worker(
    scene: Stage, url: str, model: str, slots: int, run: Handler, upstream: str | None = None
) -> AsyncIterator[None]:
    """A worker of the SDK, once the gateways know it."""
    worker = Worker(
        f"backlog-{model}-{slots}",
        gateway=url,
        token=WORKER_TOKEN,
        slots=slots,
        drain_ms=0,
        upstream=upstream,
    )
    worker.handler([model])(run)
    stop = asyncio.Event()
    running = asyncio.create_task(worker.serve(stop, stop))

    async def there() -> bool:
        workers = (await scene.told("/api/admin/overview"))["workers"]
        return any(found["name"] == worker.name for found in workers)

    try:
        await until(there, f"{worker.name} to be known")
        yield
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await running


async def _is(http: httpx2.AsyncClient, task: str, state: str) -> bool:
    answer = await http.get(f"/api/task/{task}", headers={"X-Fairlane-User": "first"})
    return bool(answer.json()["status"] == state)


def _body(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [], "async": True, "timeout": LONGEST_MS}


async def _submit(http: httpx2.AsyncClient, model: str, user: str) -> str:
    answer = await http.post("/api/openai", json=_body(model), headers={"X-Fairlane-User": user})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


async def _submit_all(http: list[aiohttp.ClientSession], seen: Backlog) -> None:
    """Each user submits one task after the other, so that their order is known, at both gateways in turn."""

    async def of(user: str, count: int) -> None:
        tasks = seen.submitted.setdefault(user, [])
        for number in range(count):
            async with http[number % len(http)].post(
                "/api/openai", json=_body(STUCK), headers={"X-Fairlane-User": user}
            ) as answer:
                told = await answer.json()
                assert answer.status == 202, told
                tasks.append(str(told["taskId"]))

    each, more = divmod(seen.waiting, USERS)
    await asyncio.gather(*(of(f"user-{n}", each + (n < more)) for n in range(USERS)))


async def _move(scene: Stage, http: list[httpx2.AsyncClient], seen: Backlog) -> None:
    """Break the model; return when nothing goes on any more."""
    line = Keys(pool_prefix())("falls", model=STUCK)
    assert scene.store.zcard(line) == seen.waiting
    seen.before = _lines(scene, STUCK)
    before = await _stalls(scene)
    scene.store.config_set("slowlog-log-slower-than", LOGGED_US)
    scene.store.config_set("slowlog-max-len", 10_000)
    async with _callers(http, seen):
        scene.store.slowlog_reset()
        begun = time.monotonic()
        await scene.force(STUCK, "stuck", "open")
        with contextlib.suppress(AssertionError):  # what is left is told
            await until(lambda: not scene.store.zcard(line), "all to go on", MOVE_S)
        seen.moved_s = time.monotonic() - begun
    seen.left = scene.store.zcard(line)
    seen.after = _lines(scene, SPARE)
    for entry in scene.store.slowlog_get(10_000):
        name, took = entry["command"].decode(errors="replace"), entry["duration"] / 1e6
        if name.startswith("FCALL"):
            seen.passes += [took] if name.split(" ")[1].endswith("_sweep") else []
        else:
            seen.command = max(seen.command, (took, name.split(" ")[0]))
    scene.store.config_set("slowlog-log-slower-than", -1)
    seen.stalls = await _stalls(scene) - before


async def _stalls(scene: Stage) -> int:
    told = [await scrape(operator) for operator in scene.operators]
    return sum(round(one.value("fairlane_loop_stalls_total", cause="computing")) for one in told)


def _lines(scene: Stage, model: str) -> dict[str, list[str]]:
    """User -> tasks that wait for a model, in their order."""
    found: dict[str, list[str]] = {}
    one = Keys(pool_prefix())("flow", queue="*", model=model, user=f"{SITE}/*")
    for name in scene.store.scan_iter(match=one, count=1000):
        user = name.decode().rpartition("/")[2]
        tasks: Any = scene.store.zrange(name, 0, -1)
        found[user] = [task.decode() for task in tasks]
    return found


@contextlib.asynccontextmanager
async def _callers(http: list[httpx2.AsyncClient], seen: Backlog) -> AsyncIterator[None]:
    """Others, who call another model and ask whether the gateways live."""

    async def call(at: httpx2.AsyncClient) -> None:
        while True:
            begun = time.monotonic()
            answer = await at.post("/api/openai", json={"model": OTHER, "messages": []})
            seen.others.append(time.monotonic() - begun)
            if answer.status_code != 200:
                seen.refused[answer.text[:100]] += 1

    async def ask(at: httpx2.AsyncClient) -> None:
        while True:
            begun = time.monotonic()
            (await at.get("/livez")).raise_for_status()
            seen.alive.append(time.monotonic() - begun)
            await asyncio.sleep(0.005)

    running = [asyncio.create_task(work(at)) for at in http for work in (call, ask)]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        for ended in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(ended, asyncio.CancelledError):
                seen.refused[repr(ended)] += 1


async def _ends(scene: Stage, seen: Backlog) -> None:
    """What became of each task, as its record has it."""
    keys, left = Keys(pool_prefix()), [task for tasks in seen.submitted.values() for task in tasks]

    def all_ended() -> bool:
        nonlocal left
        with scene.store.pipeline(transaction=False) as reading:
            for task in left:
                reading.hmget(keys("task", id=task), "state", "model")
            found: list[list[bytes]] = reading.execute()
        over = {
            task: (state.decode(), model.decode())
            for task, (state, model) in zip(left, found, strict=True)
            if state not in (b"queued", b"executing")
        }
        seen.ended.update(state for state, _ in over.values())
        seen.models.update(model for _, model in over.values())
        left = [task for task in left if task not in over]
        return not left

    await until(all_ended, "all to end", DRAIN_S)
