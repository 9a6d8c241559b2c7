"""Any worker, read in any way: chunks and null, chunks and a result, only a result; as JSON, as a stream, by polling."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.ids import numbered
from tests.support.rawworkers import RawWorker, key
from tests.support.streams import Frame, frames_of
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
Task = dict[str, Any]
Behaviour = Callable[[RawWorker, Task], Awaitable[None]]


async def chunks_and_null(worker: RawWorker, task: Task) -> None:
    for text in ("Hel", "lo \u2028", '\n"wörld"'):
        await worker.chunk(task, text)
    await worker.answer(task, None)


async def chunks_and_usage(worker: RawWorker, task: Task) -> None:
    await worker.chunk(task, "Hello")
    await worker.answer(task, None, usage={"prompt_tokens": 3, "completion_tokens": 1})


async def chunks_and_result(worker: RawWorker, task: Task) -> None:
    await worker.chunk(task, "draft")
    await worker.answer(task, {"content": "final", "usage": {"tokens": 2}})


async def only_a_result(worker: RawWorker, task: Task) -> None:
    await worker.answer(task, {"answer": [1, {"b": None}]})


async def only_null(worker: RawWorker, task: Task) -> None:
    await worker.answer(task, None)


COUNTED = {"inputTokens": 11, "outputTokens": 5, "estimated": True}
CASES: list[tuple[Behaviour, str, Callable[[str], Any]]] = [
    (
        chunks_and_null,
        'Hello \u2028\n"wörld"',
        lambda i: {"id": i, "content": 'Hello \u2028\n"wörld"', "usage": COUNTED},
    ),
    (
        chunks_and_usage,
        "Hello",
        lambda i: {"id": i, "content": "Hello", "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
    ),
    (chunks_and_result, "draft", lambda _: {"content": "final", "usage": {"tokens": 2}}),
    (only_a_result, "", lambda _: {"answer": [1, {"b": None}]}),
]
cases = pytest.mark.parametrize(("behave", "text", "result"), CASES, ids=[case[0].__name__ for case in CASES])
calls = pytest.mark.parametrize("call", ["/api/openai", "/api/tasks"])


def body_for(call: str, **more: Any) -> dict[str, Any]:
    payload = {"messages": [{"role": "user", "content": "Hi"}]}
    if call == "/api/openai":
        return {**payload, **more}
    return {"type": "openaiLike", "payload": payload, **more}


def check_stream(events: list[Frame], task_id: str, text: str, result: Any) -> None:
    """The rules of a complete native stream of one attempt."""
    logged = [event for event in events if event.id is not None]
    assert numbered(event.id or "" for event in logged) == [f"1-{more}" for more in range(1, len(logged) + 1)]
    assert logged[0].event == "start"
    assert logged[-1].event == "done"
    assert {event.event for event in logged[1:-1]} <= {"chunk"}
    chunks = [event.data for event in logged if event.event == "chunk"]
    assert "".join(chunk["delta"] for chunk in chunks) == text
    assert all((chunk["index"], chunk["kind"]) == (0, "text") and chunk["n"] >= 1 for chunk in chunks)
    assert logged[-1].data["result"] == result
    for event in events:
        assert event.data["taskId"] == task_id
        assert isinstance(event.data["ts"], int)


@cases
@calls
async def test_the_result_is_read_as_json(
    shared_gateway: Start, call: str, behave: Behaviour, text: str, result: Callable[[str], Any]
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        waiting = talk.later(talk.http.post(call, json=body_for(call)))
        task = await worker.take()
        assert task["payload"] == {"messages": [{"role": "user", "content": "Hi"}]}
        await behave(worker, task)
        answer = await waiting
        assert answer.status_code == 200
        assert answer.json() == result(task["taskId"])
        assert answer.headers["x-task-id"] == task["taskId"]


@cases
@calls
async def test_the_result_is_read_as_a_stream(
    shared_gateway: Start, call: str, behave: Behaviour, text: str, result: Callable[[str], Any]
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        async with talk.events(call, json=body_for(call, stream=True)) as reader:
            task = await worker.take()
            await behave(worker, task)
            events = await reader.rest()
        assert reader.headers["x-task-id"] == task["taskId"]
        assert reader.headers["cache-control"] == "no-store, no-cache, no-transform"
        assert reader.headers["x-accel-buffering"] == "no"
        expected = result(task["taskId"])
        if (
            expected.get("usage") == COUNTED and call == "/api/openai"
        ):  # `stream` is a part of the payload there
            expected["usage"] = {**COUNTED, "inputTokens": 14}
        check_stream(events, task["taskId"], text, expected)


@cases
@calls
async def test_the_result_is_read_by_polling_and_replayed(
    shared_gateway: Start, call: str, behave: Behaviour, text: str, result: Callable[[str], Any]
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        answer = await talk.http.post(call, json=body_for(call, **{"async": True}))
        task_id = answer.json()["taskId"]
        await behave(worker, await worker.take())
        assert (await talk.reaches(task_id, "completed"))["result"] == result(task_id)
        for url in (f"/api/task/{task_id}/events", f"/api/sse-stream?taskId={task_id}"):
            replayed = await talk.http.get(url)
            check_stream(frames_of(replayed.content), task_id, text, result(task_id))


async def test_a_worker_that_answers_null_without_chunks_answers_null(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        await only_null(worker, task)
        answer = await call
        polled = await talk.poll(task["taskId"])
        streamed = frames_of((await talk.http.get(f"/api/task/{task['taskId']}/events")).content)
        assert answer.status_code == 200
        assert answer.json() == polled["result"] == streamed[-1].data["result"]


async def test_a_stream_moves_up_as_the_queue_does(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        ahead = await talk.submit(mode="stream")
        async with talk.events("/api/openai", json={"stream": True}) as reader:
            assert (await reader.next()).data["position"] == 2
            await talk.http.post(f"/api/task/{ahead}/cancel")
            moved = await reader.next()
            assert (moved.event, moved.data["position"]) == ("queued", 1)
            await worker.answer(running, {})
            await worker.answer(await worker.take(), {})
            await reader.until("done")


async def test_progress_and_stages_of_a_version_2_worker_are_shown(shared_gateway: Start) -> None:
    async with (
        shared_gateway() as talk,
        talk.worker2(["m"]) as worker,
        talk.events("/api/openai", json={"model": "m", "stream": True}) as reader,
    ):
        task = await worker.take()
        await worker.send("taskProgress", **key(task), pct=40, note="halfway")
        *_, start, progress = await reader.until("progress")
        assert (progress.id, progress.data["pct"], progress.data["note"]) == (None, 40, "halfway")
        await worker.send(
            "taskProgress", **key(task), stage={"name": "render", "index": 1, "of": 2, "status": "running"}
        )
        stage = await reader.next()
        assert (stage.event, stage.data["name"], stage.data["of"]) == ("stage", "render", 2)
        assert start.id is not None
        assert stage.id is not None
        assert numbered([start.id, stage.id]) == ["1-1", "1-2"]
        await worker.answer(task, {"video": "x"})
        assert (await reader.next()).data["result"] == {"video": "x"}


async def test_a_silent_stream_gets_keepalive_comments(gateway: Start) -> None:
    async with gateway(keepalive_ms=50) as talk, talk.worker() as worker:
        async with talk.http.stream("POST", "/api/openai", json={"stream": True}) as response:
            task = await worker.take()
            text = ""
            async for part in response.aiter_text():
                text += part
                if text.count(": keepalive\n") == 2:
                    await worker.answer(task, {})
        assert ": keepalive\n\n" not in text
        assert frames_of(text.encode())[-1].event == "done"


async def test_metadata_is_echoed_in_polls_and_events_and_not_sent_to_the_worker(
    shared_gateway: Start,
) -> None:
    metadata = {"order": 7, "tags": ["a", "\u2028"]}
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        task_id = await talk.submit(metadata=metadata)
        assert (await talk.poll(task_id))["metadata"] == metadata
        await worker.answer(running, {})
        task = await worker.take()
        assert task["payload"] == {"messages": []}
        assert (await talk.poll(task_id))["metadata"] == metadata
        await worker.answer(task, {})
        assert (await talk.reaches(task_id, "completed"))["metadata"] == metadata
        events = frames_of((await talk.http.get(f"/api/task/{task_id}/events")).content)
        assert [event.data.get("metadata") for event in events] == [metadata, metadata]
