"""The writer of a log over a Redis that does not do, or does not answer, or forgets what it is asked."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from tests.integration.replay.conftest import MakePair
from tests.integration.replay.test_cut_streams import path, read_all
from tests.support.ledger import KEYS, ended_once, events, nothing_left
from tests.support.rawworkers import key
from tests.support.streams import RawStream, joined_text
from tests.support.talk import Talk

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.store.link import Receiver

pytestmark = pytest.mark.anyio

Store = Any
FORGET = """
local run = cmsgpack.unpack(redis.call('HGET', KEYS[2], 'run'))
local top = redis.call('XLEN', KEYS[1])
local keep = math.max(top - tonumber(ARGV[1]), 2)
if run.state ~= 'executing' or keep >= top then return 0 end
local entries = redis.call('XRANGE', KEYS[1], '-', string.format('%d-%d', run.epoch, keep))
redis.call('DEL', KEYS[1])
for _, entry in ipairs(entries) do redis.call('XADD', KEYS[1], entry[1], unpack(entry[2])) end
local gone = top - keep
if run.top then run.top = keep end
redis.call('HSET', KEYS[2], 'run', cmsgpack.pack(run))
return gone
"""
"""What a crash of Redis does that loses the last events of a log."""


def forget(store: Store, task_id: str, count: int, writing: Talk) -> int:
    """Take the last events from a running task's log, and its writer's connection; how many events went."""
    if (wire := writing.served.gateway.link._wire) is not None:
        wire.transport.abort()
    found: Any = store.eval(FORGET, 2, KEYS("log", id=task_id), KEYS("task", id=task_id), count)
    return int(found)


class Flaky:
    """A gateway's link whose calls of some scripts fail as `fate` says: 'lost' (not sent), 'mute' (done, no reply),
    'refused' or 'ok'.
    """

    def __init__(self, talk: Talk, fate: Callable[[str], str]) -> None:
        self._link = talk.served.gateway.link
        self._run = self._link.run
        self._fate = fate
        self.calls: list[tuple[str, str]] = []
        self._command_to = self._link.command_to
        self._link.run = partial(self._flaky, self._run)  # type: ignore[method-assign]
        with_others = self._link.run_with_others
        self._link.run_with_others = partial(self._flaky, with_others)  # type: ignore[method-assign]
        self._link.command_to = self._flaky_append  # type: ignore[method-assign]

    def _flaky_append(self, receiver: Receiver, *args: Any) -> None:
        def call(_: str, *args: Any) -> "asyncio.Future[Any]":
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._command_to(reply, *args)
            return reply

        def on_reply(reply: "asyncio.Future[Any]") -> None:
            if error := reply.exception():
                assert isinstance(error, Exception)
                receiver.set_exception(error)
            else:
                receiver.set_result(reply.result())

        self._flaky(call, "append", *args).add_done_callback(on_reply)

    def _flaky(
        self, call: Callable[..., "asyncio.Future[Any]"], name: str, *args: Any, **options: Any
    ) -> "asyncio.Future[Any]":
        fate = self._fate(name)
        self.calls.append((name, fate))
        if fate == "refused":
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(redis.ResponseError("WRONGTYPE"))
            return refused
        if fate == "lost":
            raise StoreUnavailable("lost on the way", sent=False)
        reply = call(name, *args, **options)
        if fate == "ok":
            return reply
        mute: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_reply(reply: "asyncio.Future[Any]") -> None:
            reply.exception()
            mute.set_exception(StoreUnavailable("the reply was lost", sent=True))

        reply.add_done_callback(on_reply)
        return mute

    def count(self, name: str, fate: str) -> int:
        return self.calls.count((name, fate))


@pytest.mark.parametrize("seed", range(3))
async def test_what_was_written_is_in_the_log_once_whatever_went_wrong(
    pair: MakePair, store: Store, seed: int
) -> None:
    rng = random.Random(seed)

    def fate(name: str) -> str:
        return rng.choice(["ok", "ok", "lost", "mute"]) if name in ("append", "finish") else "ok"

    async with pair() as (a, b), a.worker() as worker:
        flaky = Flaky(a, fate)
        gone = tasks = 0

        def faults() -> int:
            return flaky.count("append", "lost") + flaky.count("append", "mute") + gone

        while tasks < 2 or (faults() <= 3 and tasks < 10):  # a busy machine writes fewer and longer events
            tasks += 1
            task_id = await b.submit()
            task = await worker.take()
            readers = [a.later(read_all(talk, task_id)) for talk in (a, b, b)]
            for number in range(12):
                await worker.chunk(task, f"{number},")
                await asyncio.sleep(rng.random() * 0.03)
                if rng.random() < 0.15:
                    gone += forget(store, task_id, rng.randrange(1, 4), a)
            await worker.answer(task)
            first, *others = await asyncio.gather(*readers)
            assert joined_text(first) == "".join(f"{number}," for number in range(12))
            assert first[-1].data["result"]["content"] == joined_text(first)
            assert others == [first, first]
            assert await read_all(b, task_id) == first
            assert ended_once(store, task_id) == b"done"
        assert faults() > 3
        await nothing_left(store)


async def test_a_reply_lost_at_the_end_still_gives_the_worker_its_next_task(
    pair: MakePair, store: Store
) -> None:
    """`finish` ended one task and took another for the slot; asked again, it tells of the same grant."""
    async with pair() as (a, b), a.worker() as worker:
        first, second = await a.submit(), await a.submit()
        held = await worker.take()
        fates = iter(["mute", "mute", "lost"])
        flaky = Flaky(a, lambda name: next(fates, "ok") if name == "finish" else "ok")
        await worker.answer(held, 1)
        task = await worker.take()
        assert [held["taskId"], task["taskId"]] == [first, second]
        await worker.answer(task, 2)
        assert [(await b.reaches(t, "completed"))["result"] for t in (first, second)] == [1, 2]
        assert flaky.count("finish", "mute") == 2
        assert [kind for _, kind in events(store, second)] == [b"start", b"done"]
        await nothing_left(store)


async def test_output_that_redis_does_not_take_is_given_up_when_it_grows_too_large(
    pair: MakePair, store: Store
) -> None:
    async with pair() as (a, b), a.worker2(models=["m"], slots=8) as worker:
        Flaky(a, lambda name: "lost" if name == "append" else "ok")
        task_id = await a.submit(model="m")
        task = await worker.take()
        for number in range(10):
            await worker.chunk(task, "x" * 1_000_000, number + 1)
        body = await b.reaches(task_id, "failed")
        assert body["code"] == "OUTPUT_TOO_LARGE"
        cancelled = await worker.recv()
        assert (cancelled["type"], cancelled["taskId"]) == ("cancel", task_id)
        assert ended_once(store, task_id) == b"error"


async def test_a_log_whose_lost_end_nobody_remembers_ends_in_a_clear_failure(
    pair: MakePair, store: Store
) -> None:
    async with pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            await stream.take(1)
            for number in range(6):
                await worker.chunk(task, f"{number}")
                await stream.take(1)
            a.served.gateway.dispatcher.attempts.newest(task_id).writer._acknowledged.clear()
            forget(store, task_id, 3, a)
            await worker.chunk(task, "6")
            body = await b.reaches(task_id, "failed")
            assert body["code"] == "STORE_LOST"
            frame = await stream.frame()
            assert frame is not None
            assert frame.event == "gap"
        assert ended_once(store, task_id) == b"error"


async def test_a_log_that_redis_refuses_to_extend_ends_in_a_clear_failure(
    pair: MakePair, store: Store
) -> None:
    async with pair() as (a, b), a.worker() as worker:
        Flaky(a, lambda name: "refused" if name == "append" else "ok")
        task_id = await a.submit()
        await worker.chunk(await worker.take(), "x")
        body = await b.reaches(task_id, "failed")
        assert body["code"] == "STORE_LOST"
        assert ended_once(store, task_id) == b"error"


def pieces(count: int) -> list[dict[str, Any]]:
    """Deltas that do not become one event."""
    return [{"index": number % 2, "content": "x"} for number in range(count)]


async def test_much_output_at_once_is_written_in_calls_of_bounded_size(pair: MakePair, store: Store) -> None:
    async with pair() as (a, b), a.worker2(models=["m"]) as worker:
        link = a.served.gateway.link
        sizes = list[tuple[str, int, int]]()

        def seen(run: Any, name: str, *args: Any) -> "asyncio.Future[Any]":
            if name in ("append", "finish"):
                sizes.append((name, len(args), sum(len(arg) for arg in args if isinstance(arg, bytes))))
            return run(name, *args)

        link.run = partial(seen, link.run)  # type: ignore[method-assign]
        link.run_with_others = partial(seen, link.run_with_others)  # type: ignore[method-assign]
        task_id = await a.submit(model="m")
        task = await worker.take()
        large = [{"index": number % 2, "content": "y" * 300_000} for number in range(12)]
        await worker.send("taskChunk", **key(task), seq=1, deltas=pieces(3000))
        await worker.send("taskChunk", **key(task), seq=2, deltas=large)
        await worker.send("taskChunk", **key(task), seq=3, deltas=pieces(3000))
        await worker.answer(task, "all", lastSeq=3)
        await b.reaches(task_id, "completed")
        assert max(count for _, count, _ in sizes) < 2 * 500 + 30
        assert max(size for _, _, size in sizes) < (1 << 20) + 100_000
        assert [name for name, _, _ in sizes].count("finish") == 1
        kinds = [kind for _, kind in events(store, task_id)]
        assert kinds == [b"start", *[b"chunk"] * 6012, b"done"]
