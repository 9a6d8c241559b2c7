"""Event logs as SQL keeps them: some events packed and compressed. Pure."""

import zlib
from collections.abc import Sequence

import msgspec

from fairlane.streaming.events import Event

LEVEL = 1
"""Of zlib: the texts of events repeat what is around them, so the least effort finds nearly all of it."""

_unpack = msgspec.msgpack.Decoder(list[tuple[int, int, str, bytes]]).decode


def pack(events: Sequence[Event]) -> bytes:
    """Events as one part of a log."""
    plain = [(event.epoch, event.seq, event.type, event.data) for event in events]
    return zlib.compress(msgspec.msgpack.encode(plain), LEVEL)


def unpack(packed: bytes) -> list[Event]:
    """The events of a part. Raises ValueError for what is none."""
    try:
        return [Event(*event) for event in _unpack(zlib.decompress(packed))]
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"this is no part of a log: {error}") from error
