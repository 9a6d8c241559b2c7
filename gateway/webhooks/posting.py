"""One request of a webhook: to an address that was checked and is the one that is connected to, no redirect followed, and an
answer of which only the head is read. The same client calls endpoints.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairlane.gateway.webhooks.attempts import Attempt, error_of
from fairlane.workers.adapters.endpoints.addresses import Network
from fairlane.workers.adapters.endpoints.headers import Header, first
from fairlane.workers.adapters.targets import BadTarget, Target, read_target
from fairlane.workers.sdk.errors import TaskError

if TYPE_CHECKING:
    from fairlane.workers.adapters.endpoints.client import Answer, Client

AGENT = "Fairlane-Webhooks"
NO_ADDRESS = (
    "The receiver's host has no address that may be called. (Those in private networks an operator has to allow: "
    "webhooks.allow_private.)"
)
_SECONDS = 5
"""Digits of a Retry-After that counts."""


class Poster:
    """Sends."""

    def __init__(self, client: "Client", now_ms: Callable[[], int]) -> None:
        self._client = client
        self._now_ms = now_ms

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def post(
        self,
        url: str,
        headers: Sequence[Header],
        body: bytes,
        *,
        allowed: tuple[Network, ...],
        timeout_s: float,
    ) -> Attempt:
        """Send a body and return what came of it. `allowed`: networks in which its address may lie though it is a private one."""
        at, began = self._now_ms(), time.monotonic()
        status, error, retry_after_ms = None, "", 0
        try:
            target = read_target(url)
            async with asyncio.timeout(timeout_s):
                answer = await self._send(target, [*headers, *_about(target, body)], body, allowed)
            status, retry_after_ms = answer.status, _retry_after_ms(answer)
            error = error_of(status)
        except TimeoutError:
            error = f"The receiver did not answer within {timeout_s:g} s."
        except BadTarget as wrong:
            error = f"The URL cannot be called: {wrong}."
        except TaskError as failed:
            error = _error_of(failed)
        return Attempt(at, round((time.monotonic() - began) * 1000), status, error, retry_after_ms)

    async def _send(
        self, target: Target, headers: list[Header], body: bytes, allowed: tuple[Network, ...]
    ) -> "Answer":
        from fairlane.workers.adapters.endpoints.client import Request  # noqa: PLC0415 - see `sender.poster`

        return await self._client.send(Request("POST", target, headers, body, allowed, None))


def host_of(url: str) -> str:
    """Where a webhook is sent; what stands behind that may be a secret. Empty for a URL that cannot be called."""
    try:
        return read_target(url).host
    except BadTarget:
        return ""


def _retry_after_ms(answer: "Answer") -> int:
    said = first(answer.headers, b"retry-after") or ""
    return int(said) * 1000 if said.isascii() and said.isdigit() and len(said) <= _SECONDS else 0


def _error_of(failed: TaskError) -> str:
    """Return what endpoints call it, in a receiver's words. A name that leads nowhere and one that leads to an address that may
    not be called read the same: callers choose names, and whether a private network has one is not for them to know."""
    cause: BaseException | None = failed
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    if failed.code == "ADDRESS_REFUSED" or cause is not None:
        return NO_ADDRESS
    return failed.message.replace("The endpoint", "The receiver")


def _about(target: Target, body: bytes) -> list[Header]:
    return [
        ("host", target.origin.partition("://")[2]),
        ("user-agent", AGENT),
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
    ]
