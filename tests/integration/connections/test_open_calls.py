"""How many calls one caller has open, and what becomes of them when the key is taken away."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.connections.keys import ADMIN, KEYS, WORKER, keys
from tests.support.rawhttp import Caller, request
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.accounts import in_flight
from fairlane.gateway.settings import Settings

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT = {"model": "m", "messages": []}


async def reload(talk: Talk, settings: dict[str, Any]) -> None:
    """What SIGHUP does with a new file."""
    fresh = Settings(data_dir=talk.served.gateway.current.settings.data_dir, **settings)
    await talk.served.gateway.reconfigure(fresh)


async def test_one_user_of_a_key_may_have_so_many_calls_open(shared_gateway: Start) -> None:
    async with shared_gateway(max_calls_per_caller=3, **KEYS) as talk, talk.worker(WORKER):
        calls = talk.served.gateway.calls
        async with (
            talk.client("ann") as ann,
            talk.client("bob", **{"X-Fairlane-User": "eve"}) as eve,
            talk.client("bob", **{"X-Fairlane-User": "kim"}) as kim,
        ):
            waits = [talk.later(ann.post("/api/openai", json={})) for _ in range(2)]
            async with ann.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as stream:
                assert stream.status_code == 200
                await until(lambda: len(calls) == 3, "three calls")
                refused = await ann.post("/api/openai", json={})
                assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_CALLS")
                assert refused.headers["retry-after"] == "1"
                refused = await ann.post("/v1/chat/completions", json=CHAT)
                error = refused.json()["error"]
                assert (refused.status_code, error["type"], error["code"]) == (
                    429,
                    "rate_limit_error",
                    "TOO_MANY_CALLS",
                )
                eves = [talk.later(eve.post("/api/openai", json={})) for _ in range(3)]
                await until(lambda: len(calls) == 6, "the other user's calls")
                assert (await eve.get("/api/me")).status_code == 429
                assert (await kim.get("/api/me")).status_code == 200
            await until(lambda: len(calls) == 5, "the stream to be over")
            assert (await ann.get("/api/me")).status_code == 200
        for call in [*waits, *eves]:
            call.cancel()
        await until(lambda: len(calls) == 0, "nobody to be left")
        assert calls._open == {}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/completions", {"model": "m", "prompt": ""}),
        ("/v1/embeddings", {"model": "m", "input": ""}),
    ],
)
async def test_a_user_whom_the_body_names_locks_out_nobody_else_of_the_key(
    shared_gateway: Start, path: str, body: dict[str, Any]
) -> None:
    async with (
        shared_gateway(max_calls_per_caller=2, **KEYS) as talk,
        talk.worker(WORKER),
        talk.client("site") as http,
    ):
        calls = talk.served.gateway.calls

        def ask(user: str | None) -> asyncio.Task[httpx2.Response]:
            return talk.later(http.post(path, json={**body, "user": user}))

        def counted() -> dict[in_flight.OwnerKey, int]:
            return {opener: len(of) for opener, of in calls._open.items()}

        mallory, ann, kim, key = [("site", user) for user in ("site/mallory", "site/ann", "site/kim", "site")]
        waits = [ask("mallory"), ask("mallory")]
        await until(lambda: counted() == {mallory: 2}, "the calls of one user")
        refused = await ask("mallory")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "TOO_MANY_CALLS")
        waits += [ask("ann"), ask("ann")]
        await until(lambda: counted() == {mallory: 2, ann: 2}, "the other user's calls")
        assert (await ask("ann")).status_code == 429
        wrong = await http.post(path, json={**body, "user": "kim"}, headers={"X-Fairlane-Mode": "none"})
        assert wrong.status_code == 400
        assert counted() == {mallory: 2, ann: 2}
        waits += [ask(None), ask(None)]  # nobody is named: the key's own
        await until(lambda: counted() == {mallory: 2, ann: 2, key: 2}, "the key's own calls")
        refused = await http.post("/api/openai", json={"user": "kim"})  # names nobody: the key's own, too
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_CALLS")
        waits.append(ask("kim"))
        await until(lambda: counted() == {mallory: 2, ann: 2, key: 2, kim: 1}, "a third user's call")
        for call in waits:
            call.cancel()
        await until(lambda: counted() == {}, "nobody to be left")


async def test_the_link_of_a_task_has_a_limit_of_its_own(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MAX_TICKET_READERS", 2)
    async with talking(redis_url, tmp_path, max_calls_per_caller=3, **KEYS) as talk, talk.worker(WORKER):
        async with talk.client("ann") as ann:
            accepted = (await ann.post("/api/openai", json={"async": True})).json()
        url = accepted["streamUrl"]
        async with talk.events(url), talk.events(url):
            refused = await talk.http.get(url)
            assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_CALLS")
            async with talk.client("ann") as ann:
                assert (await ann.get(accepted["statusUrl"])).status_code == 200
        await until(lambda: len(talk.served.gateway.calls) == 0, "the readers to be gone")
        async with talk.events(url):
            pass


@pytest.mark.parametrize("secret", ["", "another"])
async def test_calls_of_a_key_that_is_taken_away_end(redis_url: str, tmp_path: Path, secret: str) -> None:
    async with (
        talking(redis_url, tmp_path, **KEYS) as talk,
        talk.worker(WORKER) as worker,
        talk.client("ann") as ann,
        talk.client("bob") as bob,
    ):
        native_wait = talk.later(ann.post("/api/openai", json={}))
        task = await worker.take()
        openai_wait = talk.later(ann.post("/v1/chat/completions", json=CHAT))
        others = talk.later(bob.post("/api/openai", json={}))
        accepted = (await ann.post("/api/openai", json={"async": True})).json()
        async with (
            ann.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as chat,
            ann.stream("POST", "/api/openai", json={"stream": True}) as native,
            ann.stream("GET", f"/api/task/{accepted['taskId']}/events") as events,
        ):
            await until(lambda: len(talk.served.gateway.tasks.open_answers) == 6, "all to wait")
            await reload(talk, keys(ann=secret))
            assert '"code":"invalid_api_key"' in await text(chat)
            for stream in (native, events):
                said = await text(stream)
                assert "event: bye" in said
                assert '"reason":"revoked"' in said
        refused = await native_wait
        assert (refused.status_code, refused.json()["code"]) == (401, "UNAUTHORIZED")
        refused = await openai_wait
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert (await ann.get(f"/api/task/{accepted['taskId']}/events")).status_code == 401
        async with talk.client(
            ADMIN
        ) as ops:  # waiting calls end with their callers, asynchronous tasks go on
            status = (await ops.get(f"/api/task/{task['taskId']}")).json()["status"]
            assert status == "cancelled"
            left = (await ops.get(f"/api/task/{accepted['taskId']}")).json()["status"]
            assert left == "queued"
        await worker.answer(task, {})
        while not others.done():
            taking = asyncio.create_task(worker.take())
            await asyncio.wait([others, taking], return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                await worker.answer(taking.result(), {"fine": True})
            taking.cancel()
        assert (await others).json() == {"fine": True}


@pytest.mark.parametrize("path", ["/api/openai", "/v1/chat/completions"])
async def test_a_body_that_ends_when_its_key_is_taken_away_is_refused(
    redis_url: str, tmp_path: Path, path: str
) -> None:
    async with talking(redis_url, tmp_path, **KEYS) as talk, talk.worker(WORKER):
        whole = request("POST", path, {"Authorization": "Bearer ann"}, body=json.dumps(CHAT).encode())
        with Caller(talk.served.url) as caller:
            caller.send(whole[:-1])
            await until(lambda: len(talk.served.gateway.calls) == 1, "the head to be read")
            await reload(talk, keys(ann=""))
            caller.send(whole[-1:])
            status, _, said = await asyncio.to_thread(caller.answer)
        assert (status, b"UNAUTHORIZED" in said or b"invalid_api_key" in said) == (401, True)
        async with talk.client(ADMIN) as ops:
            counts = (await ops.get("/api/admin/overview")).json()["counts"]
        assert not any(counts[state] for state in ("queued", "executing", "completed"))


async def test_calls_of_other_keys_do_not_notice_a_reload(redis_url: str, tmp_path: Path) -> None:
    async with (
        talking(redis_url, tmp_path, **KEYS) as talk,
        talk.worker(WORKER) as worker,
        talk.client("ann") as ann,
    ):
        waiting = talk.later(ann.post("/api/openai", json={}))
        task = await worker.take()
        await reload(talk, keys(bob="another"))
        await worker.answer(task, {"fine": True})
        assert (await waiting).json() == {"fine": True}


@pytest.mark.parametrize("secret", ["", "another"])
async def test_the_feed_of_an_operator_whose_key_is_taken_away_ends(
    redis_url: str, tmp_path: Path, secret: str
) -> None:
    async with (
        talking(redis_url, tmp_path, **KEYS) as talk,
        talk.client(ADMIN) as ops,
        ops.stream("GET", "/api/admin/events") as feed,
    ):
        pictures = feed.aiter_text()
        assert "event: overview" in await anext(pictures)
        await reload(talk, keys(ops=secret))
        async for _ in pictures:
            pass  # ends with the next one


async def test_the_calls_of_an_open_gateway_end_when_it_gets_keys(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path) as talk, talk.worker() as worker:
        waiting = talk.sync()
        await worker.take()
        await reload(talk, KEYS)
        assert (await waiting).status_code == 401


async def test_a_raw_connection_may_go_on_with_another_key(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path, **KEYS) as talk, talk.worker(WORKER) as worker:
        with Caller(talk.served.url) as caller:
            caller.send(request("POST", "/api/openai", {"Authorization": "Bearer ann"}, body=b"{}"))
            await worker.take()
            await reload(talk, keys(ann="another"))
            assert (await asyncio.to_thread(caller.answer))[0] == 401
            again = request("GET", "/api/me", {"Authorization": "Bearer another"})
            assert (await asyncio.to_thread(caller.ask, again))[0] == 200


async def text(response: httpx2.Response) -> str:
    """The rest of a stream."""
    return "".join([part async for part in response.aiter_text()])
