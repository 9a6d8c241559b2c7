"""One request of a webhook: to an address that was checked and is the one that is connected to, no redirect followed, and an
answer of which the status counts and little is read.

With the pieces by which endpoints are called: so what one of them refuses, the other does, too.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import h11

from fairlane.gateway.webhooks.attempts import Attempt, error_of
from fairlane.workers.adapters.endpoints.addresses import Network
from fairlane.workers.adapters.endpoints.calls import Call
from fairlane.workers.adapters.endpoints.exchange import Exchange
from fairlane.workers.adapters.endpoints.headers import Header, first, wire
from fairlane.workers.adapters.targets import BadTarget, Pattern, Target, read_target
from fairlane.workers.sdk.errors import TaskError

if TYPE_CHECKING:
    from fairlane.workers.adapters.endpoints.connections import Connections

AGENT = "Fairlane-Webhooks"
MAX_ANSWER_BYTES = 64 * 1024
"""Of an answer's body, which nobody looks at."""
NO_ADDRESS = (
    "The receiver's host has no address that may be called. (Those in private networks an operator has to allow: "
    "webhooks.allow_private.)"
)
_SECONDS = 5
"""Digits of a Retry-After that counts."""


class Poster:
    """Sends."""

    def __init__(
        self,
        connections: "Connections",
        asked: Callable[[str], "asyncio.Future[Any] | None"],
        now_ms: Callable[[], int],
    ) -> None:
        """`asked`: the question after the address of a host that is under way (`SystemNames.asked`)."""
        self._connections = connections
        self._asked = asked
        self._now_ms = now_ms

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._connections.close()

    def asked(self, url: str) -> "asyncio.Future[Any] | None":
        """The question after its host's address that is under way: a thread, which goes on when the request was given up."""
        return self._asked(host_of(url))

    async def post(
        self,
        webhook: str,
        url: str,
        headers: Sequence[Header],
        body: bytes,
        *,
        allowed: tuple[Network, ...],
        timeout_s: float,
    ) -> Attempt:
        """Send a body, and tell what came of it. `allowed`: networks in which its address may lie though it is a private one."""
        at, began = self._now_ms(), time.monotonic()
        status, error, retry_after_ms = None, "", 0
        try:
            call = _call(webhook, read_target(url), allowed, timeout_s)
            async with asyncio.timeout(timeout_s):
                status, retry_after_ms = await self._once(call, [*headers, *_about(body)], body)
            error = error_of(status)
        except TimeoutError:
            error = f"The receiver did not answer within {timeout_s:g} s."
        except BadTarget as wrong:  # written by another release
            error = f"The URL cannot be called: {wrong}."
        except TaskError as failed:
            error = _error_of(failed)
        except (OSError, h11.ProtocolError):
            error = "The receiver broke off the connection, or does not speak HTTP/1.1."
        return Attempt(at, round((time.monotonic() - began) * 1000), status, error, retry_after_ms)

    async def _once(self, call: Call, headers: list[Header], body: bytes) -> tuple[int, int]:
        """Status, and when the receiver wants to be asked again, ms."""
        line = await self._connections.take(call)
        exchange = Exchange(line, MAX_ANSWER_BYTES, lambda: None)
        keep = False
        try:
            target = call.target
            path = f"{target.path}?{target.query}" if target.query else target.path
            host = ("host", target.origin.partition("://")[2])
            exchange.send(b"POST", path.encode(), wire([host, *headers]), body)
            answer = await exchange.answer()
            keep = answer.reusable
        finally:
            if keep:
                self._connections.give_back(call, line)
            else:
                line.abort()
        said = first(answer.headers, b"retry-after") or ""
        seconds = int(said) if said.isascii() and said.isdigit() and len(said) <= _SECONDS else 0
        return answer.status, seconds * 1000


def host_of(url: str) -> str:
    """Where a webhook is sent; what stands behind that may be a secret. Empty for a URL that cannot be called."""
    try:
        return read_target(url).host
    except BadTarget:
        return ""


def _error_of(failed: TaskError) -> str:
    """What endpoints call it, in a receiver's words. A name that leads nowhere and one that leads to an address that may not be
    called are told alike: callers choose names, and whether there is one in networks of the operator's is nothing to them."""
    if failed.code == "ADDRESS_REFUSED" or isinstance(failed.__cause__, socket.gaierror):
        return NO_ADDRESS
    return failed.message.replace("The endpoint", "The receiver")


def _call(webhook: str, target: Target, allowed: tuple[Network, ...], timeout_s: float) -> Call:
    """What a connection is made, and kept, for: this webhook alone."""
    return Call(
        endpoint=f"webhook:{webhook}",
        method="POST",
        target=target,
        headers=(),
        body=b"",
        pattern=Pattern.read(f"{target.origin}/*"),
        timeout_s=timeout_s,
        max_response_bytes=MAX_ANSWER_BYTES,
        allowed=allowed,
        follows=False,
        redirects=0,
    )


def _about(body: bytes) -> list[Header]:
    return [
        ("user-agent", AGENT),
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
    ]
