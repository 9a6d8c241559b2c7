"""Version 2 of the worker protocol, as workers/PROTOCOL.md has it: each message of a worker and each of the gateway, over a raw
WebSocket."""

import asyncio
from typing import Any

import httpx2
import pytest
from tests.contract.gateway import DEADLINE_S, Gateway, named, poll, polled

pytestmark = pytest.mark.anyio


async def post(client: httpx2.AsyncClient, model: str = "m", **more: Any) -> httpx2.Response:
    return await client.post("/api/openai", json={"model": model, "messages": [], **more})


async def submit(client: httpx2.AsyncClient, model: str = "m", **more: Any) -> str:
    answer = await post(client, model, **{"async": True}, **more)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


# ---- registering ----------


async def test_register_is_answered_with_the_limits_of_the_gateway(gateway: Gateway) -> None:
    async with gateway.worker_v2("m", name="gpu-1") as worker:
        (frame,) = worker.seen
        assert frame == {
            "type": "registered",
            "workerId": frame["workerId"],
            "protocol": 2,
            "heartbeatMs": 10_000,
            "deadAfterMs": 30_000,
            "limits": {"maxMessageBytes": frame["limits"]["maxMessageBytes"]},
        }
        assert frame["workerId"]
        assert worker.ws.subprotocol == "fairlane.worker.v2"


async def test_a_worker_without_a_common_version_is_closed_with_4426(gateway: Gateway) -> None:
    async with gateway.worker_v2(register=False) as worker:
        await worker.send(type="register", protocols=[7], instanceId="i", name="n", models=["m"])
        assert await worker.closed() == 4426
        assert worker.seen[-1]["type"] == "error"


async def test_a_silent_worker_is_closed_when_it_does_not_register(gateway: Gateway) -> None:
    async with gateway.worker_v2(register=False) as worker:
        assert await worker.closed() == 4400


async def test_the_newest_connection_of_an_instance_wins(gateway: Gateway) -> None:
    async with gateway.worker_v2("m", instanceId="same") as older, gateway.worker_v2("m", instanceId="same"):
        assert await older.closed() == 4409


# ---- a task ----------


async def test_a_task_names_its_attempt_and_what_its_caller_wants(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m", slots=2) as worker:
        call = asyncio.create_task(post(client, stream=False))
        task = await worker.take()
        assert task == {
            "type": "task",
            "taskType": "openaiLike",
            "taskId": task["taskId"],
            "payload": {"model": "m", "messages": [], "stream": False},
            "attempt": task["attempt"],
            "model": "m",
            "stream": False,
            "timeoutMs": task["timeoutMs"],
        }
        assert 0 < task["timeoutMs"] <= 10_000
        assert 0 < task["attempt"] < 1 << 53
        await worker.finish(task, {"fine": 1}, lastSeq=0)
        assert (await worker.receive()) == {"type": "resultAck", **named(task), "status": "accepted"}
        assert (await call).json() == {"fine": 1}


async def test_a_worker_gets_as_many_tasks_as_it_has_slots(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m", slots=2) as worker:
        ids = [await submit(client) for _ in range(3)]
        tasks = [await worker.take() for _ in range(2)]
        assert [task["taskId"] for task in tasks] == ids[:2]
        await worker.silent(*tasks)
        await worker.finish(tasks[0], 1)
        assert (await worker.receive("task"))["taskId"] == ids[2]


async def test_deltas_and_usage_become_the_answer(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        task = await worker.take()
        deltas = [{"reasoning": "Hm"}, {"content": "HELLO "}]
        await worker.send(type="taskChunk", **named(task), seq=1, deltas=deltas)
        await worker.send(type="taskChunk", **named(task), seq=1, deltas=deltas)
        more = [{"content": "THERE"}, {"finishReason": "stop"}]
        await worker.send(type="taskChunk", **named(task), seq=2, deltas=more)
        await worker.finish(task, lastSeq=2, usage={"inputTokens": 2, "outputTokens": 2})
        body = (await call).json()
        choice = body["choices"][0]
        assert choice["message"]["content"] == "HELLO THERE", "a repeated seq is ignored"
        assert choice["finish_reason"] == "stop"
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2, 2)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([{"type": "taskChunk", "seq": 2, "deltas": [{"content": "x"}]}], "PROTOCOL_ERROR"),
        ([{"type": "taskChunk", "deltas": [{"content": "x"}]}], "PROTOCOL_ERROR"),
        ([{"type": "taskChunk", "seq": 1, "deltas": [{"toolCalls": 7}]}], "PROTOCOL_ERROR"),
        ([{"type": "taskResult", "lastSeq": 1, "result": None, "error": None}], "PROTOCOL_ERROR"),
        ([{"type": "taskReject", "reason": "badPayload", "message": "no"}], "WORKER_ERROR"),
    ],
    ids=["a gap", "no seq", "no list", "lastSeq", "badPayload"],
)
async def test_what_a_worker_must_not_send_fails_its_task(
    gateway: Gateway, frames: list[dict[str, Any]], code: str
) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client))
        task = await worker.receive("task")
        for frame in frames:
            await worker.send(**frame, **named(task))
        answer = await call
        assert answer.json()["code"] in (code, "BAD_REQUEST")


