"""Permits over gateways: the caller waits, gets one, and is let in once, wherever the proxy asks."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.endpoints.calling import caller
from tests.support.talk import Talk

from .asking import IMAGE, ask, check, done, permit_of

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


@pytest.fixture
async def here(gateway: Start) -> AsyncIterator[Talk]:
    async with gateway(
        endpoints={"image": IMAGE, "other": {**IMAGE, "url": "http://127.0.0.1:9/other/*"}}
    ) as talk:
        yield talk


@pytest.fixture
async def there(gateway: Start) -> AsyncIterator[Talk]:
    """Another replica."""
    async with gateway(
        endpoints={"image": IMAGE, "other": {**IMAGE, "url": "http://127.0.0.1:9/other/*"}}
    ) as talk:
        yield talk


async def test_a_caller_waits_for_the_permit_and_reads_it_from_its_stream(here: Talk) -> None:
    first, second, third = [await ask(here) for _ in range(3)]
    one, _ = await permit_of(here, first), await permit_of(here, second)
    assert (await here.poll(third))["status"] == "queued"
    async with here.events(f"/api/task/{third}/events") as reader:
        answer = await check(here, one)
        assert answer.status_code == 200
        assert answer.headers["x-task-id"] == first
        assert (await here.poll(first))["usedAt"] > 0
        assert (await done(here, answer.headers["x-fairlane-receipt"])).json() == {"status": "ended"}
        event = (await reader.until("permit"))[-1].data
        told = await here.poll(third)
        assert {name: told[name] for name in ("permit", "endpoint", "url", "expiresAt")} == {
            name: event[name] for name in ("permit", "endpoint", "url", "expiresAt")
        }
        assert (event["endpoint"], event["url"]) == ("image", IMAGE["url"])
        answer = await check(here, event["permit"])
        await done(here, answer.headers["x-fairlane-receipt"])
        assert (await reader.until("done"))[-1].data["result"] == {"used": True, "reported": True}
    assert (await here.poll(first))["result"] == {"used": True, "reported": True}


async def test_operators_see_until_when_a_permit_is_out_and_not_the_permit(here: Talk) -> None:
    task_id = await ask(here)
    permit = await permit_of(here, task_id)
    expires_at = (await here.poll(task_id))["expiresAt"]

    async def shown() -> dict[str, Any]:
        answer = await here.http.get(f"/api/admin/tasks/{task_id}")
        assert permit not in answer.text
        return dict(answer.json()["permit"] or {})

    assert await shown() == {"until": expires_at, "usedAt": None}
    answer = await check(here, permit)
    used = await shown()
    assert used["usedAt"] > 0
    assert used["until"] == used["usedAt"] + IMAGE["timeout_ms"]
    await done(here, answer.headers["x-fairlane-receipt"])
    assert await shown() == {}


async def test_the_other_calls_of_an_endpoint_give_permits_too(here: Talk) -> None:
    wanted = {"target_url": "http://127.0.0.1:9/image/cat", "task_type": "online"}
    answer = (await here.http.post("/api/submitTask", json=wanted)).json()
    task_id = answer["task_id"]
    permit = await permit_of(here, task_id)
    told = (await here.http.get("/api/queryTask", params={"task_id": task_id})).json()
    assert told["task_status"] == "processing"
    assert json.loads(told["task_result"])["permit"] == permit
    receipt = (await check(here, permit)).headers["x-fairlane-receipt"]
    assert (await done(here, receipt)).json() == {"status": "ended"}
    told = (await here.http.get("/api/queryTask", params={"task_id": task_id})).json()
    assert (told["task_status"], json.loads(told["task_result"])) == (
        "completed",
        {"used": True, "reported": True},
    )


async def test_a_permit_is_asked_for_by_whoever_may_use_the_endpoint(gateway: Start) -> None:
    settings = {"other": IMAGE, "image": {**IMAGE, "url": "http://127.0.0.1:9/b/*"}}
    async with gateway(endpoints=settings) as talk:
        for wrong, status in (
            ({"endpoint": "nothing"}, 404),
            ({"endpoint": "image", "url": "http://127.0.0.1:9/image/a"}, 404),
            ({"endpoint": "image", "body": "x"}, 400),
            ({"endpoint": "image", "method": "DELETE"}, 400),
            ({"url": "http://127.0.0.1:9/nothing"}, 404),
        ):
            answer = await talk.http.post("/api/tasks", json={"type": "permit", **wrong})
            assert answer.status_code == status, (wrong, answer.text)


async def test_an_endpoint_that_is_gone_gives_no_permits(here: Talk) -> None:
    first, _, third = [await ask(here) for _ in range(3)]
    permit = await permit_of(here, first)
    await here.served.gateway.scheduler.configure({}, {})
    receipt = (await check(here, permit)).headers["x-fairlane-receipt"]
    await done(here, receipt)
    await here.reaches(first, "completed")
    assert (await here.poll(third))["status"] == "queued"


async def test_a_permit_lets_in_once_at_any_replica(here: Talk, there: Talk) -> None:
    permit = await permit_of(here, await ask(here))
    answers = await asyncio.gather(*(check(talk, permit) for _ in range(50) for talk in (here, there)))
    assert sorted(answer.status_code for answer in answers) == [200] + [403] * 99
    assert {answer.json()["code"] for answer in answers if answer.status_code == 403} == {"PERMIT_USED"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 403)
    (receipt,) = (answer.headers["x-fairlane-receipt"] for answer in answers if answer.status_code == 200)
    assert [(await done(talk, receipt)).json()["status"] for talk in (there, here)] == ["ended", "over"]


async def test_who_has_no_permit_is_told_how_long_to_wait(here: Talk) -> None:
    permits = [await permit_of(here, await ask(here)) for _ in range(2)]
    await ask(here)
    stranger = await check(here, None)
    assert (stranger.status_code, stranger.json()["code"]) == (403, "PERMIT_NEEDED")
    assert stranger.json()["retryAfterMs"] >= 1000
    assert int(stranger.headers["retry-after"]) == -(-stranger.json()["retryAfterMs"] // 1000)
    assert json.loads(stranger.headers["x-fairlane-refusal"]) == stranger.json()
    for permit in permits:
        assert (await check(here, permit)).status_code == 200


async def test_the_endpoint_is_found_by_the_url_that_the_proxy_tells(here: Talk) -> None:
    bare = "/api/permit/check"
    nginx = {"X-Original-URL": "http://127.0.0.1:9/image/a?b=c", "X-Original-Method": "POST"}
    traefik = {
        "X-Forwarded-Proto": "http",
        "X-Forwarded-Host": "127.0.0.1:9",
        "X-Forwarded-Uri": "/image/a",
        "X-Forwarded-Method": "POST",
    }
    for headers in (nginx, traefik, {**nginx, **traefik}):
        answer = await check(here, await permit_of(here, await ask(here)), path=bare, headers=headers)
        assert answer.status_code == 200, headers
        await done(here, answer.headers["x-fairlane-receipt"])
    permit = await permit_of(here, await ask(here))
    other = {**traefik, "X-Forwarded-Uri": "/other/a"}
    for headers in (
        other,
        {**nginx, **other},
        {**traefik, "X-Original-URL": "http://127.0.0.1:9/other/a"},
        {**nginx, "X-Original-URL": "http://127.0.0.1:9/nothing"},
        {**nginx, "X-Original-URL": "http://127.0.0.1:9/image/../other/a"},
        {**nginx, "X-Original-Method": "DELETE"},
    ):
        assert (await check(here, permit, path=bare, headers=headers)).status_code == 403, headers
    assert (await check(here, permit, path=bare)).status_code == 400
    assert (await check(here, permit)).status_code == 200


async def test_permits_and_calls_share_one_line_and_what_it_takes(here: Talk, there: Talk) -> None:
    """Callers at two replicas, a worker at one of them: never more than two at a time, and nobody is forgotten."""
    inside: set[str] = set()
    most = 0

    def enter(task_id: str) -> None:
        nonlocal most
        inside.add(task_id)
        most = max(most, len(inside))

    async def permitted(talk: Talk, user: int) -> None:
        task_id = await ask(talk, metadata={"user": user})
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            permit = (await reader.until("permit"))[-1].data["permit"]
        answer = await check(talk, permit)
        assert answer.status_code == 200
        enter(task_id)
        await asyncio.sleep(0.01)
        inside.discard(task_id)
        assert (await done(talk, answer.headers["x-fairlane-receipt"])).status_code == 200

    async with caller(there, slots=8) as worker:

        async def works() -> None:
            while True:
                task = await worker.take()
                enter(task["taskId"])
                await asyncio.sleep(0.01)
                inside.discard(task["taskId"])
                await worker.answer(task, {"status": 200, "headers": [], "body": "done"})

        working = there.later(works())
        wanted = {"type": "http", "endpoint": "image", "url": "http://127.0.0.1:9/image/a"}
        calls = [talk.http.post("/api/tasks", json=wanted) for _ in range(20) for talk in (here, there)]
        permits = [permitted(talk, user) for user in range(20) for talk in (here, there)]
        answers = await asyncio.gather(*calls, *permits)
        working.cancel()
    assert [answer.json()["body"] for answer in answers if answer is not None] == ["done"] * 40
    assert most == 2


async def test_a_reader_who_leaves_keeps_the_permit(here: Talk) -> None:
    task_id = await ask(here)
    async with here.events(f"/api/task/{task_id}/events") as reader:
        permit = (await reader.until("permit"))[-1].data["permit"]
    assert (await check(here, permit)).status_code == 200
