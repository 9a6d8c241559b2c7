"""Answers that do not match their schema are asked for again, once, while nobody has seen any of them."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.integration.native.test_structured_output import BAD, GOOD, asked, message, take_of
from tests.support.rawworkers import NOBODY, RawWorker
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import KeyQuota, PriceSettings

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

CHAT: dict[str, Any] = {
    **asked(),
    "messages": [{"role": "user", "content": "Which skills?"}],
    "temperature": 0.5,
}
ONCE_MORE = {"X-Fairlane-Repair": "1"}
USED = {"inputTokens": 10, "outputTokens": 5}
WORSE = '{"skills": 3}'
PLACE = "$.skills[1].name"


async def in_pieces(worker: RawWorker, task: dict[str, Any], text: str) -> None:
    """An answer that is streamed, whoever reads it."""
    await worker.chunk(task, text[:10], 1)
    await worker.chunk(task, text[10:], 2)
    await worker.answer(task, None, lastSeq=2, usage=USED)


async def no_other_task(worker: RawWorker) -> None:
    """Prove that it was given none: what the gateway answers now is behind acknowledgements alone."""
    await worker.send("heartbeat", running=[{"taskId": NOBODY, "attempt": 1}])
    while (frame := await worker.recv())["type"] == "resultAck":
        pass
    assert (frame["type"], frame["taskId"]) == ("cancel", NOBODY), frame


async def logged(talk: Talk, task_id: str) -> list[str]:
    """The types of a task's events."""
    async with talk.events(f"/api/task/{task_id}/events") as reader:
        return [frame.event for frame in await reader.rest()]


async def test_the_model_is_told_its_answer_and_what_was_wrong_with_it(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        call = talk.later(talk.http.post("/v1/chat/completions", json=CHAT, headers=ONCE_MORE))
        await worker.answer(await worker.take(), message(BAD))
        again = await worker.take()
        first, theirs, ours = again["payload"].pop("messages")
        assert first == CHAT["messages"][0]
        assert theirs == {"role": "assistant", "content": BAD}
        assert ours["role"] == "user"
        assert f'{PLACE}: the value is not of type "string"' in ours["content"]
        assert again["payload"] == {name: value for name, value in CHAT.items() if name != "messages"}
        await worker.answer(again, message(GOOD))
        answer = await call
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body["choices"][0]["message"]["content"] == GOOD
        assert body["usage"] == {
            "prompt_tokens": 20,
            "completion_tokens": 10,
            "total_tokens": 30,
            "repaired": {"prompt_tokens": 10, "completion_tokens": 5},
        }


async def test_events_and_operators_tell_of_it_and_nothing_of_the_first_answer_is_shown(
    gateway: Start,
) -> None:
    async with gateway() as talk, talk.worker2(["m"], name="w") as worker:
        task_id = await talk.submit(**CHAT, repair=True)
        await in_pieces(worker, await worker.take(), BAD)
        again = await worker.take()
        assert await talk.reaches(task_id, "executing")
        await in_pieces(worker, again, GOOD)
        poll = await talk.reaches(task_id, "completed")
        assert poll["result"]["content"] == GOOD
        assert poll["result"]["usage"] == {"inputTokens": 20, "outputTokens": 10, "repaired": USED}
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            seen = await reader.rest()
        assert [event.event for event in seen] == ["start", "start", "chunk", "done"]
        assert [event.data.get("repair") for event in seen[:2]] == [None, True]
        assert seen[2].data["delta"] == GOOD
        row = (await talk.http.get(f"/api/admin/tasks/{task_id}")).json()
        assert row["repaired"]
        assert [one["outcome"] for one in row["attempts"]] == ["JSON_PARSE_FAILED, repaired", "completed"]
        metrics = (await talk.http.get("/metrics")).text
        for outcome in ("begun", "repaired"):
            assert f'fairlane_repairs_total{{model="m",outcome="{outcome}"' in metrics, metrics


async def test_an_answer_that_is_wrong_twice_fails_with_the_last_place(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker, talk.worker2(["m"]) as other:
        task_id = await talk.submit(**CHAT, repair=True)
        for text in (BAD, WORSE):
            if text == BAD:
                await other.leave()
            await worker.answer(await worker.take(), message(text))
        poll = await talk.reaches(task_id, "failed")
        assert poll["error"].startswith("The answer does not match its schema: $.skills:")
        assert poll["code"] == "JSON_PARSE_FAILED"
        assert await logged(talk, task_id) == ["start", "start", "error"]
        await no_other_task(worker)
        assert not any(known.unhealthy_reason for known in talk.served.gateway.dispatcher.pool)
        assert 'outcome="failed"' in (await talk.http.get("/metrics")).text


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (CHAT, message(BAD)),
        ({**CHAT, "repair": True}, message(BAD, "length")),
        ({**CHAT, "repair": True}, message(None, refusal="I will not.")),
        (
            {**CHAT, "repair": True},
            {"choices": [*message(BAD)["choices"], {**message(GOOD)["choices"][0], "index": 1}]},
        ),
        ({**CHAT, "repair": False}, message(BAD)),
        ({**CHAT, "repair": True, "response_format": {"type": "json_object"}}, message("[]")),
    ],
    ids=["not asked for", "cut off", "refused", "two choices", "not wanted", "not looked at"],
)
async def test_what_is_not_repaired(shared_gateway: Start, body: dict[str, Any], result: Any) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(**body)
        await worker.answer(await worker.take(), result)
        await talk.reaches(task_id, "completed", "failed")
        await no_other_task(worker)