@pytest.mark.parametrize(
    ("info", "status", "code"),
    [
        ({"code": "CONTEXT_LENGTH", "retryable": False}, 500, "CONTEXT_LENGTH"),
        ({"code": "UPSTREAM_AUTH", "retryable": False}, 500, "UPSTREAM_AUTH"),
        ({"code": "unheard of", "retryable": False}, 500, "WORKER_ERROR"),
    ],
)
async def test_a_final_error_ends_the_task_with_its_code(
    gateway: Gateway, info: dict[str, Any], status: int, code: str
) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client))
        await worker.finish(await worker.take(), error="it broke", errorInfo=info)
        answer = await call
        assert (answer.status_code, answer.json()["code"], answer.json()["error"]) == (
            status,
            code,
            "it broke",
        )


async def test_a_retryable_error_is_tried_three_times_before_the_first_output(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client))
        attempts = []
        for _ in range(3):
            task = await worker.take()
            attempts.append(task["attempt"])
            info = {"code": "UPSTREAM_ERROR", "retryable": True}
            await worker.finish(task, error="it broke", errorInfo=info)
            assert (await worker.receive())["status"] == "accepted"
        assert (await call).json()["code"] == "UPSTREAM_ERROR"
        assert attempts == sorted(set(attempts))


@pytest.mark.feature("pacing")
async def test_a_provider_that_is_too_busy_costs_no_try_and_holds_its_model(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("busy", "free", slots=2) as worker:
        call = asyncio.create_task(post(client, "busy"))
        task = await worker.take()
        info = {"code": "MODEL_TOO_BUSY", "retryable": True, "httpStatus": 429, "retryAfterMs": 1000}
        await worker.finish(task, error="slow down", errorInfo=info)
        begun = asyncio.get_running_loop().time()
        other = asyncio.create_task(post(client, "free"))
        await worker.finish(await worker.take(), "another model")
        assert (await other).json() == "another model"
        task = await worker.take()
        assert (task["model"], asyncio.get_running_loop().time() - begun > 0.8) == ("busy", True)
        await worker.finish(task, "now")
        assert (await call).json() == "now"


@pytest.mark.parametrize("reason", ["capacity", "draining", "unsupported"])
async def test_a_rejected_task_goes_to_another_worker(gateway: Gateway, reason: str) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as first:
        call = asyncio.create_task(post(client))
        task = await first.receive("task")
        async with gateway.worker_v2("m") as second:
            await first.send(type="taskReject", **named(task), reason=reason, retryAfterMs=5000)
            again = await second.take()
            assert again["taskId"] == task["taskId"]
            await second.finish(again, reason)
            assert (await call).json() == reason


# ---- the gateway's messages ----------


async def test_a_cancelled_task_is_cancelled_at_its_worker_whose_slot_is_free_when_it_answers(
    gateway: Gateway,
) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        task_id, waiting = await submit(client), await submit(client)
        task = await worker.take()
        await client.post(f"/api/task/{task_id}/cancel")
        cancel = await worker.receive()
        assert cancel == {"type": "cancel", **named(task), "reason": "client", "graceMs": cancel["graceMs"]}
        await worker.silent(task)
        await worker.finish(task, "too late")
        frames = {frame["type"]: frame for frame in (await worker.receive(), await worker.receive())}
        assert frames["resultAck"]["status"] == "stale"
        assert frames["task"]["taskId"] == waiting
        assert (await poll(client, task_id))["status"] == "cancelled"


async def test_a_client_that_disconnects_cancels_its_sync_task(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client))
        task = await worker.take()
        call.cancel()
        cancel = await worker.receive()
        assert (cancel["type"], cancel["taskId"], cancel["reason"]) == ("cancel", task["taskId"], "client")


