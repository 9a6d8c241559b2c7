"""Redis is killed and comes back from an older save: what readers have seen may not have happened, and they are told."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.following import Follower
from tests.support.ledger import nothing_left
from tests.support.rawworkers import RawWorker, key
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.streams import RawStream
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio

Texts = list[str]


class Reader(Follower):
    """One who reads at a gateway of this process."""

    async def read(self, talk: Talk, task_id: str, *, until_texts: Texts | None = None) -> None:
        """Read to the end, coming back whenever the stream ends before; or until the texts are there."""
        while not self.ended:
            async with await RawStream.open(
                talk.served.url, f"/api/task/{task_id}/events", last=self.last or None
            ) as stream:
                while (frame := await stream.frame()) is not None:
                    self.take(frame)
                    if until_texts is not None and self.texts == until_texts:
                        return


async def pour(worker: RawWorker, task: dict[str, Any], texts: Texts, first: int = 1) -> None:
    """Stream texts as events of their own: neighbours of different choices are never joined."""
    for seq, text in enumerate(texts, first):
        await worker.send("taskChunk", **key(task), seq=seq, deltas=[{"index": seq % 2, "content": text}])


async def take_again(worker: RawWorker, task_id: str) -> dict[str, Any]:
    """The task as it is given again; what the worker had of it before is cancelled, and it says that it stops."""
    while True:
        frame = await worker.recv()
        if frame["type"] == "task" and frame["taskId"] == task_id:
            await worker.ack(frame)
            return frame
        if frame["type"] == "cancel":
            await worker.answer(frame)


def saved(server: Server) -> None:
    """What Redis holds now is what it comes back with."""
    with server.client() as store:
        store.save()


def roll_back(server: Server) -> None:
    """SIGKILL, and a start from the last save."""
    server.stop()
    server.start()


MakeTalk = Callable[[str], AbstractAsyncContextManager[Talk]]


@pytest.fixture
def make(own_redis: Server, tmp_path: Path) -> MakeTalk:
    @contextlib.asynccontextmanager
    async def make(name: str) -> AsyncIterator[Talk]:
        settings = {"stream_flush_interval_ms": 0, "stream_flush_size": 1, "no_worker_grace_ms": 60_000}
        async with talking(own_redis.url, tmp_path / name, **settings) as talk:
            yield talk

    return make


async def queued_task(talk: Talk) -> str:
    """A task that waits: its worker was there and has gone."""
    async with talk.worker2(["m"]):
        pass
    await until(lambda: not len(talk.served.gateway.dispatcher.pool), "the worker to be gone")
    return await talk.submit(model="m")


A, B = [f"A{n}" for n in range(1, 5)], [f"B{n}" for n in range(1, 10)]


async def test_readers_of_a_lost_grant_start_again_and_end_with_exactly_the_log(
    make: MakeTalk, own_redis: Server
) -> None:
    """One reads all the time, at either gateway; one had gone away and comes back when the log is longer than before."""
    async with make("a") as talk, make("b") as other:
        task_id = await queued_task(talk)
        saved(own_redis)
        async with talk.worker2(["m"], slots=2) as worker:
            task = await worker.take()
            await pour(worker, task, A)
            away, here, there = Reader(), Reader(), Reader()
            await away.read(talk, task_id, until_texts=A)
            live = [
                talk.later(reader.read(gateway, task_id))
                for reader, gateway in ((here, talk), (there, other))
            ]
            await until(lambda: here.texts == there.texts == A, "the readers to have read")
            roll_back(own_redis)
            again = await take_again(worker, task_id)
            await pour(worker, again, B)
            await talk.reaches(task_id, "executing")
            await away.read(other, task_id, until_texts=B)
            await worker.answer(again, None, lastSeq=len(B))
            for reading in live:
                await reading
            await away.read(other, task_id)
        fresh = Reader()
        await fresh.read(talk, task_id)
        assert fresh.texts == B
        assert [reader.texts for reader in (away, here, there)] == [B, B, B]
        assert [reader.frames for reader in (away, here, there)] == [fresh.frames] * 3
        assert all(reader.restarts >= 1 for reader in (away, here, there))
        with own_redis.client() as store:
            await nothing_left(store)


async def test_a_reader_whose_cursor_is_still_in_the_log_loses_and_repeats_nothing(
    make: MakeTalk, own_redis: Server
) -> None:
    """The save is of the middle of the output: its writer fills the log up again."""
    async with make("a") as talk:
        task_id = await queued_task(talk)
        async with talk.worker2(["m"], slots=2) as worker:
            task = await worker.take()
            away, here = Reader(), Reader()
            live = talk.later(here.read(talk, task_id))
            await pour(worker, task, A[:2])
            await away.read(talk, task_id, until_texts=A[:2])
            saved(own_redis)
            await pour(worker, task, A[2:], 3)
            await until(lambda: here.texts == A, "the reader to have read")
            roll_back(own_redis)
            await until(lambda: talk.served.gateway.link.up, "the gateway to be connected again")
            await pour(worker, task, B, 5)
            await worker.answer(task, None, lastSeq=4 + len(B))
            await live
            await away.read(talk, task_id)
        assert away.texts == here.texts == [*A, *B]
        assert away.frames == here.frames
        assert (away.restarts, here.restarts) == (0, 0)


async def test_frames_of_a_lost_grant_do_not_count(make: MakeTalk, own_redis: Server) -> None:
    """The same worker gets the task again, in another slot, and goes on with the old one for a while."""
    async with make("a") as talk:
        task_id = await queued_task(talk)
        saved(own_redis)
        async with talk.worker2(["m"], slots=2) as worker:
            old = await worker.take()
            await pour(worker, old, A[:2])
            reader = Reader()
            await reader.read(talk, task_id, until_texts=A[:2])
            roll_back(own_redis)
            new = await worker.recv()
            while new["type"] != "task":
                new = await worker.recv()
            assert (new["taskId"], new["attempt"] > old["attempt"]) == (task_id, True)
            await worker.chunk(old, "late", 3)
            await worker.chunk(new, "B1", 1)
            await worker.chunk(old, "later", 2)
            await worker.answer(old, "the wrong one", lastSeq=4)
            await worker.chunk(new, "B2", 2)
            await worker.answer(new, None, lastSeq=2)
            await reader.read(talk, task_id)
            assert reader.texts == ["B1", "B2"]
            assert reader.restarts >= 1
