"""Version 1 on the wire: four keys, one task at a time, and nothing a worker does can go further than its own task."""

import json
from typing import Any

import pytest
import websockets
from tests.support.rawworkers import Callers, RawWorker, bystander, tune, until_workers, worker_v1
from tests.support.serving import Served
from websockets.asyncio.client import connect

pytestmark = pytest.mark.anyio


@pytest.mark.shared
async def test_a_task_has_exactly_the_four_keys(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask("any-model", messages=[{"role": "user", "content": "hi"}], timeout=6000)
        task = await worker.recv()
        assert task == {
            "type": "task",
            "taskType": "openaiLike",
            "taskId": task["taskId"],
            "payload": {"model": "any-model", "messages": [{"role": "user", "content": "hi"}]},
        }
        await worker.answer(task, {"answer": 1})
        assert await answer.ok() == {"answer": 1}


@pytest.mark.shared
async def test_nothing_else_is_ever_sent_whatever_the_worker_and_the_callers_do(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        await worker.text("{")
        await worker.text('{"type":"unheardOf"}')
        await worker.answer({"taskId": "nobody's"}, 1)
        await worker.send("taskChunk", taskId="nobody's", delta="x")
        first = await callers.later()
        task = await worker.recv()
        await callers.client.post(f"/api/task/{first}/cancel")
        answer = callers.ask()
        await worker.answer(task, "too late")
        await worker.answer(task, "twice")
        second = await worker.recv()
        await worker.answer(second, "good")
        assert await answer.ok() == "good"
        assert (await callers.status(first))["status"] == "cancelled"
        for frame in worker.seen:
            assert frame.keys() == {"type", "taskType", "taskId", "payload"}
        assert len(worker.seen) == 2


@pytest.mark.shared
async def test_one_task_at_a_time(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        answers = [callers.ask(number=i) for i in range(3)]
        for i in range(3):
            task = await worker.recv()
            assert len(worker.seen) == i + 1
            await worker.answer(task, task["payload"]["number"])
        assert sorted([await answer.ok() for answer in answers]) == [0, 1, 2]


@pytest.mark.shared
async def test_chunks_are_streamed_and_joined(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.recv()
        await worker.send("taskChunk", taskId=task["taskId"], delta="Hel")
        await watch.until_text("Hel")
        await worker.send("taskChunk", taskId=task["taskId"], delta="lo")
        await worker.answer(task)
        done = await watch.until_event("done")
        assert watch.text == "Hello"
        assert done["result"]["content"] == "Hello"


@pytest.mark.shared
async def test_a_worker_error_is_final_and_told_verbatim(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker, worker_v1(served.ws) as other:
        await until_workers(served, 2)
        answer = callers.ask()
        first = await _whoever_gets_it(worker, other)
        await first.answer(first.seen[-1], None, error="it broke")
        body = await answer.error("WORKER_ERROR")
        assert body["error"] == "it broke"


async def _whoever_gets_it(*workers: RawWorker) -> RawWorker:
    import asyncio

    waiting = {asyncio.create_task(worker.recv()): worker for worker in workers}
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    return waiting[done.pop()]


@pytest.mark.shared
async def test_an_empty_error_string_is_success(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        await worker.answer(await worker.recv(), {"fine": True}, error="")
        assert await answer.ok() == {"fine": True}


@pytest.mark.shared
async def test_a_late_result_is_ignored_and_the_next_task_follows(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        cancelled = await callers.later()
        task = await worker.recv()
        await callers.client.post(f"/api/task/{cancelled}/cancel")
        waiting = await callers.later()
        assert (await callers.status(waiting))["status"] == "queued"
        await worker.answer(task, "late")
        second = await worker.recv()
        assert second["taskId"] == waiting
        await worker.answer(second, "in time")
        assert (await callers.until_status(waiting, "completed"))["result"] == "in time"
        assert (await callers.status(cancelled))["status"] == "cancelled"


async def test_a_worker_that_does_not_answer_after_its_task_was_cancelled_is_disconnected(
    served: Served, callers: Callers
) -> None:
    tune(served, stop_grace_ms=300)
    async with bystander(served, callers), worker_v1(served.ws) as worker:
        task_id = await callers.later()
        await worker.recv()
        await callers.client.post(f"/api/task/{task_id}/cancel")
        assert await worker.closed() == 1011


async def test_a_task_too_large_for_version_1_is_not_sent_and_says_so(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        body = await callers.ask(text="x" * (1 << 20)).error("NO_WORKER")
        assert "too large" in body["error"]
        answer = callers.ask(text="small")
        await worker.answer(await worker.recv(), 1)
        assert await answer.ok() == 1


@pytest.mark.shared
async def test_an_idle_socket_becomes_a_version_2_worker_by_registering(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        await worker.register("m", slots=2)
        await until_workers(served, 1)
        answers = [callers.ask(number=i) for i in range(2)]
        for task in [await worker.expect("task") for _ in answers]:
            await worker.answer(task, task["payload"]["number"])
        assert sorted([await answer.ok() for answer in answers]) == [0, 1]


@pytest.mark.shared
async def test_registering_takes_back_a_task_that_was_on_its_way(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        old = await worker.recv()
        await worker.register("m")
        task = await worker.expect("task", taskId=old["taskId"])
        await worker.answer(task, "as version 2")
        assert await answer.ok() == "as version 2"


@pytest.mark.shared
async def test_registering_in_the_middle_of_output_is_refused_silently(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.recv()
        await worker.send("taskChunk", taskId=task["taskId"], delta="a")
        await worker.send("register", instanceId="i", name="n", models=["m"])
        await worker.send("taskChunk", taskId=task["taskId"], delta="b")
        await worker.answer(task)
        await watch.until_event("done")
        assert watch.text == "ab"
        assert len(worker.seen) == 1


# ---- what cannot be read ----------


@pytest.mark.shared
async def test_half_an_emoji_without_the_other_becomes_a_replacement_character(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.recv()
        for half in ("a\ud83d", "b", "\ude00c", "d\ud83d"):
            await worker.text(json.dumps({"type": "taskChunk", "taskId": task["taskId"], "delta": half}))
        await worker.answer(task)
        await watch.until_event("done")
        assert watch.text == "a\ufffdb\ufffdcd\ufffd"


@pytest.mark.parametrize(
    "result", ["NaN", "[" * 1_000_000 + "]" * 1_000_000, "{"], ids=["NaN", "deep", "cut"]
)
@pytest.mark.shared
async def test_a_result_that_is_not_valid_json_fails_its_task_at_once(
    served: Served, callers: Callers, result: str
) -> None:
    async with bystander(served, callers), worker_v1(served.ws) as worker:
        answer = callers.ask()
        task = await worker.recv()
        await worker.text('{{"type":"taskResult","taskId":"{}","result":{}}}'.format(task["taskId"], result))
        await answer.error("PROTOCOL_ERROR")
        second = callers.ask()
        await worker.answer(await worker.recv(), "good")
        assert await second.ok() == "good"


@pytest.mark.parametrize("depth", [100, 400, 800, 900, 940, 960, 980, 995])
@pytest.mark.shared
async def test_a_deep_result_is_returned_or_refused_but_never_breaks(
    served: Served, callers: Callers, depth: int
) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        task = await worker.recv()
        deep = "[" * depth + "]" * depth
        await worker.text('{{"type":"taskResult","taskId":"{}","result":{}}}'.format(task["taskId"], deep))
        response = await answer.response()
        if response.status_code == 200:
            assert response.text == deep
        else:
            assert response.json()["code"] in ("OUTPUT_TOO_LARGE", "PROTOCOL_ERROR")


@pytest.mark.shared
async def test_a_chunk_that_cannot_be_read_fails_its_stream_instead_of_leaving_a_hole(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.recv()
        await worker.send("taskChunk", taskId=task["taskId"], delta="good")
        await worker.text('{{"type":"taskChunk","taskId":"{}","delta":12}}'.format(task["taskId"]))
        assert (await watch.until_event("error"))["code"] == "PROTOCOL_ERROR"
        await worker.send("taskChunk", taskId=task["taskId"], delta="more")
        await worker.answer(task)
        answer = callers.ask()
        await worker.answer(await worker.recv(), "next")
        assert await answer.ok() == "next"
        assert watch.text == "good"


@pytest.mark.shared
async def test_frames_of_unknown_types_do_not_disturb_a_running_task(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        task = await worker.recv()
        await worker.send("log", taskId=task["taskId"], line="working")
        await worker.text("not even JSON")
        await worker.answer(task, 1)
        assert await answer.ok() == 1


@pytest.mark.shared
async def test_binary_frames_count_like_text(served: Served, callers: Callers) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        task = await worker.recv()
        await worker.ws.send(b"\xff\xfe")
        await worker.ws.send(
            json.dumps({"type": "taskResult", "taskId": task["taskId"], "result": 1}).encode()
        )
        assert await answer.ok() == 1


# ---- who may connect ----------


async def refused(url: str, **options: Any) -> int:
    with pytest.raises(websockets.InvalidStatus) as error:
        async with connect(url, proxy=None, **options):
            pass
    return error.value.response.status_code


@pytest.mark.shared
async def test_a_web_page_may_not_be_a_worker(served: Served) -> None:
    assert await refused(served.ws, origin=websockets.Origin("http://evil.example")) == 403
    assert await refused(served.ws, origin=websockets.Origin(served.url)) == 403
