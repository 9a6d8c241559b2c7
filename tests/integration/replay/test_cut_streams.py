"""A stream whose connection breaks, at any event or byte, goes on elsewhere as if nothing had happened."""

import asyncio
from typing import Any

import pytest
from tests.integration.replay.conftest import MakePair, Pair
from tests.support.rawworkers import RawWorker
from tests.support.streams import Frame, RawStream, joined_text
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

WORDS = [
    "Once",
    " upon",
    " a",
    " \u2028line",
    ' "quote"',
    "\n\n",
    " \U0001f600",
    "",
    " null",
    " data: x",
    "\r\n",
    " end",
]


def path(task_id: str) -> str:
    return f"/api/task/{task_id}/events"


async def read_all(talk: Talk, task_id: str, last: str | None = None) -> list[Frame]:
    async with await RawStream.open(talk.served.url, path(task_id), last=last) as stream:
        return await stream.log()


async def play(worker: RawWorker, task: dict[str, Any], words: list[str] = WORDS) -> None:
    """Stream words as a version 1 worker does, and end without a result."""
    for word in words:
        await worker.chunk(task, word)
    await worker.answer(task)


async def cut_once(here: Talk, there: Talk, task_id: str, count: int) -> bytes:
    """Read `count` events here, lose the connection, and read the rest there."""
    async with await RawStream.open(here.served.url, path(task_id)) as stream:
        frames = await stream.take(count)
        assert len(frames) == count
    return b"".join([*frames, *await read_all(there, task_id, frames[-1].id)])


async def test_a_connection_cut_after_each_event_in_turn_loses_nothing(shared_pair: MakePair) -> None:
    """Half of the events are written while nobody reads, half while the reader waits for them."""
    async with shared_pair() as gateways, gateways[0].worker() as worker:
        a, b = gateways
        task_id = await a.submit()
        task = await worker.take()
        async with (
            await RawStream.open(a.served.url, path(task_id)) as uncut_a,
            await RawStream.open(b.served.url, path(task_id)) as uncut_b,
        ):
            joined: list[Frame] = []
            for number, word in enumerate([*WORDS, None]):
                ahead = number % 3 == 0
                last = joined[-1].id if joined else None
                if ahead:
                    await (worker.answer(task) if word is None else worker.chunk(task, word))
                reader = gateways[number % 2]
                async with await RawStream.open(reader.served.url, path(task_id), last=last) as stream:
                    if not ahead:
                        if not joined:
                            joined += await stream.take(1)
                        await (worker.answer(task) if word is None else worker.chunk(task, word))
                    joined += await stream.take(1)
            last = joined[-1].id
            joined += await read_all(b, task_id, last)
            whole = b"".join(joined)
            assert [frame.event for frame in joined][-1] == "done"
            assert whole == b"".join(await uncut_a.log())
            assert whole == b"".join(await uncut_b.log())
            assert whole == b"".join(await read_all(a, task_id))


async def test_cut_after_any_number_of_events_while_it_runs_the_stream_goes_on_at_the_other_gateway(
    shared_pair: MakePair,
) -> None:
    async with shared_pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        counts = range(1, len(WORDS) + 2)
        readers = [a.later(cut_once(a, b, task_id, count)) for count in counts]
        readers += [a.later(cut_once(b, a, task_id, count)) for count in counts]
        async with await RawStream.open(b.served.url, path(task_id)) as uncut:
            frames = await uncut.take(1)
            for word in WORDS:
                await worker.chunk(task, word)
                frames += await uncut.take(1)
            await worker.answer(task)
            frames += await uncut.log()
        assert len(frames) == len(WORDS) + 2
        assert set(await asyncio.gather(*readers)) == {b"".join(frames)}


async def test_a_connection_cut_at_any_byte_loses_nothing(shared_pair: MakePair) -> None:
    """What a browser does: a frame that is not complete is thrown away, the cursor is that of the last whole one."""
    async with shared_pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        await play(worker, await worker.take(), WORDS[:5])
        whole = b"".join(await read_all(a, task_id))
        for size in range(0, len(whole), 11):
            async with await RawStream.open(a.served.url, path(task_id)) as stream:
                seen = await stream.whole(size)
            frames = [Frame(frame + b"\n\n") for frame in seen.split(b"\n\n")[:-1]]
            last = frames[-1].id if frames else None
            assert b"".join([*frames, *await read_all(b, task_id, last)]) == whole


@pytest.mark.parametrize("result", [None, "their own words", {"content": "theirs", "x": [1.50, None]}])
async def test_the_answer_is_the_same_however_it_is_read(shared_pair: MakePair, result: Any) -> None:
    async with shared_pair() as (a, b), b.worker() as worker:
        call = a.sync(metadata={"n": 1})
        task = await worker.take()
        for word in WORDS:
            await worker.chunk(task, word)
        await worker.answer(task, result)
        answer = await call
        assert answer.status_code == 200
        task_id = answer.headers["x-task-id"]
        polls = [await a.poll(task_id), await b.poll(task_id)]
        frames = await read_all(b, task_id)
        done = frames[-1].data
        assert polls[0] == polls[1]
        assert answer.json() == polls[0]["result"] == done["result"]
        assert joined_text(frames) == "".join(WORDS)
        if result is None:
            assert answer.json()["content"] == "".join(WORDS)
        else:
            assert answer.json() == result


async def test_a_posted_stream_and_its_replay_are_byte_for_byte_the_same(shared_pair: MakePair) -> None:
    async with shared_pair() as (a, b), a.worker() as worker:
        async with await RawStream.open(b.served.url, "/api/openai", body={"stream": True}) as posted:
            task_id = posted.headers["x-task-id"]
            await play(worker, await worker.take())
            live = await posted.log()
        assert live == await read_all(a, task_id) == await read_all(b, task_id)


async def test_many_readers_at_both_gateways_see_the_same(shared_pair: MakePair) -> None:
    async with shared_pair() as gateways, gateways[1].worker() as worker:
        a = gateways[0]
        task_id = await a.submit()
        task = await worker.take()
        readers = [a.later(read_all(gateways[n % 2], task_id)) for n in range(30)]
        for word in WORDS:
            await worker.chunk(task, word)
        readers += [a.later(read_all(gateways[n % 2], task_id)) for n in range(10)]
        await worker.answer(task)
        transcripts = [b"".join(frames) for frames in await asyncio.gather(*readers)]
        assert len(set(transcripts)) == 1


def names(gateways: Pair) -> list[int]:
    return [len(talk.served.gateway.hub) for talk in gateways]


async def test_readers_that_left_leave_nothing_behind(pair: MakePair) -> None:
    from tests.support.serving import until

    async with pair() as gateways, gateways[0].worker() as worker:
        a, b = gateways
        task_id = await a.submit()
        task = await worker.take()
        for number in range(20):
            stream = await RawStream.open(gateways[number % 2].served.url, path(task_id))
            await stream.take(1)
            stream.cut()
        await until(lambda: names(gateways) == [0, 0], "feeds without readers to go")
        await play(worker, task)
        assert joined_text(await read_all(b, task_id)) == "".join(WORDS)
