"""Webhooks are notified of the ends of their owner's tasks and responses, and of no others."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import openai
import pytest
import standardwebhooks
from tests.integration.chains.job_match import ask, cast
from tests.integration.native.keys import key, secret
from tests.support.receivers import LOCAL, Receiver, receiving
from tests.support.serving import until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
ACCOUNTS = [key("ops", scopes=["admin"]), key("acme"), key("other"), key("site", delegating=True)]


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


async def test_each_end_of_an_async_task_is_sent_once_and_signed(talk: Talk) -> None:
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


async def test_a_sync_call_sends_nothing_and_a_chain_one_event(gateway: Start) -> None:
    async with receiving() as receiver, cast(gateway, webhooks=LOCAL) as stage:
        await hook(stage.talk, receiver)
        call = stage.talk.sync(model="chat")
        await stage.chat.answer(await stage.chat.take(), result={"content": "sync"})
        assert (await call).status_code == 200
        chain = await stage.submit(**ask(pages=2))
        await stage.read(2)
        await stage.sum_up()
        await stage.match("A match")
        await until(lambda: receiver.got, "a request")
        failed = await stage.submit(**ask(pages=2))
        for page in [await stage.eyes.take(), await stage.eyes.take()]:  # the first to fail ends the other
            await stage.eyes.answer(page, error="no such luck")
        await until(lambda: len(receiver.got) > 1, "another one")
    told = [(got.json["type"], got.json["data"]["id"]) for got in receiver.got]
    assert told == [("task.completed", chain), ("task.failed", failed)]


async def test_each_user_gets_their_own_events_and_a_delegating_key_those_of_all_its_users(
    talk: Talk,
) -> None:
    async with (
        receiving() as mine,
        receiving() as anns,
        receiving() as all_of_site,
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as ann,
        talk.client(secret("site"), **{"X-Fairlane-User": "bob"}) as bob,
        talk.client(secret("site")) as site,
        talk.worker2(["m"]) as worker,
    ):
        await hook(talk, mine)
        made = (await ann.post("/api/webhooks", json={"url": anns.url})).json()
        for wrong in (ann, talk.http):
            refused = await wrong.post("/api/webhooks", json={"url": anns.url, "everyUser": True})
            assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
        all_users = await site.post("/api/webhooks", json={"url": all_of_site.url, "everyUser": True})
        assert all_users.status_code == 201
        tasks = []
        for who in (ann, bob):
            body = {"model": "m", "async": True, "messages": []}
            tasks.append((await who.post("/api/openai", json=body)).json()["taskId"])
            await worker.answer(await worker.take(), result={"content": "that"})
        await until(lambda: len(all_of_site.got) == 2 and anns.got, "three requests")
        assert [got.json["data"] for got in anns.got] == [{"id": tasks[0]}]
        told = {got.json["data"]["id"]: got.json["data"]["user"] for got in all_of_site.got}
        assert told == {tasks[0]: "ann", tasks[1]: "bob"}
        assert mine.got == []
        path = f"/api/webhooks/{made['id']}"
        for stranger in (bob, site, talk.http):
            assert (await stranger.get("/api/webhooks")).json()["webhooks"] != [made]
            for method, at in (
                ("GET", ""),
                ("PATCH", ""),
                ("DELETE", ""),
                ("POST", "/rotate"),
                ("POST", "/test"),
                ("GET", "/deliveries"),
            ):
                answer = await stranger.request(
                    method, path + at, json={} if method in ("PATCH", "POST") else None
                )
                if method == "PATCH":
                    answer = await stranger.patch(path, json={"note": "x"})
                assert (answer.status_code, answer.json()["code"]) == (404, "WEBHOOK_NOT_FOUND"), (method, at)


async def test_the_end_of_a_background_response_is_openais_event(talk: Talk) -> None:
    async with receiving() as receiver, talk.worker2(["m"]) as worker:
        made = await hook(talk, receiver)
        asked = {"model": "m", "input": "hi", "background": True}
        response = await talk.http.post("/v1/responses", json=asked)
        assert response.status_code == 200, response.text
        await worker.answer(await worker.take(), result={"content": "an answer"})
        await until(lambda: receiver.got, "a request")
        [got] = receiver.got
        event = openai.OpenAI(api_key="x", webhook_secret=made["secret"]).webhooks.unwrap(
            got.body, got.headers
        )
        assert (event.type, event.data.id) == ("response.completed", response.json()["id"])
