"""Names that callers give: what they may hold, and which models a key covers, however they are asked for."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.native.keys import key, secret
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
BAD = ["a\0b", "a\nb", "\x7f", "a\x85b", "line\u2028line", ""]


@pytest.mark.parametrize("name", BAD)
async def test_names_with_control_characters_are_refused(gateway: Start, name: str) -> None:
    async with gateway() as talk:
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
        for payload in ({"model": "m1"}, {"model": 5}, {}, [], "other"):
            assert (await one.post("/api/tasks", json={**task, "payload": payload})).status_code == 202
            await worker.answer(await worker.take(), {})
        answer = await anyone.post("/api/tasks", json={**task, "payload": {"model": "other"}})
        assert answer.status_code == 202
        assert (await worker.take())["payload"] == {"model": "other"}


async def test_models_are_listed_by_the_stores_clock(gateway: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway() as talk, talk.worker2(["m"]):
        now = time.time_ns
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)
            listed = (await talk.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["m"]
