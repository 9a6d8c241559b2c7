"""Answers whose callers named a JSON schema: one that does not match it fails with the place."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.serving import until
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

SCHEMA = {
    "type": "object",
    "properties": {"skills": {"type": "array", "items": {"properties": {"name": {"type": "string"}}}}},
    "required": ["skills"],
}
GOOD = '{"skills": [{"name": "sewing"}]}'
BAD = '{"skills": [{"name": "sewing"}, {"name": 7}]}'
SENTENCE = 'The answer does not match its schema: $.skills[1].name: the value is not of type "string"'


def asked(schema: Any = SCHEMA, strict: bool | None = True) -> dict[str, Any]:
    said = {"name": "cv", "schema": schema} | ({} if strict is None else {"strict": strict})
    return {"model": "m", "messages": [], "response_format": {"type": "json_schema", "json_schema": said}}


def message(text: str | None, finish: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **more}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}


async def test_an_answer_is_compared_with_the_schema_of_its_request(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        for result, fails in (
            (message(GOOD), False),
            (message(BAD), True),
            (message(BAD, "length"), False),
            (message(None, refusal="I will not."), False),
            (message(None, "tool_calls", tool_calls=[{"id": "a", "type": "function"}]), False),
            ({"content": GOOD}, False),
            ({"content": BAD}, True),
        ):
            call = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
            task = await worker.take()
            assert task["payload"] == asked(), "the worker is asked for it, too"
            await worker.answer(task, result)
            answer = await call
            assert answer.status_code == (502 if fails else 200), result
            if fails:
                error = answer.json()["error"]
                assert (error["code"], error["message"]) == ("JSON_PARSE_FAILED", SENTENCE)
                assert answer.headers["x-should-retry"] == "false"


async def test_pieces_are_shown_as_they_come_and_the_end_tells_the_place(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        for text, end in ((GOOD, "done"), (BAD, "error")):
            async with talk.events("/api/openai", json={**asked(), "stream": True}) as reader:
                task = await worker.take()
                await worker.chunk(task, text[:20], 1)
                await worker.chunk(task, text[20:], 2)
                await worker.answer(task, None, lastSeq=2, usage={"inputTokens": 10, "outputTokens": 5})
                seen = await reader.rest()
            assert "".join(event.data["delta"] for event in seen if event.event == "chunk") == text
            assert seen[-1].event == end
        told = seen[-1].data
        assert (told["error"], told["code"], told["category"]) == (
            SENTENCE,
            "JSON_PARSE_FAILED",
            "bad_output",
        )
        assert told["usage"] == {"inputTokens": 10, "outputTokens": 5}
        stream = talk.later(talk.http.post("/v1/chat/completions", json={**asked(), "stream": True}))
        task = await worker.take()
        await worker.chunk(task, BAD, 1)
        await worker.answer(task, None, lastSeq=1)
        text = (await stream).text
        assert "[DONE]" not in text
        assert '"code":"JSON_PARSE_FAILED"' in text


async def test_a_version_1_worker_is_looked_at_likewise(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.later(talk.http.post("/api/openai", json=asked()))
        await worker.answer(await worker.take(), BAD)
        body = (await call).json()
        assert (body["error"], body["code"]) == (SENTENCE, "JSON_PARSE_FAILED")


@pytest.mark.parametrize(
    ("setting", "strict", "not_said", "object_"),
    [("off", 200, 200, 200), ("strict", 502, 200, 200), ("all", 502, 502, 502)],
)
async def test_the_setting_says_what_is_looked_at(
    gateway: Start, setting: str, strict: int, not_said: int, object_: int
) -> None:
    async with gateway(structured_output=setting) as talk, talk.worker2(["m"]) as worker:
        any_object = {**asked(), "response_format": {"type": "json_object"}}
        for body, status in (
            (asked(), strict),
            (asked(strict=None), not_said),
            (asked(strict=False), 200),
            (any_object, object_),
        ):
            call = talk.later(talk.http.post("/v1/chat/completions", json=body))
            await worker.answer(await worker.take(), message("[1]"))
            assert (await call).status_code == status, body


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "strin"}, "$.type"),
        (
            {"$ref": "http://127.0.0.1:1/x.json"},
            "'http://127.0.0.1:1/x.json' is elsewhere: a schema may refer to parts of itself alone",
        ),
        ({"$ref": "file:///etc/passwd"}, "a schema may refer to parts of itself alone"),
        ({"pattern": "(?=a)b"}, "$.pattern: the pattern cannot be used: it may have no look-around"),
        ([1], "must be an object"),
        ({"title": "x" * 70_000}, "65536"),
        (json.loads('{"not":' * 80 + "{}" + "}" * 80), "deeper than 64"),
    ],
    ids=["no type", "http", "file", "regex", "list", "large", "deep"],
)
async def test_a_schema_that_is_none_is_refused_with_a_sentence(
    shared_gateway: Start, schema: Any, why: str
) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]):
        answer = await talk.http.post("/v1/chat/completions", json=asked(schema))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "response_format")
        assert why in error["message"]
        assert len(error["message"]) < 1000
        native = await talk.http.post("/api/openai", json={**asked(schema), "async": True})
        assert (native.status_code, native.json()["code"]) == (400, "INVALID_REQUEST")
        state = await talk.state()
        assert not state["models"] or not any(model["waiting"] for model in state["models"])


@pytest.mark.parametrize("strict", [{"type": "strin"}, {"pattern": "(?=a)b"}], ids=["shape", "pattern"])
async def test_a_schema_is_named_as_the_client_named_it(shared_gateway: Start, strict: Any) -> None:
    form = {"type": "json_schema", "schema": strict}
    said = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    async with shared_gateway() as talk, talk.worker2(["m"]):
        for path, body, name in (
            ("messages", {**said, "output_config": {"format": form}}, "output_config.format.schema"),
            ("messages", {**said, "output_format": form}, "output_format.schema"),
            (
                "responses",
                {"model": "m", "input": "hi", "text": {"format": {**form, "name": "n", "strict": True}}},
                "text.format.schema",
            ),
        ):
            error = (await talk.http.post(f"/v1/{path}", json=body)).json()["error"]
            assert error["message"].startswith(f"{name} cannot be checked")
            assert error.get("param", name) in name


async def test_its_worker_is_not_to_blame(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker, talk.worker2(["m"]) as other:
        for _ in range(12):
            call = talk.later(talk.http.post("/v1/chat/completions", json=asked({"not": {}})))
            whose = await take_of(worker, other)
            await whose[0].answer(whose[1], message(GOOD))
            assert (await call).status_code == 502
        assert not any(known.unhealthy_reason for known in talk.served.gateway.dispatcher.pool)


async def take_of(*workers: Any) -> tuple[Any, dict[str, Any]]:
    """The task that one of them gets."""
    waiting = {asyncio.create_task(worker.take()): worker for worker in workers}
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.wait(others)
    (first,) = done
    return waiting[first], first.result()


async def test_operators_see_nothing_of_the_answer(shared_gateway: Start) -> None:
    secret = {**SCHEMA, "additionalProperties": False}
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(**asked(secret))
        await worker.answer(await worker.take(), message('{"skills": [], "my diagnosis": 1}'))
        poll = await talk.reaches(task_id, "failed")
        assert "my diagnosis" in poll["error"], "its caller reads it"
        assert "my diagnosis" not in (await talk.http.get(f"/api/admin/tasks/{task_id}")).text


async def test_a_task_that_is_cancelled_while_it_is_looked_at_stays_cancelled(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        checker = talk.served.gateway.checker
        await checker.schema(json.dumps(SCHEMA).encode(), "somebody")
        task_id = await talk.submit(**asked())
        task = await worker.take()
        async with checker._semaphore.hold("another"):  # somebody else's turn
            await worker.answer(task, message(GOOD))
            attempts = talk.served.gateway.dispatcher.attempts
            await until(lambda: any(one.answered for one in attempts.values()), "the result to be there")
            await talk.http.post(f"/api/task/{task_id}/cancel")
            assert (await talk.poll(task_id))["status"] == "cancelled"
        assert (await worker.expect("resultAck"))["status"] == "stale"
        await until(lambda: not list(attempts.values()), "the slot to be free")
        again = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
        await worker.answer(await worker.take(), message(GOOD))
        assert (await again).status_code == 200


async def test_a_process_that_dies_costs_nobody_his_answer(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        checker = talk.served.gateway.checker
        for _ in range(2):
            call = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
            await worker.answer(await worker.take(), message(GOOD))
            assert (await call).status_code == 200
            assert checker._child is not None
            checker._child.process.kill()


async def test_a_schema_that_takes_for_ever_fails_its_task_and_holds_up_neither_loop_nor_others(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.streaming.structured.checker.ANSWER_S", 60.0)  # a machine may be busy
    twice = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)}
    endless = {"$defs": {**twice, "a60": {"type": "string"}}, "$ref": "#/$defs/a0"}
    async with gateway() as talk, talk.worker2(["m"], slots=2) as worker:
        talk.served.gateway.checker._cpu_s = (
            4.0  # others have their answers meanwhile, however busy the machine is
        )
        stuck = talk.later(talk.http.post("/v1/chat/completions", json=asked(endless)))
        await worker.answer(await worker.take(), message("[]"))
        await until(lambda: not talk.served.gateway.checker._semaphore._free, "it to be looked at")
        assert (await talk.http.get("/livez")).status_code == 200
        plain = talk.later(talk.http.post("/v1/chat/completions", json={"model": "m", "messages": []}))
        await worker.answer(await worker.take(), message("any text"))
        assert (await plain).status_code == 200
        assert not stuck.done(), "meanwhile"
        error = (await stuck).json()["error"]
        assert error["code"] == "JSON_PARSE_FAILED"
        assert "too long" in error["message"]
        again = await talk.http.post("/v1/chat/completions", json=asked(endless))
        assert (again.status_code, again.json()["error"]["param"]) == (400, "response_format")
        fine = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
        await worker.answer(await worker.take(), message(GOOD))
        assert (await fine).status_code == 200


async def test_an_answer_that_nobody_had_time_for_may_be_asked_for_again(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"m": {"fallbacks": ["n"]}}
    async with gateway(models=models) as talk, talk.worker2(["m"]) as worker, talk.worker2(["n"]) as other:
        checker = talk.served.gateway.checker
        monkeypatch.setattr("fairlane.streaming.structured.checker.PATIENCE_S", 0.05)
        async with checker._semaphore.hold("somebody"):
            call = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
            await worker.answer(await worker.take(), message(GOOD))
            answer = await call
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "NOT_CHECKED")
            assert "not checked in time" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"]
            assert "x-should-retry" not in answer.headers
            async with talk.events("/api/openai", json={**asked(), "stream": True}) as reader:
                task = await worker.take()
                await worker.chunk(task, GOOD)
                await worker.answer(task, None, lastSeq=1)
                last = (await reader.rest())[-1]
            said = last.data
            told = [last.event, *(said[name] for name in ("code", "category", "retryable"))]
            assert told == ["error", "NOT_CHECKED", "gateway", True]
        await other.nothing_more()
        assert not any(known.unhealthy_reason for known in talk.served.gateway.dispatcher.pool)
        call = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
        await worker.answer(await worker.take(), message(GOOD))
        assert (await call).status_code == 200


async def test_another_model_answers_where_there_is_one_and_nothing_was_shown(gateway: Start) -> None:
    models = {"m": {"fallbacks": ["n"]}}
    async with gateway(models=models) as talk, talk.worker2(["m"]) as first, talk.worker2(["n"]) as second:
        for _ in range(4):
            call = talk.later(talk.http.post("/v1/chat/completions", json=asked()))
            await first.answer(await first.take(), message(BAD))
            await second.answer(await second.take(), message(GOOD))
            answer = await call
            assert (answer.status_code, answer.json()["choices"][0]["message"]["content"]) == (200, GOOD)
        assert not any(known.unhealthy_reason for known in talk.served.gateway.dispatcher.pool)
        async with talk.events("/api/openai", json={**asked(), "stream": True}) as reader:
            task = await first.take()
            await first.chunk(task, BAD)
            await first.answer(task, None, lastSeq=1)
            assert (await reader.rest())[-1].event == "error", "too late for another model"


async def test_the_schema_of_a_template_holds(gateway: Start) -> None:
    template = {"messages": [{"role": "user", "content": "Skills of {{ name }}?"}], "json_schema": SCHEMA}
    async with gateway(templates={"cv": template}) as talk, talk.worker2(["m"]) as worker:
        for text, status in ((GOOD, "completed"), (BAD, "failed")):
            body = {"template": "cv", "model": "m", "variables": {"name": "Ann"}, "async": True}
            answer = await talk.http.post("/api/tasks", json=body)
            assert answer.status_code == 202, answer.text
            await worker.answer(await worker.take(), message(text))
            poll = await talk.reaches(answer.json()["taskId"], status)
        assert (poll["error"], poll["code"]) == (SENTENCE, "JSON_PARSE_FAILED")
