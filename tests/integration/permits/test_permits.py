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


async def test_the_call_that_asks_may_be_the_stream(here: Talk) -> None:
    first, second = await ask(here), await ask(here)
    wanted = {"type": "permit", "url": "http://127.0.0.1:9/image/cat?size=2", "stream": True}
    async with here.events("/api/tasks", json=wanted) as reader:
        assert (await reader.until("queued"))[-1].data["position"] == 1
        receipt = (await check(here, await permit_of(here, first))).headers["x-fairlane-receipt"]
        await done(here, receipt)
        event = (await reader.until("permit"))[-1].data
    assert event["url"] == "http://127.0.0.1:9/image/cat?size=2"
    assert (await check(here, event["permit"])).status_code == 200
    assert (await check(here, await permit_of(here, second))).status_code == 200


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
    current = here.served.gateway.current
    current.endpoints = type(current.endpoints)(one for one in current.endpoints if one.name != "image")
    receipt = (await check(here, permit)).headers["x-fairlane-receipt"]
    await done(here, receipt)
    assert (await here.reaches(third, "failed"))["code"] == "ENDPOINT_GONE"


async def test_a_permit_lets_in_once_at_any_replica(here: Talk, there: Talk) -> None:
    permit = await permit_of(here, await ask(here))
    answers = await asyncio.gather(*(check(talk, permit) for _ in range(50) for talk in (here, there)))
    assert sorted(answer.status_code for answer in answers) == [200] + [403] * 99
    assert {answer.json()["code"] for answer in answers if answer.status_code == 403} == {"PERMIT_USED"}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status_code == 403)
    (receipt,) = (answer.headers["x-fairlane-receipt"] for answer in answers if answer.status_code == 200)
    assert [(await done(talk, receipt)).json()["status"] for talk in (there, here)] == ["ended", "over"]


async def test_what_is_not_genuine_costs_the_store_nothing(here: Talk) -> None:
    permit = await permit_of(here, await ask(here))
    task_id, _, signature = permit.partition(".")
    forged = [
        f"{task_id}.{'A' * 32}",
        f"{task_id}.{signature[:-1]}{'A' if signature[-1] != 'A' else 'B'}",
        f"{task_id[:-1]}{'0' if task_id[-1] != '0' else '1'}.{signature}",
        permit + "A",
        permit[:-1],
        f"{task_id}.{signature[:-2]}==",
        "é" * 40,
        "x" * 5000,
    ]
    link = here.served.gateway.link
    await here.http.get("/livez")
    asked = []
    run, link.run = link.run, lambda name, *args: (asked.append(name), run(name, *args))[1]  # type: ignore[method-assign]
    try:
        for text in forged * 20:
            answer = await here.http.get(
                "/api/permit/check/image", headers=[(b"X-Fairlane-Permit", text.encode("utf-8"))]
            )
            assert (answer.status_code, answer.json()["code"]) == (403, "PERMIT_INVALID"), text
        for endpoint in ("other", "nothing"):
            assert (await check(here, permit, endpoint)).json()["code"] == "PERMIT_INVALID"
        answer = await check(here, permit, headers={"X-Task-Id": forged[2][:36]})
        assert answer.json()["code"] == "PERMIT_INVALID"
        assert "admit" not in asked
    finally:
        link.run = run  # type: ignore[method-assign]
    assert (await check(here, permit, headers={"X-Task-Id": task_id})).status_code == 200


async def test_a_receipt_is_no_permit_and_a_permit_no_receipt(here: Talk) -> None:
    permit = await permit_of(here, await ask(here))
    assert (await done(here, permit)).status_code == 403
    receipt = (await check(here, permit)).headers["x-fairlane-receipt"]
    assert (await check(here, receipt)).json()["code"] == "PERMIT_INVALID"
    for wrong in ("", "x", receipt[:-1] + ("A" if receipt[-1] != "A" else "B")):
        answer = await done(here, wrong)
        assert (answer.status_code, answer.json()["code"]) == (403, "RECEIPT_INVALID")
    assert (await done(here, receipt)).json() == {"status": "ended"}


