"""A caller with a key who leaves may come back: the task lingers; when nobody comes it ends, and its key names it no more."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from tests.support.serving import until
from tests.support.stored import set_in_record
from tests.support.talk import Talk

from fairlane.gateway.api.idempotency import PATIENCE_MS

from .asking import ANY, CHAT, NATIVE, Asking

pytestmark = pytest.mark.anyio

Both = tuple[Talk, Talk]
LEAVING = [
    Asking("/api/openai", NATIVE),
    Asking("/api/openai", {**NATIVE, "stream": True}),
    Asking("/api/tasks", ANY),
    Asking("/v1/chat/completions", CHAT),
    Asking("/v1/chat/completions", {**CHAT, "stream": True}),
]


@pytest.fixture
async def both(shared_replicas: Callable[..., AbstractAsyncContextManager[Both]]) -> AsyncIterator[Both]:
    """Two gateways, each with the same caller, whom nobody else is: keys are his own."""
    async with shared_replicas() as both:
        user = uuid.uuid4().hex
        for talk in both:
            talk.http.headers["X-Fairlane-User"] = user
        yield both


@pytest.fixture
def here(both: Both) -> Talk:
    return both[0]


@pytest.fixture
def there(both: Both) -> Talk:
    return both[1]


async def leave(talk: Talk, call: "asyncio.Task[httpx2.Response]") -> None:
    """Break a call off, and wait until the gateway knows."""
    call.cancel()
    await asyncio.wait([call])
    await until(lambda: not len(talk.served.gateway.authorizer.calls), "the gateway to know")


async def over_patience(talk: Talk, task_id: str) -> None:
    """Let the time be over in which readers of a task may come back."""
    keys, link = talk.served.gateway.keys, talk.served.gateway.link
    now_ms = time.time_ns() // 1_000_000
    await set_in_record(talk.served.gateway, task_id, linger_at=now_ms)
    await link.command("ZADD", keys("due"), now_ms, task_id)


@pytest.mark.parametrize("asking", LEAVING, ids=str)
async def test_who_comes_back_within_half_a_minute_finds_the_task_as_it_was(
    here: Talk, there: Talk, asking: Asking
) -> None:
    async with here.worker2(["m"]) as worker:
        await there.workers(1)
        first = here.later(asking(here.http))
        task = await worker.take()
        await worker.chunk(task, "one ", 1)
        await leave(here, first)
        await worker.nothing_more(task)
        assert int(await _field(here, task["taskId"], "linger_ms")) >= PATIENCE_MS > 30_000
        second = there.later(asking(there.http))
        await until(lambda: len(there.served.gateway.hub) == 1, "somebody to read it again")
        await worker.chunk(task, "two", 2)
        await worker.answer(task, None, lastSeq=2)
        answer = await second
        assert answer.headers["x-task-id"] == task["taskId"]
        assert answer.headers["idempotency-replayed"] == "true"
        assert "one " in answer.text


@pytest.mark.parametrize("asking", LEAVING, ids=str)
async def test_when_nobody_comes_back_the_worker_is_stopped_and_the_next_one_begins_anew(
    here: Talk, asking: Asking
) -> None:
    async with here.worker2(["m"]) as worker:
        first = here.later(asking(here.http))
        task = await worker.take()
        await worker.chunk(task, "one ", 1)
        await leave(here, first)
        await over_patience(here, task["taskId"])
        await worker.expect("cancel", taskId=task["taskId"])
        await worker.answer(task, error="cancelled", lastSeq=1)
        second = here.later(asking(here.http))
        again = await worker.skip_to("task")
        assert again["taskId"] != task["taskId"]
        await worker.ack(again)
        await worker.answer(again, {"content": "fine"})
        assert "idempotency-replayed" not in (await second).headers


async def test_without_a_key_a_caller_who_leaves_cancels_at_once_as_ever(here: Talk) -> None:
    async with here.worker2(["m"]) as worker:
        first = here.later(LEAVING[0](here.http, None))
        task = await worker.take()
        await leave(here, first)
        await worker.expect("cancel", taskId=task["taskId"])


async def test_one_reader_of_several_may_leave(here: Talk, there: Talk) -> None:
    asking = LEAVING[0]
    async with here.worker2(["m"]) as worker:
        await there.workers(1)
        first = here.later(asking(here.http))
        task = await worker.take()
        second = there.later(asking(there.http))
        await until(lambda: len(there.served.gateway.hub) == 1, "a second reader")
        await leave(here, first)
        await worker.answer(task, {"content": "fine"})
        assert (await second).json() == {"content": "fine"}


async def test_a_gateway_that_stops_sends_its_callers_to_another_one_where_they_join(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]],
) -> None:
    asking = LEAVING[0]
    async with gateway() as here, gateway() as there, there.worker2(["m"]) as worker:
        await here.workers(1)
        blocking = there.later(there.http.post("/api/openai", json=NATIVE))
        running = await worker.take()
        first = here.later(asking(here.http))
        await there.waiting(1)
        here.served.gateway.tasks.open_answers.begin()
        stopped = await first
        assert (stopped.status_code, stopped.json()["code"]) == (503, "GATEWAY_STOPPING")
        second = there.later(asking(there.http))
        await until(lambda: len(there.served.gateway.hub) == 1, "it to be read there")
        await worker.answer(running, {})
        await asyncio.wait([blocking])
        task = await worker.take()
        await worker.answer(task, {"content": "fine"})
        answer = await second
        assert answer.headers["x-task-id"] == task["taskId"] == stopped.headers["x-task-id"]
        assert answer.json() == {"content": "fine"}


async def _field(talk: Talk, task_id: str, field: str) -> Any:
    record = await talk.served.gateway.scheduler.position(task_id)
    return record and record.fields.get(field)
