"""One request of a webhook: where it may go, and what may come back."""

import socket
import ssl
import time
from collections.abc import Callable

import pytest
from tests.integration.http_worker.targets import Certificates, Names
from tests.support.receivers import Got, Receiver, Reply, receiving

from fairlane.gateway.webhooks.delivery import NO_ADDRESS, Attempt
from fairlane.gateway.webhooks.delivery import post as send
from fairlane.workers.adapters.endpoints.addresses import read_networks
from fairlane.workers.adapters.endpoints.client import Client, Resolve, SystemResolver, public_authorities

pytestmark = pytest.mark.anyio

HEADERS = [("webhook-id", "wh_1")]
LOOPBACK = ("127.0.0.0/8", "::1/128")


async def post(
    url: str,
    *,
    allowed: tuple[str, ...] = LOOPBACK,
    resolve: Resolve | None = None,
    tls: Callable[[], ssl.SSLContext] = public_authorities,
    timeout_s: float = 10.0,
) -> Attempt:
    client = Client(resolve or SystemResolver(), tls, keep_alive=False)
    try:
        at, networks = time.time_ns() // 1_000_000, read_networks(allowed)
        return await send(client, at, url, HEADERS, b'{"a":1}', allowed=networks, timeout_s=timeout_s)
    finally:
        await client.aclose()


def named(receiver: Receiver, host: str) -> str:
    return receiver.url.replace("127.0.0.1", host).replace("localhost", host)


async def test_a_body_arrives_unchanged() -> None:
    async with receiving() as receiver:
        attempt = await post(receiver.url + "?a=b%20c")
    assert (attempt.succeeded, attempt.status, attempt.error) == (True, 200, "")
    [got] = receiver.got
    assert (got.path, got.body) == ("/hook?a=b%20c", b'{"a":1}')
    assert got.headers["host"] == receiver.url.split("/")[2]
    assert got.headers["content-type"] == "application/json"
    assert got.headers["user-agent"] == "Fairlane-Webhooks"
    assert got.headers["webhook-id"] == "wh_1"


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["169.254.169.254"], ["::1"], ["::ffff:10.0.0.1"], ["93.184.216.34", "127.0.0.1"]],
)
async def test_a_name_with_a_private_address_is_not_connected_to(addresses: list[str]) -> None:
    async with receiving() as receiver:
        attempt = await post(named(receiver, "a.example"), allowed=(), resolve=Names(a_example=[addresses]))
    assert (attempt.succeeded, attempt.status, attempt.error) == (False, None, NO_ADDRESS)
    assert receiver.connections == 0


async def test_a_name_is_resolved_again_at_each_request() -> None:
    names = Names(a_example=[["127.0.0.1"], ["10.0.0.1"]])
    async with receiving() as receiver:
        url = named(receiver, "a.example")
        assert (await post(url, resolve=names)).succeeded
        assert (await post(url, resolve=names)).error == NO_ADDRESS
    assert receiver.connections == 1


@pytest.mark.parametrize("status", [301, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with receiving() as other:

        def elsewhere(_: Got) -> Reply:
            return b"HTTP/1.1 %d X\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % (
                status,
                other.url.encode(),
            )

        async with receiving(elsewhere) as receiver:
            attempt = await post(receiver.url)
    assert (attempt.succeeded, attempt.status) == (False, status)
    assert "redirects are not followed" in attempt.error
    assert other.connections == 0


async def test_no_answer_is_an_error_at_the_deadline() -> None:
    async with receiving(lambda _: None) as receiver:
        attempt = await post(receiver.url, timeout_s=0.1)
    assert (attempt.status, attempt.error) == (None, "The receiver did not answer within 0.1 s.")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "broke off"),
        (b"HTTP/1.1 101 Switching\r\n\r\n", "broke off"),
    ],
)
async def test_an_invalid_answer_is_a_failure(answer: bytes, why: str) -> None:
    async with receiving(lambda _: answer) as receiver:
        attempt = await post(receiver.url)
    assert not attempt.succeeded
    assert why in attempt.error
    assert "endpoint" not in attempt.error.lower()


async def test_retry_after_is_read_in_seconds_only() -> None:
    for text, expected in (
        (b"30", 30_000),
        (b"Wed, 21 Oct 2026 07:28:00 GMT", 0),
        (b"9" * 40, 0),
        (b"-1", 0),
    ):
        answer = b"HTTP/1.1 429 X\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n" % text
        async with receiving(lambda _, answer=answer: answer) as receiver:  # type: ignore[misc]
            attempt = await post(receiver.url)
        assert (attempt.status, attempt.retry_after_ms) == (429, expected)


async def test_tls_is_verified_for_the_name(certificates: Certificates) -> None:
    names = Names(a_example=[["127.0.0.1"]], b_example=[["127.0.0.1"]])
    async with receiving(tls=certificates.server) as receiver:
        good = await post(named(receiver, "a.example"), resolve=names, tls=certificates.trusting)
        assert good.succeeded
        wrong = await post(named(receiver, "b.example"), resolve=names, tls=certificates.trusting)
        assert (wrong.status, wrong.succeeded) == (None, False)
        assert "TLS" in wrong.error
        unknown = await post(named(receiver, "a.example"), resolve=names)
        assert "TLS" in unknown.error
    assert len(receiver.got) == 1


async def test_requests_that_cannot_be_sent_have_an_error() -> None:
    async def unknown(host: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert "cannot be called" in (await post("ftp://somewhere")).error
    assert (await post("http://db.internal/", resolve=unknown)).error == NO_ADDRESS
    async with receiving() as receiver:
        pass
    attempt = await post(receiver.url)
    assert (attempt.status, attempt.succeeded) == (None, False)
    assert "cannot be reached" in attempt.error
