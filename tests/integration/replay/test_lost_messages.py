"""What the replicas tell one another may be lost or come late; what a reader sees may not."""

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.replay.conftest import MakePair, Pair
from tests.integration.replay.test_cut_streams import path, read_all
from tests.support.ledger import change_record, record_of
from tests.support.rawworkers import RawWorker, key
from tests.support.serving import until
from tests.support.streams import Frame, RawStream, joined_text
from tests.support.talk import Talk

from fairlane.queues.keys import Keys, pool_prefix
from fairlane.streaming.hub import KEEP_EVENTS

pytestmark = pytest.mark.anyio

Store = Any
KEYS = Keys(pool_prefix())
EPOCH = 5_000_000_000_000_000
"""Of a grant later than any."""
FAST: dict[str, Any] = {"models": ["m"], "slots": 16}


async def pour(worker: RawWorker, task: dict[str, Any], words: list[str]) -> None:
    """Stream words as events of their own: neighbours of different choices are never joined."""
    for number, word in enumerate(words):
        await worker.send(
            "taskChunk", **key(task), seq=number + 1, deltas=[{"index": number % 2, "content": word}]
        )


def hasten(talk: Talk) -> None:
    """Let a gateway look for lost events five times a second instead of once in five seconds."""
    talk.served.gateway.hub.silent_s = 0.2
    talk.served.gateway.hub.check_soon()


async def test_a_reader_who_falls_behind_what_is_kept_in_memory_reads_on_from_the_log(
    shared_pair: MakePair,
) -> None:
    async with shared_pair() as (a, b), a.worker2(**FAST) as worker:
        task_id = await a.submit(model="m")
        task = await worker.take()
        hub = b.served.gateway.hub
        async with hub.read(task_id) as found:
            assert found is not None
            _, reader = found
            seen = await reader.next(5)
            count = 3 * KEEP_EVENTS
            await pour(worker, task, [f"{number} " for number in range(count)])
            await worker.answer(task, lastSeq=count)
            await until(lambda: reader.feed.ended, "the end to arrive")
            assert len(reader.feed.events) <= KEEP_EVENTS
            while not seen[-1].terminal:
                seen += await reader.next(5)
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        text = "".join(json.loads(e.data)["delta"] for e in seen if e.type == "chunk")
        assert text == "".join(f"{number} " for number in range(count))


async def test_a_client_who_does_not_read_for_a_while_gets_everything_afterwards(
    shared_pair: MakePair,
) -> None:
    async with shared_pair() as (a, b), a.worker2(**FAST) as worker:
        task_id = await a.submit(model="m")
        task = await worker.take()
        words = [f"{number:05d}" * 3000 for number in range(600)]
        async with await RawStream.open(b.served.url, path(task_id), receive_buffer=4096) as stalled:
            await pour(worker, task, words)
            await worker.answer(task, {"n": len(words)}, lastSeq=len(words))
            uncut = await read_all(a, task_id)
            assert await stalled.log() == uncut
        assert joined_text(uncut) == "".join(words)


