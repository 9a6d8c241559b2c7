"""Bodies that a server has compressed although it was not asked to: made readable, within bounds. Pure."""

import zlib
from collections.abc import Iterator, Sequence

MAX_MEMBERS = 64
"""Of a gzip file; what follows is left out."""
_GZIP = 16 + zlib.MAX_WBITS
_SLICE = 64 * 1024


class TooLargeError(ValueError):
    """The decompressed body exceeds its limit."""


def readable(codings: Sequence[str]) -> bool:
    """Return whether a body with these codings can be decoded here: it is compressed once, by gzip or deflate."""
    return len(codings) == 1 and codings[0] in ("gzip", "x-gzip", "deflate")


def decode(coding: str, body: bytes, limit: int) -> bytes:
    """The body before it was compressed. Nothing beyond `limit` bytes is ever made, and one byte to see that there is more.

    Raise TooLargeError where it is larger, ValueError where it cannot be read or is cut off.
    """
    if not body:
        return b""
    made, members, slices = bytearray(), 1, _slices(body)
    reader = zlib.decompressobj(_window(coding, body))
    for part in slices:
        rest = part
        while rest:
            if reader.eof:
                if coding == "deflate" or members == MAX_MEMBERS or not rest.startswith(b"\x1f"):
                    return bytes(made)  # what follows is padding
                reader, members = zlib.decompressobj(_GZIP), members + 1
            try:
                made += reader.decompress(rest, limit + 1 - len(made))
            except zlib.error as error:
                raise ValueError("its compression is broken") from error
            if len(made) > limit:
                raise TooLargeError("it is too large")
            rest = reader.unused_data if reader.eof else reader.unconsumed_tail
    if not reader.eof:
        raise ValueError("it is cut off")
    return bytes(made)


def _window(coding: str, body: bytes) -> int:
    if coding != "deflate":
        return _GZIP
    has_head = body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS  # some servers leave out the head that zlib wants


def _slices(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), _SLICE):
        yield body[at : at + _SLICE]
