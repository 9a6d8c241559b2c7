"""A crowd of callers, some of whom leave or change their minds: in the end every task has ended and nothing is held."""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.streams import frames_of
from tests.support.talk import Talk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CALLERS = 150


async def work(worker: RawWorker, chance: random.Random) -> None:
    """Answer every task in one of the ways in which workers answer."""
    while True:
        task = await worker.recv(None)
        number = task["payload"]["number"]
        for piece in range(chance.randrange(4)):
            await worker.chunk(task, f"{number}:{piece} ")
        if chance.random() < 0.2:
            await worker.answer(task, None, error=f"no {number}")
        elif chance.random() < 0.5:
            await worker.answer(task, {"number": number})
        else:
            await worker.answer(task, None)


async def call(talk: Talk, number: int, chance: random.Random) -> str:
    """One caller's life; what became of it."""
    way = chance.choice(["sync", "stream", "async"])
    body: dict[str, Any] = {"number": number, "async": way == "async", "stream": way == "stream"}
    calling = asyncio.create_task(talk.http.post("/api/openai", json=body))
    if way != "async" and chance.random() < 0.3:
        await asyncio.wait([calling], timeout=chance.random() * 0.3)
        calling.cancel()
        await asyncio.wait([calling])
        return "left"
    answer: httpx2.Response = await calling
    task_id = answer.headers["x-task-id"]
    if way == "async":
        assert answer.status_code == 202
        if chance.random() < 0.3:
            await talk.http.post(f"/api/task/{task_id}/cancel")
        body = await talk.reaches(task_id, "completed", "failed", "cancelled")
        told = body.get("result") or body
    elif way == "stream":
        last = frames_of(answer.content)[-1]
        assert last.event in ("done", "error")
        told = last.data.get("result") or last.data
    else:
        assert answer.status_code in (200, 500)
        told = answer.json()
    if "number" in told:
        assert told["number"] == number
    elif told.get("content"):
        assert all(piece.startswith(f"{number}:") for piece in told["content"].split())
    elif "error" in told:
        assert told["error"] == f"no {number}"
    return way


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_a_crowd_nothing_is_held(gateway: Start, seed: int) -> None:
    chance = random.Random(seed)
    async with (
        gateway(linger_ms=0) as talk,
        talk.worker() as one,
        talk.worker() as two,
        talk.worker() as three,
    ):
        for worker in (one, two, three):
            talk.later(work(worker, chance))
        outcomes = await asyncio.gather(*(call(talk, number, chance) for number in range(CALLERS)))
        assert set(outcomes) == {"sync", "stream", "async", "left"}
        made = talk.served.gateway

        async def quiet() -> bool:
            counts = (await talk.state())["counts"]
            return not (counts["queued"] or counts["executing"] or len(made.dispatcher.attempts))

        await until(quiet, "every task to end")
        await until(lambda: len(made.hub) == 0, "every reader to be gone")
        state = await talk.state()
        ended = sum(state["counts"][name] for name in ("completed", "failed", "cancelled"))
        assert CALLERS - outcomes.count("left") <= ended <= CALLERS
        assert state["counts"]["queuedBytes"] == 0
        assert [worker["running"] for worker in state["workers"]] == [0, 0, 0]
        await until(  # one may ask for a task at any time
            lambda: all(worker.reserved == 0 for worker in made.dispatcher.pool),
            "every question to be answered",
        )
        for kind in ("slots", "flow", "busy", "payload", "flows", "lanes"):
            assert await made.link.command("KEYS", f"{made.keys.prefix}{kind}:*") == [], kind
        call_after = talk.sync(number=-1)
        assert (await call_after).status_code in (200, 500)