async def test_a_long_log_is_replayed_without_waiting_for_anything(shared_pair: MakePair) -> None:
    """Longer than a page and than what a feed keeps, both while it runs and after its end."""
    async with shared_pair() as (a, b), a.worker2(**FAST) as worker:
        task_id = await a.submit(model="m")
        task = await worker.take()
        await pour(worker, task, [f"{number} " for number in range(1300)])
        async with await RawStream.open(b.served.url, path(task_id)) as late:
            await worker.answer(task, lastSeq=1300)
            uncut = await late.log()
        assert joined_text(uncut) == "".join(f"{number} " for number in range(1300))
        assert len(uncut) == 1302
        b.served.gateway.hub.silent_s = 3600.0  # nothing comes to its rescue
        assert await read_all(b, task_id) == uncut
        middle = (uncut[len(uncut) // 2]).id
        assert await read_all(b, task_id, middle) == uncut[len(uncut) // 2 + 1 :]


async def test_events_too_large_to_publish_reach_the_other_gateway(shared_pair: MakePair) -> None:
    async with shared_pair() as (a, b), a.worker() as worker:
        b.served.gateway.hub.silent_s = 3600.0
        task_id = await a.submit()
        task = await worker.take()
        words = ["a" * 200_000, "small", "é" * 70_000, "b" * 65_536]
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            frames = await stream.take(1)
            for word in words:
                await worker.chunk(task, word)
                frames += await stream.take(1)
            await worker.answer(task, "z" * 300_000)
            frames += await stream.log()
        assert joined_text(frames) == "".join(words)
        assert frames[-1].data["result"] == "z" * 300_000
        assert frames == await read_all(a, task_id)


async def test_pub_sub_connections_that_are_killed_lose_nothing(pair: MakePair, store: Store) -> None:
    """Also not the terminal event, behind which no other message would show that one is missing."""
    async with pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            frames = await stream.take(1)
            for number in range(8):
                assert store.execute_command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
                await worker.chunk(task, f"{number}")
                frames += await stream.take(1)
                await until(
                    lambda: b.served.gateway.store.first.channel.listening.is_set(), "the channel to be back"
                )
            store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            await worker.answer(task)
            frames += await stream.log()
        assert joined_text(frames) == "01234567"
        assert frames == await read_all(a, task_id)


def lossy(talk: Talk, rng: random.Random, share: float) -> Callable[[], int]:
    """Let a replica's channel lose a share of its events, deliver some twice and some late; tells how many."""
    channel = talk.served.gateway.store.first.channel
    deliver = channel._on_message
    touched = 0

    def on_message(message: bytes) -> None:
        nonlocal touched
        draw = rng.random()
        if not message.startswith(b"event") or draw > share:
            deliver(message)
            return
        touched += 1
        if draw > share * 0.5:
            asyncio.get_running_loop().call_later(rng.random() * 0.05, deliver, message)
        if draw > share * 0.8:
            deliver(message)

    channel._on_message = on_message
    return lambda: touched


async def read_with_cuts(gateways: Pair, task_id: str, rng: random.Random) -> bytes:
    """Read to the end, losing the connection after a few events each time, at either gateway."""
    frames: list[Frame] = []
    while not frames or frames[-1].event != "done":
        last = frames[-1].id if frames else None
        talk = gateways[rng.randrange(2)]
        async with await RawStream.open(talk.served.url, path(task_id), last=last) as stream:
            frames += await stream.take(rng.choice((1, 1, 2, 3, 5, 100)))
    return b"".join(frames)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_lost_late_or_doubled_every_reader_sees_the_log(pair: MakePair, seed: int) -> None:
    rng = random.Random(seed)
    async with pair() as gateways, gateways[0].worker() as first, gateways[1].worker() as second:
        a, b = gateways
        touched = [lossy(talk, rng, 0.4) for talk in gateways]
        for talk in gateways:
            hasten(talk)

        async def follow(task_id: str) -> None:
            readers = [read_with_cuts(gateways, task_id, rng) for _ in range(4)]
            transcripts = set(await asyncio.gather(*readers))
            assert transcripts == {b"".join(await read_all(b, task_id))}

        async def serve(worker: RawWorker) -> None:
            while True:
                task = await worker.take()
                for number in range(12):
                    await worker.chunk(task, f"{number},")
                    await asyncio.sleep(rng.random() * 0.02)
                await worker.answer(task)

        for worker in (first, second):
            a.later(serve(worker))
        await asyncio.gather(*[follow(await gateways[number % 2].submit()) for number in range(8)])
        assert sum(count() for count in touched) > 10


# ---- a store that forgot ----------


def forget(store: Store, task_id: str, top: int, writing: Talk) -> None:
    """What a crash of Redis does that loses the last second: the log ends at `top`, and its writer's connection breaks."""
    if (wire := writing.served.gateway.link._wire) is not None:
        wire.transport.abort()
    log = KEYS("log", id=task_id)
    end = f"{record_of(store, task_id)['epoch']}-{top}"
    kept = store.xrange(log, "-", end)
    with store.pipeline() as at_once:  # (Redis 8 takes back no id that was deleted)
        at_once.delete(log)
        for entry, fields in kept:
            at_once.xadd(log, fields, entry)
        at_once.execute()
    if "top" in record_of(store, task_id):
        change_record(store, task_id, top=top)


async def test_a_log_that_lost_its_end_is_filled_up_again_by_its_writer(pair: MakePair, store: Store) -> None:
    async with pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            frames = await stream.take(1)
            for number in range(6):
                await worker.chunk(task, f"{number}")
                frames += await stream.take(1)
            forget(store, task_id, 3, a)
            await worker.chunk(task, "6")
            frames += await stream.take(1)
            forget(store, task_id, 5, a)
            await worker.answer(task)
            frames += await stream.log()
        assert joined_text(frames) == "0123456"
        assert frames == await read_all(a, task_id) == await read_all(b, task_id)


async def test_readers_of_what_is_lost_for_good_are_told_and_begin_anew(pair: MakePair, store: Store) -> None:
    """The log is short and its writer is gone; its end is written anew at a place that readers have passed."""
    async with pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            frames = await stream.take(1)
            for number in range(5):
                await worker.chunk(task, f"{number}")
                frames += await stream.take(1)
            forget(store, task_id, 3, a)
            assert (await b.http.post(f"/api/task/{task_id}/cancel")).status_code == 200
            farewell = [await stream.frame() for _ in range(3)]
            assert [frame.event for frame in farewell if frame] == ["gap", "restart", "bye"]
            assert await stream.frame() is None
        async with await RawStream.open(b.served.url, path(task_id), last=frames[-1].id) as again:
            told = [await again.frame(), await again.frame()]
            assert [frame.event for frame in told if frame] == ["gap", "restart"]
            rest = await again.log()
        assert [frame.event for frame in rest] == ["start", "chunk", "chunk", "cancelled"]


def write_anew(store: Store, task_id: str, count: int) -> None:
    """Another attempt has written so many events where the log was; nobody was told."""
    log = KEYS("log", id=task_id)
    store.delete(log)
    start = f'{{"taskId":"{task_id}","ts":1,"attempt":1,"model":"default","queue":"free_batch"}}'
    store.xadd(log, {"type": "start", "data": start}, id=f"{EPOCH}-1")
    for number in range(2, count + 1):
        store.xadd(log, {"type": "chunk", "data": chunk(task_id)}, id=f"{EPOCH}-{number}")
    change_record(store, task_id, top=count, epoch=EPOCH, token="another")


def chunk(task_id: str) -> str:
    return f'{{"taskId":"{task_id}","ts":1,"index":0,"kind":"text","delta":"new","n":1}}'


async def test_a_cursor_from_before_the_loss_is_not_taken_for_one_of_the_new_log(
    pair: MakePair, store: Store
) -> None:
    """The next attempt has filled the places that the reader has seen with other events."""
    async with pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(a.served.url, path(task_id)) as stream:
            await worker.chunk(task, "old")
            last = (await stream.take(2))[-1].id
        write_anew(store, task_id, 8)
        async with await RawStream.open(b.served.url, path(task_id), last=last) as again:
            told = [await again.frame(), await again.frame()]
            assert [frame.event for frame in told if frame] == ["gap", "restart"]
            assert [frame.id for frame in await again.take(8)] == [f"{EPOCH}-{n}" for n in range(1, 9)]


@pytest.mark.parametrize("told", [True, False])
async def test_what_follows_a_log_that_was_written_anew_is_not_taken_for_its_continuation(
    pair: MakePair, store: Store, *, told: bool
) -> None:
    """It has as many events as the reader has seen, and the next one comes; or none does, and the comparison finds out."""
    async with pair() as (a, b), a.worker() as worker:
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            await stream.take(1)
            for number in range(3):
                await worker.chunk(task, f"{number}")
                await stream.take(1)
            write_anew(store, task_id, 4)
            if told:
                b.served.gateway.hub.silent_s = 3600.0
                write_anew(store, task_id, 5)
                channel = KEYS.channel(b.served.gateway.replica)
                store.execute_command(
                    "SPUBLISH", channel, f"event\n{task_id}\n{EPOCH}-5\nchunk\n{chunk(task_id)}"
                )
            else:
                hasten(b)
            farewell = [await stream.frame() for _ in range(3)]
            assert [frame.event for frame in farewell if frame] == ["gap", "restart", "bye"]


async def test_a_second_reader_of_a_log_that_was_written_anew_gets_all_of_it(
    pair: MakePair, store: Store
) -> None:
    """The first one has not noticed yet."""
    async with pair() as (a, b), a.worker() as worker:
        b.served.gateway.hub.silent_s = 3600.0
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as first:
            await worker.chunk(task, "old")
            await first.take(2)
            write_anew(store, task_id, 3)
            async with await RawStream.open(b.served.url, path(task_id)) as second:
                assert [frame.id for frame in await second.take(3)] == [f"{EPOCH}-{n}" for n in (1, 2, 3)]
            frame = await first.frame()
            assert frame is not None
            assert frame.event == "gap"


async def test_a_lost_end_is_noticed_without_any_message(pair: MakePair, store: Store) -> None:
    """The replica is not even known as a reader any more: the comparison finds what happened."""
    async with pair() as (a, b), a.worker() as worker:
        hasten(b)
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            await stream.take(1)
            for number in range(3):
                await worker.chunk(task, f"{number}")
                await stream.take(1)
            forget(store, task_id, 2, a)
            change_record(store, task_id, readers="")
            assert (await b.http.post(f"/api/task/{task_id}/cancel")).status_code == 200
            frame = await stream.frame()
            assert frame is not None
            assert frame.event == "gap"


async def test_after_the_store_was_away_readers_are_registered_again(pair: MakePair, store: Store) -> None:
    async with pair() as (a, b), a.worker() as worker:
        b.served.gateway.hub.silent_s = 3600.0
        task_id = await a.submit()
        task = await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            await stream.take(1)
            change_record(store, task_id, readers="")
            store.execute_command("CLIENT", "KILL", "TYPE", "normal")
            await until(lambda: bool(record_of(store, task_id)["readers"]), "the reader's replica")
            await worker.chunk(task, "x")
            frames = await stream.take(1)
            await worker.answer(task)
            assert joined_text(frames + await stream.log()) == "x"


async def test_a_record_that_vanished_ends_its_readers(pair: MakePair, store: Store) -> None:
    async with pair() as (a, b), a.worker() as worker:
        hasten(b)
        task_id = await a.submit()
        await worker.take()
        async with await RawStream.open(b.served.url, path(task_id)) as stream:
            await stream.take(1)
            store.flushall()
            frame = await stream.frame()
            assert frame is not None
            assert frame.event == "gap"
            told = [await stream.frame() for _ in range(2)]
            assert [frame.event for frame in told if frame] == ["restart", "bye"]
        async with await RawStream.open(b.served.url, path(task_id), last="1-1") as gone:
            assert gone.status == 404
