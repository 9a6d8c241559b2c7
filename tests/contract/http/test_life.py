"""The life of a task over HTTP: five shapes of a poll, replay from any event, cancelling, and errors of other features."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from tests.contract.gateway import Gateway, Worker, named, poll, polled

pytestmark = pytest.mark.anyio

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


async def submit(client: httpx2.AsyncClient, **more: Any) -> str:
    answer = await client.post("/api/openai", json={**CHAT, "async": True, **more})
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert body["taskId"] == answer.headers["x-task-id"]
    assert body["statusUrl"] == answer.headers["location"] == f"/api/task/{body['taskId']}"
    return str(body["taskId"])


async def events(client: httpx2.AsyncClient, url: str, **headers: str) -> AsyncIterator[dict[str, str]]:
    """Events of a stream to its end, as id, event and data."""
    async with client.stream("GET", url, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        event: dict[str, str] = {}
        async for line in response.aiter_lines():
            if not line and event:
                yield event
                event = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                event[name] = value


async def chunks(worker: Worker, task: dict[str, Any], *texts: str) -> None:
    for seq, text in enumerate(texts, 1):
        await worker.send(type="taskChunk", **named(task), seq=seq, deltas=[{"content": text}])


async def test_a_poll_has_one_of_five_shapes(gateway: Gateway) -> None:
    shape = {"taskId", "status"}
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        first, second, third = [await submit(client) for _ in range(3)]
        task = await worker.take()
        executing, queued = await poll(client, first), await poll(client, second)
        assert executing.keys() == {*shape, "workerId", "startedAt", "pollAfterMs", "streamUrl"}
        waits = {"estimatedWaitMs", "estimatedWaitLowMs", "estimatedWaitHighMs"}
        assert queued.keys() - {"estimating"} == {
            *shape,
            "enqueuedAt",
            "position",
            *waits,
            "pollAfterMs",
            "streamUrl",
        }
        assert (executing["status"], queued["status"], queued["position"]) == ("executing", "queued", 1)
        await worker.finish(task, {"fine": 1}, usage={"inputTokens": 3, "outputTokens": 4})
        completed = await polled(client, first, "completed")
        assert completed.keys() == {*shape, "completedAt", "result"}
        assert completed["result"] == {"fine": 1}
        info = {"code": "CONTEXT_LENGTH", "retryable": False}
        await worker.finish(await worker.take(), error="it broke", errorInfo=info)
        failed = await polled(client, second, "failed")
        assert failed.keys() == {*shape, "failedAt", "error", "code", "category", "retryable"}
        assert (failed["error"], failed["code"], failed["retryable"]) == ("it broke", "CONTEXT_LENGTH", False)
        await worker.take()
        await client.post(f"/api/task/{third}/cancel")
        assert (await polled(client, third, "cancelled")).keys() == {*shape, "cancelledAt"}


async def test_replay_from_any_event_is_the_rest_of_the_stream_and_its_text_is_the_result(
    gateway: Gateway,
) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        task_id = await submit(client)
        task = await worker.take()
        await chunks(worker, task, "one ", "two ", "three")
        await worker.finish(task, lastSeq=3)
        await polled(client, task_id, "completed")
        whole = [event async for event in events(client, f"/api/task/{task_id}/events")]
        assert [event["event"] for event in whole][-1] == "done"
        for at, event in enumerate(whole[:-1]):
            url, last = f"/api/task/{task_id}/events", event["id"]
            assert [one async for one in events(client, url, **{"Last-Event-ID": last})] == whole[at + 1 :]
        text = "".join(json.loads(event["data"])["delta"] for event in whole if event["event"] == "chunk")
        assert text == "one two three" == (await poll(client, task_id))["result"]["content"]


async def test_the_seeds_stream_has_the_same_events(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        task_id = await submit(client)
        reading = asyncio.create_task(
            anext_until(events(client, f"/api/sse-stream?taskId={task_id}"), {"done", "error", "cancelled"})
        )
        task = await worker.take()
        await chunks(worker, task, "Hi")
        await worker.finish(task, lastSeq=1)
        live = [event for event in await reading if event["event"] != "queued"]
        replayed = [event async for event in events(client, f"/api/task/{task_id}/events")]
        assert live == replayed


async def anext_until(stream: AsyncIterator[dict[str, str]], kinds: set[str]) -> list[dict[str, str]]:
    """Events up to the first one of these kinds."""
    seen = []
    async for event in stream:
        seen.append(event)
        if event["event"] in kinds:
            break
    return seen


async def test_cancelling_ends_a_task_once(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        task_id = await submit(client)
        await worker.take()
        answers = [await client.post(f"/api/task/{task_id}/cancel") for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {answer.json()["status"] for answer in answers} == {"cancelled"}
        ends = [event["event"] async for event in events(client, f"/api/task/{task_id}/events")]
        assert ends.count("cancelled") == 1
        assert ends[-1] == "cancelled"


async def test_a_full_queue_rejects_with_a_time_to_retry(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m"):
        ids = [await submit(client) for _ in range(21)]
        answer = await client.post("/api/openai", json={**CHAT, "async": True})
        assert (answer.status_code, answer.json()["error"]) == (503, "Queue is full")
        assert int(answer.headers["retry-after"]) >= 1
        for task_id in ids:
            await client.post(f"/api/task/{task_id}/cancel")


@pytest.mark.feature("idempotency")
async def test_one_idempotency_key_is_one_task(gateway: Gateway) -> None:
    async with (
        gateway.client(headers={"Idempotency-Key": "order-7"}) as client,
        gateway.worker_v2("m") as worker,
    ):
        first, second = await submit(client), await submit(client)
        assert first == second
        other = await client.post("/api/openai", json={**CHAT, "async": True, "n": 2})
        assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
        await worker.finish(await worker.take(), "once")
        assert (await polled(client, first, "completed"))["result"] == "once"
        await worker.receive("resultAck")
        await worker.silent()


@pytest.mark.feature("structured_output")
async def test_an_answer_must_match_the_schema_that_its_client_asks_for(gateway: Gateway) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        for text, status in (('{"a":1}', 200), ('{"a":"x"}', 502)):
            body = {**CHAT, "response_format": wanted}
            call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            task = await worker.take()
            await chunks(worker, task, text)
            await worker.finish(task, lastSeq=1)
            answer = await call
            assert answer.status_code == status, answer.text


@pytest.mark.feature("webhooks")
@pytest.mark.parametrize(("body", "status"), [({"url": "not a url", "events": ["task.completed"]}, 400)])
async def test_a_webhook_is_validated(gateway: Gateway, body: dict[str, Any], status: int) -> None:
    async with gateway.client() as client:
        assert (await client.post("/api/webhooks", json=body)).status_code == status


@pytest.mark.feature("endpoints")
async def test_the_queue_service_api_keeps_the_seeds_names(gateway: Gateway) -> None:
    names = {"task_status", "wait_num", "wait_time", "created_at", "started_at", "ended_at", "task_result"}
    worker_v2 = gateway.worker_v2("http:*", taskTypes=["http"])
    async with gateway.client() as client, worker_v2 as worker:
        body = {"target_url": "https://images.example.com/v1/make", "http_method": "POST", "body": "{}"}
        told = (await client.post("/api/submitTask", json=body)).json()
        task = await worker.take()
        assert (task["taskType"], task["payload"]["url"]) == ("http", body["target_url"])
        await worker.finish(task, {"status": 200, "headers": [], "body": "made"})
        await worker.receive("resultAck")
        done = (await client.get("/api/queryTask", params={"task_id": told["task_id"]})).json()
        assert done.keys() >= names
        assert (done["task_status"], done["task_result"], done["http_status"]) == ("completed", "made", 200)
        waiting = (await client.post("/api/submitTask", json=body)).json()
        answer = await client.post("/api/cancelTask", json={"task_id": waiting["task_id"]})
        assert answer.json() == {"task_id": waiting["task_id"], "task_status": "cancelled"}


@pytest.mark.feature("batches", "files")
async def test_a_batch_runs_each_line_as_a_task(gateway: Gateway) -> None:
    lines = [
        {"custom_id": f"l{n}", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
        for n in range(2)
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    async with gateway.client() as client, gateway.worker_v2("m", slots=2) as worker:
        uploaded = await client.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("b.jsonl", text)}
        )
        about = {
            "input_file_id": uploaded.json()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch = (await client.post("/v1/batches", json=about)).json()
        for _ in lines:
            await worker.finish(await worker.take(), {"content": "fine"})
        for _ in range(200):
            batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
            if batch["status"] == "completed":
                break
            await asyncio.sleep(0.05)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 2)
        output = (await client.get(f"/v1/files/{batch['output_file_id']}/content")).text
        assert {json.loads(line)["custom_id"] for line in output.splitlines()} == {"l0", "l1"}
