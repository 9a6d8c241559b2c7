"""The row of a response comes behind the admission of its task and before its caller hears of it: every instant between."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from tests.integration.native.keys import key, secret
from tests.support.databases import FILE, place_database
from tests.support.ledger import record_of
from tests.support.processes import gateway_process
from tests.support.rawworkers import RawWorker, worker_v2
from tests.support.servers import Server
from tests.support.serving import http_client, until
from tests.support.stored import kept_ms
from tests.support.talk import Talk, talking

from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.gateway.responses import log_archive
from fairlane.gateway.responses.store import ResponseStore
from fairlane.gateway.responses.writer import ResponseWriter

from .asking import KEYS, Asker, answer_with, events_of, good, refused, text_of

pytestmark = pytest.mark.anyio
ACCOUNTS = [key("acme"), key("ops", scopes=["admin"]), key("few", limits={"requests_per_minute": 1})]
AWAY = DatabaseUnavailable("it is away")


class Sql:
    """What is written of responses, held up or refused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.away = False
        self.commits = 0
        commit = ResponseWriter._commit

        async def held(writer: ResponseWriter, page: Any) -> None:
            self.commits += 1
            await self.goes_on.wait()
            if self.away:
                raise AWAY
            await commit(writer, page)

        monkeypatch.setattr(ResponseWriter, "_commit", held)

    def hold(self) -> None:
        self.goes_on.clear()


@pytest.fixture
def sql(monkeypatch: pytest.MonkeyPatch) -> Sql:
    return Sql(monkeypatch)


