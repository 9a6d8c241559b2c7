"""Requests that are signed as a whole: each is good once, at one replica, as it was signed, for a while."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.keys.operating import KEYS, OPS, Start, as_ops, bearer, becomes, create, revoke, told
from tests.integration.native.keys import key
from tests.integration.signing.test_tokens import error
from tests.support.proxy import ChaosProxy
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.signing import derived, signature
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio


async def ask(
    talk: Talk, headers: dict[str, str], method: str, target: str, body: bytes = b""
) -> httpx.Response:
    return await talk.http.request(method, target, content=body, headers=headers)


async def test_a_signed_call_is_its_keys_and_each_is_good_once_over_all_replicas(
    gateway: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(keys=OPS) as here, gateway(keys=OPS) as there, here.worker2(["m"]) as worker:
        secret = (await create(as_ops(here), id="app", signing=True, signed_only=True))["secret"]
        del here.http.headers["authorization"]

        def sign(*request: Any, **more: Any) -> dict[str, str]:
            return signature(secret, *request, kid="app", **more)

        async def known() -> bool:
            return (await ask(there, sign("GET", "/api/caller"), "GET", "/api/caller")).status_code == 200

        await until(known, "the key to be known")
        assert "signed_only" in await error(await there.http.get("/api/caller", headers=bearer(secret)), 401)
        body = json.dumps({"model": "m", "messages": []}).encode()
        headers = sign("POST", "/v1/chat/completions", body, x_fairlane_priority="3")
        call = here.later(ask(here, headers, "POST", "/v1/chat/completions", body))
        task = await worker.take()
        assert task["payload"] == {"model": "m", "messages": []}
        await worker.answer(task, "hello", lastSeq=0)
        assert (await call).json()["choices"][0]["message"]["content"] == "hello"
        for talk in (here, there):
            again = await ask(talk, headers, "POST", "/v1/chat/completions", body)
            assert "has come before" in await error(again, 401)
            assert set(again.json()["error"]) == {"message", "type", "param", "code"}
        for method, target in (("POST", "/api/tasks"), ("GET", "/api/caller?x=1")):
            assert (await ask(there, sign("GET", "/api/caller"), method, target)).status_code == 401, target
        assert "has come before" in capsys.readouterr().out, "somebody sends again what they have seen"
        one = sign("GET", "/api/caller")
        answers = await asyncio.gather(
            *(ask(talk, one, "GET", "/api/caller") for talk in (here, there) for _ in range(20))
        )
        assert sorted(answer.status_code for answer in answers) == [200] + 39 * [401]


async def test_only_what_is_rightly_signed_is_remembered(gateway: Start) -> None:
    async with gateway(keys=[*OPS, _entry()]) as talk:
        scheduler = talk.served.gateway.scheduler
        for headers in (
            signature("another", "GET", "/api/caller", nonce="n" * 20),
            signature("fl_site_secret", "GET", "/api/caller", nonce="n" * 20, at=1),
            signature("fl_site_secret", "POST", "/api/caller", nonce="n" * 20),
        ):
            assert (await ask(talk, headers, "GET", "/api/caller")).status_code == 401
        assert await scheduler.note_nonce("site", "n" * 20, 60_000), "none of them was noted"


def _entry(**more: Any) -> dict[str, Any]:
    return key("site", **more) | {
        "sha256": "0" * 64,
        "signing": True,
        "signing_key": derived("fl_site_secret").hex(),
    }


async def test_what_is_turned_away_for_now_may_be_sent_to_the_next_gateway_and_is_done_once(
    gateway: Start,
) -> None:
    settings = {"keys": [*OPS, _entry()]}
    async with gateway(**settings) as here, gateway(**settings) as there:
        body = b'{"model":"m","async":true}'
        headers = signature("fl_site_secret", "POST", "/api/openai", body)
        for talk in (here, there, here):
            answer = await ask(talk, headers, "POST", "/api/openai", body)
            assert (answer.status_code, answer.json()["code"]) == (503, "NO_WORKER")
        async with there.worker2(["m"]) as worker:
            assert (await ask(there, headers, "POST", "/api/openai", body)).status_code == 202
            assert "has come before" in await error(
                await ask(here, headers, "POST", "/api/openai", body), 401
            )
            wrong = signature("fl_site_secret", "POST", "/api/openai", b"[]")
            for status in (400, 401):
                assert (await ask(there, wrong, "POST", "/api/openai", b"[]")).status_code == status
            await worker.answer(await worker.take(), "x", lastSeq=0)
            body = b'{"model":"m","messages":[]}'
            headers = signature("fl_site_secret", "POST", "/v1/chat/completions", body)
            call = there.later(ask(there, headers, "POST", "/v1/chat/completions", body))
            busy = {"code": "MODEL_TOO_BUSY", "retryable": False}
            await worker.answer(await worker.take(), error="busy", errorInfo=busy, lastSeq=0)
            assert (await call).status_code == 503
            assert (await ask(here, headers, "POST", "/v1/chat/completions", body)).status_code == 401, (
                "it was run"
            )


async def test_another_body_than_the_signed_one_is_refused_however_it_comes(gateway: Start) -> None:
    async with gateway(keys=[*OPS, _entry(delegating=True)]) as talk, talk.worker2(["m"]) as worker:
        body = b'{"model":"m","messages":[],"pad":"' + b"x" * 700_000 + b'"}'

        async def post(text: bytes, *, chunked: bool) -> httpx.Response:
            async def parts() -> Any:
                for at in range(0, len(text), 50_000):
                    yield text[at : at + 50_000]

            headers = signature("fl_site_secret", "POST", "/api/openai", body, x_fairlane_user="ann")
            return await talk.http.post("/api/openai", content=parts() if chunked else text, headers=headers)

        for chunked in (False, True):
            for other in (body[:-1] + b" }", body.replace(b"m", b"n", 1), body + b"\n", b"", b"{}"):
                assert "is not the one that was signed" in await error(
                    await post(other, chunked=chunked), 401
                )
            call = talk.later(post(body, chunked=chunked))
            task = await worker.take()
            assert len(task["payload"]["pad"]) == 700_000
            await worker.answer(task, "hello", lastSeq=0)
            assert (await call).status_code == 200


async def test_an_admin_signs_what_operators_do(gateway: Start) -> None:
    async with gateway(keys=[_entry(admin=True)]) as talk:
        body = b'{"id":"new"}'
        headers = signature("fl_site_secret", "POST", KEYS, body)
        other = await ask(talk, headers, "POST", KEYS, b'{"id":"new","admin":true}')
        assert "is not the one that was signed" in await error(other, 401)
        made = await told(
            await ask(talk, signature("fl_site_secret", "POST", KEYS, body), "POST", KEYS, body), 201
        )
        assert not made["settings"]["admin"]
        page = f"{KEYS}?text=n%65w&limit=5"
        listed = await told(await ask(talk, signature("fl_site_secret", "GET", page), "GET", page))
        assert [row["id"] for row in listed["keys"]] == ["new"]


async def test_nothing_is_let_through_while_redis_is_away(own_redis: Server, tmp_path: Path) -> None:
    async with (
        ChaosProxy(own_redis.socket_path) as proxy,
        talking(proxy.url, tmp_path, keys=[*OPS, _entry()], redis_timeout_ms=300) as talk,
    ):
        headers = signature("fl_site_secret", "GET", "/api/caller")
        proxy.faults.refuse = True
        proxy.reset()
        answer = await ask(talk, headers, "GET", "/api/caller")
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
        proxy.faults.refuse = False

        async def back() -> bool:
            return (await ask(talk, headers, "GET", "/api/caller")).status_code == 200

        await until(back, "Redis to be back: the request is still good")
        proxy.faults.lose_reply = lambda data: b"nonce:" in data
        lost = signature("fl_site_secret", "GET", "/api/caller")
        assert (await ask(talk, lost, "GET", "/api/caller")).status_code == 503
        proxy.faults.lose_reply = None
        await until(back_anew(talk), "Redis to be back")
        assert (await ask(talk, lost, "GET", "/api/caller")).status_code == 401, (
            "nobody knows, so it is signed anew"
        )


def back_anew(talk: Talk) -> Callable[[], Awaitable[bool]]:
    async def back() -> bool:
        return (await _caller(talk, "fl_site_secret", "site")).status_code == 200

    return back


async def test_a_revoked_key_signs_nothing_any_more(gateway: Start) -> None:
    async with gateway(keys=OPS) as here, gateway(keys=OPS) as there:
        secret = (await create(as_ops(here), id="app", signing=True))["secret"]
        await becomes(there, secret, 200)
        assert (await _caller(there, secret)).status_code == 200
        await revoke(here, "app")
        await becomes(there, secret, 401)
        assert "no valid key 'app'" in await error(await _caller(there, secret), 401)


async def _caller(talk: Talk, secret: str, kid: str = "app") -> httpx.Response:
    return await ask(talk, signature(secret, "GET", "/api/caller", kid=kid), "GET", "/api/caller")
