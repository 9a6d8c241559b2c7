"""Callers are told of the ends of their tasks, and of nobody else's."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import standardwebhooks
from tests.integration.native.keys import key, secret
from tests.support.receivers import LOCAL, Receiver, receiving
from tests.support.serving import until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio
ACCOUNTS = [key("ops", admin=True), key("acme"), key("other"), key("site", delegating=True)]


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    settings = {"keys": ACCOUNTS, "database_url": database_url, "webhooks": LOCAL}
    async with talking(redis_url, tmp_path, **settings) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('acme')}"})
        yield talk


async def hook(talk: Talk, receiver: Receiver, **body: Any) -> dict[str, Any]:
    made = await talk.http.post("/api/webhooks", json={"url": receiver.url, **body})
    assert made.status_code == 201, made.text
    told: dict[str, Any] = made.json()
    return told


async def test_each_end_of_an_async_task_is_told_once_and_signed(talk: Talk) -> None:
    async with receiving() as receiver, talk.worker2(["m"]) as worker:
        made = await hook(talk, receiver)
        assert made["secret"].startswith("whsec_")
        done = await talk.submit(model="m")
        await worker.answer(await worker.take(), result={"content": "an answer"})
        failed = await talk.submit(model="m")
        await worker.answer(await worker.take(), error="no such luck")
        await until(lambda: len(receiver.got) == 2, "two requests")
        running = await talk.submit(model="m")
        await worker.take()
        cancelled = await talk.submit(model="m")
        await talk.http.post(f"/api/task/{cancelled}/cancel")
        await until(lambda: len(receiver.got) == 3, "a third one")
        told = {got.json["data"]["id"]: got.json for got in receiver.got}
        assert {task: body["type"] for task, body in told.items()} == {
            done: "task.completed",
            failed: "task.failed",
            cancelled: "task.cancelled",
        }
        assert len(set(receiver.ids)) == 3
        for got in receiver.got:
            body = got.json
            assert set(body) == {"id", "object", "created_at", "type", "data"}
            assert (body["object"], set(body["data"])) == ("event", {"id"})
            assert got.headers["content-type"] == "application/json"
            standardwebhooks.Webhook(made["secret"]).verify(got.body.decode(), got.headers)
            client = openai.OpenAI(api_key="x", webhook_secret=made["secret"])
            event = client.webhooks.unwrap(got.body, got.headers)
            assert event.id == body["id"]
            with pytest.raises(openai.InvalidWebhookSignatureError):
                client.webhooks.unwrap(got.body + b" ", got.headers)
        await talk.http.post(f"/api/task/{running}/cancel")
