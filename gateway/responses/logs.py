"""Parts of event logs in SQL: packed and compressed events. Pure."""

import zlib
from collections.abc import Sequence

import msgspec

from fairlane.streaming.events import Event

LEVEL = 1
"""zlib's: texts of events repeat themselves, so that the lowest level saves nearly as much as the highest."""

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
