"""One key, one task: whoever submits again joins it, or has its answer replayed, at each gateway and in each way."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from tests.support.ledger import ended_at
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.stored import forget, kept_ms
from tests.support.talk import Talk

from fairlane.queues.metrics import TASKS_RESUBMITTED

from .asking import ASKINGS, CHAT, KEY, NATIVE, WAITED_FOR, Asking, promised

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


def resubmitted(*talks: Talk) -> dict[str, float]:
    """What gateways counted of known keys."""
    found: dict[str, float] = {}
    for talk in talks:
        for (outcome,), number in talk.served.gateway.metrics.values[TASKS_RESUBMITTED.name].items():
            found[outcome] = found.get(outcome, 0) + number
    return found


async def run(worker: RawWorker, task: dict[str, Any], asking: Asking) -> None:
    """Write what the call asks for."""
    if asking.result is None:
        for seq, text in enumerate(("one ", "two ", "three"), 1):
            await worker.chunk(task, text, seq)
        await worker.answer(task, None, lastSeq=3)
    else:
        await worker.answer(task, asking.result)


def same(asking: Asking, first: httpx2.Response, *others: httpx2.Response) -> None:
    """Assert that all are the one task's, and the same, and that the others say that they are no first ones."""
    assert "idempotency-replayed" not in first.headers
    for other in others:
        assert other.headers["idempotency-replayed"] == "true"
        assert other.headers["x-task-id"] == first.headers["x-task-id"]
    if asking.body.get("async"):
        assert {answer.status_code for answer in (first, *others)} == {202}
        for other in others:
            told = other.json()
            assert (told["replay"], told["idemKey"]) == (True, KEY)
            assert told["taskId"] == first.json()["taskId"]
        assert "replay" not in first.json()
    else:
        assert {promised(other) for other in others} == {promised(first)}


@pytest.mark.parametrize("asking", ASKINGS, ids=str)
async def test_who_comes_while_it_waits_or_runs_or_when_it_has_ended_gets_the_same(
    here: Talk, there: Talk, asking: Asking
) -> None:
    async with there.worker2(["m"]) as worker:
        await here.workers(1)
        before = here.later(here.http.post("/api/openai", json=NATIVE))
        blocking = await worker.take()
        calls = [here.later(asking(here.http))]
        await here.waiting(1)
        calls += [there.later(asking(there.http)), here.later(asking(here.http))]
        await until(lambda: resubmitted(here, there)["joined"] == 2, "two to join what waits")
        await worker.answer(blocking, {})
        assert (await before).status_code == 200
        task = await worker.take()
        calls.append(there.later(asking(there.http)))
        await until(lambda: resubmitted(here, there)["joined"] == 3, "one to join what runs")
        await run(worker, task, asking)
        await worker.expect("resultAck", status="accepted")
        first, *others = await asyncio.gather(*calls)
        await here.reaches(first.headers["x-task-id"], "completed")
        replayed = [await asking(talk.http) for talk in (here, there)]
        same(asking, first, *others, *replayed)
        if asking.body.get("async"):
            assert [answer.json()["status"] for answer in (*others, *replayed)] == [
                *("queued", "queued", "executing", "completed", "completed")
            ]
        await worker.nothing_more()
        assert resubmitted(here, there) == {"joined": 3, "replayed": 2, "gone": 0, "conflict": 0}
        gateway = here.served.gateway
        assert (await ended_at(gateway.link))["completed"] == 2, "the one before, and one"


