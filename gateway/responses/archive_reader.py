"""Reads the log of a response from SQL, as readers of the hub read it from Redis."""

import asyncio
from collections.abc import Awaitable, Callable

from fairlane.gateway.responses.logs import unpack
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Interrupted, Lost, Take

LARGE = 256 * 1024
"""From so many packed bytes on a part is unpacked in a thread."""


class ArchiveReader:
    """Reads a whole log, part by part, and is never ahead of whoever asks. See `hub.Reader`, as far as `serve` uses it."""

    feed = None
    """Nothing comes to it but what it reads."""

    def __init__(self, part: Callable[[int], Awaitable[bytes | None]]) -> None:
        """`part`: reads a part by its number; None behind the last one."""
        self._part = part
        self._next = 0
        self._interrupted = False
        self.seq = 0

    async def next(self, timeout: float, take: Take | None = None) -> list[Event]:  # noqa: ARG002 - nothing is waited for
        """The events of the next part. Raises Lost behind the last one, where a log ends that is not whole, or was deleted while
        it was read; Interrupted; and DatabaseUnavailable."""
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
        """Let `next` raise Interrupted from now on."""
        self._interrupted = True
