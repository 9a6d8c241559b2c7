"""Who may do what: keys, delegating and admin keys, other callers' tasks, stream tickets, the first start."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx2
import pytest
from structlog.testing import capture_logs
from tests.integration.native.keys import key, secret
from tests.support.streams import frames_of
from tests.support.talk import Talk
from websockets.exceptions import InvalidStatus

from fairlane.queues.ids import new_task_id

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
KEYS = [
    key("acme", tier="paid"),
    key("other"),
    key("site", delegating=True),
    key("ops", scopes=["admin"]),
    key("narrow", models=["small"]),
]


async def submit(client: httpx2.AsyncClient, **body: Any) -> str:
    answer = await client.post("/api/openai", json={"async": True, **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic c2VjcmV0LWFjbWU="},
        {"Authorization": "secret-acme"},
        {"Authorization": "Bearer " + "x" * 5000},
        {"X-Fairlane-User": "acme"},
    ],
)
async def test_without_a_valid_key_every_call_is_a_401(
    shared_gateway: Start, headers: dict[str, str]
) -> None:
    async with shared_gateway(keys=KEYS) as talk, talk.worker():
        task_id = new_task_id(1_780_000_000_000)
        for method, path in (
            ("POST", "/api/openai"),
            ("POST", "/api/tasks"),
            ("GET", f"/api/task/{task_id}"),
            ("POST", f"/api/task/{task_id}/cancel"),
            ("GET", f"/api/task/{task_id}/events"),
            ("GET", f"/api/sse-stream?taskId={task_id}"),
            ("GET", "/api/admin/overview"),
        ):
            answer = await talk.http.request(
                method, path, headers=headers, json={} if method == "POST" else None
            )
            assert answer.status_code == 401
            assert answer.json()["code"] == "UNAUTHORIZED"
            assert "Bearer" in answer.json()["error"]
            assert answer.headers["www-authenticate"] == "Bearer"
        answer = await talk.http.post("/v1/chat/completions", json={}, headers=headers)
        assert answer.status_code == 401
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


async def test_anothers_task_answers_exactly_like_an_unknown_one(shared_gateway: Start) -> None:
    async with (
        shared_gateway(keys=KEYS) as talk,
        talk.worker() as worker,
        talk.client(secret("acme")) as acme,
        talk.client(secret("other")) as other,
    ):
        queued_behind = await submit(acme)
        task = await worker.take()
        task_id = await submit(acme)
        unknown = new_task_id(1_780_000_000_000)
        for method, path in (
            ("GET", "/api/task/{}"),
            ("POST", "/api/task/{}/cancel"),
            ("GET", "/api/task/{}/events"),
            ("GET", "/api/sse-stream?taskId={}"),
        ):
            answers = [await other.request(method, path.format(one)) for one in (task_id, unknown)]
            told = [(one.status_code, one.content, sorted(one.headers)) for one in answers]
            assert told[0] == told[1]
            assert answers[0].json()["error"] == "Task not found or expired"
        assert (await acme.get(f"/api/task/{task_id}")).json()["status"] == "queued"
        await worker.answer(task, {"of": "acme"})
        assert (await worker.take())["taskId"] == task_id
        assert (await other.get(f"/api/task/{queued_behind}")).status_code == 404


async def test_the_log_says_once_of_a_key_that_the_users_it_names_are_ignored(gateway: Start) -> None:
    named = {"X-Fairlane-User": "ann"}
    async with gateway(keys=KEYS) as talk:
        with capture_logs() as lines:
            for who in ("acme", "acme", "site", "other"):
                async with talk.client(secret(who), **named) as client:
                    assert (await client.get("/api/me")).status_code == 200
    said = [line for line in lines if "X-Fairlane-User is ignored" in line["event"]]
    assert [(line["key_id"], line["log_level"]) for line in said] == [
        ("acme", "warning"),
        ("other", "warning"),
    ]


async def test_a_delegating_key_names_user_and_tier_and_sees_each_users_tasks_as_that_user(
    shared_gateway: Start,
) -> None:
    async with shared_gateway(keys=KEYS) as talk, talk.worker() as worker:
        ann = {"X-Fairlane-User": "ann", "X-Fairlane-Tier": "paid"}
        async with talk.client(secret("site")) as site, talk.client(secret("ops")) as ops:
            answer = await site.post("/api/openai", json={"async": True}, headers=ann)
            task_id = answer.json()["taskId"]
            await worker.take()
            row = (await ops.get(f"/api/admin/tasks/{task_id}")).json()
            assert (row["user"], row["key"], row["queue"]) == ("site/ann", "site", "paid_batch")
            who = (await site.get("/api/me", headers=ann)).json()
            assert (who["user"], who["key"]) == ("site/ann", "site")
            found = (await ops.get("/api/admin/tasks", params={"user": "site/ann"})).json()["tasks"]
            assert [task["taskId"] for task in found] == [task_id]
            assert (await ops.get("/api/admin/tasks", params={"user": "ann"})).json()["tasks"] == []
            url = f"/api/task/{task_id}"
            assert (await site.get(url, headers=ann)).status_code == 200
            assert (await site.get(url, headers={"X-Fairlane-User": "bob"})).status_code == 404
            assert (await site.get(url)).status_code == 404
            for bad in ({"X-Fairlane-Tier": "gold"}, {"X-Fairlane-User": ""}, {"X-Fairlane-User": "u" * 200}):
                answer = await site.post("/api/openai", json={}, headers=bad)
                assert answer.status_code == 400
                assert next(iter(bad)) in answer.json()["error"]


async def test_with_worker_tokens_configured_only_they_connect(gateway: Start) -> None:
    async with gateway(keys=KEYS, workers=[key("gpu")]) as talk:
        for token in (None, "wrong", secret("acme")):
            with pytest.raises(InvalidStatus) as refused:
                async with talk.worker(token):
                    pass
            assert refused.value.response.status_code == 401
        async with talk.worker(secret("gpu")) as worker, talk.client(secret("acme")) as acme:
            await submit(acme)
            await worker.take()


# ---- stream tickets ----------


async def test_a_stream_url_reads_its_one_task_without_a_key_and_nothing_else(shared_gateway: Start) -> None:
    async with (
        shared_gateway(keys=KEYS) as talk,
        talk.worker() as worker,
        talk.client(secret("acme")) as acme,
    ):
        answer = await acme.post("/api/openai", json={"async": True})
        url, task_id = answer.json()["streamUrl"], answer.json()["taskId"]
        token = url.partition("?token=")[2]
        other = await submit(acme)
        async with talk.events(url) as reader:
            await worker.answer(await worker.take(), {"a": 1})
            events = await reader.rest()
        assert events[-1].data["result"] == {"a": 1}
        alias = await talk.http.get(f"/api/sse-stream?taskId={task_id}&token={token}")
        assert frames_of(alias.content)[-1].data["result"] == {"a": 1}
        assert (await talk.http.get(f"/api/task/{other}/events?token={token}")).status_code == 401
        assert (await talk.http.get(f"/api/task/{task_id}?token={token}")).status_code == 401
        assert (await talk.http.post(f"/api/task/{task_id}/cancel?token={token}")).status_code == 401
        assert (await talk.http.get(f"/api/admin/overview?token={token}")).status_code == 401


async def test_a_tampered_or_expired_ticket_is_a_401(shared_gateway: Start) -> None:
    async with shared_gateway(keys=KEYS) as talk, talk.worker(), talk.client(secret("acme")) as acme:
        task_id = await submit(acme)
        tickets = talk.served.gateway.tasks.links.tickets
        good = tickets.issue(task_id, 4_000_000_000_000)
        swapped = "B" if good[9] != "B" else "C"
        for token in (
            tickets.issue(task_id, 1),
            good[:9] + swapped + good[10:],
            good[:-1],
            good + "A",
            "",
            "é" * 32,
            "x" * 5000,
        ):
            answer = await talk.http.get(f"/api/task/{task_id}/events", params={"token": token})
            assert (answer.status_code, answer.json()["code"]) == (401, "LINK_INVALID")
            assert "This link is invalid or has expired" in answer.json()["error"]
        assert (
            await talk.http.get(f"/api/task/{task_id}/events", params={"token": good + "="})
        ).status_code == 401


async def test_a_ticket_of_one_replica_is_good_on_another(gateway: Start) -> None:
    async with gateway(keys=KEYS) as first, gateway(keys=KEYS) as second, first.worker() as worker:
        async with first.client(secret("acme")) as acme:
            url = (await acme.post("/api/openai", json={"async": True})).json()["streamUrl"]
        await worker.answer(await worker.take(), {"a": 1})
        answer = await second.http.get(url)
        assert frames_of(answer.content)[-1].data["result"] == {"a": 1}


# ---- the first start ----------
