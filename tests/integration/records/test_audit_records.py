"""What operators did reaches SQL, each act once, whatever dies or is away meanwhile, and is told from there; so do rejections."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select
from tests.integration.native.keys import key, secret
from tests.support.records import KEYS, NOON, carry_all, carrying, expire
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.audit.log import AuditRecord, as_shown
from fairlane.gateway.audit.rejections import (
    MAX_COUNTED,
    MAX_KEPT,
    MINUTE_MS,
    OTHER,
    RejectionCounts,
    read_page,
    write_rejections,
)
from fairlane.gateway.audit.table import AuditTable
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import audit, rejections
from fairlane.gateway.dispatching import ENDS
from fairlane.gateway.records import outbox as module
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.retention import REJECTIONS_DAYS
from fairlane.gateway.usage.reports import ReportSlots, Wanted
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.overrides import Actor, OverrideStore
from fairlane.queues.scheduler import Limits, Scheduler
from fairlane.queues.store.link import RedisLink

pytestmark = pytest.mark.anyio
OPS = Actor("ops", "192.0.2.7")
ACCOUNTS = [
    key("ops", scopes=["admin"]),
    key("eyes", scopes=["viewer"]),
    key("acme", limits={"requests_per_day": 1}),
]


def scheduler(link: RedisLink) -> Scheduler:
    return Scheduler(link, KEYS, "r1", ENDS, Limits())


async def acts(database: Database) -> list[Any]:
    async with database.reading() as connection:
        return list((await connection.execute(select(audit).order_by(audit.c.at, audit.c.id))).mappings())


async def told(talk: Talk, page: str = "audit", **query: Any) -> dict[str, Any]:
    answer = await talk.http.get(f"/api/admin/{page}", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_an_act_is_written_once_though_who_wrote_it_is_killed(
    redis_url: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_MS", 0)
    async with carrying(redis_url, database_url) as (outbox, database, link):
        record = AuditRecord(scheduler(link), ReportSlots(database), outbox.catch_up)
        await record.note(OPS, "drain", "worker w", {"draining": False}, {"draining": True})
        overrides = OverrideStore([link], lambda _: 0)
        await overrides.set_settings("queue", "q", {"weight": 2.0}, OPS)  # there is no such queue: no act
        await overrides.set_settings("model", "m", {"concurrency": 3, "paused": True}, OPS)

        def die(*_: Any) -> None:
            raise StoreUnavailable("killed", sent=True)

        with monkeypatch.context() as patch:
            patch.setattr(link, "run", die)
            with pytest.raises(StoreUnavailable):
                await outbox.carry()
        async with carrying(redis_url, database_url) as (another, _, _):
            assert await link.command("XLEN", KEYS("outbox")) == 2
            await carry_all(another)
        assert await link.command("XLEN", KEYS("outbox")) == 0
        drained, changed = await acts(database)
        assert {
            name: drained[name] for name in ("who", "address", "action", "target", "before", "after")
        } == {
            "who": "ops",
            "address": "192.0.2.7",
            "action": "drain",
            "target": "worker w",
            "before": '{"draining":false}',
            "after": '{"draining":true}',
        }
        assert (changed["before"], changed["after"]) == (
            '{"concurrency":null,"paused":false}',
            '{"concurrency":3,"paused":true}',
        )
        assert await record.newest() == changed["id"]


async def test_the_record_is_found_by_who_what_where_and_when(
    redis_url: str, tmp_path: Path, database_url: str
) -> None:
    async with talking(redis_url, tmp_path, keys=ACCOUNTS, database_url=database_url) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        for body in ({"id": "new"}, {"id": "newer"}):
            assert (await talk.http.post("/api/admin/keys", json=body)).status_code == 201
        await talk.http.patch("/api/admin/models/m", json={"concurrency": 3})

        async def targets(**query: Any) -> list[str]:
            return [entry["target"] for entry in (await told(talk, **query))["entries"]]

        everything = ["model m", "key newer", "key new"]
        assert await targets() == everything
        assert await targets(target="key") == everything[1:]
        assert await targets(target="key new") == ["key new"]
        assert await targets(target="ke") == []
        assert await targets(action="update") == ["model m"]
        assert await targets(actor="ops") == everything
        assert await targets(actor="eyes") == []
        (first, *_), (*_, last) = [(await told(talk))["entries"]] * 2
        assert first["from"] == "127.0.0.1"
        assert await targets(to=last["at"]) == []
        assert await targets(**{"from": last["at"], "to": last["at"] + 1})
        assert await targets(**{"from": "2020-01-01", "to": "2020-02-01"}) == []
        for query, sentence in (
            ({"from": "yesterday"}, "from must be a day such as 2026-11-23, or ms since 1970"),
            ({"whom": "ops"}, "there is no parameter whom"),
            ({"actor": "a\0"}, "actor must hold no control characters"),
            ({"after": "1790000000000-0"}, "after"),
        ):
            answer = await talk.http.get("/api/admin/audit", params=query)
            assert answer.status_code == 400
            assert answer.json()["error"].startswith(sentence)
        async with talk.client(secret("acme")) as acme, talk.client(secret("eyes")) as eyes:
            for page in ("audit", "rejections"):
                assert (await acme.get(f"/api/admin/{page}")).status_code == 403
                assert (await eyes.get(f"/api/admin/{page}")).status_code == 200


# ---- rejections ----------


async def counted(database: Database, since: int = 0, **filters: str) -> Counter[tuple[int, str, str]]:
    async with database.reading() as connection:
        rows, _ = await read_page(connection, Wanted(since, filters=filters), "", 100_000)
    return Counter({(row["minute"], row["key"], row["code"]): row["count"] for row in rows})


async def test_refusals_are_counted_by_minute_key_and_code_each_once(
    redis_url: str, database_url: str
) -> None:
    now = NOON
    async with carrying(redis_url, database_url) as (outbox, database, link):
        here, there = (RejectionCounts(link, KEYS, name, lambda: now) for name in ("r1", "r2"))
        for _ in range(3):
            here.count("acme", "RATE_LIMITED")
        here.count("acme", "QUEUE_FULL")
        there.count("acme", "RATE_LIMITED")
        now += MINUTE_MS
        here.count("", "TOO_MANY_CALLS")
        await here.bring(now)
        await there.bring(now)
        await here.bring(now)  # there is nothing more of that minute
        await carry_all(outbox)
        minute = {(NOON, "acme", "RATE_LIMITED"): 4, (NOON, "acme", "QUEUE_FULL"): 1}
        assert await counted(database) == minute
        await here.close()  # the process ends within a minute
        await carry_all(outbox)
        assert await counted(database) == minute | {(NOON + MINUTE_MS, "", "TOO_MANY_CALLS"): 1}
        assert set(await counted(database, key="acme", code="QUEUE_FULL")) == {(NOON, "acme", "QUEUE_FULL")}
        assert set(await counted(database, since=NOON + 1)) == {(NOON + MINUTE_MS, "", "TOO_MANY_CALLS")}


async def test_invented_keys_and_a_store_that_stays_away_take_bounded_memory(
    redis_url: str, database_url: str
) -> None:
    now = NOON
    async with carrying(redis_url, database_url) as (outbox, database, link):
        refused = RejectionCounts(link, KEYS, "r1", lambda: now)
        for number in range(MAX_COUNTED + 500):
            refused.count(f"k{number}", "RATE_LIMITED")
        await refused.bring(now + MINUTE_MS)
        await carry_all(outbox)
        found = await counted(database)
        assert len(found) == MAX_COUNTED + 1
        assert found[NOON, OTHER, "RATE_LIMITED"] == 500
        for _ in range(MAX_KEPT + 30):
            now += MINUTE_MS
            for number in range(MAX_COUNTED if now == NOON + MINUTE_MS else 1):
                refused.count(f"k{number}", "RATE_LIMITED")
        await refused.bring(now + MINUTE_MS)
        await carry_all(outbox)
        found = await counted(database, since=NOON + MINUTE_MS)
        assert found == {(now - ago * MINUTE_MS, "k0", "RATE_LIMITED"): 1 for ago in range(MAX_KEPT)}


async def test_who_is_refused_is_told_by_the_call_and_the_command(
    redis_url: str, tmp_path: Path, database_url: str
) -> None:
    settings = {"keys": ACCOUNTS, "database_url": database_url}
    async with talking(redis_url, tmp_path, **settings) as talk, talk.worker2(["m"]):
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        async with talk.client(secret("acme")) as acme:
            for _ in range(3):
                await acme.post("/api/openai", json={"model": "m", "async": True})
        await talk.served.gateway.records.rejections.bring(2**60)

        async def there() -> bool:
            return bool((await told(talk, "rejections"))["rejections"])

        await until(there, "the count")
        [row] = (await told(talk, "rejections", key="acme"))["rejections"]
        assert (row["key"], row["code"], row["count"], row["minute"] % 60_000) == (
            "acme",
            "RATE_LIMITED",
            2,
            0,
        )
        assert (await told(talk, "rejections", code="QUEUE_FULL"))["rejections"] == []
        wrong = await talk.http.get("/api/admin/rejections", params={"after": "x"})
        assert (wrong.status_code, wrong.json()["error"]) == (
            400,
            "after must be the `next` of a page before",
        )


async def test_refusals_come_in_pages_that_miss_none(database: Database, redis_url: str) -> None:
    async with database.writing() as connection:
        counts = [(f"k.{number}", code, 1) for number in range(5) for code in ("A", "B")]
        packed = [
            msgspec.msgpack.encode((replica, [(NOON + at * MINUTE_MS, *one) for one in counts]))
            for at in range(3)
            for replica in ("r1", "r2")
        ]
        assert await write_rejections(connection, packed) == 60
        assert await write_rejections(connection, packed) == 0
        seen, after = [], ""
        while True:
            rows, more = await read_page(connection, Wanted(), after, 4)
            seen += [(row["minute"], row["key"], row["code"]) for row in rows]
            assert {row["count"] for row in rows} == {2}
            if more is None:
                break
            after = more
        assert len(seen) == len(set(seen)) == 30
        assert seen == sorted(seen, reverse=True)


async def test_both_are_kept_for_their_time(database: Database) -> None:
    day = 86_400_000
    table = AuditTable(as_shown, ErasedUsers(database))
    async with database.writing() as connection:
        for at in range(4):
            entries = [
                {"id": f"{NOON - at * day}000-{number:08}", "actor": "ops", "address": "", "action": "set"}
                | {"target": "key k", "before": {}, "after": {}}
                for number in range(1500)
            ]
            assert await table.write(connection, [msgspec.msgpack.encode(entry) for entry in entries]) == 1500
            minutes = [NOON - at * day - number * MINUTE_MS for number in range(100)]
            packed = [msgspec.msgpack.encode(("r1", [(minute, "k", "A", 1)])) for minute in minutes]
            assert await write_rejections(connection, packed) == 100
    assert await expire(database, NOON, days=2) > 1
    async with database.reading() as connection:
        assert await connection.scalar(select(func.min(audit.c.at))) == NOON - 2 * day
        assert await connection.scalar(select(func.count()).select_from(audit)) == 4500
    await expire(database, NOON + (REJECTIONS_DAYS - 2) * day)
    async with database.reading() as connection:
        assert await connection.scalar(select(func.min(rejections.c.minute))) == NOON - 2 * day
