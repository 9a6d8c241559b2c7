"""The HTTP worker and real servers: what goes out, what comes back, and what becomes of servers that do not behave."""

import asyncio
import contextlib
import gzip
from typing import Any

import pytest
from tests.integration.http_worker.targets import LOOPS, Asked, answer, call, fails, payload, says, target
from tests.support.serving import until

from fairlane.workers.adapters.endpoints.http import HttpAdapter

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_a_call_keeps_status_headers_and_body(adapter: HttpAdapter) -> None:
    async with target(says(answer(b"hello", "201 Created", "X-Kind: a", "x-kind: b"))) as server:
        asked = payload(server.url("/a%20b?q=1&r=%2F"), "POST", headers=[["X-One", "1"]], body="grüße")
        told = await call(adapter, asked)
    assert told == {
        "status": 201,
        "headers": [["content-length", "5"], ["x-kind", "a"], ["x-kind", "b"]],
        "body": "hello",
    }
    [request] = server.asked
    assert request.line == "POST /a%20b?q=1&r=%2F HTTP/1.1"
    assert request.body == "grüße".encode()
    assert request.header("host") == [f"127.0.0.1:{server.port}"]
    assert request.header("x-one") == ["1"]
    assert request.header("content-length") == [str(len("grüße".encode()))]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS", "POST"])
