"""Links to one task's events that need no key, and their tickets: signed tokens for a while after they were used last.

They are in the query string of `streamUrl`, because a browser's EventSource cannot send a header. Until a ticket expires, any
replica with the same secret verifies it without a look-up. After that it is valid for as long again after its last use
(`in_use`), which Redis remembers. It cannot be revoked earlier; a new secret revokes all.

    base64url( expiry, ms (6 bytes) | first 18 bytes of HMAC-SHA256(secret, purpose | expiry | task id) )
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
from collections.abc import Iterator
from typing import Any

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.errors import invalid_link
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.scheduler import Scheduler

MIN_SECRET_BYTES = 16
TICKET_CHARS = 32

_PURPOSE = b"fairlane stream ticket 1\0"
_EXPIRY_BYTES = 6
_MAC_BYTES = 18


class Tickets:
    """Issues and verifies stream tickets with one secret. Safe to share between tasks and threads."""

    def __init__(self, secret: bytes) -> None:
        """Raise ValueError if the secret is shorter than 16 bytes."""
        self.take(secret)

    def take(self, secret: bytes) -> None:
        """Use another secret, which revokes the tickets of the one before. Raise ValueError."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret for stream tickets needs at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret

    def mac(self, purpose: bytes, message: bytes, size: int) -> bytes:
        """Return the first `size` bytes of HMAC-SHA256 by the same secret. No `purpose` is a prefix of another."""
        return hmac.digest(self._secret, purpose + message, hashlib.sha256)[:size]

    def issue(self, task_id: str, expires_at_ms: int) -> str:
        """Return a ticket for reading `task_id` before `expires_at_ms` (ms since 1970): 32 URL-safe characters."""
        expiry = expires_at_ms.to_bytes(_EXPIRY_BYTES, "big")
        return base64.urlsafe_b64encode(expiry + self._mac(task_id, expiry)).decode("ascii")

    def expiry(self, token: str, task_id: str) -> int | None:
        """Return the expiry, ms, of a ticket for `task_id`; None for any other text."""
        if len(token) != TICKET_CHARS:
            return None
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            return None
        expiry, mac = raw[:_EXPIRY_BYTES], raw[_EXPIRY_BYTES:]
        genuine = hmac.compare_digest(mac, self._mac(task_id, expiry))
        return int.from_bytes(expiry, "big") if genuine else None

    def _mac(self, task_id: str, expiry: bytes) -> bytes:
        return self.mac(_PURPOSE, expiry + task_id.encode("utf-8", "surrogatepass"), _MAC_BYTES)


@contextlib.contextmanager
def in_use(scheduler: Scheduler, task_id: str, until: int, keep_ms: int) -> Iterator[None]:
    """Keep a ticket valid inside the block and for `keep_ms` after it, also if this process dies. Events cost nothing.

    While Redis is down nothing is remembered; the next time is soon enough.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def remember() -> None:
        with contextlib.suppress(StoreError):
            scheduler.mark_ticket_used(task_id, until, keep_ms).add_done_callback(_observe)

    def again() -> None:
        nonlocal timer
        remember()
        timer = loop.call_later(keep_ms / 3000, again)

    again()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        remember()


def _observe(reply: "asyncio.Future[Any]") -> None:
    if not reply.cancelled():
        reply.exception()


class StreamLinks:
    """Makes links, and checks the tickets of clients that follow them."""

    def __init__(self, tickets: Tickets, scheduler: Scheduler, current: ActiveConfig) -> None:
        self.tickets = tickets
        self._scheduler = scheduler
        self._current = current

    def url(self, task_id: str) -> str:
        """Return the URL for reading a task's events without a key."""
        until = now_ms() + self._current.settings.tuning.stream_token_ms
        return f"/api/task/{task_id}/events?token={self.tickets.issue(task_id, until)}"

    async def use(self, token: str, task_id: str) -> contextlib.AbstractContextManager[None]:
        """Return the use of a ticket: good within its own time, and while it is used. Raise ApiError (401) and StoreError."""
        until = self.tickets.expiry(token, task_id)
        if until is None or (until <= now_ms() and not await self._scheduler.is_ticket_used(task_id, until)):
            raise invalid_link()
        return in_use(self._scheduler, task_id, until, self._current.settings.tuning.stream_token_ms)
