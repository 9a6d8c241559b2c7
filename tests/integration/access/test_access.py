"""What each credential can call, list and learn, over all calls of the gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import bearer
from tests.support.signing import derived, token
from tests.support.talk import Talk

from fairlane.workers.server.tasks.usage import HIDDEN_INPUT, STOP_TOKENS

pytestmark = pytest.mark.anyio
Start = Callable[..., AbstractAsyncContextManager[Talk]]

SIGNS = {"delegating": True, "signing": True, "signing_key": derived(secret("site")).hex()}
ENDPOINT = {"methods": ["GET"], "set_headers": {"x-secret": "s"}, "concurrency": 1}
SAYS = [{"role": "user", "content": "{{ text }}"}]
CONFIGURED: dict[str, Any] = {
    "keys": [
        key("ops", scopes=["admin"]),
        key("site", **SIGNS),
        key("boss", **{**SIGNS, "signing_key": derived(secret("boss")).hex()}, scopes=["admin"]),
        key("plain"),
        key("narrow", models=["m", "open-route", "http:mine"]),
    ],
    "models": {"m": {}, "hidden-model": {}},
    "routes": {
        "open-route": {"model": "m", "template": "shared"},
        "hidden-route": {"model": "m", "template": "hidden-words"},
        "hidden-twin": {"model": "m", "template": "shared"},
    },
    "templates": {name: {"messages": SAYS} for name in ("shared", "hidden-words", "free")},
    "chains": {
        "open-chain": {"stages": [{"name": "a", "model": "m", "messages": SAYS}]},
        "hidden-chain": {"stages": [{"name": "a", "model": "hidden-model", "messages": SAYS}]},
    },
    "endpoints": {
        "mine": {**ENDPOINT, "url": "http://127.0.0.1:9/mine"},
        "other": {**ENDPOINT, "url": "http://127.0.0.1:9/other"},
    },
}


@pytest.fixture
async def talk(shared_gateway: Start) -> AsyncIterator[Talk]:
    async with shared_gateway(**CONFIGURED) as talk:
        yield talk


async def operations(talk: Talk) -> list[tuple[str, str, dict[str, Any]]]:
    """Return method, path and description of every call."""
    paths = (await talk.http.get("/openapi.json")).json()["paths"]
    return [(method.upper(), path, one) for path, all_ in paths.items() for method, one in all_.items()]


def at(path: str) -> str:
    return path.replace("{", "").replace("}", "")


def signed(**claims: Any) -> str:
    return token(secret("site"), user="ann", **claims)


# ---- strangers ----------


async def test_strangers_get_one_answer_and_the_log_has_the_reason(talk: Talk) -> None:
    strangers = [
        *("wrong", "a.b.c", secret("plain")[:-1], token("x", "nobody", user="a")),
        *(token(secret("plain"), "plain", user="a"), token("x", "site", user="a")),
        *(token(secret("site"), head={"alg": "none"}, user="a"), signed(exp=1)[:-4] + "AAAA"),
    ]
    with capture_logs() as lines:
        for path in ("/api/me", "/v1/models", "/api/admin/keys", "/api/task/x/events"):
            answers = []
            for stranger in strangers:
                answer = await talk.http.get(path, headers={**bearer(stranger), "x-request-id": "r"})
                shown = {k: v for k, v in answer.headers.items() if k not in ("date", "openai-processing-ms")}
                answers.append((answer.status_code, shown, answer.content))
            assert answers == answers[:1] * len(strangers), path
    assert any("no valid key 'nobody'" in str(line.get("reason")) for line in lines)


async def test_the_check_of_permits_has_one_answer_without_a_genuine_permit(talk: Talk) -> None:
    checks: list[tuple[str, str, dict[str, str]]] = []
    for method in ("GET", "POST", "DELETE"):
        for permit in ({}, {"X-Fairlane-Permit": f"{'a' * 36}.{'A' * 32}"}):
            checks += [(method, f"/api/permit/check/{name}", permit) for name in ("mine", "other", "none")]
            checks += [
                (method, "/api/permit/check", {**permit, "X-Original-URL": f"http://127.0.0.1:9/{path}"})
                for path in ("mine", "other", "none")
            ]
    answers = [await talk.http.request(method, path, headers=headers) for method, path, headers in checks]
    shown = {(answer.status_code, answer.headers["retry-after"], answer.content) for answer in answers}
    assert len(shown) == 1
    assert answers[0].json()["code"] == "PERMIT_NEEDED"


# ---- tokens and links ----------

FOR_TOKENS = {
    *(f"POST /v1/{path}" for path in ("chat/completions", "completions", "embeddings", "responses")),
    *("POST /v1/moderations", "POST /v1/messages", "POST /v1/messages/count_tokens"),
    *(f"POST /v1/audio/{path}" for path in ("transcriptions", "translations", "speech")),
    *(f"POST /v1/images/{path}" for path in ("generations", "edits", "variations")),
    *("GET /v1/models", "GET /v1/models/{model}", "GET /v1/responses/{response_id}"),
    *("POST /v1/responses/{response_id}/cancel", "GET /v1/responses/{response_id}/input_items"),
    *("POST /api/openai", "POST /api/tasks", "POST /api/submitTask", "GET /api/queryTask"),
    *("POST /api/cancelTask", "GET /api/sse-stream", "GET /api/task/{task_id}"),
    *("POST /api/task/{task_id}/cancel", "GET /api/task/{task_id}/events"),
    *("GET /api/me", "GET /api/usage", "GET /api/routes"),
}
"""A token submits, reads, follows and cancels tasks, and nothing else."""


async def test_tokens_and_links_reach_exactly_the_calls_for_tasks(talk: Talk) -> None:
    link = (await _submitted(talk))["streamUrl"].partition("token=")[2]
    reached: dict[str, set[str]] = {"token": set(), "token of an admin": set(), "link": set()}
    holders = {"token": signed(), "token of an admin": token(secret("boss"), "boss", user="a"), "link": None}
    for method, path, described in await operations(talk):
        if "security" not in described:
            continue
        for who, held in holders.items():
            query = {} if held else {"token": link}
            answer = await talk.http.request(method, at(path), headers=bearer(held), params=query, json={})
            if answer.status_code not in (401, 403):
                reached[who].add(f"{method} {path}")
    assert reached == {"token": FOR_TOKENS, "token of an admin": FOR_TOKENS, "link": set()}


async def _submitted(talk: Talk) -> dict[str, Any]:
    async with talk.client(signed()) as ann, talk.worker2(["m"]):
        answer = await ann.post("/api/openai", json={"model": "m", "async": True})
        assert answer.status_code == 202
        accepted: dict[str, Any] = answer.json()
        assert (await ann.post(f"{accepted['statusUrl']}/cancel")).status_code == 200
        assert "event: cancelled" in (await talk.http.get(accepted["streamUrl"])).text
        return accepted


async def test_a_token_names_neither_files_of_a_provider_nor_an_endpoint_that_it_does_not_list(
    talk: Talk,
) -> None:
    parts: list[Any] = [
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "document", "source": {"type": "file", "file_id": "file-1"}},
        {"type": "x", "FileID": "file-1"},
    ]
    async with talk.client(signed()) as ann, talk.client(secret("site")) as back_end, talk.worker2(["m"]):
        for part in parts:
            body = {"model": "m", "async": True, "messages": [{"role": "user", "content": [part]}]}
            payload = {"type": "openaiLike", "async": True, "payload": body}
            for path, sent in (
                ("/v1/chat/completions", body),
                ("/api/openai", body),
                ("/api/tasks", payload),
            ):
                assert (await ann.post(path, json=sent)).status_code == 403, (path, part)
            assert (await back_end.post("/api/openai", json=body)).status_code == 202
        named = b'{"model": "m", "tools": [{"\\u0066ile_ids": ["file-1"]}]}'
        headers = {"content-type": "application/json"}
        assert (await ann.post("/api/openai", content=named, headers=headers)).status_code == 403
        tool = {"name": "f", "parameters": {"properties": {"file_id": {"type": "string"}}}}
        body = {"model": "m", "async": True, "tools": [{"type": "function", "function": tool}]}
        body["messages"] = [{"role": "user", "content": 'a text with "file_id": "file-1"'}]
        assert (await ann.post("/api/openai", json=body)).status_code == 202
        for kind in ("http", "permit"):
            wanted = {"type": kind, "url": "http://127.0.0.1:9/mine", "async": True}
            assert (await ann.post("/api/tasks", json=wanted)).status_code == 404
            async with talk.client(signed(models=["http:mine"])) as listed:
                assert (await listed.post("/api/tasks", json=wanted)).json().get(
                    "code"
                ) != "ENDPOINT_NOT_FOUND"


# ---- what a key may list ----------


async def test_what_a_key_may_list_is_what_it_may_call(talk: Talk) -> None:
    listed: dict[str, set[str]] = {}
    async with talk.client(secret("narrow")) as narrow, talk.worker2(["m", "hidden-model"]):
        listed["model"] = {row["id"] for row in (await narrow.get("/v1/models")).json()["data"]}
        shown = (await narrow.get("/api/routes")).json()
        listed["route"] = {row["name"] for row in shown["routes"]}
        listed["template"] = {row["name"] for row in shown["templates"]}
        listed["chain"] = {row["name"] for row in shown["chains"]}
        assert listed == {
            "model": {"m", "open-route"},
            "route": {"open-route"},
            "template": {"shared", "free"},
            "chain": {"open-chain"},
        }
        ways: dict[str, Callable[[str], dict[str, Any]]] = {
            "model": lambda name: {"type": "openaiLike", "payload": {"model": name}},
            "route": lambda name: {"template": name, "variables": {"text": "x"}},
            "template": lambda name: {"template": name, "model": "m", "variables": {"text": "x"}},
            "chain": lambda name: {"chain": name, "variables": {"text": "x"}},
        }
        configured = {
            "model": {"m", "hidden-model", *CONFIGURED["routes"]},
            "route": set(CONFIGURED["routes"]),
            "template": set(CONFIGURED["templates"]),
            "chain": set(CONFIGURED["chains"]),
        }
        for kind, names in configured.items():
            for name in names:
                answer = await narrow.post("/api/tasks", json={"async": True, **ways[kind](name)})
                assert answer.status_code == (202 if name in listed[kind] else 404), (kind, name, answer.text)
                if name not in listed[kind]:
                    told = answer.json()["error"].replace(name, "")
                    assert "hidden" not in told
                    assert (await narrow.get(f"/v1/models/{name}")).status_code == 404
        for name, status in (("mine", 202), ("other", 404)):
            wanted = {"type": "permit", "endpoint": name}
            assert (await narrow.post("/api/tasks", json=wanted)).status_code == status


# ---- viewers ----------


async def test_viewers_see_scheme_and_host_of_urls_alone(gateway: Start) -> None:
    up = {"provider": "openai", "base_url": "http://127.0.0.1:9/hush/v1", "models": ["m"]}
    settings = {
        "keys": [key("ops", scopes=["admin"]), key("eyes", scopes=["viewer"]), key("app")],
        "endpoints": {"mine": {**ENDPOINT, "url": "https://a.example/hush/*"}},
        "upstreams": {"up": up},
        "webhooks": {"allow_private": ["127.0.0.1/32"]},
        "otlp_endpoint": "http://127.0.0.1:9/hush",
    }
    async with (
        gateway(**settings) as talk,
        talk.client(secret("ops")) as ops,
        talk.client(secret("eyes")) as eyes,
        talk.client(secret("app")) as app,
    ):
        hook = (await app.post("/api/webhooks", json={"url": "http://127.0.0.1:9/hush?hush=1"})).json()
        new = {"name": "new", "url": "https://b.example/hush", "concurrency": 1}
        assert (await ops.post("/api/admin/endpoints", json=new)).status_code == 201
        disabled = await ops.patch(f"/api/admin/webhooks/{hook['id']}", json={"enabled": False})
        assert disabled.json()["url"] == "http://127.0.0.1:9"
        told = ""
        for method, path, _ in await operations(talk):
            if method == "GET" and path.startswith("/api/admin/") and path != "/api/admin/events":
                path = path.replace("{name}", "new").replace("{webhook_id}", hook["id"])
                answer = await eyes.get(at(path))
                assert "hush" not in answer.text, path
                told += answer.text
        assert all(
            origin in told for origin in ("https://a.example", "https://b.example", "http://127.0.0.1:9")
        )
        async with eyes.stream("GET", "/api/admin/events") as stream:
            first = await anext(stream.aiter_text())
        assert "https://a.example" in first
        assert "hush" not in first
        assert "hush" in (await ops.get("/api/admin/endpoints")).text, "an admin can change it"
        assert "hush" in (await app.get("/api/webhooks")).text, "its owner, too"


# ---- caches ----------


async def test_every_answer_but_a_static_file_forbids_caches_to_keep_it(talk: Talk) -> None:
    cached, seen = set(), 0
    async with talk.client(secret("ops")) as ops, talk.worker2(["m"]) as worker:
        for method, path, described in await operations(talk):
            streams = path in ("/api/admin/events", "/api/sse-stream", "/api/task/{task_id}/events")
            # changes without a key, so that they change nothing
            client = ops if method in ("GET", "HEAD") and not streams else talk.http
            answer = await client.request(method, at(path))
            seen += 1
            if "no-store" not in answer.headers.get("cache-control", ""):
                cached.add((described["operationId"].removesuffix("_head"), answer.headers["cache-control"]))
        assert {name for name, _ in cached} == {
            "pages.playground",
            "pages.dashboard",
            "pages.docs",
            "pages.favicon",
        }
        assert seen > 100
        bodies: list[dict[str, Any]] = [
            {"model": "m", "messages": [], "stream": stream} for stream in (False, True)
        ]
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/openai"):
            for body in bodies:
                more = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
                sent = (
                    {**body, **more}
                    if path != "/v1/responses"
                    else {"model": "m", "input": "x", "stream": body["stream"]}
                )
                call = talk.later(ops.post(path, json=sent))
                await worker.answer(await worker.take(), "x", lastSeq=0)
                assert "no-store" in (await call).headers["cache-control"], path
        raw = await _raw(talk, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
        assert b"cache-control: no-store" in raw


async def _raw(talk: Talk, request: bytes) -> bytes:
    url = httpx2.URL(talk.served.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


# ---- workers ----------


async def test_a_corrected_usage_is_the_same_in_every_answer_and_in_the_record(talk: Talk) -> None:
    lie = {"prompt_tokens": 10**9, "completion_tokens": 10**9, "total_tokens": 2 * 10**9}
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    chat = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
    async with talk.client(secret("plain")) as plain, talk.worker2(["m"]) as worker:
        for result, usage in (
            ({**whole, "usage": lie}, None),
            ("ok", {"inputTokens": 10**9, "outputTokens": 10**9}),
        ):
            call = talk.later(plain.post("/v1/chat/completions", json=chat))
            with capture_logs() as lines:
                await worker.answer(
                    await worker.take(), result, lastSeq=0, **({"usage": usage} if usage else {})
                )
                shown = (await call).json()["usage"]
            assert shown["completion_tokens"] == 10 + STOP_TOKENS
            assert shown["prompt_tokens"] < 2 * HIDDEN_INPUT
            assert "a worker's usage was corrected" in [line["event"] for line in lines]
        metrics = (await talk.http.get("/metrics", headers=bearer(secret("ops")))).text
        assert "fairlane_usage_corrections_total{" in metrics
