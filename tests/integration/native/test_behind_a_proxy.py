"""What strangers reach through a proxy on the gateway's own machine, which makes their requests look like this machine's own."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import DEADLINE_S, http_client
from tests.support.talk import V2, Talk
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


@contextlib.asynccontextmanager
async def host_rewriting_proxy(port: int) -> AsyncIterator[int]:
    """The port of a proxy that passes a connection on as its own: another Host, and no header that says so."""
    links: set[asyncio.Task[None]] = set()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link
        links.add(link)
        behind, before = await asyncio.open_connection("127.0.0.1", port)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            before.write(re.sub(rb"(?im)^host:[^\r\n]*", b"Host: 127.0.0.1:%d" % port, head))
            ways = [asyncio.ensure_future(pass_on(*way)) for way in ((reader, before), (behind, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            before.transport.abort()
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


@pytest.mark.parametrize("subprotocols", [None, [V2]])
async def test_with_keys_no_worker_connects_without_a_token(
    gateway: Start, subprotocols: list[str] | None
) -> None:
    async with gateway(keys=[key("alice")], workers=[]) as talk:
        async with host_rewriting_proxy(int(talk.served.url.rsplit(":", 1)[1])) as port:
            with pytest.raises(InvalidStatus) as refused:
                async with connect(
                    "ws://gateway.example/ws",
                    host="127.0.0.1",
                    port=port,
                    subprotocols=subprotocols,  # type: ignore[arg-type]
                    proxy=None,
                ):
                    pass
        assert refused.value.response.status_code == 401
        async with talk.client(secret("alice")) as alice:
            answer = await alice.post("/api/openai", json={"messages": []})
            assert (answer.status_code, answer.json()["error"]) == (503, "No worker available")


async def test_with_keys_a_stranger_reads_no_state(gateway: Start) -> None:
    async with (
        gateway(keys=[key("alice")]) as talk,
        host_rewriting_proxy(int(talk.served.url.rsplit(":", 1)[1])) as port,
        http_client() as http,
    ):
        for path in ("/api/admin/state", "/metrics"):
            answer = await http.get(f"http://127.0.0.1:{port}{path}", headers={"Host": "gateway.example"})
            assert answer.status_code == 401


async def test_without_keys_what_an_old_proxy_sends_is_refused(gateway: Start) -> None:
    async with gateway() as talk:
        port = int(talk.served.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /api/admin/state HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port
        )
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
        writer.close()
        assert answer.split(b" ")[1] == b"403"
        assert b"HTTP/1.0" in answer.partition(b"\r\n\r\n")[2]
