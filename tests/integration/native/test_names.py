"""Names that callers give: what they may hold, and which models a key covers, however they are asked for."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.native.keys import key, secret
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
BAD = ["a\0b", "a\nb", "\x7f", "a\x85b", "line\u2028line"]


@pytest.mark.parametrize("name", BAD)
async def test_names_with_control_characters_are_refused(shared_gateway: Start, name: str) -> None:
    async with shared_gateway() as talk:
        for path, body, param in (
            ("/api/openai", {"model": name}, "model"),
            ("/api/tasks", {"type": "t", "model": name, "payload": {}}, "model"),
            ("/api/tasks", {"type": name, "payload": {}}, "type"),
            ("/v1/chat/completions", {"model": name, "messages": []}, "model"),
            ("/v1/completions", {"model": name, "prompt": "p"}, "model"),
            ("/v1/embeddings", {"model": name, "input": "i"}, "model"),
        ):
            answer = await talk.http.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert param in answer.text


async def test_the_model_inside_a_payload_must_be_covered_by_the_key_too(gateway: Start) -> None:
    """A version 1 worker is told no other model than the one in the payload."""
    keys = [key("one", models=["m1"]), key("any")]
    async with (
        gateway(keys=keys, workers=[key("w")]) as talk,
        talk.worker(secret("w")) as worker,
        talk.client(secret("one")) as one,
        talk.client(secret("any")) as anyone,
    ):
        task = {"type": "t", "model": "m1", "async": True}
        large = '{{"model":"other"{},"x":"{}"}}'.format(" " * 9000, "x" * 300_000)
        for inner in (
            '{"model":"other"}',
            '{"m\\u006fdel":"other"}',
            '{"model":"m1","model":"other"}',
            large,
        ):
            body = b'{"type":"t","model":"m1","async":true,"payload":%b}' % inner.encode()
            answer = await one.post("/api/tasks", content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (404, "MODEL_NOT_FOUND")
            assert "other" in answer.json()["error"]
        for payload in ({"model": "m1"}, {"model": 5}, {"model": ""}, {}, [], "other"):
            assert (await one.post("/api/tasks", json={**task, "payload": payload})).status_code == 202
            await worker.answer(await worker.take(), {})
        for payload in ({"model": "other"}, {"Model": "other"}, {"model": "m1", "MODEL": "other"}):
            answer = await anyone.post("/api/tasks", json={**task, "payload": payload})
            assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
            assert "must be the task's model (m1)" in answer.json()["error"]
        body = {"model": "m1", "Model": "other", "messages": []}
        for path in ("/api/openai", "/v1/chat/completions"):
            assert (await anyone.post(path, json=body)).status_code == 400
        answer = await anyone.post("/api/openai", json={"Model": "other"})
        assert "must be the task's model (default)" in answer.json()["error"]


async def test_the_model_that_a_task_is_scheduled_as_is_the_one_that_its_payload_names(
    shared_gateway: Start,
) -> None:
    """What is priced and limited runs, also on a worker that sees the payload alone."""
    async with shared_gateway() as talk, talk.worker() as worker:
        for body, model, payload in (
            ({"type": "t", "payload": {"model": "inner"}}, "inner", {"model": "inner"}),
            ({"type": "t", "model": "m", "payload": {"model": "m"}}, "m", {"model": "m"}),
            ({"type": "t", "model": "m", "payload": {"x": 1}}, "m", {"x": 1}),  # may be anything
            ({"type": "openaiLike", "model": "m", "payload": {"x": 1}}, "m", {"x": 1, "model": "m"}),
            ({"type": "openaiCompletion", "model": "m", "payload": {"model": None}}, "m", {"model": "m"}),
            ({"type": "openaiLike", "payload": {"x": 1}}, "default", {"x": 1}),
            ({"type": "openaiLike", "model": "m", "payload": [1]}, "m", [1]),
        ):
            call = talk.later(talk.http.post("/api/tasks", json=body))
            task = await worker.take()
            assert task["payload"] == payload
            status = (await talk.http.get(f"/api/admin/tasks/{task['taskId']}")).json()
            assert status["model"] == model
            await worker.answer(task, {})
            assert (await call).status_code == 200


async def test_models_are_listed_by_the_stores_clock(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as talk, talk.worker2(["m"]):
        now = time.time_ns
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)
            listed = (await talk.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["m"]
