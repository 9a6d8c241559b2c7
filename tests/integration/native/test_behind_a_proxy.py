"""What strangers reach through a proxy on the gateway's own machine, which makes their requests look like this machine's own."""

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.native.keys import key, secret
from tests.support.proxy import Proxy, Reader, Writer
from tests.support.rawworkers import SUBPROTOCOL
from tests.support.serving import DEADLINE_S, http_client
from tests.support.talk import Talk
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


class HostRewritingProxy(Proxy):
    """Passes a connection on as its own: another Host, and no header that says so."""

    def __init__(self, talk: Talk) -> None:
        self._host = b"Host: " + talk.served.url.removeprefix("http://").encode()
        super().__init__(int(talk.served.url.rsplit(":", 1)[1]))

    async def pass_on(self, reader: Reader, writer: Writer, link: set[str], *, sends: bool) -> None:
        if sends:
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(re.sub(rb"(?im)^host:[^\r\n]*", self._host, head))
        await super().pass_on(reader, writer, link, sends=sends)


@pytest.mark.parametrize("subprotocols", [None, [SUBPROTOCOL]])
async def test_with_keys_no_worker_connects_without_a_token(
    shared_gateway: Start, subprotocols: list[str] | None
) -> None:
    async with shared_gateway(keys=[key("alice")], workers=[]) as talk:
        async with HostRewritingProxy(talk) as proxy:
            with pytest.raises(InvalidStatus) as refused:
                async with connect(
                    "ws://gateway.example/ws",
                    host="127.0.0.1",
                    port=proxy.port,
                    subprotocols=subprotocols,  # type: ignore[arg-type]
                    proxy=None,
                ):
                    pass
        assert refused.value.response.status_code == 401
        async with talk.client(secret("alice")) as alice:
            answer = await alice.post("/api/openai", json={"messages": []})
            assert (answer.status_code, answer.json()["error"]) == (503, "No worker available")


async def test_with_keys_a_stranger_reads_no_state(gateway: Start) -> None:
    async with gateway(keys=[key("alice")]) as talk, HostRewritingProxy(talk) as proxy, http_client() as http:
        for path in ("/api/admin/overview", "/metrics"):
            answer = await http.get(
                f"http://127.0.0.1:{proxy.port}{path}", headers={"Host": "gateway.example"}
            )
            assert answer.status_code == 401


async def test_without_keys_what_an_old_proxy_sends_is_refused(gateway: Start) -> None:
    async with gateway() as talk:
        port = int(talk.served.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /api/admin/overview HTTP/1.0\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % port
        )
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
        writer.close()
        assert answer.split(b" ")[1] == b"403"
        assert b"HTTP/1.0" in answer.partition(b"\r\n\r\n")[2]
