"""A user is forgotten: content goes, records go on without the name, also those that were on their way."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from tests.integration.admin.test_commands import fairlane
from tests.integration.native.keys import key, secret
from tests.support.ledger import ended_at
from tests.support.records import KEYS, entry, everything, put
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.database.tables import archive, usage, usage_users, webhook_deliveries
from fairlane.gateway.records.erasure import ERASED
from fairlane.gateway.settings import KeyQuota, PriceSettings
from fairlane.gateway.usage.usage import UsageTable
from fairlane.queues.overrides import Actor

pytestmark = pytest.mark.anyio
ACCOUNTS = [key("ops", scopes=["admin"]), key("site", delegating=True), key("eyes", scopes=["viewer"])]
OPS = Actor("ops", "192.0.2.7")
NAME = "site/zebra-fish"


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    settings = {"keys": ACCOUNTS, "database_url": database_url, "archive": "requests"}
    async with talking(redis_url, tmp_path, **settings) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        yield talk


async def forget(talk: Talk, user: str = NAME) -> dict[str, Any]:
    answer = await talk.http.delete(f"/api/admin/users/{user}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def carried(talk: Talk) -> None:
    async def empty() -> bool:
        link = talk.served.gateway.link
        return not (await link.command("XLEN", KEYS("outbox")) or await link.command("XLEN", KEYS("archive")))

    await until(empty, "everything to be in SQL")


async def test_nothing_names_a_user_who_was_forgotten(talk: Talk) -> None:
    gateway = talk.served.gateway

    async with (
        talk.client(
            secret("site"), **{"X-Fairlane-User": "zebra-fish", "X-Request-Id": "zebra-fish-1"}
        ) as zebra,
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as ann,
        talk.worker2(["m"]) as worker,
    ):
        ids: dict[Any, list[str]] = {zebra: [], ann: []}
        for client in (zebra, ann):
            for fails in (False, True, False):
                body = {"model": "m", "async": True, "messages": [], "fails": fails}
                ids[client].append((await client.post("/api/openai", json=body)).json()["taskId"])
                task = await worker.take()
                await worker.answer(task, result={}, error="no" if fails else None)

        async def ended() -> bool:
            return await ended_at(gateway.link) == {"completed": 4, "failed": 2, "cancelled": 0}

        await until(ended, "all to end")
        await gateway.audit.note(OPS, "cancel", "tasks", {"user": NAME}, {"cancelled": 3})
        await gateway.audit.note(OPS, "grant", f"user {NAME}", {}, {"user": "site/ann"})
        await carried(talk)
        assert NAME in repr(await everything(gateway.database))
        told = await forget(talk)
        assert {name: told[name] for name in ("usage", "archived", "audit", "results", "more")} == {
            "usage": 3,
            "archived": 3,
            "audit": 2,
            "results": 3,
            "more": False,
        }
        await carried(talk)
        found = await everything(gateway.database)
        for table, rows in found.items():
            assert "zebra" not in repr(rows), table
        assert (len(found["usage"]), len(found["archive"])) == (6, 3)
        for task_id in ids[zebra]:
            assert (await zebra.get(f"/api/task/{task_id}")).status_code == 404
        for task_id in ids[ann]:
            assert (await ann.get(f"/api/task/{task_id}")).status_code == 200
        failed = (await talk.http.get("/api/admin/tasks", params={"status": "failed"})).json()["tasks"]
        assert [task["user"] for task in failed] == ["site/ann"]
        entries = (await talk.http.get("/api/admin/audit")).json()["entries"]
        assert (entries[0]["action"], entries[0]["target"]) == ("erase", "user")
        assert entries[1]["target"] == f"user {ERASED}"
        assert entries[1]["after"] == {"user": "site/ann"}
        assert entries[2]["before"] == {"user": ERASED}
        report = (await talk.http.get("/api/admin/usage", params={"by": "user"})).json()
        assert {row["user"]: row["tasks"] for row in report["rows"]} == {ERASED: 3, "site/ann": 3}
        again = await forget(talk)
        assert sum(again[name] for name in ("usage", "days", "archived", "audit", "results")) == 0
        call = talk.later(zebra.post("/api/openai", json={"model": "m", "messages": []}))
        await worker.answer(await worker.take(), result={})
        later = (await call).headers["x-task-id"]
        await carried(talk)
        async with gateway.database.reading() as connection:
            user = await connection.scalar(select(usage.c.user_name).where(usage.c.task == later))
        assert user == NAME, "what comes later is new"


async def test_what_arrives_later_of_what_was_before_comes_without_the_name(talk: Talk) -> None:
    gateway = talk.served.gateway
    await forget(talk)
    until_ms = await gateway.scheduler.now_ms() - 60_000
    old = entry("late", ended=until_ms, user=NAME)
    other = entry("other", ended=until_ms, user="site/ann")
    await put(gateway.link, old, other)
    await carried(talk)
    async with gateway.database.reading() as connection:
        rows = (await connection.execute(select(usage.c.task, usage.c.user_name, usage.c.request))).all()
        users = set(await connection.scalars(select(usage_users.c.user_name)))
    assert sorted(map(tuple, rows)) == [("late", ERASED, ""), ("other", "site/ann", "req-1")]
    assert users == {ERASED, "site/ann"}


@pytest.mark.parametrize("kind", ["usage", "charge"])
async def test_webhooks_of_all_users_are_not_told_the_name(talk: Talk, kind: str) -> None:
    gateway = talk.served.gateway
    async with talk.client(secret("site")) as site:
        made = await site.post("/api/webhooks", json={"url": "https://receiver.invalid/", "everyUser": True})
        assert made.status_code == 201, made.text
    await forget(talk)
    before = await gateway.scheduler.now_ms() - 60_000
    await put(gateway.link, entry("late", ended=before, user=NAME, webhooks=True), kind=kind)
    await carried(talk)
    async with gateway.database.reading() as connection:
        told = (
            await connection.execute(select(webhook_deliveries.c.object_id, webhook_deliveries.c.user_name))
        ).all()
    assert [tuple(row) for row in told] == [("late", ERASED)]


async def test_a_task_that_ends_after_its_user_was_forgotten_is_not_archived(talk: Talk) -> None:
    gateway = talk.served.gateway
    async with (
        talk.client(secret("site"), **{"X-Fairlane-User": "zebra-fish"}) as zebra,
        talk.worker2(["m"]) as worker,
    ):
        answer = await zebra.post("/api/openai", json={"model": "m", "async": True, "messages": []})
        task = await worker.take()
        await forget(talk)
        await worker.answer(task, result={"content": "x"})

        async def recorded() -> bool:
            async with gateway.database.reading() as connection:
                return bool(await connection.scalar(select(func.count()).select_from(usage)))

        await until(recorded)
        await carried(talk)
        found = await everything(gateway.database)
        assert "zebra" not in repr(found)
        assert found["archive"] == []
        assert answer.status_code == 202


async def test_many_rows_are_changed_by_parts_and_the_sums_stay(talk: Talk) -> None:
    gateway = talk.served.gateway
    now = await gateway.scheduler.now_ms()
    async with gateway.database.writing() as connection:
        table = UsageTable(lambda queue: queue)
        for at in range(0, 2400, 400):
            rows = [
                entry(f"{n:05}", ended=now - 60_000 - n * 3_600_000, user=NAME, model=f"m{n % 3}")
                for n in range(at, at + 400)
            ]
            assert await table.write(connection, rows) == 400
        before = await connection.scalar(select(func.sum(usage_users.c.output)))
    told = await forget(talk)
    assert told["usage"] == 2400
    async with gateway.database.reading() as connection:
        assert await connection.scalar(select(func.sum(usage_users.c.output))) == before
        assert set(await connection.scalars(select(usage_users.c.user_name))) == {ERASED}
        assert await connection.scalar(select(func.count()).select_from(archive)) == 0


async def test_where_a_key_pays_the_ledger_names_no_user_and_a_users_own_stays(
    redis_url: str, tmp_path: Path, database_url: str
) -> None:
    keys = [
        key("ops", scopes=["admin"]),
        key("site", delegating=True, quota=KeyQuota()),
        key("own", delegating=True, quota=KeyQuota.model_validate({"of": "user"})),
    ]
    prices = [PriceSettings.model_validate({"model": "m", "input": 0, "output": 0, "request": 1})]
    settings = {"keys": keys, "prices": prices, "database_url": database_url}
    async with talking(redis_url, tmp_path, **settings) as talk, talk.worker2(["m"]) as worker:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        for whom in ({"key": "site"}, {"user": "own/zebra-fish"}):
            body = {**whom, "credits": 5}
            assert (await talk.http.post("/api/admin/balances/grants", json=body)).status_code == 201
        for name in ("site", "own"):
            async with talk.client(secret(name), **{"X-Fairlane-User": "zebra-fish"}) as zebra:
                call = talk.later(zebra.post("/api/openai", json={"model": "m", "messages": []}))
                await worker.answer(await worker.take(), result={})
                assert (await call).status_code == 200
        await carried(talk)
        assert (await forget(talk))["ledger"] == 0
        assert NAME not in repr(await everything(talk.served.gateway.database))
        done = await fairlane(
            talk, "user", "erase", "own/zebra-fish", "--yes", FAIRLANE_API_KEY=secret("ops")
        )
        assert "2 rows of the ledger keep the name" in done.stdout
        rows = (await talk.http.get("/api/admin/balances")).json()["rows"]
        assert [(row["user"] or row["key"], row["balance"]) for row in rows] == [
            ("site", 4),
            ("own/zebra-fish", 4),
        ]


async def test_it_is_an_admins_call_and_bad_input_is_a_sentence(talk: Talk) -> None:
    async with talk.client(secret("eyes")) as eyes:
        assert (await eyes.delete(f"/api/admin/users/{NAME}")).status_code == 403
    for user, sentence in (("a%01", "user "), (ERASED, f"{ERASED} stands for all erased users")):
        answer = await talk.http.delete(f"/api/admin/users/{user}")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(sentence), answer.text
