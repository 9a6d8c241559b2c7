"""Callers who hang up, stall or vanish while their call is under way."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.rawhttp import Caller, request
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.connections import http
from fairlane.gateway.connections.sockets import PROBE_S, PROBES, SILENT_S, VANISHED_S

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
KB = 1000
CLOSE = {"Connection": "close"}
JSON = {"Content-Type": "application/json"}
CALLS: list[tuple[str, str]] = [
    ("/api/openai", '"model":"m"'),
    ("/v1/chat/completions", '"model":"m"'),
    ("/v1/chat/completions", '"model":"m","stream":true'),
]


def body(size: int, fields: str = '"model":"m"') -> bytes:
    return b'{"messages":[{"role":"user","content":"%b"}],%b}' % (b"x" * size, fields.encode())


@pytest.mark.parametrize("size", [1, 200 * KB, 2000 * KB, 16_000 * KB])
@pytest.mark.parametrize(("path", "fields"), CALLS)
async def test_a_caller_who_hangs_up_is_noticed_however_large_the_body_was(
    shared_gateway: Start, path: str, fields: str, size: int
) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        with Caller(talk.served.url) as caller:
            await asyncio.to_thread(caller.send, request("POST", path, body=body(size, fields)))
            task = await worker.take()
        frame = await worker.recv()
        assert (frame["type"], frame["taskId"], frame["reason"]) == ("cancel", task["taskId"], "client")
        await talk.reaches(task["taskId"], "cancelled")


async def test_a_caller_who_hangs_up_while_its_task_waits_is_noticed(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        call = talk.sync()
        task = await worker.take()
        with Caller(talk.served.url) as caller:
            await asyncio.to_thread(caller.send, request("POST", "/api/openai", body=body(200 * KB)))
            await talk.waiting(1)
        await talk.waiting(0)
        await worker.answer(task, {})
        assert (await call).status_code == 200


async def test_a_client_that_closes_its_sending_side_has_left(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        with Caller(talk.served.url) as caller:
            caller.send(request("POST", "/api/openai", body=b"{}"))
            task = await worker.take()
            caller.half_close()
            await talk.reaches(task["taskId"], "cancelled")


async def test_connections_end_when_the_peers_system_does_not_answer(redis_url: str, tmp_path: Path) -> None:
    async with talking(redis_url, tmp_path) as talk, talk.worker(), talk.worker2(["m"]):
        with Caller(talk.served.url):
            await until(lambda: len(talk.served.gateway.connections.open) >= 3, "the connections")
            for connection in talk.served.gateway.connections.open:
                accepted = connection.transport.get_extra_info("socket")

                def option(level: int, name: int, accepted: Any = accepted) -> int:
                    return int(accepted.getsockopt(level, name))

                assert option(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == SILENT_S
                    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == PROBE_S
                    assert option(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == PROBES
                    assert option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == VANISHED_S * 1000


# ---- readers ----------


@contextlib.asynccontextmanager
async def lazy_reader(talk: Talk, stream: bool, size: int) -> Any:
    """Someone whose answer of `size` bytes is there and who has not read any of it."""
    async with talk.worker() as worker:
        with Caller(talk.served.url, receive_buffer=4096) as caller:
            caller.send(request("POST", "/api/openai", CLOSE, body=b'{"stream":true}' if stream else b"{}"))
            task = await worker.take()
            if stream:
                for _ in range(size // 60_000):
                    await worker.chunk(task, "x" * 60_000)
            await worker.answer(task, {"content": "" if stream else "x" * size})
            yield caller


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_reads_gets_everything_and_one_that_reads_nothing_is_cut_off(
    redis_url: str, tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 12_000 * KB
    async with talking(redis_url, tmp_path) as talk:
        async with lazy_reader(talk, stream, size) as caller:
            assert len(await asyncio.to_thread(caller.rest)) >= size
        monkeypatch.setattr(http, "STALL_S", 0.5)
        async with lazy_reader(talk, stream, size) as caller:
            await until(lambda: not len(talk.served.gateway.calls), "the reader to be cut off")
            assert len(await asyncio.to_thread(caller.rest)) < size
