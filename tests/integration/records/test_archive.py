"""How async tasks ended is polled from SQL when Redis has forgotten it, with the same body; whatever dies or is away."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select
from tests.integration.native.keys import key, secret
from tests.support.databases import running_postgres
from tests.support.records import KEYS, NOON, everything, expire
from tests.support.serving import until
from tests.support.stored import forget, kept_ms
from tests.support.talk import Talk, talking

from fairlane.gateway.archive.archive import Archive, write
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import archive
from fairlane.gateway.records import outbox as module
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.responses.log_archive import LogArchive
from fairlane.gateway.responses.store import ResponseStore
from fairlane.queues.errors import StoreUnavailable

pytestmark = pytest.mark.anyio
ACCOUNTS = [
    key("ops", scopes=["admin"]),
    key("eyes", scopes=["viewer", "call"]),
    key("acme"),
    key("other"),
    key("site", delegating=True),
]
HOUR_MS = 3_600_000


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    settings = {"keys": ACCOUNTS, "database_url": database_url, "archive": "requests"}
    async with talking(redis_url, tmp_path, **settings) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('acme')}"})
        yield talk


def archive_of(talk: Talk) -> Archive:
    return talk.served.gateway.part(Archive)


def another_of(talk: Talk) -> Archive:
    """Another replica's."""
    gateway = talk.served.gateway
    parts = gateway.metrics, gateway.scheduler, gateway.tasks.poll
    ends = LogArchive(gateway.database, ResponseStore(gateway.database), gateway.hub.page, lambda *_: None)
    another = Archive(
        gateway.link, KEYS, gateway.database, *parts, ErasedUsers(gateway.database), gateway.current
    )
    another.keep_logs = ends.keep
    return another


async def number(database: Database) -> int:
    async with database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(archive)) or 0


async def all_archived(talk: Talk) -> None:
    async def empty() -> bool:
        return not await talk.served.gateway.link.command("XLEN", KEYS("archive"))

    await until(empty, "all to be archived")


async def forgotten(talk: Talk, task_id: str) -> None:
    """Redis forgets a task."""
    await all_archived(talk)
    await forget(talk.served.gateway, task_id)


async def get(client: httpx2.AsyncClient, task_id: str) -> httpx2.Response:
    return await client.get(f"/api/task/{task_id}")


async def test_a_poll_is_answered_from_the_archive_with_the_same_body(talk: Talk) -> None:
    async with talk.worker2(["m"]) as worker:
        done = await talk.submit(model="m", metadata={"of": "mine"})
        task = await worker.take()
        await worker.answer(task, result={"content": "an answer", "more": [1, 2]})
        await talk.reaches(done, "completed")
        failed = await talk.submit(model="m")
        task = await worker.take()
        await worker.answer(task, error="no such luck")
        await talk.reaches(failed, "failed")
        streamed = await talk.submit(model="m")
        task = await worker.take()
        for piece in ("a ", "stream"):
            await worker.chunk(task, piece)
        await worker.answer(task, result=None)
        await talk.reaches(streamed, "completed", "failed")
        running = await talk.submit(model="m")
        await worker.take()
        cancelled = await talk.submit(model="m")
        assert (await talk.http.post(f"/api/task/{cancelled}/cancel")).status_code == 200
        for task_id in (done, failed, streamed, cancelled):
            before = await get(talk.http, task_id)
            await forgotten(talk, task_id)
            after = await get(talk.http, task_id)
            assert (after.status_code, after.content) == (200, before.content)
            assert after.headers["x-task-id"] == task_id
            assert after.headers["content-type"] == before.headers["content-type"]
            again = await talk.http.post(f"/api/task/{task_id}/cancel")
            assert again.json() == {"taskId": task_id, "status": before.json()["status"]}
        await talk.http.post(f"/api/task/{running}/cancel")


async def test_it_is_the_owners_and_the_admins_alone(talk: Talk) -> None:
    async with (
        talk.worker2(["m"]) as worker,
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as ann,
    ):
        body = {"model": "m", "async": True, "messages": [{"role": "user", "content": "what?"}]}
        task_id = (await ann.post("/api/openai", json=body)).json()["taskId"]
        await worker.answer(await worker.take(), result={"content": "that"})
        sync = talk.sync(model="m")
        await worker.answer(await worker.take(), result={"content": "sync"})
        unarchived = (await sync).headers["x-task-id"]

        async def ended() -> bool:
            return bool((await get(ann, task_id)).json()["status"] == "completed")

        await until(ended)
        await forgotten(talk, task_id)
        await forgotten(talk, unarchived)
        assert (await get(ann, task_id)).json()["result"] == {"content": "that"}
        assert (await get(talk.http, unarchived)).status_code == 404, "a sync call had its answer"
        async with (
            talk.client(secret("site"), **{"X-Fairlane-User": "bob"}) as bob,
            talk.client(secret("ops")) as ops,
            talk.client(secret("eyes")) as eyes,
        ):
            for other in (bob, talk.http, eyes):
                refused = await get(other, task_id)
                assert (refused.status_code, refused.json()["error"]) == (404, "Task not found or expired")
                assert (await other.post(f"/api/task/{task_id}/cancel")).status_code == 404
                assert (await other.get(f"/api/admin/tasks/{task_id}?stored=true")).status_code == 403
            assert (await get(ops, task_id)).status_code == 200
            shown = (await ops.get(f"/api/admin/tasks/{task_id}?stored=true")).json()
            assert (shown["key"], shown["user"], shown["status"]) == ("site", "site/ann", "completed")
            assert shown["answer"] == (await get(ann, task_id)).json()
            assert shown["request"]["messages"] == body["messages"]
            assert (await ops.get(f"/api/admin/tasks/{unarchived}?stored=true")).status_code == 404
            assert (await ops.get("/api/admin/tasks/x?stored=true")).status_code == 404