@pytest.mark.parametrize("asking", [WAITED_FOR[0], WAITED_FOR[4], WAITED_FOR[5]], ids=str)
async def test_a_reader_who_joins_in_the_middle_reads_from_the_first_event(
    here: Talk, there: Talk, asking: Asking
) -> None:
    async with here.worker2(["m"]) as worker:
        await there.workers(1)
        first = here.later(asking(here.http))
        task = await worker.take()
        for seq in range(1, 400):
            await worker.chunk(task, f"{seq} " * 100, seq)
        at = here.served.gateway.keys("log", id=task["taskId"])
        link = here.served.gateway.link

        async def many() -> bool:
            return int(await link.command("XLEN", at)) > 1

        await until(many, "some of its output in the log")
        second = there.later(asking(there.http))
        await until(lambda: resubmitted(there)["joined"] == 1, "a second reader")
        await worker.chunk(task, "end", 400)
        await worker.answer(task, None, lastSeq=400)
        same(asking, await first, await second)


async def test_another_request_is_refused_in_the_shape_of_each_surface_and_the_first_goes_on(
    here: Talk, there: Talk
) -> None:
    async with here.worker2(["m"]) as worker:
        await there.workers(1)
        native, chat = Asking("/api/openai", NATIVE), Asking("/v1/chat/completions", CHAT)
        first = here.later(native(here.http))
        task = await worker.take()
        other = await native(there.http, temperature=1)
        assert (other.status_code, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
        elsewhere = await chat(there.http)
        assert elsewhere.status_code == 422
        assert elsewhere.json()["error"]["code"] == "IDEMPOTENCY_KEY_REUSED"
        assert elsewhere.json()["error"]["type"] == "invalid_request_error"
        option = await there.http.post(
            "/v1/chat/completions", json=CHAT, headers={"Idempotency-Key": KEY, "X-Fairlane-Priority": "3"}
        )
        assert option.status_code == 422
        await worker.answer(task, {"content": "fine"})
        same(native, await first, await native(there.http))
        assert resubmitted(there)["conflict"] == 3


async def test_what_counts_as_the_same_body(here: Talk) -> None:
    async def ask(body: str, **headers: str) -> httpx2.Response:
        said = {"Content-Type": "application/json", "Idempotency-Key": "k", **headers}
        return await here.http.post("/api/openai", content=body, headers=said)

    async with here.worker2(["m"]) as worker:
        first = await ask('{"model":"m","async":true,"x":[1, 2]}')
        task = await worker.take()
        assert task["payload"] == {"model": "m", "x": [1, 2]}
        for body in (
            '{"x":[1, 2],"async":true,"model":"m"}',
            ' { "x" : [1, 2] , "async" : true,\n "model" : "m" } ',
            '{"model":"m","async":true,"x":[1, 2],"idempotencyKey":"k"}',
        ):
            again = await ask(body, **{"X-Stainless-Retry-Count": "1", "User-Agent": "other"})
            assert again.json()["taskId"] == first.json()["taskId"], body
        for body in (
            '{"model":"m","async":true,"x":[1,2]}',
            '{"model":"m","async":true,"x":[2, 1]}',
            '{"model":"m","async":true}',
            '{"model":"m","async":true,"x":[1, 2],"y":null}',
        ):
            assert (await ask(body)).status_code == 422, body


async def test_the_same_large_body_is_known_and_the_last_byte_of_it_counts(here: Talk) -> None:
    async with here.worker2(["m"]) as worker:
        text = "x" * 3_000_000
        body = {**NATIVE, "messages": [{"role": "user", "content": text}], "async": True}
        first = await Asking("/api/openai", body)(here.http)
        assert first.status_code == 202, first.text
        await worker.take()
        assert (await Asking("/api/openai", body)(here.http)).json()["taskId"] == first.json()["taskId"]
        body["messages"] = [{"role": "user", "content": text[:-1] + "y"}]
        assert (await Asking("/api/openai", body)(here.http)).status_code == 422


async def test_the_field_of_a_native_body_is_the_header_and_no_part_of_the_payload(here: Talk) -> None:
    body = {**NATIVE, "async": True, "idempotencyKey": "a key of the body".replace(" ", "-")}
    async with here.worker2(["m"]) as worker:
        first = await here.http.post("/api/openai", json=body)
        task = await worker.take()
        assert "idempotencyKey" not in task["payload"]
        again = await here.http.post("/api/openai", json=body)
        assert again.json()["taskId"] == first.json()["taskId"]
        assert again.json()["idemKey"] == "a-key-of-the-body"
        of_type = {"type": "mine", "model": "m", "payload": [1], "async": True, "idempotencyKey": "of-type"}
        first = await here.http.post("/api/tasks", json=of_type)
        again = await here.http.post("/api/tasks", json=of_type)
        assert again.json()["taskId"] == first.json()["taskId"]


@pytest.mark.parametrize("key", [" ", "a b", "é", "x" * 256, "tab\there"])
async def test_what_is_no_key_is_a_400_that_says_what_is_one(shared_gateway: Start, key: str) -> None:
    async with shared_gateway() as talk:
        refused = await talk.http.post("/api/openai", json={**NATIVE, "idempotencyKey": key})
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
        assert "1 to 255" in refused.json()["error"]
        if key.strip() == key:
            header = [("Idempotency-Key", key.encode("latin-1"))]
            refused = await talk.http.post("/v1/chat/completions", json=CHAT, headers=header)  # type: ignore[arg-type]
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "Idempotency-Key"


async def test_two_keys_in_one_request_are_a_400(here: Talk) -> None:
    body = {**NATIVE, "idempotencyKey": "one"}
    refused = await here.http.post("/api/openai", json=body, headers={"Idempotency-Key": "two"})
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
    twice = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]
    assert (await here.http.post("/api/openai", json=NATIVE, headers=twice)).status_code == 400
    number = await here.http.post("/api/openai", json={**NATIVE, "idempotencyKey": 7})
    assert number.status_code == 400


