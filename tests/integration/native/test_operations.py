"""Health, the operator's view, pages of other origins, and the way down."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest
from tests.integration.native.keys import key, secret
from tests.support.processes import GatewayProcess
from tests.support.rawhttp import Caller, request
from tests.support.rawworkers import bearer
from tests.support.serving import until
from tests.support.talk import Talk
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
PAGE = "https://app.example"


async def test_health_says_live_and_ready(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        live, ready = await talk.http.get("/livez"), await talk.http.get("/readyz")
        assert (live.status_code, live.json()) == (200, {"status": "live"})
        assert (ready.status_code, ready.json()) == (200, {"status": "ready", "workers": 0})
        async with talk.worker():
            await talk.workers(1)
            assert (await talk.http.get("/readyz")).json()["workers"] == 1


async def test_a_draining_gateway_is_not_ready_and_takes_no_tasks(gateway: Start) -> None:
    async with gateway(drain_ms=10_000) as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        waiting = await talk.submit()
        drain = talk.later(talk.served.gateway.drain())
        await until(lambda: talk.served.gateway.tasks.lifecycle.draining)
        ready = await talk.http.get("/readyz")
        assert ready.status_code == 503
        assert 1 < int(ready.headers["retry-after"]) <= 10  # what is left of the drain
        assert ready.json() == {"status": "not ready", "missing": ["the gateway is shutting down"]}
        assert (await talk.http.get("/livez")).status_code == 200
        refused = await talk.http.post("/api/openai", json={})
        assert (refused.status_code, refused.json()["code"]) == (503, "GATEWAY_STOPPING")
        assert 1 < int(refused.headers["retry-after"]) <= 10
        chat = await talk.http.post("/v1/chat/completions", json={"model": "m", "messages": []})
        assert (chat.status_code, chat.json()["error"]["code"]) == (503, "GATEWAY_STOPPING")
        assert (await talk.poll(waiting))["status"] == "queued"
        await worker.answer(task, {"finished": True})
        assert (await call).json() == {"finished": True}
        await drain
        assert (await talk.poll(waiting))["status"] == "queued"


@pytest.mark.parametrize("path", ["/api/openai", "/api/tasks", "/v1/chat/completions", "/v1/embeddings"])
async def test_a_body_that_ends_in_the_drain_is_refused(gateway: Start, path: str) -> None:
    async with gateway(drain_ms=10_000) as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        fields = {"type": "t", "model": "m", "payload": {}, "messages": [], "input": "x"}
        whole = request("POST", path, body=json.dumps(fields).encode())
        with Caller(talk.served.url) as caller:
            caller.send(whole[:-1])
            await until(lambda: len(talk.served.gateway.calls) == 2, "the head to be read")
            drain = talk.later(talk.served.gateway.drain())
            await until(lambda: talk.served.gateway.tasks.lifecycle.draining)
            caller.send(whole[-1:])
            status, _, said = await asyncio.to_thread(caller.answer)
        assert (status, b"GATEWAY_STOPPING" in said) == (503, True)
        await worker.answer(task, {})
        assert (await call).status_code == 200
        await drain


async def test_a_draining_gateway_tells_streams_to_come_back(gateway: Start) -> None:
    async with gateway(drain_ms=50) as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        async with talk.events("/api/openai", json={"stream": True}) as reader:
            await reader.until("queued")
            await talk.served.gateway.drain()
            bye = (await reader.rest())[-1]
        assert (bye.event, bye.id, bye.data["reason"]) == ("bye", None, "drain")
        assert bye.split(b"\n")[1] == b"retry: %d" % bye.data["reconnectMs"]
        assert 500 <= bye.data["reconnectMs"] <= 3000


async def test_the_state_never_shows_prompts_or_results(gateway: Start) -> None:
    async with gateway() as talk, talk.worker() as worker:
        await talk.submit(prompt="very secret prompt")
        await worker.answer(await worker.take(), {"r": "very secret result"})
        await talk.submit(prompt="very secret prompt")
        assert "very secret" not in (await talk.http.get("/api/admin/overview")).text


async def test_a_page_of_a_configured_origin_may_submit_and_stream(gateway: Start) -> None:
    async with gateway(cors_origins=[PAGE]) as talk, talk.worker() as worker:
        origin = {"Origin": PAGE}
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        preflight = await talk.http.options("/api/openai", headers={**origin, **asks})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "content-type" in preflight.headers["access-control-allow-headers"].lower()
        answer = await talk.http.post("/api/openai", json={"async": True}, headers=origin)
        assert answer.status_code == 202
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-task-id" in answer.headers["access-control-expose-headers"].lower()
        async with talk.events(answer.json()["streamUrl"], headers=origin) as reader:
            assert reader.headers["access-control-allow-origin"] == PAGE
            await worker.answer(await worker.take(), {"a": 1})
            assert (await reader.until("done"))[-1].data["result"] == {"a": 1}
        refused = await talk.http.get("/api/task/nonsense", headers=origin)
        assert refused.status_code == 404
        assert refused.headers["access-control-allow-origin"] == PAGE


async def test_a_page_of_a_configured_origin_may_make_every_call(gateway: Start) -> None:
    async with gateway(cors_origins=[PAGE]) as talk:
        document = (await talk.http.get("/openapi.json")).json()
        calls = [(method.upper(), path) for path, entry in document["paths"].items() for method in entry]
        assert {method for method, _ in calls} >= {"GET", "POST", "PATCH", "DELETE"}
        for method, path in calls:
            asks = {"Origin": PAGE, "Access-Control-Request-Method": method}
            preflight = await talk.http.options(path, headers=asks)
            assert preflight.status_code == 200, (method, path)
            assert method in preflight.headers["access-control-allow-methods"].split(", ")
        answer = await talk.http.get("/v1/models", headers={"Origin": PAGE})
        assert "anthropic-ratelimit-tokens-reset" in answer.headers["access-control-expose-headers"]


async def test_pages_of_other_origins_are_not_let_in(gateway: Start) -> None:
    async with gateway(cors_origins=[PAGE]) as talk:
        asks = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        preflight = await talk.http.options("/api/openai", headers=asks)
        assert preflight.status_code == 400
        assert "access-control-allow-origin" not in preflight.headers
        answer = await talk.http.get("/api/admin/overview", headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


async def test_every_answer_has_a_request_id(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        seen = set()
        for path in ("/livez", "/nowhere", "/api/task/x", "/api/admin/overview", "/v1/models"):
            seen.add((await talk.http.get(path)).headers["x-request-id"])
        assert len(seen) == 5


async def test_query_strings_are_not_logged(gateway: Start, caplog: pytest.LogCaptureFixture) -> None:
    for name in (None, "uvicorn.error"):  # of which another test's gateway may have wanted less
        caplog.set_level(logging.INFO, name)
    async with gateway() as talk:
        for path in ("/ws?q=very-private", "/nowhere?q=very-private"):
            with contextlib.suppress(InvalidStatus):
                async with connect(talk.served.url.replace("http", "ws") + path, proxy=None):
                    pass
        await talk.http.get("/api/task/x?q=very-private")
    server = [line for line in caplog.records if line.name.startswith(("uvicorn", "fairlane"))]
    assert any("WebSocket" in line.getMessage() for line in server)
    assert not any("private" in line.getMessage() for line in server)


@pytest.mark.slow
async def test_no_log_level_shows_prompts_answers_or_keys(redis_url: str, tmp_path: Path) -> None:
    keys = {"keys": [key("acme")], "workers": [key("gpu")]}
    process = GatewayProcess(tmp_path, redis_url, log_level="debug", **keys)
    try:
        await process.start()
        async with (
            connect(
                f"{process.ws}?q=private", proxy=None, additional_headers=bearer(secret("gpu"))
            ) as worker,
            httpx2.AsyncClient(
                base_url=process.url, trust_env=False, timeout=15, headers=bearer(secret("acme"))
            ) as http,
        ):
            call = asyncio.create_task(http.post("/api/openai", json={"prompt": "private", "metadata": {}}))
            task = json.loads(await worker.recv())
            for answer in (
                {"type": "taskChunk", "delta": "private"},
                {"type": "taskResult", "result": "private"},
            ):
                await worker.send(json.dumps({**answer, "taskId": task["taskId"]}))
            assert (await call).json() == "private"
            stream_url = (await http.post("/api/openai", json={"async": True})).json()["streamUrl"]
            await http.get(f"/api/task/{task['taskId']}/events?token=private")
        assert "worker connected" in process.log
        for hidden in ("private", secret("acme"), secret("gpu"), stream_url.partition("token=")[2]):
            assert hidden not in process.log
    finally:
        await process.stop()
