"""Every reply of Redis is lost once, over a short life of a gateway: nothing happens twice, and everybody gets an answer."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from tests.support.ledger import ended_in, ended_once, nothing_left, tasks_in
from tests.support.processes import Tireless
from tests.support.proxy import ReplyProxy
from tests.support.servers import Server
from tests.support.serving import Served, http_client, serving, until

from fairlane.queues.keys import Keys, pool_prefix

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEYS = Keys(pool_prefix())
MIN_REPLIES, MAX_REPLIES = 40, 300
LANES = 12
"""So many lives at a time, each in a database of its own."""
ALL_ENDED_S = 30.0


class Life:
    """One gateway behind a proxy that loses reply number `lost`, a worker, and callers of every kind."""

    def __init__(self, server: Server, database: int, folder: Path, lost: int) -> None:
        self._server = server
        self._database = database
        self._folder = folder
        self._lost = lost
        self.answers: list[str] = []
        self.replies = 0

    async def run(self) -> bool:
        """Live it; False when fewer replies came than the one to lose."""
        with redis.Redis(unix_socket_path=self._server.socket_path, db=self._database) as store:
            store.flushdb()
            async with self._gateway() as (served, proxy):
                begun = proxy.replies
                async with (
                    Tireless(lambda: served.ws, self._work) as worker,
                    http_client(served.url, timeout=30) as http,
                ):
                    await until(lambda: store.exists(KEYS("offers", model="*")) == 1, "the worker's offer")
                    await asyncio.gather(
                        *(self._sync(http), self._stream(http), self._later(http), self._leave(http)),
                        self._insist(http),
                    )
                    recent = tasks_in(store)
                    await nothing_left(store, ALL_ENDED_S)
                    await self._sync(http)  # the slot is free and the gateway sound
                self._check(store, recent, worker)
                self.replies = proxy.replies
                assert begun >= 0
                return proxy.dropped == 1

    @contextlib.asynccontextmanager
    async def _gateway(self) -> AsyncIterator[tuple[Served, ReplyProxy]]:
        async with ReplyProxy(self._server.socket_path, lambda n: n == self._lost) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/{self._database}"
            leases = {"lease_ms": 12000, "grant_ack_ms": 6000, "no_worker_grace_ms": 5000}
            async with serving(url, self._folder, redis_timeout_ms=2000, **leases) as served:
                yield served, proxy

    @staticmethod
    async def _work(send: Any, task: dict[str, Any]) -> None:
        for word in ("a", "b", "c"):
            await send(type="taskChunk", taskId=task["taskId"], delta=word)
        await send(type="taskResult", taskId=task["taskId"], result=None, error=None)

    def _note(self, kind: str, answer: httpx2.Response, good: bool) -> None:
        if answer.status_code == 503:
            assert answer.json()["error"] == "Store unavailable", answer.text
            assert "retry-after" in answer.headers
            self.answers.append(f"{kind}: 503")
        else:
            assert good, f"{kind}: {answer.status_code} {answer.text}"
            self.answers.append(f"{kind}: ok")

    async def _sync(self, http: httpx2.AsyncClient) -> None:
        answer = await http.post("/api/openai", json={"messages": []})
        self._note("sync", answer, answer.status_code == 200 and answer.json()["content"] == "abc")

    async def _insist(self, http: httpx2.AsyncClient) -> None:
        """The same request again and again, as it has a key: one task, whatever is lost."""
        answers: list[httpx2.Response] = []
        async with asyncio.timeout(ALL_ENDED_S):
            while len(answers) < 3:
                answer = await http.post(
                    "/api/openai", json={"messages": []}, headers={"Idempotency-Key": "one"}
                )
                self._note("named", answer, answer.status_code == 200 and answer.json()["content"] == "abc")
                if answer.status_code == 200:
                    answers.append(answer)
        assert len({(answer.content, answer.headers["x-task-id"]) for answer in answers}) == 1

    async def _stream(self, http: httpx2.AsyncClient) -> None:
        answer = await http.post("/api/openai", json={"messages": [], "stream": True})
        good = answer.status_code == 200 and answer.text.count("event: done") == 1
        self._note("stream", answer, good and '"content":"abc"' in answer.text)

    async def _later(self, http: httpx2.AsyncClient) -> None:
        answer = await http.post("/api/openai", json={"messages": [], "async": True})
        self._note("async", answer, answer.status_code == 202)
        if answer.status_code != 202:
            return
        task_id = answer.json()["taskId"]
        status = ""
        async with asyncio.timeout(ALL_ENDED_S):
            while status in ("", "queued", "executing"):
                poll = await http.get(f"/api/task/{task_id}")
                self._note("poll", poll, poll.status_code == 200)
                status = poll.json().get("status", "")
                await asyncio.sleep(0.05)
        assert status == "completed"

    async def _leave(self, http: httpx2.AsyncClient) -> None:
        answer = await http.post("/api/openai", json={"messages": [], "async": True})
        self._note("async", answer, answer.status_code == 202)
        if answer.status_code == 202:
            ended = await http.post(f"/api/task/{answer.json()['taskId']}/cancel")
            self._note("cancel", ended, ended.status_code == 200)

    def _check(self, store: Any, recent: list[str], worker: Tireless) -> None:
        for task_id in recent:
            ended_once(store, task_id)
        twice = [task_id for task_id in worker.received if worker.received.count(task_id) > 1]
        assert twice == [], "a worker was given a task twice"
        assert ended_in(store)["completed"] <= len(worker.received)


async def test_any_one_reply_of_redis_may_be_lost(own_redis: Server, tmp_path: Path) -> None:
    """For each n until a whole life needs no nth reply: losing it leaves no trace but a 503 to whoever waited for it."""
    numbers = itertools.count(1)
    problems: list[str] = []
    last = MAX_REPLIES

    async def lane(database: int) -> None:
        nonlocal last
        while (number := next(numbers)) < last:
            life = Life(own_redis, database, tmp_path / str(number), number)
            try:
                if not await life.run():
                    last = min(last, number)
            except Exception as error:  # the others go on: which replies may not be lost is worth knowing
                problems.append(f"reply {number}: {error!r} {getattr(error, '__notes__', '')}")

    await asyncio.gather(*[lane(database) for database in range(LANES)])
    assert problems == []
    assert MIN_REPLIES < last < MAX_REPLIES
