"""Compressed bodies, of clients' requests and of endpoints' answers: decoded in small steps and within bounds. Pure."""

import sys
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STEP = 1 << 16
"""Bytes that one step decodes, at most: this takes less than a millisecond."""
MAX_MEMBERS = 64
"""Parts of one body that are compressed by themselves."""
MAX_WINDOW_LOG = 23
"""8 MiB: the memory that a body in zstd may require by RFC 9659."""
CODINGS = frozenset({"gzip", "x-gzip", "deflate", "zstd"})


class TooLargeError(ValueError):
    """The decoded body exceeds its limit."""


def coding_of(values: Iterable[str]) -> str | None:
    """Return the coding that values of `Content-Encoding` name, or ''; None for others, and for more than one."""
    names = [name.strip().lower() for value in values for name in value.split(",")]
    coding = ",".join(name for name in names if name not in ("", "identity"))
    return coding if not coding or coding in CODINGS else None


def decode(coding: str, body: bytes, limit: int) -> bytes:
    """Return a whole body without its coding. Raise as `Decoder`."""
    decoder = Decoder(coding, limit)
    decoded = b"".join(decoder.feed(body))
    decoder.end()
    return decoded


class Decoder:
    """Undoes a body's coding. Raises TooLargeError if it holds more than `limit` bytes, ValueError if it is invalid."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._size = self._members = 0
        self._reader: Any = None
        """None: between members."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes of the body stand for, after each step, also if that is nothing yet."""
        while True:
            if self._reader is None:
                if not data or (self._members and data[0] != (0x28 if self._name == "zstd" else 0x1F)):
                    return  # what follows is padding
                self._members += 1
                if self._members > MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS} parts")
                self._reader = _reader(self._name, data)
            reader = self._reader
            try:
                piece = reader.decompress(data, STEP)
            except (zlib.error, zstd.ZstdError) as error:
                raise ValueError(f"it is not valid {self._name}: {error}") from error
            self._size += len(piece)
            if self._size > self._limit:
                raise TooLargeError("it is too large")
            yield piece
            if reader.eof:
                data, self._reader = reader.unused_data, None
                continue
            data = getattr(reader, "unconsumed_tail", b"")
            if len(piece) < STEP:
                return

    def end(self) -> None:
        """Check that the body was complete."""
        if self._reader is not None:
            raise ValueError("it is cut off")


def _reader(name: str, data: bytes) -> Any:
    """Return the reader of a member that begins with these bytes."""
    if name == "zstd":
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_WINDOW_LOG})
    if name != "deflate":
        return zlib.decompressobj(16 + zlib.MAX_WBITS)
    has_head = data[0] & 0x0F == zlib.DEFLATED  # some programs leave out the head that zlib wants
    return zlib.decompressobj(zlib.MAX_WBITS if has_head else -zlib.MAX_WBITS)