async def test_users_of_an_open_gateway_never_meet_by_a_key(here: Talk) -> None:
    asking = Asking("/api/openai", {**NATIVE, "async": True})
    ids = set()
    async with here.worker2(["m"], slots=3):
        for user in ("ann", "bob", "ann"):
            async with here.client(**{"X-Fairlane-User": user}) as http:
                ids.add((user, (await asking(http)).json()["taskId"]))
    assert len(ids) == 2


async def test_a_final_failure_and_a_cancel_are_replayed_with_status_and_body(
    here: Talk, there: Talk
) -> None:
    asking = Asking("/v1/chat/completions", CHAT)
    async with here.worker2(["m"]) as worker:
        await there.workers(1)
        first = here.later(asking(here.http))
        error = {"code": "CONTEXT_LENGTH", "retryable": False}
        await worker.answer(await worker.take(), error="it is not", errorInfo=error)
        again = await asking(there.http)
        same(asking, await first, again)
        assert again.status_code == 400
        assert again.headers["x-should-retry"] == "false"

        native = Asking("/api/openai", NATIVE)
        first = here.later(native(here.http, "other"))
        task = await worker.take()
        assert (await here.http.post(f"/api/task/{task['taskId']}/cancel")).status_code == 200
        answers = [await first, await native(there.http, "other")]
        assert [promised(answer) for answer in answers] == [promised(answers[0])] * 2
        assert answers[1].status_code == 499


@pytest.mark.parametrize("asking", [Asking("/api/openai", NATIVE), WAITED_FOR[5]], ids=str)
async def test_behind_a_failure_that_a_retry_may_mend_it_runs_anew(here: Talk, asking: Asking) -> None:
    async with here.worker2(["m"]) as worker:
        first = here.later(asking(here.http))
        for _ in range(3):  # its tries
            error = {"code": "MODEL_TOO_BUSY", "retryable": True}
            await worker.answer(await worker.take(), error="it is not", errorInfo=error)
        assert (await first).status_code >= 500
        second = here.later(asking(here.http))
        await run(worker, await worker.take(), asking)
        answer = await second
        assert answer.status_code == 200
        assert answer.headers["x-task-id"] != (await first).headers["x-task-id"]
        assert "idempotency-replayed" not in answer.headers


