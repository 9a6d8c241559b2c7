"""Rows of responses: written together, taken back, found by their owners' ids, and forgotten, on each kind of database."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.support.serving import until

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import response_logs, responses
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.responses import keeping as module
from fairlane.gateway.responses.keeping import Keeping
from fairlane.gateway.responses.rows import New, Row
from fairlane.gateway.responses.store import ResponseStore, forget_user, purge

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
async def keeping(database: Database) -> AsyncIterator[Keeping]:
    keeping = Keeping(database, ErasedUsers(database).of, lambda *_: None)
    keeping.start()
    yield keeping
    await keeping.close()


@pytest.fixture
def store(database: Database) -> ResponseStore:
    return ResponseStore(database)


async def number(database: Database) -> int:
    async with database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(responses)) or 0


async def test_what_is_kept_is_there_at_once_and_until_its_time_is_over(
    keeping: Keeping, store: ResponseStore
) -> None:
    kept = new("a", previous="z", falls=True)
    await keeping.keep(kept)
    assert await store.row("a", NOON) == kept.row
    assert await store.row("a", NOON + 1000) is None
    assert await store.row("b", NOON) is None
    assert await store.items(["a", "b"]) == {"a": (kept.input_items, None)}


async def test_those_who_come_at_the_same_time_share_a_transaction(
    keeping: Keeping, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = []
    writing = database.writing

    def counted(*args: Any) -> Any:
        commits.append(args)
        return writing(*args)

    monkeypatch.setattr(database, "writing", counted)
    await asyncio.gather(*(keeping.keep(new(f"task-{n}")) for n in range(500)))
    assert await number(database) == 500
    assert len(commits) <= 4


async def test_that_sql_answers_and_takes_no_writes_is_known_once_one_was_refused(
    keeping: Keeping, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = database.writing
    sentence = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET TRANSACTION READ ONLY"}[
        database.dialect
    ]

    @contextlib.asynccontextmanager
    async def read_only(*args: Any) -> AsyncIterator[AsyncConnection]:
        async with writing(*args) as connection:
            await connection.execute(text(sentence))
            yield connection

    await keeping.keep(new("a"))
    assert not keeping.refuses
    monkeypatch.setattr(database, "writing", read_only)
    with pytest.raises(DatabaseUnavailable):
        await keeping.keep(new("b"))
    assert keeping.refuses, "so the next ones are written before they are submitted"
    assert database.trouble is not None


async def tasks_in(database: Database) -> list[str]:
    async with database.reading() as connection:
        return [*(await connection.execute(select(responses.c.task).order_by(responses.c.task))).scalars()]


async def test_rows_of_a_transaction_are_written_in_one_order_everywhere(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are repeated at two replicas have both write the same rows: in two orders each may wait for the other."""
    written: list[str] = []
    values = module._values

    def noted(one: New) -> dict[str, object]:
        written.append(one.row.task_id)
        return values(one)

    monkeypatch.setattr(module, "_values", noted)
    await asyncio.gather(*(keeping.keep_earlier(new(task_id)) for task_id in "cab"))
    assert written == ["a", "b", "c"]


async def test_one_whose_caller_leaves_is_written_all_the_same(keeping: Keeping, database: Database) -> None:
    left = asyncio.create_task(keeping.keep(new("a")))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await keeping.keep(new("b"))
    assert await tasks_in(database) == ["a", "b"]
    assert keeping._held == 0


async def test_what_waits_when_it_closes_is_written(keeping: Keeping, database: Database) -> None:
    waiting = [asyncio.create_task(keeping.keep(new(task))) for task in "abc"]
    await asyncio.sleep(0)
    await keeping.close()
    await asyncio.gather(*waiting)
    assert await tasks_in(database) == ["a", "b", "c"]


