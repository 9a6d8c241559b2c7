"""`submitTask`, `queryTask` and `cancelTask`: an interface called in turn, in the words of the seed."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import Talk

from .calling import IMAGE, URL, caller, offers, query, reaches, response, submit

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_a_request_is_submitted_carried_out_and_queried(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk) as worker:
        told = await submit(
            talk,
            http_method="POST",
            body='{"prompt":"a cat"}',
            priority=3,
            timestamp=1732400000,
            task_type="offline",
        )
        assert told["task_status"] in ("pending", "processing")
        assert told["wait_num"] == 0
        assert datetime.fromisoformat(told["created_at"]).tzinfo is not None
        task = await worker.take()
        assert task["taskType"] == "http"
        assert task["model"] == "http:image"
        payload = task["payload"]
        assert payload["method"] == "POST"
        assert payload["url"] == URL
        assert payload["body"] == '{"prompt":"a cat"}'
        assert payload["headers"] == [["content-type", "application/json"]]
        assert payload["rules"] == {
            "pattern": "https://images.example.com/v1/*",
            "timeoutMs": 30_000,
            "maxResponseBytes": 1 << 20,
            "allowPrivate": [],
        }
        executing = await query(talk, told["task_id"])
        assert (executing["task_status"], executing["task_result"]) == ("processing", "")
        assert executing["started_at"]
        assert executing["ended_at"] == ""
        await worker.answer(task, response('{"image":"…"}', **{"content-type": "application/json"}))
        done = await reaches(talk, told["task_id"], "completed")
        assert done["task_result"] == '{"image":"…"}'
        assert done["http_status"] == 200
        assert (done["wait_num"], done["wait_time"]) == (0, 0)
        times = [datetime.fromisoformat(done[f"{name}_at"]) for name in ("created", "started", "ended")]
        assert times == sorted(times)


async def test_those_who_wait_are_told_how_many_come_before_them(gateway: Start) -> None:
    image = {"endpoints": {"image": {**IMAGE["endpoints"]["image"], "concurrency": 1, "mean_ms": 2000}}}
    async with gateway(**image) as talk, caller(talk) as worker:
        first = await submit(talk)
        task = await worker.take()
        others = [await submit(talk) for _ in range(3)]
        assert [one["wait_num"] for one in others] == [0, 1, 2]
        assert {one["task_status"] for one in others} == {"pending"}
        waiting = await query(talk, others[2]["task_id"])
        assert (waiting["task_status"], waiting["wait_num"]) == ("pending", 2)
        assert waiting["wait_time"] == 6  # nothing was measured: three of two seconds
        assert waiting["started_at"] == ""
        await worker.answer(task, response("1"))
        assert (await reaches(talk, first["task_id"], "completed"))["task_result"] == "1"


async def test_a_task_is_cancelled_also_when_it_has_ended(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk, 1) as worker:
        running, waiting = await submit(talk), await submit(talk)
        await worker.take()
        answer = await talk.http.post("/api/cancelTask", json={"task_id": waiting["task_id"]})
        assert answer.json() == {"task_id": waiting["task_id"], "task_status": "cancelled"}
        answer = await talk.http.post("/api/cancelTask", json={"task_id": running["task_id"]})
        assert answer.json()["task_status"] == "cancelled"
        assert (await worker.skip_to("cancel"))["taskId"] == running["task_id"]
        again = await talk.http.post("/api/cancelTask", json={"task_id": running["task_id"]})
        assert again.json()["task_status"] == "cancelled"
        assert (await query(talk, running["task_id"]))["task_status"] == "cancelled"
        assert (await query(talk, running["task_id"]))["ended_at"]


async def test_failures_and_bytes_are_told(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk) as worker:
        told = await submit(talk)
        await worker.answer(
            await worker.take(),
            errorInfo={"code": "UPSTREAM_ERROR", "message": "it said 500", "retryable": False},
        )
        failed = await reaches(talk, told["task_id"], "failed")
        assert json.loads(failed["task_result"]) == {"error": "it said 500", "code": "UPSTREAM_ERROR"}
        told = await submit(talk)
        await worker.answer(await worker.take(), response(b"\x00\xff", 404))
        done = await reaches(talk, told["task_id"], "completed")
        assert (done["task_result"], done["task_result_base64"], done["http_status"]) == ("", "AP8=", 404)


async def test_an_answer_is_there_for_a_while_once_it_was_read_and_then_in_the_archive(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.endpoints.requests.AFTER_READ_MS", 1)
    async with gateway(**IMAGE) as talk, caller(talk) as worker:
        told = await submit(talk)
        record = await talk.served.gateway.tasks.poll.record(told["task_id"])
        fields = record.fields
        assert (fields["ttl"], fields["keep_after_read"], fields["archive"]) == (
            "3600000",
            "1",
            str(72 * 3_600_000),
        )
        assert int(fields["wait_deadline"]) - int(fields["enqueued_at"]) == 3 * 3_600_000
        await worker.answer(await worker.take(), response("kept"))
        await reaches(talk, told["task_id"], "completed")
        scheduler = talk.served.gateway.scheduler

        async def gone() -> bool:
            return await scheduler.position(told["task_id"]) is None

        async def archived() -> bool:
            return (await talk.http.get(f"/api/admin/tasks/{told['task_id']}?stored=true")).status_code == 200

        await until(archived, "the archive to have it")
        await query(talk, told["task_id"])  # it was read: from now on it may go
        await until(gone, "Redis to forget it")
        found = await query(talk, told["task_id"])
        assert (found["task_status"], found["task_result"]) == ("completed", "kept")
        assert found["created_at"] == told["created_at"]


async def test_nobody_else_sees_a_task(gateway: Start) -> None:
    keys = [key("ann"), key("bob")]
    async with (
        gateway(keys=keys, **IMAGE) as talk,
        talk.client(secret("ann")) as ann,
        talk.client(secret("bob")) as bob,
    ):
        worker = talk.worker2(["http:*"], taskTypes=["http"])
        with pytest.raises(AssertionError, match="MODELS"):  # the token of `*` covers no endpoints
            await worker.__aenter__()
        answer = await ann.post("/api/submitTask", json={"target_url": URL})
        assert (answer.status_code, answer.json()["task_status"]) == (200, "pending")  # it waits for one
        for path, method in (("/api/queryTask?task_id={}", "GET"), ("/api/cancelTask", "POST")):
            task_id = "0193593a-4a00-8000-8000-000000000000"
            body = {"json": {"task_id": task_id}} if method == "POST" else {}
            refused = await bob.request(method, path.format(task_id), **body)
            assert (refused.status_code, refused.json()["code"]) == (404, "TASK_NOT_FOUND")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"target_url": "https://other.example.com/v1/make"}, "ENDPOINT_NOT_FOUND"),
        ({"target_url": "https://images.example.com/v1/../admin"}, "INVALID_REQUEST"),
        ({"target_url": "https://images.example.com@evil.example/v1/x"}, "INVALID_REQUEST"),
        ({"http_method": "DELETE"}, "INVALID_REQUEST"),
        ({"priority": -1}, "INVALID_REQUEST"),
        ({"target": "x"}, "INVALID_REQUEST"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(
    shared_gateway: Start, body: dict[str, Any], code: str
) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk):
        await offers(talk, "http:image")
        answer = await talk.http.post("/api/submitTask", json={"target_url": URL, **body})
    assert answer.json()["code"] == code, answer.text
    assert answer.status_code == (404 if code == "ENDPOINT_NOT_FOUND" else 400)
    assert answer.json()["error"]


async def test_the_same_idempotency_key_is_the_same_task(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk):
        named = {"Idempotency-Key": "once"}
        body = {"target_url": URL, "body": "x"}
        first = await talk.http.post("/api/submitTask", json=body, headers=named)
        second = await talk.http.post("/api/submitTask", json=body, headers=named)
        assert first.json()["task_id"] == second.json()["task_id"]
        assert second.headers["idempotency-replayed"] == "true"
        other = await talk.http.post("/api/submitTask", json={**body, "body": "y"}, headers=named)
        assert other.json()["code"] == "IDEMPOTENCY_KEY_REUSED"


async def test_priority_orders_a_users_own_tasks_alone(gateway: Start) -> None:
    keys = [key("ann"), key("bob")]
    workers = [{"id": "tests", "sha256": key("w")["sha256"], "models": ["http:*"]}]
    image = {"image": {**IMAGE["endpoints"]["image"], "concurrency": 1}}
    async with (
        gateway(keys=keys, workers=workers, endpoints=image) as talk,
        talk.client(secret("ann")) as ann,
        talk.client(secret("bob")) as bob,
    ):
        from tests.support.rawworkers import worker_v2

        async with worker_v2(
            talk.served.ws, "http:*", token=secret("w"), slots=1, taskTypes=["http"]
        ) as worker:
            await offers(talk, "http:image")

            async def send(who: Any, body: str, priority: int) -> None:
                said = {"target_url": URL, "body": body, "priority": priority}
                answer = await who.post("/api/submitTask", json=said)
                assert answer.status_code == 200, answer.text

            await send(ann, "first", 0)
            task = await worker.take()
            for number in range(3):
                await send(ann, f"ann {number}", 9)
            await send(bob, "bob 0", 0)
            await send(ann, "ann urgent", 5)
            order = []
            for _ in range(5):
                await worker.answer(task, response("ok"))
                task = await worker.take()
                order.append(task["payload"]["body"])
            assert order.index("bob 0") <= 1  # ann's priority moves nothing before bob's


async def test_a_task_must_be_named(here: Talk) -> None:
    for answer in (await here.http.get("/api/queryTask"), await here.http.post("/api/cancelTask", json={})):
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
        assert "task_id is missing" in answer.json()["error"]
