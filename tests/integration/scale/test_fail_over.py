"""Primaries are killed while tasks of all kinds run. No accepted task is lost or answered twice, except those whose acknowledged
write the fail-over lost, and these end with a clear error.

FAIRLANE_KILLS kills that many times, one by default (`make scale`: twenty).
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.clusters import running_cluster, running_sentinels
from tests.support.servers import redis_binary, valkey_binary
from tests.support.talk import Talk, talking

from fairlane.queues.keys import pool_prefix

from .load import Load, settled

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("FAIRLANE_KILLS", "1"))
RATE = float(os.environ.get("FAIRLANE_RATE", "60"))
PREFIX = pool_prefix()


@asynccontextmanager
async def loaded(redis_url: str, folder: Path, gateways: int = 2) -> AsyncIterator[Load]:
    """Gateways on one Redis, with workers and requests."""
    async with AsyncExitStack() as stack:
        talks: list[Talk] = [
            await stack.enter_async_context(talking(redis_url, folder / str(number)))
            for number in range(gateways)
        ]
        load = Load(talks)
        async with load.workers(), load.running(RATE):
            await settled(load)
            yield load
            await settled(load)


def check(load: Load, faults: int) -> None:
    print(dict(load.outcomes), dict(load.codes))
    assert load.wrong == []
    assert load.outcomes["ok"] > 0
    assert load.outcomes["lost"] + load.outcomes["failed"] <= RATE * faults, "a second's tasks per fail-over"


@pytest.mark.parametrize("binary", [redis_binary(), valkey_binary()], ids=["redis", "valkey"])
async def test_a_primary_of_a_cluster_is_killed(binary: str | None, tmp_path: Path) -> None:
    if binary is None:
        pytest.skip("not installed")
    with running_cluster(3, 1, binary) as cluster:
        async with loaded(cluster.url, tmp_path) as load:
            for _ in range(KILLS):
                killed = cluster.owner(PREFIX)
                killed.stop()
                await asyncio.to_thread(cluster.fails_over, PREFIX, killed)
                await settled(load)
                killed.start()
                await asyncio.to_thread(cluster.follows, killed)
    check(load, KILLS)


async def test_the_slot_of_a_pool_moves_to_another_primary(tmp_path: Path) -> None:
    with running_cluster(3, 0) as cluster:
        async with loaded(cluster.url, tmp_path) as load:
            for _ in range(KILLS):
                before = cluster.owner(PREFIX)
                target = next(node for node in cluster.nodes if node is not before)
                await asyncio.to_thread(cluster.move_slot, PREFIX, target)
                await settled(load)
    check(load, 0)


@pytest.mark.skipif(redis_binary() is None, reason="Valkey's wheel has no Sentinel")
async def test_sentinels_promote_a_replica(tmp_path: Path) -> None:
    with running_sentinels() as watched:
        async with loaded(watched.url, tmp_path) as load:
            for _ in range(KILLS):
                before = watched.primary()
                before.stop()
                await asyncio.to_thread(watched.promoted, before)
                await settled(load)
                before.start()
                await asyncio.to_thread(watched.follows, before)
    check(load, KILLS)