async def test_killed_between_writing_and_forgetting_it_is_there_once(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_MS", 0)
    part, gateway = archive_of(talk), talk.served.gateway
    await part.close()
    async with talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        await worker.answer(await worker.take(), result={"content": "x"})
        before = await talk.reaches(task_id, "completed")
        run = gateway.link.run

        def die(name: str, *args: Any) -> Any:
            if name == "confirm_archived":
                raise StoreUnavailable("killed", sent=True)
            return run(name, *args)

        with monkeypatch.context() as patch:
            patch.setattr(gateway.link, "run", die)
            while True:
                try:
                    await part.carry()
                except StoreUnavailable:
                    break
        assert await number(gateway.database) == 1
        left = await kept_ms(gateway, task_id)
        assert left > 71 * HOUR_MS, "Redis keeps it until it is known to be archived"
        another = another_of(talk)
        await another.carry()
        assert await gateway.link.command("XLEN", KEYS("archive")) == 0
        assert await kept_ms(gateway, task_id) <= 300_000
        assert await number(gateway.database) == 1
        await forget(gateway, task_id)
        assert await talk.poll(task_id) == before


async def test_while_the_database_is_away_a_poll_is_503_and_nothing_is_lost(
    redis_url: str, tmp_path: Path
) -> None:
    with running_postgres() as server:
        settings = {"database_url": server.new("archive"), "archive": "results", "task_result_ttl_ms": 1000}
        async with talking(redis_url, tmp_path, **settings) as talk, talk.worker2(["m"]) as worker:
            first = await talk.submit(model="m")
            await worker.answer(await worker.take(), result={"content": "x"})
            await talk.reaches(first, "completed")
            await forgotten(talk, first)
            server.stop()
            away = await get(talk.http, first)
            assert (away.status_code, away.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
            second = await talk.submit(model="m")
            await worker.answer(await worker.take(), result={"content": "y"})
            assert (await talk.reaches(second, "completed"))["result"] == {"content": "y"}
            left = await kept_ms(talk.served.gateway, second)
            assert left > 71 * HOUR_MS
            server.start()
            await forgotten(talk, second)
            assert (await talk.poll(first))["result"] == {"content": "x"}
            assert (await talk.poll(second))["result"] == {"content": "y"}


async def test_without_the_archive_no_prompt_or_answer_comes_into_sql(
    redis_url: str, tmp_path: Path, database_url: str
) -> None:
    """Prompts, answers, errors, metadata, of all kinds of calls: no table holds a word of them."""
    marker = "zebrafish"
    settings = {"keys": ACCOUNTS, "database_url": database_url}
    async with talking(redis_url, tmp_path, **settings) as talk, talk.worker2(["m"]) as worker:
        talk.http.headers.update({"Authorization": f"Bearer {secret('acme')}"})
        messages = [{"role": "user", "content": f"say {marker}"}]
        for path, body in (
            ("/api/openai", {"async": True, "metadata": {"note": marker}}),
            ("/api/openai", {}),
            ("/v1/chat/completions", {}),
            ("/api/tasks", {"type": "t", "payload": {"x": marker}, "async": True}),
        ):
            for end in ({"result": {"content": marker}}, {"error": f"cannot say {marker}"}):
                call = talk.later(talk.http.post(path, json={"model": "m", "messages": messages, **body}))
                await worker.answer(await worker.take(), **end)
                await call
        waiting = await talk.submit(model="m", messages=messages)
        await worker.take()
        more = await talk.submit(model="m", messages=messages)
        async with talk.client(secret("ops")) as ops:
            for task_id in (waiting, more):
                assert (await ops.post(f"/api/task/{task_id}/cancel")).status_code == 200
            await talk.served.gateway.records.rejections.bring(2**60)
            await ops.get("/api/admin/audit")

            async def carried() -> bool:
                return not await talk.served.gateway.link.command("XLEN", KEYS("outbox"))

            await until(carried, "everything to be in SQL")
        found = await everything(talk.served.gateway.database)
        assert len(found["usage"]) >= 9
        assert len(found["audit"]) == 2
        assert not found["archive"]
        for table, rows in found.items():
            assert marker not in repr(rows), table
        # the outbox and the archive's stream hold none either
        for name in ("outbox", "archive"):
            assert marker not in repr(await talk.served.gateway.link.command("XRANGE", KEYS(name), "-", "+"))


async def test_a_later_end_counts_and_the_archive_is_purged_by_time(database: Database) -> None:
    def row(task: str, ended: int, answer: bytes = b"{}") -> dict[str, Any]:
        whose = {"key_id": "k", "user_name": "u", "state": "completed", "request": None}
        return {"task": task, "enqueued": ended - 5, "ended": ended, "answer": answer, **whose}

    async with database.writing() as connection:
        for number_of in range(120):
            await write(connection, row(f"{number_of}", NOON - number_of * HOUR_MS))
        await write(connection, row("0", NOON + 1, b'{"later":1}'))
        await write(connection, row("0", NOON - 1, b'{"before":1}'))
        assert (
            await connection.scalar(select(archive.c.answer).where(archive.c.task == "0")) == b'{"later":1}'
        )
    assert await expire(database, NOON) > 1
    assert await number(database) == 25