@pytest.fixture
def gateway(
    redis_url: str, tmp_path: Path, database_url: str
) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    def make(name: str = "here", **settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(redis_url, tmp_path / name, keys=ACCOUNTS, database_url=database_url, **settings)

    return make


@pytest.fixture
async def talk(gateway: Callable[..., AbstractAsyncContextManager[Talk]]) -> AsyncIterator[Talk]:
    async with gateway() as talk:
        yield talk


@pytest.fixture
async def worker(talk: Talk) -> AsyncIterator[RawWorker]:
    async with talk.worker2(["m"], slots=4) as worker:
        yield worker


async def rows(talk: Talk) -> list[str]:
    async with talk.served.gateway.database.reading() as connection:
        return [*(await connection.execute(select(responses.c.task))).scalars()]


async def state(talk: Talk, task_id: str) -> str:
    """Of a task, as Redis has it; '' it does not know it."""
    found = await talk.served.gateway.scheduler.position(task_id)
    return found.state if found else ""


@pytest.mark.parametrize("way", ["whole", "stream", "background"])
async def test_a_task_runs_while_its_row_is_written_and_nobody_is_told_before(
    talk: Talk, acme: Asker, worker: RawWorker, sql: Sql, way: str
) -> None:
    sql.hold()
    fields: dict[str, Any] = {} if way == "whole" else {way: True}
    began = asyncio.Event()

    async def ask() -> tuple[str, bytes]:
        body = {"model": "m", "input": "what?", **fields}
        async with acme.http.stream("POST", "/v1/responses", json=body) as answer:
            began.set()
            assert answer.status_code == 200
            return answer.headers["x-task-id"], await answer.aread()

    call = talk.later(ask())
    task = await answer_with(worker, "that")

    async def ended() -> bool:
        return await state(talk, task["taskId"]) == "completed"

    await until(ended, "the task to end")
    assert not began.is_set()
    assert await rows(talk) == []
    sql.goes_on.set()
    task_id, told = await call
    assert task_id == task["taskId"]
    assert b'"store":true' in told
    assert await rows(talk) == [task_id]
    done = await acme.reaches(f"resp_{task_id}", "completed")
    assert text_of(done) == "that"
    await acme.forget(f"resp_{task_id}")
    assert await acme.get(f"resp_{task_id}") == done
    if way == "stream":
        assert await acme.stream(f"resp_{task_id}") == events_of(told)


async def test_an_end_that_comes_before_its_row_is_archived_when_that_is_there(
    talk: Talk,
    acme: Asker,
    worker: RawWorker,
    sql: Sql,
    gateway: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another replica looks for it, too."""
    looked = asyncio.Event()
    found = ResponseStore.rows

    async def rows_of(*args: Any, **more: Any) -> Any:
        there = await found(*args, **more)
        if not there:
            looked.set()
        return there

    async with gateway("there"):
        sql.hold()
        monkeypatch.setattr(ResponseStore, "rows", rows_of)
        call = talk.later(acme.ask(background=True))
        task = await answer_with(worker, "that")
        async with asyncio.timeout(15):
            while not looked.is_set():  # or the other one has it
                pending = await talk.served.gateway.link.command("XPENDING", KEYS("archive"), "sql")
                if pending[0]:
                    break
                await asyncio.sleep(0.02)
        sql.goes_on.set()
        asked = await call
        assert asked["id"] == f"resp_{task['taskId']}"
        await acme.forget(asked["id"])
        assert text_of(await acme.get(asked["id"])) == "that"


async def test_an_end_whose_row_never_comes_is_let_go(
    talk: Talk, acme: Asker, worker: RawWorker, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "ROW_WITHIN_MS", 1500)
    sql.away = True
    call = talk.later(acme.ask())
    task = await answer_with(worker, "that")
    told = await call
    assert told["store"] is False
    await acme.archived()
    assert await rows(talk) == []
    assert 0 < await kept_ms(talk.served.gateway, task["taskId"]) <= 300_000, "as long as any task"


@pytest.mark.parametrize(
    ("fields", "keyed"), [({"background": True}, True), ({"store": True, "stream": True}, False)]
)
async def test_where_the_row_cannot_be_written_nothing_is_left_of_a_task_that_asks_for_it(
    talk: Talk, acme: Asker, worker: RawWorker, sql: Sql, fields: dict[str, Any], keyed: bool
) -> None:
    headers = {"Idempotency-Key": "mine"} if keyed else {}
    sql.away = True
    call = talk.later(acme.post(headers=headers, **fields))
    task = await worker.take()
    told = await call
    refused(told, 503, "DATABASE_UNAVAILABLE")
    assert (await worker.expect("cancel"))["taskId"] == task["taskId"]
    await worker.answer(task, error="cancelled")

    async def over() -> bool:
        return await state(talk, task["taskId"]) in ("cancelled", "", "gone")

    await until(over, "the task to be over")
    await acme.archived()
    sql.away = False
    again = talk.later(acme.post(headers=headers, **fields))
    other = await answer_with(worker, "that")
    assert other["taskId"] != task["taskId"]
    answer = await again
    assert answer.status_code == 200
    assert "idempotency-replayed" not in answer.headers
    await until(lambda: sql.commits >= 2)

    async def only_it() -> bool:
        return await rows(talk) == [other["taskId"]]

    await until(only_it, "one row to be left")


async def test_who_is_refused_costs_sql_nothing(talk: Talk, acme: Asker, sql: Sql) -> None:
    for fields in ({}, {"store": True}, {"background": True}, {"stream": True}):
        refused(await acme.post(**fields), 503)  # nobody runs the model
    async with talk.client(secret("few")) as http, talk.worker2(["m"]) as worker:
        few = Asker(http, talk)
        call = talk.later(few.ask())
        await answer_with(worker, "the one")
        asked = await call
        assert await rows(talk) == [asked["id"].removeprefix("resp_")]
        for fields in ({}, {"store": True}, {"background": True}, {"stream": True}):
            refused(await few.post(**fields), 429)
    assert sql.commits == 1


async def test_who_joins_by_a_key_is_told_when_the_row_is_there(
    talk: Talk, acme: Asker, worker: RawWorker, sql: Sql
) -> None:
    headers = {"Idempotency-Key": "mine"}
    sql.hold()
    calls = [talk.later(acme.post(headers=headers)) for _ in range(3)]
    task = await answer_with(worker, "once")
    done, _ = await asyncio.wait(calls, timeout=0.3)
    assert not done
    sql.goes_on.set()
    answers = [good(await call) for call in calls]
    assert answers[0] == answers[1] == answers[2]
    assert await rows(talk) == [task["taskId"]]
    assert await acme.get(f"resp_{task['taskId']}") == answers[0]
    await acme.forget(f"resp_{task['taskId']}")
    assert await acme.get(f"resp_{task['taskId']}") == answers[0]


async def test_a_row_that_is_gone_is_not_made_anew_by_a_key(
    talk: Talk, acme: Asker, worker: RawWorker
) -> None:
    headers = {"Idempotency-Key": "mine"}
    call = talk.later(acme.ask(headers=headers))
    await answer_with(worker, "once")
    asked = await call
    await acme.archived()
    async with talk.served.gateway.database.writing() as connection:
        await connection.execute(responses.delete())
    again = good(await acme.post(headers=headers))
    assert again == {**asked, "store": False}
    assert await rows(talk) == []


@pytest.mark.slow
async def test_killed_between_admission_and_row_a_key_finds_the_response(
    own_redis: Server, tmp_path: Path
) -> None:
    """The database is locked by somebody else, so the gateway waits for its commit when it is killed."""
    place_database(tmp_path / "shared")
    path = tmp_path / "shared" / FILE
    settings = {"database_url": f"sqlite:///{path}", "lease_ms": 1500, "grant_ack_ms": 1500}
    body = {"model": "m", "input": "what?", "background": True}
    headers = {"Idempotency-Key": "mine"}
    async with (
        gateway_process(tmp_path / "a", own_redis.url, **settings) as a,
        gateway_process(tmp_path / "b", own_redis.url, **settings) as b,
        http_client(a.url, timeout=30) as at_a,
        http_client(b.url, timeout=30) as at_b,
        worker_v2(b.ws, "m", slots=1) as worker,
    ):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as lock:
            lock.execute("BEGIN IMMEDIATE")
            call = asyncio.create_task(at_a.post("/v1/responses", json=body, headers=headers))
            taking = asyncio.create_task(worker.take())
            await asyncio.wait((taking, call), return_when=asyncio.FIRST_COMPLETED)
            assert not call.done(), (await call).text
            task = await taking
            await worker.chunk(task, "that")
            await worker.answer(task, result=None)
            with own_redis.client() as store:
                await until(lambda: record_of(store, task["taskId"])["state"] == "completed")
            await a.kill()
            with pytest.raises(httpx2.TransportError):
                await call
            assert lock.execute("SELECT count(*) FROM responses").fetchone() == (0,)
            lock.execute("COMMIT")
        answer = await at_b.post("/v1/responses", json=body, headers=headers)
        assert answer.headers["idempotency-replayed"] == "true"
        told = good(answer)
        assert told["id"] == f"resp_{task['taskId']}"
        assert (told["store"], text_of(told)) == (True, "that")
        with own_redis.client() as store:
            await until(lambda: not store.xlen(KEYS("archive")), "SQL to have all of it", 90)
            store.flushall()
        assert good(await at_b.get(f"/v1/responses/{told['id']}")) == told
