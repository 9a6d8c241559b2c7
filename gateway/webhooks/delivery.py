"""One request of a webhook. It connects to exactly the address that was checked, follows no redirect, and reads only the head of
the answer. Endpoints use the same client.
"""

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairlane.workers.adapters.endpoints.addresses import Network
from fairlane.workers.adapters.endpoints.headers import Header
from fairlane.workers.adapters.targets import BadTarget, Target, read_target
from fairlane.workers.sdk.errors import TaskError

if TYPE_CHECKING:
    from fairlane.workers.adapters.endpoints.client import Client

AGENT = "Fairlane-Webhooks"
NO_ADDRESS = (
    "The receiver's host has no address that may be called. (Those in private networks an operator has to allow: "
    "webhooks.allow_private.)"
)
MAX_RETRY_AFTER_DIGITS = 5


class Attempt(NamedTuple):
    """One request and its result."""

    at: int
    """When it began, ms since 1970."""
    took_ms: int
    status: int | None
    """None: there was no answer."""
    error: str
    """A sentence; empty if the receiver answered 2xx."""
    retry_after_ms: int = 0
    """The receiver's `Retry-After`; 0: it has none."""

    @property
    def succeeded(self) -> bool:
        return not self.error

    @property
    def ended(self) -> int:
        """When it ended, ms since 1970."""
        return self.at + self.took_ms


def error_of(status: int) -> str:
    """Return the error of an answer; '' for 2xx."""
    if 200 <= status < 300:
        return ""
    return f"The receiver answered {status}{': redirects are not followed' if 300 <= status < 400 else ''}."


def webhook_client() -> "Client":
    """Return a client that trusts public authorities. It imports an HTTP client that a gateway without webhooks does not need."""
    from fairlane.workers.adapters.endpoints.client import Client, SystemResolver, public_authorities  # noqa: PLC0415

    return Client(SystemResolver(), public_authorities, keep_alive=False)


async def post(
    client: "Client",
    at: int,
    url: str,
    headers: Sequence[Header],
    body: bytes,
    *,
    allowed: tuple[Network, ...],
    timeout_s: float,
) -> Attempt:
    """Send a body; return the attempt, which begins now (`at`, ms). `allowed`: private networks in which the address may be."""
    from fairlane.workers.adapters.endpoints.client import Request  # noqa: PLC0415 - see `webhook_client`

    began = time.monotonic()
    status, error, retry_after_ms = None, "", 0
    try:
        target = read_target(url)
        request = Request("POST", target, [*headers, *_headers(target, body)], body, allowed, None)
        async with asyncio.timeout(timeout_s):
            answer = await client.send(request)
        status, seconds = answer.status, answer.headers.get("retry-after", "")
        if seconds.isascii() and seconds.isdigit() and len(seconds) <= MAX_RETRY_AFTER_DIGITS:
            retry_after_ms = int(seconds) * 1000
        error = error_of(status)
    except TimeoutError:
        error = f"The receiver did not answer within {timeout_s:g} s."
    except BadTarget as wrong:
        error = f"The URL cannot be called: {wrong}."
    except TaskError as failed:
        error = _error_of(failed)
    return Attempt(at, round((time.monotonic() - began) * 1000), status, error, retry_after_ms)


def host_of(url: str) -> str:
    """Return the host of a URL, for the log: its path may be a secret. '' if the URL cannot be called."""
    try:
        return read_target(url).host
    except BadTarget:
        return ""


def _error_of(failed: TaskError) -> str:
    """Return an endpoint's error in a receiver's words. A name without an address and one with a private address read the same:
    clients choose names, and must not learn which names a private network has."""
    cause: BaseException | None = failed
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    if failed.code == "ADDRESS_REFUSED" or cause is not None:
        return NO_ADDRESS
    return failed.message.replace("The endpoint", "The receiver")


def _headers(target: Target, body: bytes) -> list[Header]:
    return [
        ("host", target.origin.partition("://")[2]),
        ("user-agent", AGENT),
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
    ]