async def test_a_stream_whose_pieces_were_shown_is_not_and_one_that_has_shown_nothing_is(
    shared_gateway: Start,
) -> None:
    async with shared_gateway(structured_output="repair") as talk, talk.worker2(["m"]) as worker:
        async with talk.events("/api/openai", json={**CHAT, "stream": True}) as reader:
            await in_pieces(worker, await worker.take(), BAD)
            seen = await reader.rest()
        assert [event.event for event in seen if event.event != "queued"][-1] == "error"
        assert "".join(event.data["delta"] for event in seen if event.event == "chunk") == BAD
        await no_other_task(worker)
        call = talk.later(talk.http.post("/v1/chat/completions", json={**CHAT, "stream": True}))
        await worker.answer(await worker.take(), message(BAD))
        await worker.answer(await worker.take(), message(GOOD))
        text = (await call).text
        assert BAD.replace('"', '\\"')[20:] not in text
        assert text.rstrip().endswith("data: [DONE]")


async def test_a_worker_that_is_lost_while_it_writes_costs_nobody_the_answer(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker, talk.worker2(["m"]) as other:
        call = talk.later(talk.http.post("/v1/chat/completions", json=CHAT, headers=ONCE_MORE))
        first, task = await take_of(worker, other)
        await first.chunk(task, "half of")
        await first.leave()
        second = other if first is worker else worker
        again = await second.take()
        assert again["payload"] == task["payload"], "nobody has seen the half"
        await second.answer(again, message(GOOD))
        assert (await call).json()["choices"][0]["message"]["content"] == GOOD


async def test_who_leaves_between_the_answers_gets_none(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(**CHAT, repair=True)
        busy = await talk.submit(model="m")
        await in_pieces(worker, await worker.take(), BAD)
        first = await worker.take()
        repaired = first if first["taskId"] == task_id else None
        assert (await talk.http.post(f"/api/task/{task_id}/cancel")).status_code == 200
        if repaired is not None:
            await worker.skip_to("cancel")
            await worker.answer(repaired, None, error="stopped")
            first = await worker.take()
        assert first["taskId"] == busy
        await worker.answer(first, {"content": "fine"})
        assert (await talk.poll(task_id))["status"] == "cancelled"
        assert "chunk" not in await logged(talk, task_id)
        await talk.reaches(busy, "completed")
        await no_other_task(worker)


async def test_another_model_repairs_it_where_its_own_is_gone_or_failed_twice(gateway: Start) -> None:
    models = {"m": {"fallbacks": ["n"]}}
    async with gateway(models=models) as talk, talk.worker2(["n"]) as second:
        async with talk.worker2(["m"]) as first:
            task_id = await talk.submit(**CHAT, repair=True)
            for text in (BAD, WORSE):
                await first.answer(await first.take(), message(text))
            task = await second.take()
            await second.answer(task, message(GOOD))
            poll = await talk.reaches(task_id, "completed")
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            assert poll["result"]["usage"] == usage
            assert poll["model"] == "n"
            task_id = await talk.submit(**CHAT, repair=True)
            task = await first.take()
            checker = talk.served.gateway.checker
            async with checker._semaphore.hold("another"):  # somebody else's turn
                await first.answer(task, message(BAD))
                attempts = talk.served.gateway.dispatcher.attempts
                await until(lambda: any(one.answered for one in attempts.values()), "the result to be there")
                await first.leave()
                await talk.workers(1)
        task = await second.take()
        assert task["payload"]["messages"][1]["content"] == BAD
        await second.answer(task, message(GOOD))
        poll = await talk.reaches(task_id, "completed")
        assert poll["result"]["usage"]["prompt_tokens"] == 20


async def test_a_task_between_its_answers_survives_its_gateway(gateway: Start) -> None:
    async with gateway() as talk:
        async with talk.worker2(["m"]) as worker:
            task_id = await talk.submit(**CHAT, repair=True)
            await worker.answer(await worker.take(), message(BAD))
            again = await worker.take()
            await worker.leave()
        await talk.reaches(task_id, "queued")
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        task = await worker.take()
        assert task["payload"] == again["payload"]
        await worker.answer(task, message(GOOD))
        poll = await talk.reaches(task_id, "completed")
        assert poll["result"]["usage"]["prompt_tokens"] == 20


async def test_a_long_answer_is_withheld_whole_and_within_its_bound(gateway: Start) -> None:
    text = json.dumps({"skills": [{"name": f"skill {number} é"} for number in range(3000)]})
    async with gateway(max_output_bytes=1 << 20) as talk, talk.worker2(["m"]) as worker:
        for said, status in ((text, "completed"), (text * 12, "failed")):
            task_id = await talk.submit(**CHAT, repair=True)
            task = await worker.take()
            for at in range(0, len(said), 1000):
                await worker.chunk(task, said[at : at + 1000], at // 1000 + 1)
            if status == "completed":
                assert "chunk" not in [
                    event.type for event in await talk.served.gateway.hub.page(task_id, 0, 0)
                ]
                await worker.answer(task, None, lastSeq=-(-len(said) // 1000))
                assert (await talk.reaches(task_id, status))["result"]["content"] == said
            else:
                await worker.skip_to("cancel")
                assert (await talk.reaches(task_id, status))["code"] == "OUTPUT_TOO_LARGE"
                assert "chunk" not in await logged(talk, task_id)


async def test_both_answers_are_paid_and_the_ledger_says_their_sum(
    redis_url: str, tmp_path: Path, database_url: str
) -> None:
    keys = [key("ops", scopes=["admin"]), key("acme", tier="paid", quota=KeyQuota())]
    prices = [PriceSettings.model_validate({"model": "m", "input": 1, "output": 2, "request": "0.000003"})]
    async with talking(redis_url, tmp_path, keys=keys, database_url=database_url, prices=prices) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        granted = await talk.http.post("/api/admin/balances/grants", json={"key": "acme", "credits": 10})
        assert granted.status_code == 201, granted.text
        async with talk.worker2(["m"]) as worker, talk.client(secret("acme")) as acme:
            call = talk.later(acme.post("/v1/chat/completions", json=CHAT, headers=ONCE_MORE))
            await worker.answer(await worker.take(), message(BAD))
            await worker.answer(await worker.take(), message(GOOD))
            assert (await call).status_code == 200
            rows: list[dict[str, Any]] = []

            async def recorded() -> bool:
                answer = await talk.http.get("/api/admin/usage/tasks")
                rows[:] = json.loads(answer.text, parse_float=Decimal)["tasks"]
                return len(rows) == 1

            await until(recorded, "the record")
        (row,) = rows
        assert (row["inputTokens"], row["outputTokens"], row["attempts"]) == (20, 10, 2)
        assert row["cost"] == Decimal("0.000043")
        answer = await talk.http.get("/api/admin/balances", params={"key": "acme"})
        (stands,) = json.loads(answer.text, parse_float=Decimal)["rows"]
        assert stands["balance"] == 10 - Decimal("0.000043"), stands
