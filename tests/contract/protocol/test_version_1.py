"""Version 1 of the worker protocol: the frames of the seed, verbatim, over a raw WebSocket. Connecting is enough."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
import websockets
from tests.contract.gateway import Gateway, poll, polled

pytestmark = pytest.mark.anyio

BODY = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}


async def post(client: httpx2.AsyncClient, **more: Any) -> httpx2.Response:
    return await client.post("/api/openai", json={**BODY, **more})


@pytest.mark.parametrize("result", [{"a": 1}, [1, 2], "text", 7, False])
async def test_a_task_has_four_keys_and_its_result_is_the_answer(gateway: Gateway, result: Any) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        call = asyncio.create_task(post(client, temperature=0.5))
        task = await worker.receive()
        assert task == {
            "type": "task",
            "taskType": "openaiLike",
            "taskId": task["taskId"],
            "payload": {**BODY, "temperature": 0.5},
        }
        await worker.text(
            json.dumps({"type": "taskResult", "taskId": task["taskId"], "result": result, "error": None})
        )
        answer = await call
        assert (answer.status_code, answer.json()) == (200, result)


async def test_an_error_is_a_500_with_its_text_and_is_final(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        call = asyncio.create_task(post(client))
        task = await worker.receive()
        await worker.send(
            type="taskResult", taskId=task["taskId"], result=None, error="the model exploded: 42"
        )
        answer = await call
        assert answer.status_code == 500
        assert answer.json() == {
            "error": "the model exploded: 42",
            "code": "WORKER_ERROR",
            "category": "worker",
            "taskId": task["taskId"],
            "docsUrl": "/docs#WORKER_ERROR",
        }


@pytest.mark.parametrize("more", [{"error": None}, {"error": ""}, {}])
async def test_a_missing_or_empty_error_is_success(gateway: Gateway, more: dict[str, Any]) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        call = asyncio.create_task(post(client))
        task = await worker.receive()
        await worker.send(type="taskResult", taskId=task["taskId"], result={"ok": 1}, **more)
        assert (await call).json() == {"ok": 1}


async def test_chunks_are_joined_and_half_an_emoji_becomes_a_replacement_character(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        call = asyncio.create_task(post(client))
        task = await worker.receive()
        for delta in ("Hel", "lo", "", "a\ud83d", "\ude00b", "c\ud83d"):
            await worker.text(json.dumps({"type": "taskChunk", "taskId": task["taskId"], "delta": delta}))
        await worker.send(type="taskResult", taskId=task["taskId"], result=None, error=None)
        assert (await call).json()["content"] == "Helloa\ufffd\ufffdbc\ufffd"


async def test_one_task_at_a_time_in_order(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        ids = [(await post(client, **{"async": True})).json()["taskId"] for _ in range(3)]
        for number, task_id in enumerate(ids):
            assert (await worker.receive())["taskId"] == task_id
            assert [(await poll(client, one))["status"] for one in ids[number:]] == [
                "executing",
                *["queued"] * (2 - number),
            ]
            await worker.finish({"taskId": task_id}, number)
            assert (await polled(client, task_id, "completed"))["result"] == number


async def test_the_gateway_sends_nothing_but_tasks(gateway: Gateway) -> None:
    """Whatever the worker sends and the clients do; a late result is ignored and the next task follows."""
    async with gateway.client() as client, gateway.worker_v1() as worker:
        for text in ("{", '{"type":"unheardOf"}', '{"type":"taskResult","taskId":"x","result":1}'):
            await worker.text(text)
        cancelled = (await post(client, **{"async": True})).json()["taskId"]
        task = await worker.receive()
        assert (await client.post(f"/api/task/{cancelled}/cancel")).status_code == 200
        call = asyncio.create_task(post(client))
        for result in ("too late", "twice"):
            await worker.finish(task, result)
        await worker.finish(await worker.receive(), "good")
        assert (await call).json() == "good"
        assert (await poll(client, cancelled))["status"] == "cancelled"
        assert [sorted(frame) for frame in worker.seen] == [["payload", "taskId", "taskType", "type"]] * 2


@pytest.mark.parametrize(
    "frame",
    [
        '{"type":"taskResult","taskId":"%s","result":NaN}',
        '{"type":"taskResult","taskId":"%s","result":{',
        '{"type":"taskChunk","taskId":"%s","delta":12}',
    ],
)
async def test_a_frame_of_the_running_task_that_cannot_be_read_fails_it(gateway: Gateway, frame: str) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        call = asyncio.create_task(post(client))
        task = await worker.receive()
        await worker.text(frame % task["taskId"])
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (500, "PROTOCOL_ERROR")


async def test_a_task_too_large_for_version_1_is_not_sent(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        answer = await post(client, text="x" * (1 << 20))
        assert (answer.status_code, answer.json()["code"]) == (500, "NO_WORKER")
        call = asyncio.create_task(post(client))
        await worker.finish(await worker.receive(), 1)
        assert (await call).json() == 1


async def test_a_lost_worker_returns_its_task_before_output_and_ends_it_after(gateway: Gateway) -> None:
    async with gateway.client() as client:
        async with gateway.worker_v1() as worker:
            task_id = (await post(client, **{"async": True})).json()["taskId"]
            await worker.receive()
        assert (await polled(client, task_id, "queued"))["position"] == 1
        async with gateway.worker_v1() as worker:
            assert (await worker.receive())["taskId"] == task_id
            await worker.send(type="taskChunk", taskId=task_id, delta="so far")
            async with client.stream("GET", f"/api/task/{task_id}/events") as events:
                async for line in events.aiter_lines():
                    if "so far" in line:
                        break
        failed = await polled(client, task_id, "failed")
        assert failed["code"] == "WORKER_LOST"


async def test_a_socket_becomes_a_version_2_worker_by_registering(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v1() as worker:
        call = asyncio.create_task(post(client))
        old = await worker.receive()
        await worker.register("any")
        task = await worker.take()
        assert (task["taskId"], "attempt" in task) == (old["taskId"], True)
        await worker.finish(task, "as version 2")
        assert (await call).json() == "as version 2"


async def test_a_web_page_may_not_be_a_worker(gateway: Gateway) -> None:
    with pytest.raises(websockets.InvalidStatus) as error:
        async with gateway.worker_v1(origin=websockets.Origin("http://evil.example")):
            pass
    assert error.value.response.status_code == 403
