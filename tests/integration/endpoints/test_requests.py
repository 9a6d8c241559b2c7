"""Tasks of type `http`: what passes to an endpoint, who may use it, and which workers may run it."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import worker_v2
from tests.support.talk import Talk

from .calling import IMAGE, URL, caller, offers, reaches, response, submit

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def test_a_call_that_waits_gets_the_answer_with_its_status(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk) as worker:
        call = talk.later(
            talk.http.post(
                "/api/tasks",
                json={
                    "type": "http",
                    "url": f"{URL}?a=1",
                    "method": "post",
                    "query": {"b": [2, "drei"], "c": True},
                    "headers": {"Accept": "text/plain"},
                    "body": "hällo",
                },
            )
        )
        task = await worker.take()
        payload = task["payload"]
        assert payload["url"] == f"{URL}?a=1&b=2&b=drei&c=true"
        assert (payload["method"], payload["body"], payload["endpoint"]) == ("POST", "hällo", "image")
        assert payload["headers"] == [["accept", "text/plain"], ["content-type", "text/plain; charset=utf-8"]]
        await worker.answer(task, response("not there", 404))
        answer = await call
        assert answer.status_code == 200
        assert answer.json() == response("not there", 404)


async def test_bytes_pass_as_base64(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk) as worker:
        encoded = base64.b64encode(bytes(range(256))).decode()
        body = {"type": "http", "endpoint": "image", "url": URL, "bodyBase64": encoded, "async": True}
        answer = await talk.http.post("/api/tasks", json=body)
        assert answer.status_code == 202, answer.text
        payload = (await worker.take())["payload"]
        assert (payload["bodyBase64"], payload["method"]) == (encoded, "POST")
        assert "body" not in payload


async def test_streams_and_polls_show_such_tasks_as_any(shared_gateway: Start) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk) as worker:
        body = {"type": "http", "url": URL, "stream": True}
        async with talk.events("/api/tasks", json=body) as events:
            task = await worker.take()
            await worker.answer(task, response("streamed"))
            done = await events.until_event("done")
        assert done["result"]["body"] == "streamed"
        assert done.get("usage") is None
        polled = await talk.poll(task["taskId"])
        assert polled["result"] == response("streamed")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "url is missing"),
        ({"endpoint": "nobody", "url": URL}, "There is no endpoint 'nobody'"),
        ({"endpoint": "image", "url": "https://other.example.com/v1/x"}, "not for this URL"),
        ({"url": URL, "headers": {"Authorization": "Bearer mine"}}, "may not pass"),
        ({"url": URL, "headers": {"X-Forwarded-For": "127.0.0.1"}}, "may not pass"),
        ({"url": URL, "headers": {"accept": "a\r\nx: y"}}, "one line"),
        ({"url": URL, "body": "a", "bodyBase64": "YQ=="}, "cannot both"),
        ({"url": URL, "method": "TRACE"}, "takes GET, POST, not TRACE"),
        ({"url": URL, "model": "http:image"}, "has no 'model'"),
    ],
)
async def test_what_may_not_pass_is_refused(
    shared_gateway: Start, body: dict[str, Any], sentence: str
) -> None:
    async with shared_gateway(**IMAGE) as talk:
        answer = await talk.http.post("/api/tasks", json={"type": "http", **body})
        assert answer.status_code in (400, 404), answer.text
        assert sentence in answer.json()["error"]


async def test_a_body_beyond_the_endpoints_limit_is_refused(gateway: Start) -> None:
    image = {**IMAGE["endpoints"]["image"], "max_body_bytes": 10}
    async with gateway(endpoints={"image": image}) as talk, caller(talk):
        for body in ({"body": "äöüäöü"}, {"body": {"a": [1, 2, 3]}}, {"bodyBase64": "AAAAAAAAAAAAAAAA"}):
            answer = await talk.http.post("/api/tasks", json={"type": "http", "url": URL, **body})
            assert (answer.status_code, answer.json()["code"]) == (413, "BODY_TOO_LARGE")
        answer = await talk.http.post(
            "/api/tasks", json={"type": "http", "url": URL, "body": "1234567890", "async": True}
        )
        assert answer.status_code == 202


async def test_who_may_use_an_endpoint_is_said_by_keys_tiers_and_models(gateway: Start) -> None:
    keys = [
        key("ann", tier="paid"),
        key("bob", tier="paid", models=["m"]),
        key("cid", tier="free"),
        key("dee", tier="paid", models=["http:image"]),
        key("eve", tier="paid"),
    ]
    image = {**IMAGE["endpoints"]["image"], "tiers": ["paid"], "keys": ["ann", "bob", "cid", "dee"]}
    async with gateway(keys=keys, endpoints={"image": image}) as talk:
        for who, status in (("ann", 503), ("bob", 404), ("cid", 404), ("dee", 503), ("eve", 404)):
            async with talk.client(secret(who)) as http:
                for said in ({"url": URL}, {"url": URL, "endpoint": "image"}):
                    answer = await http.post("/api/tasks", json={"type": "http", **said})
                    assert answer.status_code == status, (who, answer.text)
                    assert status != 404 or answer.json()["code"] == "ENDPOINT_NOT_FOUND", (who, answer.text)
                    assert status != 404 or "http:image" not in answer.text
        async with talk.client(
            secret("dee")
        ) as http:  # whose only model is none that ordinary calls may name
            answer = await http.post("/api/openai", json={"messages": []})
            assert answer.status_code in (400, 404), answer.text


@pytest.mark.parametrize("path", ["/api/openai", "/api/tasks", "/v1/chat/completions"])
async def test_no_ordinary_call_names_the_model_of_an_endpoint(shared_gateway: Start, path: str) -> None:
    async with shared_gateway(**IMAGE) as talk, caller(talk):
        for name in ("http:image", "http:*", "http:"):
            body: dict[str, Any] = {"model": name, "messages": [{"role": "user", "content": "x"}]}
            if path == "/api/tasks":
                body = {"type": "echo", "payload": {}, "model": name}
            answer = await talk.http.post(path, json=body)
            assert answer.status_code == 400, answer.text
            assert "endpoint" in answer.text
        listed = (await talk.http.get("/v1/models")).json()["data"]
        assert all(not one["id"].startswith("http:") for one in listed)


async def test_workers_of_every_model_get_no_requests(gateway: Start) -> None:
    async with gateway(**IMAGE) as talk, talk.worker2(["*"], 4) as other, talk.worker() as older:
        refused = await talk.http.post("/api/tasks", json={"type": "http", "url": URL})
        assert (refused.status_code, refused.json()["code"]) == (503, "NO_WORKER")
        async with caller(talk, 1) as worker:
            await offers(talk, "http:image", "*")
            one, two = await submit(talk), await submit(talk)
            first = await worker.take()
            await other.nothing_more()  # though it has free slots, and something waits
            assert await older.idle()
            plain = talk.sync(model="something")
            taken = await asyncio.wait(
                [asyncio.ensure_future(other.take()), asyncio.ensure_future(older.take())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            for pending in taken[1]:
                pending.cancel()
            plain.cancel()
            await worker.answer(first, response("1"))
            second = await worker.take()
            assert {first["taskId"], second["taskId"]} == {one["task_id"], two["task_id"]}


async def test_a_workers_token_must_name_endpoints(gateway: Start) -> None:
    sha256 = {name: key(name)["sha256"] for name in ("all", "http", "one")}
    workers = [
        {"id": "all", "sha256": sha256["all"]},
        {"id": "http", "sha256": sha256["http"], "models": ["http:*"]},
        {"id": "one", "sha256": sha256["one"], "models": ["*", "http:image"]},
    ]
    endpoints = {**IMAGE["endpoints"], "other": {"url": "https://other.example.com/"}}
    async with gateway(keys=[key("ann")], workers=workers, endpoints=endpoints) as talk:
        async with worker_v2(talk.served.ws, "http:*", token=secret("http")):
            await offers(talk, "http:image", "http:other")
        await offers(talk)
        async with worker_v2(talk.served.ws, "http:*", token=secret("one")):
            await offers(talk, "http:image")
        await offers(talk)
        with pytest.raises(AssertionError, match="MODELS"):
            async with worker_v2(talk.served.ws, "http:*", token=secret("all")):
                pass


async def test_a_request_that_must_not_come_twice_is_not_sent_again(gateway: Start) -> None:
    image = {**IMAGE["endpoints"]["image"], "retries": 1}
    async with gateway(endpoints={"image": image}) as talk:
        async with caller(talk, 1) as worker:
            await offers(talk, "http:image")
            posted, got = await submit(talk, body="x"), await submit(talk)
            assert (await worker.take())["taskId"] == posted["task_id"]
            await worker.leave()
        failed = await reaches(talk, posted["task_id"], "failed")
        assert json.loads(failed["task_result"])["code"] == "WORKER_LOST"
        async with caller(talk, 1) as worker:
            for _ in range(2):  # once more, and then no more
                task = await worker.take()
                assert task["taskId"] == got["task_id"]
                error = {"code": "UPSTREAM_ERROR", "message": "500", "retryable": True}
                await worker.answer(task, errorInfo=error)
            await reaches(talk, got["task_id"], "failed")


async def test_nobody_learns_of_an_endpoint_that_is_not_for_him(gateway: Start) -> None:
    """Not even by what is wrong with his request besides."""
    keys = [key("ann", tier="paid"), key("bob", models=["m"]), key("cid", tier="free")]
    image = {**IMAGE["endpoints"]["image"], "tiers": ["paid"], "max_body_bytes": 1, "methods": ["GET"]}
    other = {"endpoint": "other", "url": "https://other.example.com/x"}
    async with gateway(keys=keys, endpoints={"image": image}) as talk:
        for kind in ("http", "permit"):
            for asked in ({"url": URL}, {"endpoint": "image"}, {"endpoint": "image", "url": URL}):
                for wrong in ({}, {"method": "DELETE"}, {"url": "https://other.example.com/x"}):
                    body = {"type": kind, **asked, **wrong}
                    there_is_none = {
                        **body,
                        **{name: other[name] for name in ("endpoint", "url") if name in body},
                    }
                    for who in ("bob", "cid"):
                        async with talk.client(secret(who)) as http:
                            answers = [
                                await http.post("/api/tasks", json=one) for one in (body, there_is_none)
                            ]
                        assert {answer.status_code for answer in answers} == {404}, (body, answers[0].text)
                        told = [{**answer.json(), "error": ""} for answer in answers]
                        assert told[0] == told[1]
                        assert "http:image" not in answers[0].text
                        assert "images.example.com" not in answers[0].text