async def test_what_was_given_up_and_is_written_all_the_same_is_removed(
    keeping: Keeping, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit came to its end, and nobody heard of it."""
    await keeping.keep(new("before"))
    commit, held = Keeping._commit, asyncio.Event()

    async def and_lost(self: Keeping, page: Any) -> None:
        await commit(self, page)
        await held.wait()
        raise DatabaseUnavailable("the reply was lost")

    monkeypatch.setattr(Keeping, "_commit", and_lost)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    own = asyncio.create_task(keeping.keep(new("own")))
    while "own" not in await tasks_in(database):
        await asyncio.sleep(0.01)
    earlier = asyncio.create_task(keeping.keep_earlier(new("before")))  # of which others have been told
    held.set()
    for refused in (own, earlier):
        with pytest.raises(DatabaseUnavailable):
            await refused
    monkeypatch.setattr(Keeping, "_commit", commit)

    async def gone() -> bool:
        return await tasks_in(database) == ["before"]

    await until(gone, "it to be removed")


async def test_who_cannot_be_written_down_is_told_and_others_are_kept(
    keeping: Keeping, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_S", 60.0)  # four transactions: a busy machine may need more than 5 s
    bad: Any = object()
    outcomes = await asyncio.gather(
        keeping.keep(new("a")),
        keeping.keep(new("b", model=bad)),
        keeping.keep(new("c")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), DatabaseUnavailable, type(None)]
    assert await number(database) == 2


async def test_while_sql_is_away_callers_are_told_in_time(
    keeping: Keeping, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEP_S", 0.05)
    held = asyncio.Event()

    def never(*_: Any) -> Any:
        class Held:
            async def __aenter__(self) -> None:
                await held.wait()

            async def __aexit__(self, *_: object) -> None: ...

        return Held()

    writing = database.writing
    monkeypatch.setattr(database, "writing", never)
    monkeypatch.setattr(module, "MOST_HELD", 100)
    waiting = asyncio.create_task(keeping.keep(new("a", size=90)))
    await asyncio.sleep(0)
    with pytest.raises(DatabaseUnavailable, match="90 bytes of responses wait"):
        await keeping.keep(new("b"))
    with pytest.raises(DatabaseUnavailable, match="nothing written within"):
        await waiting
    with pytest.raises(DatabaseUnavailable, match="nothing written within"):
        await keeping.keep(new("b"))
    assert not keeping._new, "what was given up is not held any more"
    monkeypatch.setattr(database, "writing", writing)


async def test_a_forgotten_user_leaves_nothing(keeping: Keeping, database: Database) -> None:
    await asyncio.gather(*(keeping.keep(new(f"{n}", user="ann")) for n in range(3)), keeping.keep(new("x")))
    forgotten = ErasedUsers(database)
    await forgotten.mark("ann", NOON)
    async with database.writing() as connection:
        assert await forget_user(connection, "ann", NOON) == 3
    await keeping.keep(new("late", user="ann"))
    await keeping.keep(new("anew", user="ann", created=NOON + 1))
    async with database.reading() as connection:
        left = (await connection.execute(select(responses.c.task).order_by(responses.c.task))).scalars().all()
    assert left == ["anew", "x"]


async def test_a_conversation_is_found_from_its_end(keeping: Keeping, store: ResponseStore) -> None:
    for task, previous in (("a", ""), ("b", "a"), ("c", "b"), ("other", "a")):
        await keeping.keep(new(task, previous=previous))
    assert [turn.row.task_id for turn in await store.line("c", 10, NOON)] == ["c", "b", "a"]
    assert [turn.row.task_id for turn in await store.line("c", 2, NOON)] == ["c", "b"]
    assert {turn.row.echo for turn in await store.line("c", 10, NOON)} == {b""}
    assert await store.delete("b")
    assert not await store.delete("b")
    assert [turn.row.task_id for turn in await store.line("c", 10, NOON)] == ["c"]
    assert await store.line("b", 10, NOON) == []


async def test_output_that_is_too_long_is_not_read(
    keeping: Keeping, store: ResponseStore, database: Database
) -> None:
    await keeping.keep(new("a"))
    assert await store.output("a", 100) is None
    async with database.writing() as connection:
        await connection.execute(update(responses).values(output=b'[{"id":"msg_a_0"}]'))
    assert await store.output("a", 18) == b'[{"id":"msg_a_0"}]'
    assert await store.output("a", 17) is None


async def test_a_log_goes_with_its_response(
    keeping: Keeping, store: ResponseStore, database: Database
) -> None:
    await keeping.keep(new("a"))
    async with database.writing() as connection:
        await connection.execute(response_logs.insert().values(task="a", part=0, events=b"x"))
    assert await store.part("a", 0) == b"x"
    await store.delete("a")
    assert await store.part("a", 0) is None


async def test_what_is_over_is_purged(keeping: Keeping, database: Database) -> None:
    for n in range(120):
        await keeping.keep(new(f"over {n}", expires=NOON))
    await keeping.keep(new("a"))
    parts, more = 0, True
    while more:
        async with database.writing() as connection:
            more = await purge(connection, NOON, 0)
        parts += more
    assert (parts, await tasks_in(database)) == (3, ["a"])
