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

from fairlane.gateway.calls import bodies
from fairlane.gateway.connections import lines
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


async def test_a_caller_who_sent_more_ahead_and_hangs_up_is_noticed(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        with Caller(talk.served.url) as caller:
            caller.send(request("POST", "/api/openai", body=b"{}"))
            task = await worker.take()
            caller.send(request("POST", "/api/openai", body=body(20 * KB)))
        await talk.reaches(task["taskId"], "cancelled")


async def test_what_is_sent_ahead_is_bounded(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        with Caller(talk.served.url) as caller:
            caller.send(request("POST", "/api/openai", body=body(1)))
            task = await worker.take()
            large = request("POST", "/api/openai", body=body(8000 * KB))
            sending = talk.later(asyncio.to_thread(caller.send, large))
            (connection,) = (c for c in talk.served.gateway.connections.open if getattr(c, "answering", None))
            await until(lambda: connection.read_paused, "the connection not to be read")
            assert len(connection._ahead) < 600 * KB
            assert not sending.done()
            await worker.answer(task, {})
            second = await worker.take()
            assert await sending
            await worker.answer(second, {})
            for _ in range(2):
                assert (await asyncio.to_thread(caller.answer))[0] == 200


async def test_bodies_sent_ahead_are_bounded_all_together(shared_gateway: Start) -> None:
    """Each is small enough to be taken while the first call runs; the sum is not."""
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        first, other = (request("POST", "/api/openai", body=body(size)) for size in (1, 60 * KB))
        with Caller(talk.served.url) as caller:
            caller.send(first + other[:-1])  # a body that has begun: what follows it is parsed, not kept
            task = await worker.take()
            (connection,) = (c for c in talk.served.gateway.connections.open if getattr(c, "answering", None))
            sending = talk.later(asyncio.to_thread(caller.send, other[-1:] + 12 * other))
            await until(lambda: connection.read_paused, "the connection not to be read")
            held = len(connection._ahead or b"") + sum(e.unread for e in connection._queue or ())
            assert held < 600 * KB
            for number in range(14):
                await worker.answer(task, {})
                if number < 13:
                    task = await worker.take()
            assert await sending
            for _ in range(14):
                assert (await asyncio.to_thread(caller.answer))[0] == 200


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


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test says when waits are looked at, and what time it is then."""
    monkeypatch.setattr(lines, "TICK_S", 3600)


def look(talk: Talk) -> None:
    """Let a whole stall limit pass."""
    talk.served.gateway.connections.sweep(asyncio.get_running_loop().time() + lines.STALL_S)


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_reads_slowly_gets_everything(
    redis_url: str, tmp_path: Path, stream: bool
) -> None:
    size = 12_000 * KB
    async with talking(redis_url, tmp_path) as talk, lazy_reader(talk, stream, size) as caller:
        stalled = talk.served.gateway.connections.stalled
        await until(lambda: len(stalled) == 1, "the reader to stall")
        (connection,) = stalled._since
        got = 0
        for _ in range(10):
            before = connection._unwritten
            while connection._pending() > before - lines.STALL_BYTES:
                got += len(await asyncio.to_thread(caller.some, 40 * KB))
            look(talk)
            assert stalled._since.keys() == {connection}
        assert len(await asyncio.to_thread(caller.rest)) + got >= size


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_reads_in_drops_is_cut_off(redis_url: str, tmp_path: Path, stream: bool) -> None:
    size = 12_000 * KB
    async with talking(redis_url, tmp_path) as talk, lazy_reader(talk, stream, size) as caller:
        stalled = talk.served.gateway.connections.stalled
        await until(lambda: len(stalled) == 1, "the reader to stall")

        async def cut_off() -> bool:
            await asyncio.to_thread(caller.some, 100)
            look(talk)
            return len(stalled) == 0

        await until(cut_off, "the reader to be cut off")
        assert len(await asyncio.to_thread(caller.rest)) < size


async def test_an_answer_that_nobody_reads_is_an_open_call_and_little_of_it_is_written(
    redis_url: str, tmp_path: Path
) -> None:
    size = 12_000 * KB
    async with talking(redis_url, tmp_path) as talk, lazy_reader(talk, False, size):
        stalled = talk.served.gateway.connections.stalled
        await until(lambda: len(stalled) == 1, "the reader to stall")
        (connection,) = stalled._since
        assert connection.transport.get_write_buffer_size() < 300 * KB
        assert len(talk.served.gateway.calls) == 1


async def test_bodies_that_are_never_whole_are_bounded_by_caller_and_in_all(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_ARRIVING", 4_000_000)
    async with talking(redis_url, tmp_path) as talk, talk.worker() as worker:
        counts = talk.served.gateway.tasks.bodies.arriving
        part = request("POST", "/api/openai", {"X-Fairlane-User": "greedy"}, body=body(3000 * KB))[
            :-1_100_000
        ]
        with contextlib.ExitStack() as stack:
            first, second = (stack.enter_context(Caller(talk.served.url)) for _ in range(2))
            await asyncio.to_thread(first.send, part)
            await until(lambda: counts.total > 1_700_000, "what was sent to have come")
            await asyncio.to_thread(second.send, part)
            assert b"HTTP/1.1 503 " in await asyncio.to_thread(second.until, b'"BUSY"')
            call = talk.later(talk.http.post("/api/openai", content=body(900 * KB), headers=JSON))
            await worker.answer(await worker.take(), {})
            assert (await call).status_code == 200, "others have room"
        await until(lambda: not counts.total, "nothing to be counted any more")
        assert not counts._held


@pytest.mark.usefixtures("no_ticks")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_reads_nothing_is_cut_off(redis_url: str, tmp_path: Path, stream: bool) -> None:
    size = 12_000 * KB
    async with talking(redis_url, tmp_path) as talk, lazy_reader(talk, stream, size) as caller:
        stalled = talk.served.gateway.connections.stalled
        await until(lambda: len(stalled) == 1, "the reader to stall")

        def cut_off() -> bool:
            look(talk)
            return len(stalled) == 0

        await until(cut_off, "the reader to be cut off")
        assert len(await asyncio.to_thread(caller.rest)) < size
