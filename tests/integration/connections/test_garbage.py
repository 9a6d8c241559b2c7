"""A connection that is over leaves nothing for the cyclic collector, which would hold up every stream."""

import asyncio
import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.rawhttp import HANDSHAKE, Caller, request
from tests.support.serving import until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop of gateways; asyncio's own transports are cycles in themselves (each holds a method of its own)."""
    pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": True}


ROUNDS = 100
CHUNKED = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}


@contextlib.contextmanager
def collected() -> Iterator[list[Any]]:
    """What only the collector could free of what was made meanwhile."""
    gc.collect()
    gc.disable()
    found: list[Any] = []
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def kept_alive(caller: Caller) -> None:
    for path in ("/livez", "/api/me", "/dashboard", "/v1/models"):
        assert caller.ask(request("GET", path))[0] == 200


def refused_by_the_application(caller: Caller) -> None:
    assert caller.ask(request("GET", "/nothing"))[0] == 404
    assert caller.ask(request("POST", "/api/openai", body=b"[]"))[0] == 400


def refused_by_the_connection(caller: Caller) -> None:
    caller.send(b"hello\r\n\r\n")
    assert caller.rest().startswith(b"HTTP/1.1 400 ")


def gone_in_the_body(caller: Caller) -> None:
    caller.send(request("POST", "/api/openai", CHUNKED) + b'4\r\n{"a"\r\n')


def stream_cut_by_the_client(caller: Caller) -> None:
    caller.send(request("POST", "/api/openai", body=b'{"stream":true}'))
    caller.until(b"event: ")


def upgrade_refused(caller: Caller) -> None:
    caller.send(request("GET", "/nowhere", HANDSHAKE))
    assert b" 426 " in caller.rest()


CONNECTIONS = (
    kept_alive,
    refused_by_the_application,
    refused_by_the_connection,
    gone_in_the_body,
    stream_cut_by_the_client,
    upgrade_refused,
)


@pytest.mark.parametrize("use", CONNECTIONS)
async def test_a_connection_leaves_nothing_for_the_collector(
    redis_url: str, tmp_path: Path, use: Callable[[Caller], None]
) -> None:
    async with talking(redis_url, tmp_path, max_queue_length=1000, linger_ms=1) as talk, talk.worker():

        def all_of_them(number: int) -> None:
            for _ in range(number):
                with Caller(talk.served.url) as caller:
                    use(caller)

        await asyncio.to_thread(all_of_them, 2)  # what is made once
        await over(talk)
        with collected() as garbage:
            await asyncio.to_thread(all_of_them, ROUNDS)
            await over(talk)
        kinds = Counter(type(thing).__qualname__ for thing in garbage)
        assert len(garbage) < ROUNDS, kinds.most_common(20)


async def over(talk: Talk) -> None:
    """Return when only the worker's connection is there, nobody waits for anything, and no task is left."""
    connections = talk.served.gateway.connections
    await until(lambda: len(connections.open) == 1, "the connections to be over")
    await until(lambda: not talk.served.gateway.tasks.open_answers, "the answers to be over")
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_workers_connection_leaves_nothing_of_ours_for_the_collector(
    redis_url: str, tmp_path: Path
) -> None:
    async with talking(redis_url, tmp_path) as talk:
        connections = talk.served.gateway.connections

        def connect_and_leave(number: int) -> None:
            for _ in range(number):
                with Caller(talk.served.url) as caller:
                    caller.send(request("GET", "/ws", HANDSHAKE))
                    assert b" 101 " in caller.until(b"\r\n\r\n")

        async def gone() -> None:
            await until(lambda: not connections.open, "the workers to be gone")

        await asyncio.to_thread(connect_and_leave, 2)
        await gone()
        with collected() as garbage:
            await asyncio.to_thread(connect_and_leave, 20)
            await gone()
        ours = [
            thing for thing in garbage if type(thing).__module__.startswith("fairlane.gateway.connections")
        ]
        assert ours == []
