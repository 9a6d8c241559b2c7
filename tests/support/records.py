"""Entries of the outbox for tests, as the scripts write them, and a consumer of them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from sqlalchemy import func, select

from fairlane.gateway.attached import Attached
from fairlane.gateway.audit.log import as_shown
from fairlane.gateway.audit.rejections import write_rejections
from fairlane.gateway.audit.table import AuditTable
from fairlane.gateway.credits.ledger import charge
from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import metadata, usage, usage_sums, usage_users
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.outbox import Outbox, Table
from fairlane.gateway.records.records import EndTable
from fairlane.gateway.records.retention import Retention
from fairlane.gateway.usage.usage import DAY_MS, UsageTable
from fairlane.gateway.webhooks.enqueue import announce
from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.metrics import Recorder
from fairlane.queues.store.address import Address
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts

KEYS = Keys(pool_prefix())
NOON = 1_790_000_000_000 - 1_790_000_000_000 % DAY_MS + DAY_MS // 2


def entry(
    task: str,
    *,
    ended: int = NOON,
    state: str = "completed",
    code: str = "",
    queue: str = "paid_stream",
    key: str = "site",
    user: str = "site/ann",
    model: str = "m",
    asked: str = "",
    tokens: tuple[int, int] = (10, 20),
    more: str = "",
    price: str = "",
    cost: str = "",
    route: str = "",
    template: str = "",
    webhooks: bool = False,
) -> bytes:
    """An entry of the kind `usage`, packed as scripts pack it (outbox.lua): it waited 200 ms and ran for 700."""
    counted = dict(zip(("input", "output"), tokens, strict=True)) if min(tokens) >= 0 else {}
    cached, reasoning, estimated = more.split() or (-1, -1, 0)
    known = {"cached": int(cached), "reasoning": int(reasoning)}
    run = {
        "state": state,
        "code": code,
        "ended_at": ended,
        "enqueued_at": ended - 900,
        "granted_at": ended - 700,
        "first_output_at": ended - 500,
        "worker": "w1",
        "attempt": 1,
        "tries": 1,
        "used": counted
        | {name: value for name, value in known.items() if value >= 0}
        | {"estimated": estimated == "1"},
    }
    if asked:
        run["requested_model"] = asked
    if cost:
        run["cost"] = int(cost)
    spec = {
        "id": task,
        "model": model,
        "queue": queue,
        "type": "openaiLike",
        "user": user,
        "key_id": key,
        "request_id": "req-1",
        "price": price,
        "route": route,
        "template": template,
        "webhooks": webhooks,
    }
    return msgspec.msgpack.encode((run, spec))


async def put(link: RedisLink, *packed: bytes, kind: str = "usage") -> None:
    """Add entries to the outbox."""
    for one in [link.command("XADD", KEYS("outbox"), "*", kind, packed_one) for packed_one in packed]:
        await one


RECORDED = [Attached(recorded=charge), Attached(recorded=announce)]
"""What features write at the end of a task."""


def tier_of(queue: str) -> str:
    return queue.partition("_")[0]


@contextlib.asynccontextmanager
async def carrying(redis_url: str, database_url: str) -> AsyncIterator[tuple[Outbox, Database, RedisLink]]:
    """A replica's part that carries entries, which is not started."""
    metrics = Recorder()
    database = Database(parse_address(database_url, Path()))
    link = RedisLink(Address(redis_url), load_scripts(), KEYS.prefix, metrics=metrics)
    await database.start()
    await link.start()
    try:
        erased = ErasedUsers(database)
        tables: dict[str, Table] = {
            "usage": EndTable(erased, RECORDED, UsageTable(tier_of)).write,
            "charge": EndTable(erased, RECORDED).write,
            "audit": AuditTable(as_shown, erased).write,
            "rejections": write_rejections,
        }
        yield Outbox(link, KEYS, database, tables, metrics), database, link
    finally:
        await link.close()
        await database.close()


async def tasks_in(database: Database) -> list[str]:
    """The tasks that SQL knows; the sums must know as many."""
    async with database.reading() as connection:
        found = list(await connection.scalars(select(usage.c.task).order_by(usage.c.task)))
        days = func.coalesce(func.sum(usage_sums.c.tasks), 0)
        in_days = await connection.scalar(select(days).where(usage_sums.c.span == DAY_MS))
        in_users = await connection.scalar(select(func.coalesce(func.sum(usage_users.c.tasks), 0)))
    assert in_days == in_users == len(found), (in_days, in_users, len(found))
    return found


async def everything(database: Database) -> dict[str, list[Any]]:
    """All rows of all tables."""
    async with database.reading() as connection:
        return {
            table.name: list((await connection.execute(select(table))).all())
            for table in metadata.sorted_tables
        }


async def expire(database: Database, now_ms: int, *, days: int = 1) -> int:
    """Delete what is over, where usage, the audit log and the archive are kept for `days`. Return how many parts it took."""
    settings = SimpleNamespace(
        usage_retention_days=days, audit_retention_days=days, archive_ttl_ms=days * DAY_MS
    )
    retention, parts = Retention(database, SimpleNamespace(settings=settings)), 0  # type: ignore[arg-type]
    while await retention.forget(now_ms):
        parts += 1
    return parts


async def carry_all(outbox: Outbox) -> None:
    """Carry until nothing is left that this one may take."""
    for _ in range(3):
        while await outbox.carry():
            pass
