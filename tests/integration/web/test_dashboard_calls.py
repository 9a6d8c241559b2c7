"""The calls that the dashboard is made of, as anybody may use them."""

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.queues.inspect import inspector

pytestmark = pytest.mark.anyio

KEYS: list[dict[str, Any]] = [
    {"id": name, "sha256": hashlib.sha256(f"secret-of-{name}".encode()).hexdigest(), **more}
    for name, more in {"ops": {"scopes": ["admin"]}, "acme": {"tier": "paid"}}.items()
]
UNKNOWN = "01a1fffb-3ebc-8007-8a09-46898682a951"


@pytest.fixture
async def keyed(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    """A gateway with keys."""
    async with talking(redis_url, tmp_path, keys=KEYS) as talk:
        yield talk


async def pictures(http: httpx2.AsyncClient, number: int) -> list[dict[str, Any]]:
    """So many pictures of the feed."""
    found: list[dict[str, Any]] = []
    async with http.stream("GET", "/api/admin/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-request-id"].startswith("req_")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == number:
                    return found
    return found


async def submit(talk: Talk, user: str, **body: Any) -> str:
    """An async task of somebody's."""
    answer = await talk.http.post(
        "/api/openai",
        json={"model": "m", "async": True, "messages": [], **body},
        headers={"X-Fairlane-User": user},
    )
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


def _now() -> int:
    return time.time_ns() // 1_000_000


async def found(talk: Talk, **query: Any) -> list[str]:
    """The ids that a search finds."""
    answer = await talk.http.get("/api/admin/tasks", params=query)
    assert answer.status_code == 200, answer.text
    return [row["taskId"] for row in answer.json()["tasks"]]


async def test_the_feed_is_for_operators(keyed: Talk) -> None:
    for key, status in ((None, 401), ("wrong", 401), ("secret-of-acme", 403)):
        async with keyed.client(key) as http:
            assert (await http.get("/api/admin/events", params={"token": "x"})).status_code == status


async def test_the_feed_says_what_the_state_says(talk: Talk) -> None:
    async with talk.worker2(["m"], slots=2):
        await submit(talk, "ann")
        await submit(talk, "ben")
        state = await talk.state()
        picture = (await pictures(talk.http, 2))[-1]
    address = talk.served.gateway.store.address
    assert picture["store"] == {
        "address": address,
        "up": True,
        "rejectsWrites": False,
        "since": None,
        "reason": None,
    }
    assert picture["gateway"]["replica"] == talk.served.gateway.replica
    assert picture["counts"] == state["counts"]
    assert "tasks" not in picture
    assert [row["queue"] for row in picture["queues"]] == [row["queue"] for row in state["queues"]]
    assert picture["workers"][0]["workerId"] == state["workers"][0]["workerId"]
    await until(lambda: talk.served.gateway.operator.live.watchers == 0, "the feed to be left")


async def test_a_gateway_that_goes_ends_its_feeds(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path) as talk, talk.http.stream("GET", "/api/admin/events") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "event: overview"
        await talk.served.gateway.drain()
        async with asyncio.timeout(10):
            async for _ in lines:
                pass  # it ends, and properly: httpx2 would say so otherwise


async def test_tasks_are_found_by_what_is_asked(talk: Talk) -> None:
    async with talk.worker2(["m"], slots=1) as worker:
        first = await submit(talk, "ann")
        task = await worker.take()
        waiting = [await submit(talk, user) for user in ("ben", "ann", "ben")]
        assert await found(talk) == [*reversed(waiting), first]
        assert await found(talk, status="executing") == [first]
        assert await found(talk, status="queued", user="ann") == [waiting[1]]
        assert await found(talk, user="ben", model="m", queue="free_batch") == [waiting[2], waiting[0]]
        assert await found(talk, user="ben", queue="paid_batch") == []
        assert await found(talk, text="EN") == [waiting[2], waiting[0]]
        assert await found(talk, text="%a") == []  # not a pattern
        assert await found(talk, text=first[:18], user="ann", status="executing") == [first]
        [row] = (await talk.http.get("/api/admin/tasks?status=executing")).json()["tasks"]
        at = row["enqueuedAt"]
        assert await found(talk, to=at) == await found(talk, user="ann", **{"from": at + 60_000}) == []
        assert await found(talk, status="executing", **{"from": at, "to": at + 1}) == [first]
        assert await found(talk, worker=row["attempts"][0]["workerId"]) == [first]
        await worker.answer(task, error="no", errorInfo={"code": "UPSTREAM_ERROR"})
        await talk.http.get(f"/api/task/{first}", headers={"X-Fairlane-User": "ann"})
        await until(lambda: _one(talk, first), "the task to be found by its code")
        assert await found(talk, status="failed") == [first]


async def _one(talk: Talk, task_id: str) -> bool:
    return await found(talk, status="failed", code="UPSTREAM_ERROR") == [task_id]


@pytest.mark.parametrize("state", ["", "queued", "executing"])
async def test_a_search_goes_on_page_by_page(talk: Talk, state: str) -> None:
    async with talk.worker2(["m"], slots=25 if state == "executing" else 1) as worker:
        if state != "executing":
            await talk.http.patch("/api/admin/models/m", json={"paused": True})
        ids = [await submit(talk, f"u{n}") for n in range(25)]
        if state == "executing":
            for _ in ids:
                await worker.take()
        seen: list[str] = []
        after = None
        for _ in range(4):
            query = {"limit": "7", "status": state} | ({"after": after} if after else {})
            answer = (await talk.http.get("/api/admin/tasks", params=query)).json()
            seen += [row["taskId"] for row in answer["tasks"]]
            after = answer["next"]
            await submit(talk, "late", model="m")  # what comes meanwhile moves nothing
        assert after is None
        assert sorted(seen) == sorted(ids)
        assert len(set(seen)) == 25


async def test_a_task_is_shown_with_a_link_to_its_events(talk: Talk) -> None:
    async with talk.worker2(["m"], slots=1) as worker:
        first = await submit(talk, "ann", metadata={"trace": 7}, priority=3)
        second = await submit(talk, "ann")
        task = await worker.take()
        await worker.chunk(task, "Hi")
        await until(lambda: _began(talk, first), "the first output")
        one = (await talk.http.get(f"/api/admin/tasks/{first}")).json()
        assert (one["status"], one["user"], one["metadata"], one["priority"]) == (
            "executing",
            "ann",
            {"trace": 7},
            3,
        )
        assert one["enqueuedAt"] <= one["startedAt"] <= one["firstOutputAt"] <= one["now"]
        assert (one["events"], len(one["attempts"])) == (2, 1)
        two = (await talk.http.get(f"/api/admin/tasks/{second}")).json()
        assert (two["position"], two["startedAt"], two["attempts"]) == (1, None, [])
        assert (two["estimatedWaitMs"], two["estimating"]) == (None, True), "nothing has been learnt"
        async with talk.events(one["streamUrl"]) as events:
            assert [(await events.next()).event for _ in range(2)] == ["start", "chunk"]
    for unknown in (UNKNOWN, "x", "%00"):
        assert (await talk.http.get(f"/api/admin/tasks/{unknown}")).status_code == 404


async def _began(talk: Talk, task_id: str) -> bool:
    row = (await talk.http.get(f"/api/admin/tasks/{task_id}")).json()
    return bool(row["firstOutputAt"])


async def test_an_admins_key_sees_and_cancels_every_task(keyed: Talk) -> None:
    async with (
        keyed.worker2(["m"]),
        keyed.client("secret-of-acme") as acme,
        keyed.client("secret-of-ops") as ops,
    ):
        body = {"model": "m", "async": True, "messages": []}
        running, waiting = [(await acme.post("/api/openai", json=body)).json()["taskId"] for _ in range(2)]
        assert (await ops.get(f"/api/task/{waiting}")).json()["status"] == "queued"
        assert (await ops.post(f"/api/task/{waiting}/cancel")).json()["status"] == "cancelled"
        path = "/api/admin/tasks/cancel"
        assert (await ops.post(path, params={"task": running})).json() == {"cancelled": 1, "more": False}
        events = (await ops.get(f"/api/task/{waiting}/events")).text
        assert '"by":"admin"' in events
        assert (await ops.post(path, params={"task": running})).json() == {"cancelled": 0, "more": False}
        assert (await ops.post(path, params={"task": UNKNOWN})).status_code == 404
        own = (await ops.post("/api/openai", json=body)).json()["taskId"]
        await ops.post(f"/api/task/{own}/cancel")  # their own: nothing to write down
        entries = (await ops.get("/api/admin/audit")).json()["entries"]
    assert [(entry["actor"], entry["action"], entry["target"]) for entry in entries] == [
        ("ops", "cancel", f"task {running}"),
        ("ops", "cancel", f"task {waiting}"),
    ]
    assert entries[1]["before"] == {"status": "queued", "user": "acme", "queue": "paid_batch"}
    assert entries[1]["after"] == {"status": "cancelled"}


async def test_a_drained_worker_finishes_and_gets_nothing_more(talk: Talk) -> None:
    async with talk.worker2(["m"], slots=2, name="two") as worker, talk.worker() as old:
        await submit(talk, "ann")
        task = await worker.take()
        state = await talk.state()
        [two] = [row["workerId"] for row in state["workers"] if row["version"] == 2]
        [one] = [row["workerId"] for row in state["workers"] if row["version"] == 1]
        for _ in range(2):  # a second call makes no difference
            answer = await talk.http.post(f"/api/admin/workers/{two}/drain")
            assert answer.json() == {
                "workerId": two,
                "name": "two",
                "replica": talk.served.gateway.replica,
                "draining": True,
            }
        frame = await worker.recv()
        assert (frame["type"], frame["graceMs"]) == ("drain", 600_000)
        await worker.answer(task, {"content": "done"})
        assert (await worker.recv())["type"] == "resultAck"
        later = await submit(talk, "ann", model="m")
        await old.answer(await old.take(), {})
        await talk.http.post(f"/api/admin/workers/{one}/drain")
        answer = await talk.http.post("/api/openai", json={"model": "m", "async": True, "messages": []})
        assert (answer.status_code, answer.json()["code"]) == (503, "NO_WORKER")
        assert await worker.idle(0.05)
        assert await old.idle(0.05)
        assert later in await found(talk, status="completed")
        for unknown in ("0" * 16, "x", two[:-1]):
            answer = await talk.http.post(f"/api/admin/workers/{unknown}/drain")
            assert (answer.status_code, answer.json()["code"]) == (404, "WORKER_NOT_FOUND")
        entries = (await talk.http.get("/api/admin/audit")).json()["entries"]
        assert [entry["target"] for entry in entries] == [f"worker {one}", f"worker {two}"]


async def test_a_replica_that_does_not_hear_is_told_of(talk: Talk, redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path / "other") as other, other.worker2(["m"]) as worker:
        await talk.workers(1)
        await other.served.gateway.store.first.channel.close()
        [row] = (await talk.state())["workers"]
        answer = await talk.http.post(f"/api/admin/workers/{row['workerId']}/drain")
        assert (answer.status_code, answer.json()["code"]) == (503, "REPLICA_SILENT")
        assert "retry-after" in answer.headers
        assert await worker.idle(0.05)
        assert (await talk.http.get("/api/admin/audit")).json()["entries"] == []


async def test_the_last_hour_counts_what_was_done_on_two_replicas(
    talk: Talk, redis_url: str, tmp_path: Path
) -> None:
    async with talking(redis_url, tmp_path / "other") as other, talk.worker2(["m"], slots=4) as worker:
        for replica in (talk, other):
            await submit(replica, "ann")
            task = await worker.take()
            await worker.chunk(task, "x")
            await worker.answer(task, {"content": "x"})
            assert (await worker.recv())["type"] == "resultAck"
        refused = await other.http.post("/api/openai", json={"model": "unknown", "messages": []})
        assert refused.status_code in (404, 503)
        now = _now() - 30_000
        for replica in (talk, other):
            await replica.served.gateway.operator.history.write(now)
        answer: dict[str, Any] = {}

        async def complete() -> (
            bool
        ):  # buckets that the replicas wrote by themselves are shown when they are over
            answer.update((await talk.http.get("/api/admin/timeseries")).json())
            return (answer["total"]["accepted"], answer["total"]["completed"]) == (2, 2)

        await until(complete, "both replicas' parts", 20)
        assert answer["models"] == {
            "m": {
                "acceptedLastMinute": 2,
                "endedLastMinute": 2,
                "cancelledLastMinute": 0,
                "outputTokensLastMinute": 2,
            }
        }
        total = answer["total"]
        assert (total["accepted"], total["completed"], total["rejected"]) == (2, 2, 1)
        assert total["rejections"] == [{"code": "NO_WORKER", "count": 1}]
        assert total["totalMs"]["p50"] >= total["firstOutputMs"]["p50"] >= 1
        same = (await other.http.get("/api/admin/timeseries")).json()["total"]
        assert same == total
        command, key = talk.served.gateway.link.command, talk.served.gateway.keys("history")
        assert 0 < await command("PTTL", key) <= 7_200_000


async def test_the_users_with_the_most_tasks_come_first(
    talk: Talk, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspector, "USERS_PER_PAGE", 2)  # their line is read in several parts
    async with talking(redis_url, tmp_path / "other") as other, talk.worker2(["m", "n"], slots=2) as worker:
        await talk.http.patch("/api/admin/models/m", json={"max_running_per_user": 1})
        await submit(talk, "ann")
        ended = await worker.take()
        await worker.answer(ended, {"content": "x", "usage": {"prompt_tokens": 30, "completion_tokens": 12}})
        for user, number in (("flooder", 6), ("ben", 2), ("cid", 1), ("dan", 1), ("eve", 1)):
            for _ in range(number):
                await submit(other, user)
        await submit(other, "ben", model="n")
        for _ in range(2):
            await worker.take()
        await talk.served.gateway.operator.history.write(_now())

        async def told(**query: Any) -> dict[str, Any]:
            answer: dict[str, Any] = (await other.http.get("/api/admin/users", params=query)).json()
            return answer

        async def all_counted() -> bool:
            return sum(row["waiting"] + row["running"] for row in (await told())["users"]) == 12

        await until(all_counted, "the survey to be new")
        answer = await told()
        assert (answer["number"], answer["complete"]) == (6, True)
        rows = {row["user"]: row for row in answer["users"]}
        assert answer["users"][0]["user"] == "flooder"
        assert [rows["flooder"][name] for name in ("waiting", "running", "model")] == [5, 1, "m"]
        assert (rows["ann"]["waiting"], rows["ann"]["tokens"], rows["ann"]["share"]) == (0, 42, 1.0)
        assert rows["ann"]["model"] is None
        assert sum(row["running"] for row in rows.values()) == 2
        assert [row["user"] for row in (await told(limit=1))["users"]] == ["flooder"]
        assert (await talk.http.get("/api/admin/users", params={"limit": 0})).status_code == 400
        monkeypatch.setattr(inspector, "MAX_LISTED_USERS", 2)
        answer = await told()
        assert not answer["complete"]
        assert "flooder" in {row["user"] for row in answer["users"]} or answer["number"] < 6
