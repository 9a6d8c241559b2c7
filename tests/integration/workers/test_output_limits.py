"""Nothing that a worker sends for one task makes its log grow without bound, and what is too much ends the task."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.rawworkers import NOBODY, Callers, RawWorker, key, until_workers, worker_v1, worker_v2
from tests.support.serving import Served, until
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
MIB = 1 << 20


@pytest.fixture
async def served(start: Start) -> AsyncIterator[Served]:
    async with start(max_output_bytes=MIB) as talk:
        yield talk.served


async def log_bytes(served: Served, task_id: str) -> int:
    """What the events of a task's log hold."""
    entries = await served.gateway.link.command("XRANGE", served.gateway.keys("log", id=task_id), "-", "+")
    return sum(len(fields[3]) for _, fields in entries)


def deltas(count: int, **delta: Any) -> list[dict[str, Any]]:
    return [delta] * count


Frames = Callable[[int], dict[str, Any]]


def chunk(*found: dict[str, Any]) -> Frames:
    return lambda number: {"type": "taskChunk", "seq": number, "deltas": list(found)}


FLOODS: dict[str, Frames] = {
    "text": chunk({"content": "x" * 50_000}),
    "small pieces": chunk(*deltas(500, content="word ")),
    "text of two bytes a character": chunk({"content": "é" * 30_000}),
    "finish reasons": chunk(*deltas(200, finishReason="length")),
    "tool calls": chunk(*deltas(20, toolCalls=[{"index": 0, "function": {"arguments": "x" * 1000}}])),
    "other members": chunk(*deltas(20, extra={"logprobs": [0.5] * 100})),
    "stages": lambda number: {
        "type": "taskProgress",
        "stage": {"name": "n" * 200, "index": number % 10_000, "of": 10_000, "status": "s" * 200},
    },
}


async def flood(worker: RawWorker, task: dict[str, Any], frames: Frames) -> dict[str, Any]:
    """Send frames, no faster than the gateway reads them, until it cancels the task: the cancel."""
    fence = {"taskId": NOBODY, "attempt": 1}
    for number in range(1, 5000):
        await worker.text(json.dumps({**key(task), **frames(number)}))
        if number % 20 == 0:
            await worker.send("heartbeat", running=[key(task), fence])
            if (cancel := await worker.skip_to("cancel"))["taskId"] == task["taskId"]:
                return cancel
    raise AssertionError("nothing stops it")


@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.shared
async def test_a_task_whose_output_is_too_large_fails_and_its_worker_is_stopped(
    served: Served, callers: Callers, kind: str
) -> None:
    async with worker_v2(served.ws, slots=64) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.ack(task)
        assert (await flood(worker, task, FLOODS[kind]))["reason"] == "superseded"
        failed = await callers.until_status(task_id, "failed")
        assert failed["code"] == "OUTPUT_TOO_LARGE"
        assert str(MIB) in failed["error"]
        assert await log_bytes(served, task_id) < MIB + 1000
        (connected,) = served.gateway.dispatcher.pool
        assert len(connected.attempts) == 1  # its slot is not free before it has stopped
        await worker.answer(task, lastSeq=0)
        await worker.skip_to("resultAck")
        assert not connected.attempts


@pytest.mark.shared
async def test_a_result_that_is_too_large_fails_its_task_and_frees_the_slot(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.answer(task, "x" * MIB, lastSeq=0)
        await worker.expect("resultAck", status="accepted")
        await answer.error("OUTPUT_TOO_LARGE")
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.answer(task, "x" * (MIB - 1000), lastSeq=0)
        assert len(await answer.ok()) == MIB - 1000


@pytest.mark.shared
async def test_what_earlier_attempts_wrote_counts_too(served: Served, callers: Callers) -> None:
    """A provider that refuses costs no try: stages before each refusal must not make a log without end."""
    refusal = {"code": "MODEL_TOO_BUSY", "retryable": True, "httpStatus": 429, "retryAfterMs": 1}
    log = served.gateway.keys("log", id="")
    async with worker_v2(served.ws, slots=64) as worker:
        task_id = await callers.later()
        logged = 0

        async def written() -> bool:
            return bool(await served.gateway.link.command("XLEN", log + task_id) == logged)

        async def stages() -> None:
            for index in range(200):
                stage = {"name": "n" * 10, "index": index, "of": 200, "status": "s"}
                await worker.send("taskProgress", **key(task), stage=stage)

        for _ in range(3):
            task = await worker.skip_to("task")
            await worker.ack(task)
            logged += 1
            for _ in range(4):  # not all at once, which would be a flood
                await stages()
                logged += 200
                await until(written, "the stages to be logged")
            await worker.answer(task, error="busy", errorInfo=refusal, lastSeq=0)
        assert logged * 512 > MIB
        task = await worker.skip_to("task")
        await worker.ack(task)
        await stages()
        await worker.skip_to("cancel")
        assert (await callers.until_status(task_id, "failed"))["code"] == "OUTPUT_TOO_LARGE"
        assert await log_bytes(served, task_id) < MIB


@pytest.mark.shared
async def test_a_version_1_workers_flood_ends_its_task_and_its_slot_is_free_when_it_answers(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        await until_workers(served, 1)
        answer = callers.ask()
        task = await worker.expect("task")
        for _ in range(30):
            await worker.send("taskChunk", taskId=task["taskId"], delta="x" * 50_000)
        await answer.error("OUTPUT_TOO_LARGE")
        answer = callers.ask()
        await worker.answer(task, "late")
        task = await worker.expect("task")
        await worker.answer(task, "next")
        assert await answer.ok() == "next"


# ---- usage, told while a task runs ----------


async def tell(worker: RawWorker, task: dict[str, Any], usage: Any) -> None:
    await worker.send("taskProgress", **key(task), usage=usage)


async def test_usage_so_far_is_an_event_and_counts_where_the_worker_says_no_more(
    served: Served, callers: Callers
) -> None:
    usage = {"inputTokens": 100, "outputTokens": 7, "cachedTokens": 64}
    async with worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.chunk(task, "seven words, as the worker counts")
        await tell(worker, task, usage)
        told = await watch.until_event("usage")
        assert told["usage"] == usage
        await watch.until_text("seven words, as the worker counts")
    error = await watch.until_event("error")
    assert (error["code"], error["usage"]) == ("WORKER_LOST", usage)


@pytest.mark.shared
async def test_usage_is_logged_at_most_five_times_a_second(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        for number in range(100):
            await tell(worker, task, {"outputTokens": number})
        await worker.nothing_more(task)
        await until(lambda: served.gateway.dispatcher.attempts.newest(task_id) is not None)
        await worker.answer(task, 1, lastSeq=0)
        await worker.expect("resultAck")
        entries = await served.gateway.link.command(
            "XRANGE", served.gateway.keys("log", id=task_id), "-", "+"
        )
        logged = [json.loads(fields[3]) for _, fields in entries if fields[1] == b"usage"]
        assert 1 <= len(logged) < 50


@pytest.mark.parametrize("usage", [3, [1], "many", {"more": "x" * 3000}])
@pytest.mark.shared
async def test_usage_that_cannot_be_told_is_an_error_that_is_not_fatal(
    served: Served, callers: Callers, usage: Any
) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await tell(worker, task, usage)
        assert "usage" in (await worker.expect("error", code="PROTOCOL_ERROR"))["message"]
        await worker.answer(task, 1, lastSeq=0)
        assert await answer.ok() == 1
