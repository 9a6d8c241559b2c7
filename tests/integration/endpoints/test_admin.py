"""Endpoints are added, changed and removed while gateways run."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.admin.operating import audit, row
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import Settings

from .calling import ENDPOINTS, IMAGE, URL, add, caller, offers, query, reaches, response, submit

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
PATTERN = "https://images.example.com/v1/*"


async def test_an_endpoint_is_added_changed_and_removed_without_a_restart(here: Talk) -> None:
    async with caller(here) as worker:
        await offers(here, "http:*")
        refused = await here.http.post("/api/submitTask", json={"target_url": URL})
        assert (refused.status_code, refused.json()["code"]) == (404, "ENDPOINT_NOT_FOUND")
        made = await add(here, name="image", url=PATTERN, concurrency=2, note="the new one")
        assert (made["model"], made["source"]) == ("http:image", "database")
        await offers(here, "http:image")
        told = await submit(here)
        assert (await worker.take())["payload"]["url"] == URL
        assert told["task_status"] == "processing"
        shown = await row(here, "model", "http:image")
        assert (shown["limit"], shown["cost"], shown["configured"]) == (2, "requests", True)
        assert shown["endpoint"]["url"] == PATTERN

        answer = await here.http.patch(
            f"{ENDPOINTS}/image", json={"concurrency": 3, "methods": ["PUT", "GET"]}
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["settings"]["methods"] == ["GET", "PUT"]
        assert (await row(here, "model", "http:image"))["limit"] == 3
        refused = await here.http.post("/api/submitTask", json={"target_url": URL, "http_method": "POST"})
        assert refused.json()["error"] == "This URL takes GET, PUT, not POST"
        answer = await here.http.patch(f"{ENDPOINTS}/image", json={"concurrency": None})
        assert answer.json()["settings"]["concurrency"] is None
        assert (await row(here, "model", "http:image"))["limit"] is None

        answer = await here.http.delete(f"{ENDPOINTS}/image")
        assert answer.json() == {"name": "image", "waiting": 0, "notes": []}
        await offers(here, "http:*")
        refused = await here.http.post("/api/submitTask", json={"target_url": URL})
        assert refused.json()["code"] == "ENDPOINT_NOT_FOUND"
        assert (await here.http.patch(f"{ENDPOINTS}/image", json={"note": ""})).json()["code"] == (
            "ENDPOINT_NOT_FOUND"
        )
        entries = [
            (entry["action"], entry["target"])
            for entry in (await audit(here))["entries"]
            if entry["target"].startswith("endpoint")
        ]
        assert entries == [(action, "endpoint image") for action in ("delete", "update", "update", "create")]


async def test_replicas_hear_of_it_within_a_second_and_it_survives_a_restart(
    redis_url: str, tmp_path: Path
) -> None:
    async with talking(redis_url, tmp_path) as here:
        async with talking(redis_url, tmp_path) as there, caller(there) as worker:
            await add(here, name="image", url=PATTERN)
            await offers(there, "http:image")  # where the worker is
            told = await submit(here)
            await worker.answer(await worker.take(), response("from there"))
            assert (await reaches(here, told["task_id"], "completed"))["task_result"] == "from there"
            await here.http.delete(f"{ENDPOINTS}/image")
            await until(
                lambda: not len(there.served.gateway.current.endpoints), "the other one to hear of it"
            )
        await add(here, name="kept", url=PATTERN)
    async with talking(redis_url, tmp_path) as again:
        rows = (await again.http.get(ENDPOINTS)).json()["endpoints"]
        assert [one["name"] for one in rows] == ["kept"]
        assert (await row(again, "model", "http:kept"))["configured"]


async def test_what_is_set_for_the_target_reaches_the_worker_and_nobody_else(gateway: Start) -> None:
    said = "Bearer very-secret"
    async with (
        gateway(llm_debug=True, environment="development", archive="requests") as talk,
        caller(talk) as worker,
    ):
        made = await add(talk, name="image", url=PATTERN, set_headers={"Authorization": said})
        assert made["settings"]["set_headers"] == {"authorization": "(set)"}
        await offers(talk, "http:image")
        answer = await talk.http.post(
            "/api/tasks",
            json={
                "type": "http",
                "url": URL,
                "async": True,
                "headers": {"accept": "image/png"},
                "body": {"a": 1},
            },
        )
        assert answer.status_code == 202, answer.text
        task_id = answer.json()["taskId"]
        task = await worker.take()
        headers = [["accept", "image/png"], ["content-type", "application/json"], ["authorization", said]]
        assert task["payload"]["headers"] == headers
        await worker.answer(task, response("ok"))
        await reaches(talk, task_id, "completed")

        async def archived() -> bool:
            return (await talk.http.get(f"/api/admin/tasks/{task_id}?stored=true")).status_code == 200

        await until(archived, "the archive to have it")
        told = [
            (await talk.http.get(path)).text
            for path in (
                ENDPOINTS,
                f"{ENDPOINTS}/image",
                f"/api/admin/tasks/{task_id}?stored=true",
                f"/api/admin/tasks/{task_id}",
                f"/api/task/{task_id}/events",
                "/api/admin/settings?text=endpoints",
                "/api/admin/audit",
            )
        ]
        assert "image/png" in told[2]
        assert all("very-secret" not in text for text in told)
        link = talk.served.gateway.link
        keys = await link.command("KEYS", "*")
        for name in keys:
            kind = await link.command("TYPE", name)
            if kind in (b"string", "string"):
                assert b"very-secret" not in (await link.command("GET", name) or b"")
        # another value is written down as a change, and not told; the others stay
        changed = await talk.http.patch(
            f"{ENDPOINTS}/image", json={"set_headers": {"X-Api-Key": "other-secret"}}
        )
        assert changed.json()["settings"]["set_headers"] == {"authorization": "(set)", "x-api-key": "(set)"}
        changed = await talk.http.patch(f"{ENDPOINTS}/image", json={"set_headers": {"authorization": None}})
        assert changed.json()["settings"]["set_headers"] == {"x-api-key": "(set)"}
        refused = await talk.http.patch(f"{ENDPOINTS}/image", json={"set_headers": {"Host": "very-secret"}})
        assert refused.status_code == 400
        assert "very-secret" not in refused.text


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": "x", "url": "https://*.example.com/"}, "host"),
        ({"name": "x", "url": "https://example.com/a*b"}, "whole segment"),
        ({"name": "x", "url": PATTERN, "headers": ["authorization"]}, "set_headers"),
        ({"name": "x", "url": PATTERN, "headers": ["x-forwarded-for"]}, "never passes"),
        ({"name": "x", "url": PATTERN, "concurency": 1}, "did you mean concurrency"),
        ({"name": "taken", "url": PATTERN}, "has the same url"),
    ],
)
async def test_a_definition_that_makes_no_sense_is_refused(
    shared_gateway: Start, fields: dict[str, Any], sentence: str
) -> None:
    async with shared_gateway() as talk:
        await add(talk, name="other", url=PATTERN)
        told = await add(talk, status=400, **fields)
        assert sentence in told["error"], told
        names = [one["name"] for one in (await talk.http.get(ENDPOINTS)).json()["endpoints"]]
        assert names == ["other"]
        assert (await talk.http.delete(f"{ENDPOINTS}/other")).status_code == 200


async def test_what_the_configuration_says_is_changed_there(gateway: Start) -> None:
    async with gateway(**IMAGE) as talk:
        for call in (
            talk.http.post(ENDPOINTS, json={"name": "image", "url": "https://other.example.com/"}),
            talk.http.patch(f"{ENDPOINTS}/image", json={"concurrency": 1}),
            talk.http.delete(f"{ENDPOINTS}/image"),
        ):
            answer = await call
            assert (answer.status_code, answer.json()["code"]) == (409, "ENDPOINT_CONFIGURED")
        await add(talk, name="image2", url="https://other.example.com/")
        twice = await talk.http.post(ENDPOINTS, json={"name": "image2", "url": "https://x.example.com/"})
        assert (twice.status_code, twice.json()["code"]) == (409, "ENDPOINT_EXISTS")
        # a configuration that is read again takes over what was said there
        settings = talk.served.gateway.current.read
        said = settings.model_dump() | {"endpoints": {"other": {"url": "https://x.example.com/"}}}
        await talk.served.gateway.reconfigure(Settings.model_validate(said))
        rows = (await talk.http.get(ENDPOINTS)).json()["endpoints"]
        assert [(one["name"], one["source"]) for one in rows] == [
            ("image2", "database"),
            ("other", "configuration"),
        ]
        models = {model["model"] for model in (await talk.state())["models"]}
        assert {"http:image2", "http:other"} <= models


async def test_only_admins_change_and_viewers_see(gateway: Start) -> None:
    keys = [key("ops", scopes=["admin"]), key("eye", scopes=["viewer"]), key("ann")]
    async with gateway(keys=keys) as talk:
        for who, sees, changes in (("ops", 200, 201), ("eye", 200, 403), ("ann", 403, 403)):
            async with talk.client(secret(who)) as http:
                assert (await http.get(ENDPOINTS)).status_code == sees
                answer = await http.post(
                    ENDPOINTS, json={"name": f"of-{who}", "url": f"https://{who}.example.com/"}
                )
                assert answer.status_code == changes, answer.text


async def test_waiting_tasks_of_an_endpoint_that_changes_go_by_what_holds_then(here: Talk) -> None:
    await add(here, name="image", url=PATTERN, concurrency=1)
    async with caller(here) as worker:
        await offers(here, "http:image")
        await submit(here)
        first = await worker.take()
        narrow, gone = (
            await submit(here),
            await submit(here, target_url="https://images.example.com/v1/other"),
        )
        pattern = {"url": URL, "timeout": "5s"}
        assert (await here.http.patch(f"{ENDPOINTS}/image", json=pattern)).status_code == 200
        await worker.answer(first, response("1"))
        second = await worker.take()
        assert second["taskId"] == narrow["task_id"]
        assert second["payload"]["rules"]["timeoutMs"] == 5000
        await worker.answer(second, response("2"))
        failed = await reaches(here, gone["task_id"], "failed")
        assert json.loads(failed["task_result"])["code"] == "ENDPOINT_GONE"


async def test_what_waits_for_an_endpoint_that_is_removed_is_not_begun(here: Talk) -> None:
    await add(here, name="image", url=PATTERN, concurrency=1)
    async with caller(here) as worker:
        await offers(here, "http:image")
        await submit(here)
        first = await worker.take()
        waits = await submit(here)
        told = (await here.http.delete(f"{ENDPOINTS}/image")).json()
        assert told["waiting"] == 1
        assert "fairlane task cancel --model http:image" in told["notes"][0]
        await worker.answer(first, response("1"))
        await worker.skip_to("resultAck")
        await worker.nothing_more()
        assert (await query(here, waits["task_id"]))["task_status"] == "pending"
        await add(here, name="image", url=PATTERN)
        task = await worker.take()
        assert task["taskId"] == waits["task_id"]
