"""What a key is for (`scopes`), and where a delegating key's requests name their user (`user_from`)."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import openai
import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import NO_TLS
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
KEYS = [
    key("plain"),
    key("watch", scopes=["viewer"]),
    key("prom", scopes=["metrics"]),
    key("boss", scopes=["admin"]),
    key("ops", scopes=["admin"]),
    key("both", scopes=["call", "viewer"]),
    key("none", scopes=[]),
]
PARTS: dict[str, list[tuple[str, str]]] = {
    "call": [
        ("POST", "/api/openai"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/api/sse-stream"),
    ],
    "viewer": [
        ("GET", f"/api/admin/{page}") for page in ("overview", "timeseries", "users", "tasks", "audit")
    ],
    "metrics": [("GET", "/metrics")],
    "admin": [("PATCH", "/api/admin/models/m"), ("POST", "/api/admin/workers/x/drain")],
}
HOLDS: dict[str, set[str]] = {
    "plain": {"call"},
    "watch": {"viewer"},
    "prom": {"metrics"},
    "boss": set(PARTS),
    "ops": set(PARTS),
    "both": {"call", "viewer"},
    "none": set(),
}


@pytest.mark.parametrize("who", list(HOLDS))
async def test_a_key_may_do_what_it_is_for_and_nothing_else(shared_gateway: Start, who: str) -> None:
    async with shared_gateway(keys=KEYS) as talk, talk.client(secret(who)) as http:
        for scope, calls in PARTS.items():
            for method, path in calls:
                body = {} if method in ("POST", "PATCH") else None
                answer = await http.request(method, path, json=body)
                if scope in HOLDS[who]:
                    assert answer.status_code not in (401, 403), (path, answer.text)
                else:
                    assert answer.status_code == 403, (path, answer.text)
                    assert f"the scope {scope}" in answer.text
        account = (await http.get("/api/me")).json()
        assert (set(account["scopes"]) >= HOLDS[who]) or account["admin"]
        assert account["admin"] is (who in ("boss", "ops"))


async def test_a_viewer_sees_no_content(gateway: Start) -> None:
    async with (
        gateway(keys=KEYS) as talk,
        talk.worker2(["m"]) as worker,
        talk.client(secret("plain")) as plain,
        talk.client(secret("both")) as both,
    ):
        call = {"model": "m", "async": True, "prompt": "my secret", "metadata": {"order": "my secret"}}
        answer = await plain.post("/api/openai", json=call)
        task_id = answer.json()["taskId"]
        await worker.answer(await worker.take(), "the answer", lastSeq=0)
        for path in ("", "/events"):
            assert (await both.get(f"/api/task/{task_id}{path}")).status_code == 404
        shown = await both.get(f"/api/admin/tasks/{task_id}")
        assert shown.status_code == 200
        assert "secret" not in shown.text
        assert "the answer" not in shown.text
        assert (shown.json()["metadata"], shown.json()["streamUrl"]) == (None, None)
        async with talk.client(secret("ops")) as ops:
            shown = await ops.get(f"/api/admin/tasks/{task_id}")
            assert shown.json()["metadata"] == {"order": "my secret"}
            assert "the answer" in (await ops.get(shown.json()["streamUrl"])).text


def users(**more: Any) -> list[dict[str, Any]]:
    return [key("site", delegating=True, **more), key("ops", scopes=["admin"])]


async def who_runs(talk: Talk, worker: Any) -> str:
    """Whose task the worker gets next; it is answered."""
    task = await worker.take()
    async with talk.client(secret("ops")) as ops:
        shown = (await ops.get(f"/api/admin/tasks/{task['taskId']}")).json()
    await worker.answer(task, "x", lastSeq=0)
    return str(shown["user"])


@contextlib.asynccontextmanager
async def sdk_of(talk: Talk, **headers: str) -> Any:
    async with openai.DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS) as http:
        yield openai.AsyncOpenAI(
            base_url=f"{talk.served.url}/v1",
            api_key=secret("site"),
            http_client=http,
            max_retries=0,
            default_headers=headers,
        )


async def test_open_webuis_header_names_the_user(shared_gateway: Start) -> None:
    names = {"X-OpenWebUI-User-Id": "6f1e2d3c-0000-4444-8888-9a8b7c6d5e4f"}
    async with (
        shared_gateway(keys=users(user_from="X-OpenWebUI-User-Id")) as talk,
        talk.worker2(["m"]) as worker,
    ):
        for headers, user in (
            (names, "site/6f1e2d3c-0000-4444-8888-9a8b7c6d5e4f"),
            ({**names, "X-Fairlane-User": "ann"}, "site/ann"),
            ({}, "site"),
        ):
            async with sdk_of(talk, **headers) as sdk:
                call = talk.later(sdk.chat.completions.create(model="m", messages=[]))
                assert await who_runs(talk, worker) == user
                await call


async def test_openais_user_names_the_user_where_the_key_says_so(shared_gateway: Start) -> None:
    for user_from, headers, named, user in (
        ("body.user", {}, "ann", "site/ann"),
        ("body.user", {"X-Fairlane-User": "bob"}, "ann", "site/bob"),
        ("body.user", {}, openai.omit, "site"),
        ("", {}, "ann", "site"),
    ):
        async with (
            shared_gateway(keys=users(user_from=user_from)) as talk,
            talk.worker2(["m"]) as worker,
            sdk_of(talk, **headers) as sdk,
        ):
            call = talk.later(sdk.chat.completions.create(model="m", messages=[], user=named))
            assert await who_runs(talk, worker) == user
            await call


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", 7, {"a": 1}])
async def test_a_user_of_a_body_that_is_no_name_is_a_400(shared_gateway: Start, name: Any) -> None:
    async with shared_gateway(keys=users(user_from="body.user")) as talk, talk.client(secret("site")) as http:
        answer = await http.post("/v1/chat/completions", json={"model": "m", "messages": [], "user": name})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "user"
        broken = b'{"model": "m", "messages": [], "user": "\\ud800"}'
        answer = await http.post(
            "/v1/chat/completions", content=broken, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 400