async def test_a_refusal_leaves_the_key_free(here: Talk) -> None:
    asking = Asking("/api/openai", NATIVE)
    assert (await asking(here.http)).status_code == 503, "nobody runs the model"
    async with here.worker2(["m"]) as worker:
        call = here.later(asking(here.http))
        await worker.answer(await worker.take(), {})
        assert "idempotency-replayed" not in (await call).headers


async def test_what_is_kept_no_more_is_said_to_be_gone_and_not_run_again(here: Talk) -> None:
    asking = Asking("/v1/chat/completions", CHAT)
    async with here.worker2(["m"]) as worker:
        call = here.later(asking(here.http))
        await worker.answer(await worker.take(), {"content": "fine"})
        task_id = (await call).headers["x-task-id"]
        await forget(here.served.gateway, task_id)
        gone = await asking(here.http)
        assert (gone.status_code, gone.json()["error"]["code"]) == (410, "IDEMPOTENCY_RESULT_GONE")
        assert gone.headers["x-task-id"] == task_id
        await worker.expect("resultAck")
        await worker.nothing_more()


async def test_an_async_task_that_only_the_archive_knows_is_told_from_there(gateway: Start) -> None:
    asking = Asking("/api/openai", {**NATIVE, "async": True})
    async with gateway(archive="results") as talk, talk.worker2(["m"]) as worker:
        task_id = (await asking(talk.http)).json()["taskId"]
        await worker.answer(await worker.take(), {"content": "fine"})
        scheduler = talk.served.gateway.scheduler

        async def archived() -> bool:
            record = await scheduler.position(task_id)
            return record is not None and "archive" not in record.fields

        await talk.reaches(task_id, "completed")
        await until(archived, "the archive to have it")
        await forget(talk.served.gateway, task_id)
        told = (await asking(talk.http)).json()
        assert (told["taskId"], told["status"], told["replay"]) == (task_id, "completed", True)
        poll = await talk.http.get(told["statusUrl"])
        assert poll.json()["result"] == {"content": "fine"}


async def test_when_keys_are_off_each_call_is_a_task(gateway: Start) -> None:
    asking = Asking("/api/openai", {**NATIVE, "async": True})
    async with gateway(idempotency_ttl_ms=0) as talk, talk.worker2(["m"]) as worker:
        ids = {(await asking(talk.http, idempotencyKey=KEY)).json()["taskId"] for _ in range(2)}
        assert len(ids) == 2
        assert "idempotencyKey" not in (await worker.take())["payload"]


async def test_record_log_and_key_are_kept_for_the_time_of_the_key(gateway: Start) -> None:
    asking = Asking("/api/openai", NATIVE)
    async with gateway(idempotency_ttl_ms=3_600_000, task_result_ttl_ms=1000) as talk:
        link = talk.served.gateway.link
        async with talk.worker2(["m"]) as worker:
            call = talk.later(asking(talk.http))
            await worker.answer(await worker.take(), {})
            task_id = (await call).headers["x-task-id"]
            (name,) = [name async for name in _named(link)]
            for left in (int(await link.command("PTTL", name)), await kept_ms(talk.served.gateway, task_id)):
                assert 3_500_000 < left <= 3_600_000
            await link.command("PEXPIRE", name, 0)  # its time is over
            second = talk.later(asking(talk.http))
            await worker.answer(await worker.take(), {})
            assert (await second).headers["x-task-id"] != task_id


async def _named(link: Any) -> Any:
    for name in await link.command("KEYS", "*:idempotency:*"):
        yield name


async def test_the_first_caller_of_a_chat_is_told_the_time_of_the_record(here: Talk) -> None:
    async with here.worker2(["m"]) as worker:
        call = here.later(Asking("/v1/chat/completions", CHAT)(here.http, None))
        task = await worker.take()
        record = await here.served.gateway.scheduler.position(task["taskId"])
        assert record is not None
        await worker.answer(task, {"content": "fine"})
        assert json.loads((await call).content)["created"] == int(record.fields["enqueued_at"]) // 1000
