"""The logs of stored responses in SQL: parts of packed and compressed events, and their reader, as the hub's reads Redis."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from fairlane.streaming.events import Event
from fairlane.streaming.hub import Interrupted, Lost, Take

LEVEL = 1
"""zlib's: texts of events repeat themselves, so that the lowest level saves nearly as much as the highest."""

LARGE = 256 * 1024
"""A part of this many packed bytes is unpacked in a thread."""

_unpack = msgspec.msgpack.Decoder(list[tuple[int, int, str, bytes]]).decode


def pack(events: Sequence[Event]) -> bytes:
    """Return events as one part of a log."""
    plain = [(event.epoch, event.seq, event.type, event.data) for event in events]
    return zlib.compress(msgspec.msgpack.encode(plain), LEVEL)


def unpack(packed: bytes) -> list[Event]:
    """Return the events of a part. Raise ValueError."""
    try:
        return [Event(*event) for event in _unpack(zlib.decompress(packed))]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"invalid part of a log: {error}") from error


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