async def test_every_method_is_called(adapter: HttpAdapter, method: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    async with target(says(head if method == "HEAD" else head + b"hello")) as server:
        for _ in range(2):
            told = await call(adapter, payload(server.url(), method))
            assert told["body"] == ("" if method == "HEAD" else "hello")
    assert [one.line.split()[0] for one in server.asked] == [method] * 2
    assert server.asked[0].header("content-length") == (["0"] if method in ("PUT", "PATCH", "POST") else [])


async def test_bytes_go_out_and_come_back_as_they_are(adapter: HttpAdapter) -> None:
    async with target(says(answer(bytes(range(256))))) as server:
        told = await call(adapter, payload(server.url(), "POST", bodyBase64="AP/+gA=="))
    assert server.asked[0].body == b"\x00\xff\xfe\x80"
    assert told["bodyBase64"].startswith("AAECAwQF")


async def test_an_address_of_this_machine_is_refused_unless_it_is_allowed(adapter: HttpAdapter) -> None:
    async with target(says(answer())) as server:
        for host in ("127.0.0.1", "localhost"):
            refused = await fails(
                adapter, payload(server.url(host=host), rules={"allowPrivate": ["10.0.0.0/8"]})
            )
            assert (refused.code, refused.retryable) == ("ADDRESS_REFUSED", False)
            assert "loopback" in refused.message
    assert server.connections == 0


async def test_what_the_payload_may_not_say_is_refused_without_a_connection(adapter: HttpAdapter) -> None:
    async with target(says(answer())) as server:
        refused = await fails(adapter, payload(server.url(), rules={"pattern": server.url("/v1/*")}))
    assert refused.code == "BAD_REQUEST"
    assert server.connections == 0


# ---- connections ----------------------------------------------------------------------------------------------------


async def test_a_connection_serves_its_endpoint_again_and_no_other(adapter: HttpAdapter) -> None:
    async with target(says(answer(b"x"))) as server:
        mine = payload(server.url())
        for _ in range(3):
            await call(adapter, mine)
        assert server.connections == 1
        await call(adapter, {**mine, "endpoint": "another"})
        await call(adapter, payload(server.url(), rules={"allowPrivate": ["127.0.0.1/32"]}))
        assert [one.connection for one in server.asked] == [1, 1, 1, 2, 3]
        refused = await fails(adapter, payload(server.url(), rules={"allowPrivate": []}))
        assert refused.code == "ADDRESS_REFUSED"  # although connections to it are open
    assert server.connections == 3


# ---- too much -------------------------------------------------------------------------------------------------------

LIMIT = 100_000
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize(
    "parts",
    [
        [f"HTTP/1.1 200 OK\r\nContent-Length: {LIMIT + 1}\r\n\r\n".encode()],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n"],
        [CHUNKED, *[chunk(b"x" * 1000)] * (LIMIT // 1000 + 1)],
        [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 1000] * (LIMIT // 1000 + 1)],
        [answer(gzip.compress(b"\0" * (LIMIT + 1)), "200 OK", "Content-Encoding: gzip")],
        [CHUNKED[:-2] + b"Content-Encoding: deflate\r\n\r\n" + chunk(gzip.zlib.compress(b"\0" * 50_000_000)) + b"0\r\n\r\n"],
    ],
)  # fmt: skip
async def test_an_answer_above_its_limits_is_refused(adapter: HttpAdapter, parts: list[bytes]) -> None:
    async with target(says(*parts)) as server:
        refused = await fails(adapter, payload(server.url(), rules={"maxResponseBytes": LIMIT}))
    assert (refused.code, refused.retryable) == ("RESPONSE_TOO_LARGE", False)


@pytest.mark.parametrize("size", [0, LIMIT])
async def test_an_answer_at_its_limit_passes(adapter: HttpAdapter, size: int) -> None:
    body = b"x" * size
    interim = b"HTTP/1.1 102 Processing\r\n\r\n" * 15
    whole = [
        answer(body),
        interim + answer(body),
        CHUNKED + (chunk(body) if size else b"") + b"0\r\nX-Trailer: 1\r\n\r\n",
        answer(gzip.compress(body), "200 OK", "Content-Encoding: gzip"),
    ]
    for reply in whole:
        async with target(says(reply)) as server:
            told = await call(adapter, payload(server.url(), rules={"maxResponseBytes": LIMIT}))
        assert told["body"] == body.decode()
        assert "content-encoding" not in dict(told["headers"])


# ---- broken ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([b""], "UPSTREAM_ERROR"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"], "UPSTREAM_TRUNCATED"),
        ([CHUNKED + b"5\r\nhel"], "UPSTREAM_TRUNCATED"),
        ([CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n"], "UPSTREAM_TRUNCATED"),
        ([CHUNKED + b"5\r\nhelloX\r\n0\r\n\r\n"], "UPSTREAM_TRUNCATED"),
        ([b"hello, I am no HTTP\r\n\r\n"], "UPSTREAM_ERROR"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"], "UPSTREAM_ERROR"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"], "UPSTREAM_ERROR"),
        ([b"HTTP/1.1 200 OK\r\nBad Header: 1\r\n\r\n"], "UPSTREAM_ERROR"),
        ([answer(b"no gzip", "200 OK", "Content-Encoding: gzip")], "JSON_PARSE_FAILED"),
        ([answer(gzip.compress(b"x" * 100)[:-5], "200 OK", "Content-Encoding: gzip")], "JSON_PARSE_FAILED"),
    ],
)
async def test_what_is_no_whole_answer_is_a_failure(
    adapter: HttpAdapter, parts: list[bytes], code: str
) -> None:
    for method in ("GET", "POST"):
        async with target(says(*parts, then_close=True)) as server:
            failed = await fails(adapter, payload(server.url(), method))
        assert failed.code == code, failed
        assert failed.retryable is (method == "GET" and code != "JSON_PARSE_FAILED")


# ---- slow -----------------------------------------------------------------------------------------------------------


async def drip(_: Asked, writer: asyncio.StreamWriter) -> None:
    """A byte now and then, so that there is never silence."""
    writer.write(OK[:-2] + b"00\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def drip_head(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nH: ")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await until(asked.gone, "the caller's end")
    writer.close()


async def interim(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
    await asyncio.sleep(10)


@pytest.mark.parametrize(
    ("server_says", "method", "code"),
    [
        (silent, "GET", "FIRST_TOKEN_TIMEOUT"),
        (silent, "POST", "FIRST_TOKEN_TIMEOUT"),
        (drip, "GET", "TOTAL_TIMEOUT"),
        (drip_head, "GET", "FIRST_TOKEN_TIMEOUT"),
        (interim, "GET", "FIRST_TOKEN_TIMEOUT"),
    ],
)
async def test_a_slow_answer_ends_with_the_limit_it_missed(
    adapter: HttpAdapter, server_says: object, method: str, code: str
) -> None:
    limit_ms = 1500  # long enough to connect, and to get a head, on a busy machine
    async with target(server_says) as server:  # type: ignore[arg-type]
        late = await fails(adapter, payload(server.url(), method, rules={"timeoutMs": limit_ms}))
    assert (late.code, late.retryable) == (code, method == "GET")
    assert f"{limit_ms} ms" in late.message


async def test_no_retry_helps_where_the_time_of_the_task_is_over(adapter: HttpAdapter) -> None:
    async with target(silent) as server:
        late = await fails(adapter, payload(server.url()), timeout_s=0.15)
    assert (late.code, late.retryable) == ("TOTAL_TIMEOUT", False)


async def test_a_call_that_is_cancelled_ends_its_connection(adapter: HttpAdapter) -> None:
    async with target(silent) as server:
        calling = asyncio.create_task(call(adapter, payload(server.url())))
        await until(lambda: len(server.asked) == 1, "the request")
        calling.cancel()
        await asyncio.wait([calling])
        await until(lambda: not server.open, "the connection's end")


async def test_calls_that_flood_hold_up_no_other(adapter: HttpAdapter) -> None:
    async def flood(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        while not writer.is_closing():
            writer.write(chunk(b"x" * 1000) * 50)
            await writer.drain()

    async def ask_again_and_again(url: str) -> None:
        while True:
            refused = await fails(adapter, payload(url, rules={"maxResponseBytes": 16 << 20}))
            assert refused.code == "RESPONSE_TOO_LARGE"

    async with target(flood) as bad, target(says(answer(b"x"))) as good:
        asking = asyncio.create_task(ask_again_and_again(bad.url()))
        await until(lambda: len(bad.asked) > 1, "the flood")
        for _ in range(20):
            assert (await call(adapter, payload(good.url())))["body"] == "x"
        assert not asking.done()
        asking.cancel()
        await asyncio.wait([asking])


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
async def test_a_body_where_none_is_looked_for_becomes_no_second_request(
    adapter: HttpAdapter, method: str
) -> None:
    """A server that leaves the body of a GET unread takes it for the next request, of any path and with any headers."""
    within = "DELETE /elsewhere HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n"
    lines: list[str] = []

    async def careless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            stays = True
            while stays:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                lines.append(head.split("\r\n")[0])
                stays = "connection: close" not in head
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(careless, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a"
        for asked in (payload(url, method, body=within), payload(url)):
            assert (await call(adapter, asked))["status"] == 204
    assert lines == [f"{method.lower()} /a http/1.1", "get /a http/1.1"]
