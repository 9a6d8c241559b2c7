"""What stands around a request's body: trailers, chunk extensions, tiny chunks, repeated headers. None of it buys anything."""

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest
from tests.support.processes import gateway_process
from tests.support.rawhttp import HEALTH, Caller, request
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHUNKED = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
MB = 1_000_000


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


async def test_trailers_are_no_headers(shared_gateway: Start) -> None:
    key = {"id": "back", "sha256": hashlib.sha256(b"secret").hexdigest(), "delegating": True}
    async with shared_gateway(keys=[key]) as talk:

        def call() -> None:
            body = chunk(b'{"async":true}')
            with Caller(talk.served.url) as caller:
                late = b"0\r\nAuthorization: Bearer secret\r\n\r\n"
                status, _, _ = caller.ask(request("POST", "/api/openai", CHUNKED) + body + late)
                assert status == 401
            with Caller(talk.served.url) as caller:
                headers = {**CHUNKED, "Authorization": "Bearer secret", "X-Fairlane-User": "ann"}
                late = b"0\r\nX-Fairlane-User: eve\r\nX-Fairlane-Tier: paid\r\n\r\n"
                # in one piece: an answer that is there before the end of the body closes the connection
                status, _, said = caller.ask(request("GET", "/api/me", headers) + body + late)
                assert (status, b'"ann"' in said or b"/ann" in said, b"eve" in said) == (200, True, False)
                assert caller.ask(HEALTH)[0] == 200  # and the connection goes on

        await asyncio.to_thread(call)


@pytest.mark.slow
async def test_bytes_that_are_no_body_are_cut_off_and_take_no_memory(redis_url: str, tmp_path: Path) -> None:
    async with gateway_process(tmp_path, redis_url) as gateway:
        process = psutil.Process(gateway.pid)
        begin = request("GET", "/livez", {"Transfer-Encoding": "chunked"})
        names = b"".join(b"T%05d: %b\r\n" % (number, b"v" * 20) for number in range(2000))
        floods = {
            "trailers": (begin + b"0\r\n", names),
            "one long trailer": (begin + b"0\r\nT: ", b"v" * 60_000),
            "a chunk extension": (begin + b"1;", b"e" * 60_000),
            "chunk extensions": (begin, chunk(b"x", b";" + b"e" * 500) * 100),
            "a long head": (b"GET /livez HTTP/1.1\r\nX: ", b"v" * 60_000),
            "a long first line": (b"GET /", b"v" * 60_000),
            "line breaks": (b"", b"\r\n" * 30_000),
            "requests sent ahead": (b"", HEALTH * 500),
        }

        def flood(start: bytes, block: bytes) -> None:
            """Send 30 MB, or as much as is taken, and wait for the end of the connection."""
            with Caller(gateway.url) as caller:
                caller.send(start)
                sent = 0
                while sent < 30 * MB and caller.send(block):
                    sent += len(block)
                caller.rest()

        await asyncio.to_thread(flood, *floods["trailers"])
        before = process.memory_info().rss
        for what, (start, block) in floods.items():
            await asyncio.to_thread(flood, start, block)
            grown = (process.memory_info().rss - before) / MB
            assert grown < 12, f"memory grew by {grown:.1f} MB: {what}"


async def test_a_flood_of_trailers_is_answered_and_the_call_ends(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:

        def call() -> bytes:
            with Caller(talk.served.url) as caller:
                caller.send(
                    request("POST", "/api/openai", CHUNKED) + chunk(b"{}") + b"0\r\nT: " + b"v" * 200_000
                )
                return caller.rest()

        said = await asyncio.to_thread(call)
        assert said.startswith(b"HTTP/1.1 431 ")
        assert b"HEAD_TOO_LARGE" in said


async def test_a_body_in_tiny_chunks_is_taken(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:

        def call() -> int:
            body = b'{"text":"%b"}' % (b"y" * 200_000)
            with Caller(talk.served.url) as caller:
                caller.send(request("POST", "/api/openai", CHUNKED))
                caller.send(b"".join(chunk(body[at : at + 1]) for at in range(len(body))) + b"0\r\n\r\n")
                return caller.answer()[0]

        answer = talk.later(asyncio.to_thread(call))
        task = await worker.take()
        assert len(task["payload"]["text"]) == 200_000
        await worker.answer(task, {})
        assert await answer == 200


@pytest.mark.parametrize(
    "headers",
    [
        "Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n",
        "Host: 127.0.0.1\r\nhost: evil.example\r\n",
        "Host: 127.0.0.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n",
        "Host: 127.0.0.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n",
        "Host: 127.0.0.1\r\nTransfer-Encoding: chunked, identity\r\n",
        "Host: 127.0.0.1\r\nTransfer-Encoding: xchunked\r\n",
        "Host: 127.0.0.1\r\nContent-Length: +2\r\n",
        "Host: 127.0.0.1\r\nContent-Length : 2\r\n",
        "Host: 127.0.0.1\r\nX: a\r\n folded\r\nContent-Length: 2\r\n",
        "Host: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n",
    ],
)
async def test_heads_that_others_may_read_differently_are_a_400(shared_gateway: Start, headers: str) -> None:
    async with shared_gateway() as talk:

        def call() -> bytes:
            with Caller(talk.served.url) as caller:
                caller.send(f"POST /livez HTTP/1.1\r\n{headers}\r\n{{}}".encode())
                return caller.rest()

        said = await asyncio.to_thread(call)
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert said.count(b"HTTP/1.1 4") == 1
        assert b"connection: close" in said


async def test_a_request_that_would_upgrade_to_something_else_is_answered_as_it_is(
    shared_gateway: Start,
) -> None:
    async with shared_gateway() as talk:

        def call() -> None:
            upgrade = {
                "Connection": "Upgrade, HTTP2-Settings",
                "Upgrade": "h2c",
                "HTTP2-Settings": "AAMAAABk",
            }
            with Caller(talk.served.url) as caller:
                assert caller.ask(request("GET", "/livez", upgrade))[0] == 200
                assert caller.ask(HEALTH)[0] == 200

        await asyncio.to_thread(call)


async def test_every_answer_forbids_to_guess_its_type(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:

        def call() -> None:
            for data in (
                HEALTH,
                request("GET", "/nothing"),
                request("GET", "/api/me"),
                request("GET", "/dashboard"),
                request("POST", "/v1/chat/completions", body=b"{}"),
                request("POST", "/api/openai", body=b'{"async":true}'),
                b"hello\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            ):
                with Caller(talk.served.url) as caller:
                    _, head, _ = caller.ask(data)
                    assert head.lower().count(b"x-content-type-options: nosniff\r\n") == 1, head

        await asyncio.to_thread(call)
