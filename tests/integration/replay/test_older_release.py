"""Tasks that a replica of the release before runs: its ids are `<attempt>-<number>`, and its records hold no epoch."""

from typing import Any

import pytest
from tests.integration.replay.conftest import MakePair
from tests.support.streams import RawStream, joined_text

pytestmark = pytest.mark.anyio


def make_older(store: Any, keys: Any, task_id: str) -> None:
    """Rewrite a running task as that release keeps it."""
    log, record = keys("log", id=task_id), keys("task", id=task_id)
    entries = store.xrange(log)
    store.delete(log)
    for number, (_, fields) in enumerate(entries, 1):
        store.xadd(log, fields, f"1-{number}")
    store.hdel(record, "ep")


@pytest.mark.parametrize("seen", [None, "1-2"])
async def test_a_stream_of_an_older_replica_is_read_here_from_anywhere(
    pair: MakePair, store: Any, seen: str | None
) -> None:
    async with pair() as (old, new), old.worker() as worker:
        task_id = await old.submit()
        task = await worker.take()
        async with old.events(f"/api/task/{task_id}/events") as reader:
            for word in ("one ", "two "):
                await worker.chunk(task, word)
                await reader.until("chunk")
        gateway = new.served.gateway
        log = gateway.keys("log", id=task_id)
        make_older(store, gateway.keys, task_id)
        async with await RawStream.open(new.served.url, f"/api/task/{task_id}/events", last=seen) as stream:
            frames = await stream.take(1 if seen else 3)
            for number, word in ((4, "three "), (5, "four ")):  # what the older replica goes on to write
                [(_, event)] = store.xrange(log, "1-3", "1-3")
                event[b"data"] = event[b"data"].replace(b"two ", word.encode())
                store.xadd(log, event, f"1-{number}")
                store.hset(gateway.keys("task", id=task_id), "sq", number)
                gateway.hub.check_soon()
                frames += await stream.take(1)
        assert {frame.event for frame in frames} <= {"start", "chunk"}
        assert frames[-1].id == "1-5"
        assert joined_text(frames) == ("two three four " if seen else "one two three four ")