async def test_who_has_no_permit_is_told_how_long_to_wait(here: Talk) -> None:
    permits = [await permit_of(here, await ask(here)) for _ in range(2)]
    waiting = await ask(here)
    stranger = await check(here, None)
    assert (stranger.status_code, stranger.json()["code"]) == (403, "PERMIT_NEEDED")
    assert stranger.json()["retryAfterMs"] >= 1000
    answer = await check(here, None, headers={"X-Task-Id": waiting})
    assert answer.json()["taskId"] == waiting
    assert answer.json()["retryAfterMs"] >= 1000
    assert int(answer.headers["retry-after"]) == -(-answer.json()["retryAfterMs"] // 1000)
    assert json.loads(answer.headers["x-fairlane-refusal"]) == answer.json()
    for permit in permits:
        assert (await check(here, permit)).status_code == 200


async def test_any_method_and_a_path_behind_are_answered(here: Talk) -> None:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
        permit = await permit_of(here, await ask(here))
        path = "/api/permit/check/image/some/path?query=1"
        assert (await check(here, None, method=method, path=path)).status_code == 403
        answer = await check(here, permit, method=method, path=path)
        assert answer.status_code == 200, method
        assert (await done(here, answer.headers["x-fairlane-receipt"])).status_code == 200


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


async def test_an_unused_permit_ends_and_lets_the_next_one_in(gateway: Start) -> None:
    image = {**IMAGE, "concurrency": 1, "permit_seconds": 1}
    async with gateway(endpoints={"image": image}) as talk:
        first, second = await ask(talk), await ask(talk)
        permit = await permit_of(talk, first)
        failed = await talk.reaches(first, "failed")
        assert (failed["code"], failed["retryable"]) == ("PERMIT_EXPIRED", True)
        answer = await check(talk, permit)
        assert (answer.status_code, answer.json()["code"]) == (403, "PERMIT_EXPIRED")
        assert (await check(talk, await permit_of(talk, second))).status_code == 200


async def test_a_used_permit_holds_its_place_until_its_time_is_over(gateway: Start) -> None:
    image = {**IMAGE, "concurrency": 1, "permit_seconds": 1, "timeout_ms": 2000}
    async with gateway(endpoints={"image": image}) as talk:
        first, second = await ask(talk), await ask(talk)
        receipt = (await check(talk, await permit_of(talk, first))).headers["x-fairlane-receipt"]
        used_ms = (await talk.poll(first))["usedAt"]
        ended = await talk.reaches(first, "completed")
        assert ended["result"] == {"used": True, "reported": False}
        assert ended["completedAt"] >= used_ms + 2000
        assert (await done(talk, receipt)).json() == {"status": "over"}
        assert (await check(talk, await permit_of(talk, second))).status_code == 200


async def test_cancelling_gives_the_place_to_the_next_one(here: Talk) -> None:
    tasks = [await ask(here) for _ in range(3)]
    permit = await permit_of(here, tasks[0])
    assert (await here.http.post(f"/api/task/{tasks[0]}/cancel", json={})).json()["status"] == "cancelled"
    assert (await check(here, permit)).status_code == 403
    for task in tasks[1:]:
        assert (await check(here, await permit_of(here, task))).status_code == 200


async def test_a_reader_who_leaves_keeps_the_permit(here: Talk) -> None:
    task_id = await ask(here)
    async with here.events(f"/api/task/{task_id}/events") as reader:
        permit = (await reader.until("permit"))[-1].data["permit"]
    assert (await check(here, permit)).status_code == 200


async def test_permits_outlive_the_gateway_that_gave_them_out(gateway: Start) -> None:
    settings = {"endpoints": {"image": IMAGE}, "stream_token_secret": "a-secret-of-sixteen-bytes"}
    async with gateway(**settings) as there:
        async with gateway(**settings) as here:
            unused, used = [await permit_of(here, await ask(here)) for _ in range(2)]
            receipt = (await check(here, used)).headers["x-fairlane-receipt"]
        assert (await check(there, used)).json()["code"] == "PERMIT_USED"
        assert (await check(there, unused)).status_code == 200
        assert (await done(there, receipt)).json() == {"status": "ended"}
