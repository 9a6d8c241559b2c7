"""The gateway's connections: a bounded head, a client that does not read, a client that says nothing."""

import asyncio
from pathlib import Path

import pytest
from tests.support.rawhttp import HEALTH, Caller, request
from tests.support.serving import Served, serving, until
from tests.support.talk import talking

from fairlane.gateway.connections import http
from fairlane.gateway.connections.http import HttpConnection

pytestmark = pytest.mark.anyio


async def exchange(served: Served, *pieces: bytes) -> bytes:
    """What the gateway answers to these bytes, until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(15):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_too_large_a_head_is_answered_with_431(redis_url: str, tmp_path: Path) -> None:
    async with serving(redis_url, tmp_path) as served:
        head = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
        assert b" 431 " in await exchange(
            served, head + b"".join(b"H%d: 1\r\n" % i for i in range(200)) + b"\r\n"
        )
        assert b" 431 " in await exchange(served, head + b"A: " + b"a" * 70_000 + b"\r\n\r\n")
        assert b" 200 " in await exchange(served, head + b"Connection: close\r\n\r\n")


async def test_a_head_that_never_ends_is_given_up(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    async with serving(redis_url, tmp_path) as served:
        assert await exchange(served, b"GET /hea") == b""
        assert await exchange(served) == b""


async def test_a_stream_that_waits_keeps_nothing_of_its_request_and_its_connection_goes_on(
    redis_url: str, tmp_path: Path
) -> None:
    async with talking(redis_url, tmp_path) as talk, talk.worker() as worker:
        caller = Caller(talk.served.url)
        try:
            body = b'{"model":"m","messages":[],"stream":true}'
            await asyncio.to_thread(caller.send, request("POST", "/v1/chat/completions", body=body))
            task = await worker.take()
            await worker.chunk(task, "first")

            def quiet() -> list[HttpConnection]:
                every = [
                    one for one in talk.served.gateway.connections.open if isinstance(one, HttpConnection)
                ]
                return [
                    one for one in every if one.answering and one.answering.started and one.parser is None
                ]

            await until(lambda: len(quiet()) == 1, "a stream that waits")
            assert quiet()[0].answering.scope == {}  # type: ignore[union-attr]
            await worker.answer(task, None)
            assert b"first" in await asyncio.to_thread(caller.until, b"[DONE]\n\n\r\n0\r\n\r\n")
            assert (await asyncio.to_thread(caller.ask, HEALTH))[0] == 200
        finally:
            caller.close()
