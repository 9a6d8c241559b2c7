"""Whose batches are whose, what a key may do in them, and that nobody's batch delays another one's."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret

from fairlane.gateway.batches import leader

from .crew import Caller, Crew, line, stage

pytestmark = pytest.mark.anyio
KEYS = [
    key("one"),
    key("two"),
    key("site", delegating=True),
    key("limited", limits={"requests_per_minute": 5}),
    key("narrow", models=["echo"]),
    key("ops", scopes=["admin"]),
]


@pytest.fixture
async def staged(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Caller, Crew]]:
    async with stage(redis_url, tmp_path, slots=1, keys=KEYS) as found:
        yield found


def of(caller: Caller, name: str, **headers: str) -> Caller:
    """Another caller of the same gateway."""
    return caller.other(secret(name), **headers)


async def test_a_batch_is_seen_by_who_made_it_alone(staged: tuple[Caller, Crew]) -> None:
    one, two = of(staged[0], "one"), of(staged[0], "two")
    ann = of(staged[0], "site", **{"x-fairlane-user": "ann"})
    bob = of(staged[0], "site", **{"x-fairlane-user": "bob"})
    for mine, theirs in ((one, two), (ann, bob)):
        made = await mine.batch([line(1)])
        for method, path in (("GET", ""), ("POST", "/cancel")):
            answer = await theirs.http.request(method, f"/v1/batches/{made['id']}{path}")
            assert answer.status_code == 404
        assert (await theirs.http.get("/v1/batches")).json()["data"] == []
        file_id = made["input_file_id"]
        body = {"input_file_id": file_id, "endpoint": made["endpoint"], "completion_window": "24h"}
        assert (await theirs.http.post("/v1/batches", json=body)).status_code == 404
        ended = await mine.reaches(made["id"])
        assert ended["status"] == "completed"
        answer = await theirs.http.get(f"/v1/files/{ended['output_file_id']}/content")
        assert answer.status_code == 404
    everybodys = (await of(staged[0], "ops").http.get("/api/admin/batches")).json()["batches"]
    assert [(row["key"], row["user"]) for row in everybodys] == [("site", "site/ann"), ("one", "one")]
    answer = await one.http.get("/api/admin/batches")
    assert answer.status_code == 403


async def test_batches_without_end_keep_nobody_out(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "MAX_LED", 2)
    monkeypatch.setattr(leader, "MAX_OF_KEY", 1)
    async with stage(redis_url, tmp_path, keys=KEYS) as (caller, crew):
        crew.go.clear()
        one, two = of(caller, "one"), of(caller, "two")
        long = [await one.batch([line(f"{at}-{n}", model="patient") for n in range(3)]) for at in range(2)]
        await one.reaches(long[0]["id"], "in_progress")
        short = await two.batch([line(1), line(2)])
        ended = await two.reaches(short["id"])
        assert ended["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
        crew.go.set()
        for made in long:
            ended = await one.reaches(made["id"])
            assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert set(crew.runs.values()) == {1}


async def test_a_key_is_asked_for_each_line(staged: tuple[Caller, Crew]) -> None:
    narrow = of(staged[0], "narrow")
    ended = await narrow.reaches((await narrow.batch([line(1), line(2, model="patient")]))["id"])
    assert ended["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    [error] = await narrow.records(ended["error_file_id"])
    assert error["response"]["body"]["error"]["code"] == "model_not_found"


async def test_a_rate_limit_slows_a_batch_and_fails_nothing(staged: tuple[Caller, Crew]) -> None:
    limited = of(staged[0], "limited")
    made = await limited.batch([line(number) for number in range(7)])

    async def stands() -> tuple[int, int]:
        counts = (await limited.show(made["id"]))["request_counts"]
        return counts["completed"], counts["failed"]

    async with asyncio.timeout(15):
        while (await stands())[0] < 5:
            await asyncio.sleep(0.05)
    assert await stands() == (5, 0)
    await limited.http.post(f"/v1/batches/{made['id']}/cancel")
    ended = await limited.reaches(made["id"])
    assert ended["request_counts"]["failed"] == 0
    assert len(await limited.records(ended["error_file_id"])) == 7 - ended["request_counts"]["completed"]


async def test_a_key_that_is_revoked_ends_its_batches(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=1, keys=[key("ops", scopes=["admin"])]) as (caller, crew):
        ops = of(caller, "ops")
        made = (await ops.http.post("/api/admin/keys", json={"id": "gone", "kind": "caller"})).json()
        gone = caller.other(made["secret"])
        crew.go.clear()
        batch = await gone.batch([line(1)] + [line(number, model="patient") for number in range(2, 6)])
        async with asyncio.timeout(15):
            while (await gone.show(batch["id"]))["request_counts"]["completed"] < 1:
                await asyncio.sleep(0.05)
        await ops.http.post("/api/admin/keys/gone/revoke", json={"now": True})

        async def row() -> dict[str, Any]:
            return dict((await ops.http.get("/api/admin/batches")).json()["batches"][0])

        async with asyncio.timeout(15):
            while (await row())["status"] != "failed":
                await asyncio.sleep(0.05)
        told = await row()
        assert "not valid any more" in told["error"]
        assert told["counts"]["completed"] == 1