async def test_a_task_out_of_time_is_cancelled_at_its_worker(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client, timeout=300))
        await worker.take()
        cancel = await worker.receive()
        assert (cancel["type"], cancel["reason"]) == ("cancel", "timeout")
        assert (await call).json()["code"] == "TOTAL_TIMEOUT"


async def test_results_are_acknowledged_once_and_unknown_ones_change_nothing(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client))
        task = await worker.take()
        await worker.finish({**task, "attempt": task["attempt"] - 1}, "forged")
        for _ in range(2):
            await worker.finish(task, "real")
        statuses = [(await worker.receive("resultAck"))["status"] for _ in range(3)]
        assert {*statuses} - {"stale", "unknown"} == {"accepted", "duplicate"}
        assert (await call).json() == "real"


async def test_a_heartbeat_that_misses_a_task_twice_loses_it(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        call = asyncio.create_task(post(client))
        task = await worker.take()
        for _ in range(2):
            await worker.send(type="heartbeat", running=[])
        again = await worker.receive("task")
        assert (again["taskId"], again["attempt"] > task["attempt"]) == (task["taskId"], True)
        await worker.finish(again, "again")
        assert (await call).json() == "again"


async def test_a_draining_worker_gets_no_new_task_and_finishes_its_own(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m", slots=2) as worker:
        task_id = await submit(client)
        task = await worker.take()
        await worker.send(type="draining", graceMs=5000)
        await worker.silent(task)
        rejected = await post(client)
        assert (rejected.status_code, rejected.json()["code"]) == (503, "NO_WORKER")
        await worker.finish(task, "done")
        assert (await polled(client, task_id, "completed"))["result"] == "done"


async def test_progress_and_stages_reach_readers(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        task_id = await submit(client)
        task = await worker.take()
        stage = {"name": "render", "index": 1, "of": 2, "status": "started"}
        kinds = []
        async with asyncio.timeout(DEADLINE_S), client.stream("GET", f"/api/task/{task_id}/events") as events:
            async for line in events.aiter_lines():
                if line == "event: start":
                    await worker.send(type="taskProgress", **named(task), pct=50, note="half", stage=stage)
                if line.startswith("event: "):
                    kinds.append(line.removeprefix("event: "))
                if {"stage", "progress"} <= {*kinds} and "done" not in kinds:
                    await worker.finish(task, "done") if worker.seen[-1]["type"] == "task" else None
        assert kinds[-1] == "done"


async def test_an_operator_drains_a_worker(gateway: Gateway) -> None:
    async with gateway.client() as client, gateway.worker_v2("m") as worker:
        await client.post(f"/api/admin/workers/{worker.seen[0]['workerId']}/drain", json={})
        drain = await worker.receive()
        assert (drain["type"], drain.get("reconnect", False)) == ("drain", False)


async def test_invalid_frames_are_reported_a_few_times_and_then_close_the_connection(
    gateway: Gateway,
) -> None:
    async with gateway.worker_v2("m") as worker:
        for _ in range(8):
            await worker.text("{")
        assert await worker.closed() == 4400
        errors = [frame for frame in worker.seen if frame["type"] == "error"]
        assert errors
        assert not errors[0].get("fatal")
