"""Names that lead elsewhere: rebinding, redirects, TLS and proxies. Loopback stands for the internet: 127.0.0.2 is allowed here,
127.0.0.1 is the private service that nobody may reach.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.integration.http_worker.targets import (
    LOOPS,
    Asked,
    Certificates,
    Names,
    Target,
    answer,
    call,
    fails,
    payload,
    says,
    target,
)

from fairlane.workers.adapters.endpoints.http import HttpAdapter

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


Make = Callable[..., HttpAdapter]

OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"
ALLOWED = {"allowPrivate": [f"{OUTSIDE}/32", "127.0.0.3/32"]}


@contextlib.asynccontextmanager
async def two(outside_says: object = says(answer(b"outside"))) -> AsyncIterator[tuple[Target, Target]]:
    """A server outside and one inside, at the same port."""
    async with contextlib.AsyncExitStack() as stack:
        while True:
            outside = await stack.enter_async_context(target(outside_says, host=OUTSIDE))  # type: ignore[arg-type]
            try:
                inside = await stack.enter_async_context(
                    target(says(answer(b"inside")), host=INSIDE, port=outside.port)
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue  # somebody has that port inside: another one
            break
        yield outside, inside


# ---- names ----------------------------------------------------------------------------------------------------------


async def test_what_is_connected_to_is_the_address_that_was_checked(make: Make) -> None:
    """A name that leads inside whenever it is asked once more."""
    names = Names(a_example=[[OUTSIDE], [INSIDE]])
    adapter = make(resolve=names)
    async with two() as (outside, inside):
        told = await call(adapter, payload(outside.url(host="a.example"), rules=ALLOWED))
        assert told["body"] == "outside"
        assert names.asked == ["a.example"]
        assert outside.asked[0].header("host") == [f"a.example:{outside.port}"]
        await adapter.aclose()
        refused = await fails(adapter, payload(outside.url(host="a.example"), rules=ALLOWED))
    assert refused.code == "ADDRESS_REFUSED"
    assert inside.connections == 0


@pytest.mark.parametrize(
    "rows",
    [[OUTSIDE, INSIDE], [INSIDE, OUTSIDE], [OUTSIDE, "::ffff:127.0.0.1"], [OUTSIDE, "169.254.169.254"]],
)
async def test_one_address_that_may_not_be_called_refuses_the_name(rows: list[str], make: Make) -> None:
    async with two() as (outside, inside):
        adapter = make(resolve=Names(a_example=[rows]))
        refused = await fails(adapter, payload(outside.url(host="a.example"), rules=ALLOWED))
    assert (refused.code, refused.retryable) == ("ADDRESS_REFUSED", False)
    assert not any(address in refused.message for address in rows)  # who asks learns nothing of networks
    assert outside.connections + inside.connections == 0


async def test_a_name_with_several_addresses_is_called_at_the_first_that_answers(make: Make) -> None:
    adapter = make(resolve=Names(a_example=[["127.0.0.3", OUTSIDE]]))
    async with two() as (outside, _):
        told = await call(adapter, payload(outside.url(host="a.example"), rules=ALLOWED))
        await adapter.aclose()
    assert told["body"] == "outside"


# ---- TLS ------------------------------------------------------------------------------------------------------------


async def test_tls_asks_for_the_name_and_not_for_the_address(certificates: Certificates, make: Make) -> None:
    told_names: list[str | None] = []
    server_tls = certificates.server
    server_tls.sni_callback = lambda _, name, __: told_names.append(name)
    adapter = make(resolve=Names(a_example=[[INSIDE]], b_example=[[INSIDE]]), tls=certificates.trusting)
    async with target(says(answer(b"x" * 90_000)), tls=server_tls) as server:
        for _ in range(2):
            told = await call(adapter, payload(server.url(host="a.example"), "POST", body="y" * 90_000))
            assert told["body"] == "x" * 90_000
        assert (await call(adapter, payload(server.url(host=INSIDE))))["status"] == 200
        failed = await fails(adapter, payload(server.url(host="b.example")))
        assert server.connections == 2
    assert told_names == ["a.example", None, "b.example"]
    assert server.asked[0].header("host") == [f"a.example:{server.port}"]
    assert server.asked[0].body == b"y" * 90_000
    assert failed.code == "UPSTREAM_ERROR"
    assert "b.example" in failed.message
    server_tls.sni_callback = None  # type: ignore[assignment]


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    certificates: Certificates, make: Make
) -> None:
    async with target(says(answer(b"x")), tls=certificates.server) as server:
        failed = await fails(make(), payload(server.url(), "POST"))
    assert (failed.code, failed.retryable) == ("UPSTREAM_ERROR", False)
    assert "self-signed certificate" in failed.message
    assert server.asked == []


async def test_an_answer_that_was_cut_off_is_a_failure(certificates: Certificates, make: Make) -> None:
    """Without a length the connection's end is the answer's; TLS shows whether the server ended it."""

    async def cut(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nthe first half")
        await writer.drain()
        raw = writer.get_extra_info("socket")
        with socket.socket(fileno=socket.dup(raw.fileno())) as same:
            same.shutdown(socket.SHUT_WR)

    whole = says(b"HTTP/1.1 200 OK\r\n\r\nboth halves", then_close=True)
    adapter = make(tls=certificates.trusting)
    async with target(whole, tls=certificates.server) as server:
        assert (await call(adapter, payload(server.url())))["body"] == "both halves"
    async with target(cut, tls=certificates.server) as server:
        assert (await fails(adapter, payload(server.url()))).code == "UPSTREAM_TRUNCATED"


async def test_proxies_of_the_environment_are_not_used(
    adapter: HttpAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with target(says(answer(b"proxy"))) as proxy, target(says(answer(b"server"))) as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url())
        assert (await call(adapter, payload(server.url())))["body"] == "server"
    assert proxy.connections == 0


# ---- when a request has left ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True])
async def test_that_a_request_has_left_is_told_before_its_answer(
    secure: bool, certificates: Certificates, make: Make
) -> None:
    left = asyncio.Event()

    async def say(_: Asked, writer: asyncio.StreamWriter) -> None:
        await left.wait()
        writer.write(answer(b"x"))

    adapter = make(tls=certificates.trusting)
    async with target(say, tls=certificates.server if secure else None) as server:
        told = await call(adapter, payload(server.url(), "POST", body="y" * 50_000), sent=left.set)
    assert told["body"] == "x"


@pytest.mark.parametrize("secure", [False, True])
async def test_a_request_that_is_not_taken_has_not_left(
    secure: bool, certificates: Certificates, make: Make
) -> None:
    """A server that reads nothing of a large body for a while: the words in between say so only when it has read all of it."""
    goes_on, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await goes_on.wait()
        await reader.readexactly(16_000_000)
        await left.wait()
        writer.write(answer(b"x", "200 OK", "Connection: close"))
        await writer.drain()
        writer.close()

    tls: ssl.SSLContext | None = certificates.server if secure else None
    server = await asyncio.start_server(serve, INSIDE, 0, limit=4096, ssl=tls)
    url = f"{'https' if secure else 'http'}://{INSIDE}:{server.sockets[0].getsockname()[1]}/"
    adapter = make(tls=certificates.trusting)
    calling = asyncio.create_task(call(adapter, payload(url, "POST", body="y" * 16_000_000), sent=left.set))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not left.is_set()
    goes_on.set()
    assert (await calling)["body"] == "x"
    server.close()
