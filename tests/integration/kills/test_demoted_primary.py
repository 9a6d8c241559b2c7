"""The Redis behind the address becomes a replica and another one the primary, as a fail-over does it: the gateway goes over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs
from tests.support.proxy import ChaosProxy
from tests.support.servers import Server, any_binary, free_port, running_server
from tests.support.serving import until
from tests.support.streams import RawStream, joined_text
from tests.support.talk import Talk, talking

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.keys import pool_prefix
from fairlane.queues.store.address import Address
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts

pytestmark = pytest.mark.anyio

OPTIONS = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


@dataclass
class Couple:
    """Two servers of which one follows the other; the proxy leads to the first, until it is switched."""

    servers: tuple[Server, Server]
    clients: tuple[Any, Any]
    proxy: ChaosProxy

    async def synchronous(self) -> None:
        """Return when the follower has everything."""

        def same() -> bool:
            first, second = (client.info("replication") for client in self.clients)
            return bool(
                second.get("master_link_status") == "up"
                and first["master_repl_offset"] == second["master_repl_offset"]
            )

        await until(same, "the replica to follow")

    def demote(self) -> None:
        """The second is the primary from now on; connections to the first stay as they are."""
        first, second = self.clients
        second.replicaof("NO", "ONE")
        first.replicaof("127.0.0.1", str(self.servers[1].port))

    def switch(self) -> None:
        """New connections lead to the second."""
        self.proxy.target = self.servers[1].socket_path

    def listening(self, channel: str) -> list[int]:
        """How many connections listen to a channel, at each."""
        return [int(client.pubsub_shardnumsub(channel)[0][1]) for client in self.clients]


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    with (
        running_server(any_binary(), *OPTIONS, port=free_port()) as first,
        running_server(any_binary(), *OPTIONS, port=free_port()) as second,
    ):
        yield first, second


@pytest.fixture
async def couple(servers: tuple[Server, Server]) -> AsyncIterator[Couple]:
    first, second = servers
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis(unix_socket_path=s.socket_path)) for s in servers]
        clients[1].replicaof("127.0.0.1", str(first.port))
        async with ChaosProxy(first.socket_path) as proxy:
            couple = Couple((first, second), (clients[0], clients[1]), proxy)
            await couple.synchronous()
            yield couple


async def ready(talk: Talk) -> bool:
    return (await talk.http.get("/readyz")).status_code == 200


async def test_commands_and_messages_go_over_to_the_new_primary(couple: Couple, tmp_path: Path) -> None:
    settings = {"stream_flush_interval_ms": 0, "stream_flush_size": 1}
    async with (
        talking(couple.proxy.url, tmp_path / "a", **settings) as talk,
        talking(couple.proxy.url, tmp_path / "b", **settings) as other,
        talk.worker2(["m"], slots=4) as worker,
    ):
        task_id = await talk.submit(model="m")
        task = await worker.take()
        async with await RawStream.open(other.served.url, f"/api/task/{task_id}/events") as stream:
            await worker.chunk(task, "before ", 1)
            frames = await stream.take(2)
            await couple.synchronous()

            couple.demote()
            for gateway in (talk, other):
                await until(lambda gateway=gateway: not gateway.served.gateway.link.up, "the link to break")
                assert not await ready(gateway)
            await worker.chunk(task, "meanwhile ", 2)
            assert not await ready(talk), "the address still leads to the replica"
            assert "no primary" in talk.served.gateway.link.last_error

            couple.switch()
            for gateway in (talk, other):
                await until(lambda gateway=gateway: ready(gateway), "the gateway to be ready again")
                channel = gateway.served.gateway.keys.channel(gateway.served.gateway.replica)
                await until(
                    lambda channel=channel: couple.listening(channel) == [0, 1],
                    "the channel to follow the commands",
                )
            await worker.chunk(task, "after", 3)
            await worker.answer(task, None, lastSeq=3)
            frames += await stream.log()
        assert joined_text(frames) == "before meanwhile after"
        call = other.sync(model="m")
        task = await worker.take()
        await worker.answer(task, "on the new primary")
        assert (await call).json() == "on the new primary"


async def test_a_primary_that_accepts_writes_without_its_replicas_is_reported(
    couple: Couple, tmp_path: Path
) -> None:
    with capture_logs() as lines:
        async with talking(couple.proxy.url, tmp_path / "a"):
            couple.clients[0].config_set("min-replicas-to-write", "1")
        async with talking(couple.proxy.url, tmp_path / "b"):
            pass
    assert [line["replicas"] for line in lines if "min-replicas-to-write 1" in line["event"]] == [1]


async def test_a_command_that_a_redis_replica_rejects_had_no_effect_and_one_under_way_may_have(
    couple: Couple, tmp_path: Path
) -> None:
    async with talking(couple.proxy.url, tmp_path) as talk:
        link = talk.served.gateway.link
        await until(lambda: not link._pending, "nothing of the gateway's own to be under way")
        couple.demote()
        calls = [link.command("SET", f"mine:{number}", "x") for number in range(3)]
        refused, *under_way = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(refused, StoreUnavailable)
        assert not refused.sent
        assert [isinstance(error, StoreUnavailable) for error in under_way] == [True, True]
        couple.switch()
        await until(lambda: ready(talk), "the gateway to be ready again")


async def test_no_connection_to_a_redis_replica_is_used(couple: Couple) -> None:
    couple.switch()
    link = RedisLink(Address(couple.proxy.url), load_scripts(), pool_prefix())
    with pytest.raises(StoreUnavailable, match="no primary"):
        await link.start(wait_ms=300)
