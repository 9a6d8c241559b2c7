"""Rows of responses are written together, found, listed and deleted, on each kind of database."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from sqlalchemy import func, select, update
from tests.support.records import expire

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.responses.store import New, ResponseStore, Row
from fairlane.gateway.responses.writer import ResponseWriter

pytestmark = pytest.mark.anyio
NOON = 1_790_000_000_000


def new(task: str, *, size: int = 20, **other: Any) -> New:
    row = Row(
        **{
            "task_id": task,
            "key_id": "acme",
            "user": "acme",
            "created": NOON,
            "expires": NOON + 1000,
            "background": True,
            "model": "m",
            "falls": False,
            "previous": "",
            "echo": b"{}",
            **other,
        }
    )
    return New(row, b"[%b]" % (b" " * (size - 4)))


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[ResponseWriter]:
    writer = ResponseWriter(database, ErasedUsers(database).of, lambda *_: None)
    writer.start()
    yield writer
    await writer.close()


@pytest.fixture
def store(database: Database) -> ResponseStore:
    return ResponseStore(database)


async def number(database: Database) -> int:
    async with database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(responses)) or 0


async def test_those_who_come_at_the_same_time_share_a_transaction(
    writer: ResponseWriter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    writing = database.writing

    def counted(*args: Any) -> Any:
        commits.append(args)
        return writing(*args)

    monkeypatch.setattr(database, "writing", counted)
    await asyncio.gather(*(writer.write(new(f"task-{n}")) for n in range(500)))
    assert await number(database) == 500
    assert len(commits) <= 4


async def test_large_responses_take_several_transactions_and_only_some_may_wait(
    writer: ResponseWriter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[list[int]] = []
    commit = writer._commit

    async def counted(page: Sequence[New]) -> None:
        commits.append([one.size for one in page])
        await commit(page)

    monkeypatch.setattr(writer, "_commit", counted)
    monkeypatch.setattr("fairlane.gateway.responses.writer.PAGE_BYTES", 1000)
    monkeypatch.setattr("fairlane.gateway.responses.writer.MAX_WAITING_BYTES", 5000)
    for _ in range(2):
        writes = (writer.write(new(f"task-{n}", size=600)) for n in range(10))
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(one) for one in results] == [type(None)] * 8 + [DatabaseUnavailable] * 2
    assert commits == [[600, 600]] * 8
    assert await number(database) == 8


async def tasks_in(database: Database) -> list[str]:
    async with database.reading() as connection:
        return [*(await connection.execute(select(responses.c.task).order_by(responses.c.task))).scalars()]


async def test_output_that_is_too_long_is_not_read(
    writer: ResponseWriter, store: ResponseStore, database: Database
) -> None:
    await writer.write(new("a"))
    assert await store.output("a", 100) is None
    async with database.writing() as connection:
        await connection.execute(update(responses).values(output=b'[{"id":"msg_a_0"}]'))
    assert await store.output("a", 18) == b'[{"id":"msg_a_0"}]'
    assert await store.output("a", 17) is None


async def test_what_is_over_is_purged(writer: ResponseWriter, database: Database) -> None:
    for n in range(120):
        await writer.write(new(f"over {n}", expires=NOON))
    await writer.write(new("a"))
    assert await expire(database, NOON + 1) == 3
    assert await tasks_in(database) == ["a"]
