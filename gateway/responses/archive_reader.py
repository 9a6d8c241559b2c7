"""Reads the log of a stored response from SQL, as the hub's readers read it from Redis."""

import asyncio
from collections.abc import Awaitable, Callable

from fairlane.gateway.responses.logs import unpack
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Interrupted, Lost, Take

LARGE = 256 * 1024
"""A part of this many packed bytes is unpacked in a thread."""


class ArchiveReader:
    """Reads a whole log, part by part on demand. It has the members of `hub.Reader` that `serve` uses."""

    feed = None
    """There are no live events."""

    def __init__(self, part: Callable[[int], Awaitable[bytes | None]]) -> None:
        """`part` reads a part by its number; None after the last one."""
        self._part = part
        self._next = 0
        self._interrupted = False
        self.seq = 0

    async def next(self, timeout: float, take: Take | None = None) -> list[Event]:  # noqa: ARG002 - nothing is waited for
        """Return the events of the next part. Raise Lost after the last one, if the log is incomplete or was deleted meanwhile;
        Interrupted; and DatabaseUnavailable."""
        if self._interrupted:
            raise Interrupted
        packed = await self._part(self._next)
        if packed is None:
            raise Lost
        self._next += 1
        events = unpack(packed) if len(packed) < LARGE else await asyncio.to_thread(unpack, packed)
        self.seq = events[-1].seq
        return events

    def wait(self, timeout: float) -> None:
        """Nothing is waited for."""

    def interrupt(self) -> None:
        """Let `next` raise Interrupted."""
        self._interrupted = True
