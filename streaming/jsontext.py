"""JSON as bytes: what the event log and its views need to pass JSON on without building objects.

Everything returned by `json_string` and `one_line` is safe inside one SSE `data:` line, also for clients that
split lines at the Unicode separators (U+0085, U+2028, U+2029) instead of at LF and CR only.
"""

import functools
from collections.abc import Iterable
from itertools import accumulate

import msgspec
from msgspec import Raw

MAX_DEPTH = 128
"""Levels that what callers and workers send may be nested: who reads it has a parser that gives up at some hundreds."""
MAX_DIGITS = 4300
"""Of a number that callers send: Python reads no whole number with more."""
NULL = b"null"
EMPTY_STRING = b'""'
NO_ARGUMENTS = b'"{}"'
"""Those of a call that has none: clients read them as JSON."""

_encode = msgspec.json.encode
_object_decoder = msgspec.json.Decoder(dict[str, Raw])
_list_decoder = msgspec.json.Decoder(list[Raw])
_KINDS = {code: chr(code) for code in b'"{[-0123456789tf'}
"""What most values begin with."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One level down, or up: bytes with a sign."""
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[{]}")
_PIECE = 1 << 16
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
_BREAKS_TO_SPACES = bytes.maketrans(b"\r\n", b"  ")
_SEPARATORS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def json_string(text: str) -> bytes:
    """`text` as a JSON string.

    Halves of a surrogate pair are put together; one without its other half becomes U+FFFD.
    """
    try:
        data = _encode(text)
    except UnicodeEncodeError:
        data = _encode(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    return data if text.isascii() else _escape_separators(data)


def one_line(raw: bytes) -> bytes:
    """The same JSON value without line breaks.

    `raw` must be valid JSON, where they can only stand between tokens.
    """
    data = bytes(raw)
    if 0x0A in data or 0x0D in data:  # (a byte: it is found faster than a string of one)
        data = data.translate(_BREAKS_TO_SPACES)
    return data if data.isascii() else _escape_separators(data)


def _escape_separators(data: bytes) -> bytes:
    for separator, escape in _SEPARATORS:
        if separator in data:
            data = data.replace(separator, escape)
    return data


def kind_of(raw: bytes | None) -> str:
    """What a JSON value begins with (`"`, `{`, `[`, a digit, …); the empty string for None and null."""
    if raw is None:
        return ""
    text = memoryview(raw)
    if text and (kind := _KINDS.get(text[0])):
        return kind
    head = bytes(text[:64]).lstrip() or bytes(raw).lstrip()
    return "" if head.startswith(NULL) else head[:1].decode("ascii", "replace")


def members(raw: bytes | None) -> dict[str, Raw] | None:
    """The members of a JSON object, values unparsed; None when `raw` is anything else, garbage included."""
    if raw is None or kind_of(raw) != "{":
        return None
    try:
        return _object_decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def items(raw: bytes | None) -> list[bytes] | None:
    """The items of a JSON list, unparsed; None when `raw` is anything else, garbage included."""
    if raw is None or kind_of(raw) != "[":
        return None
    try:
        return [bytes(item) for item in _list_decoder.decode(raw)]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def too_deep(raw: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether a JSON value, which must be valid, is nested deeper than `most` levels.

    Brackets are counted: how deep a decoder can go depends on Python's version and the stack.
    """
    if len(raw) <= most or raw.count(b"[") + raw.count(b"{") <= most:
        return False
    at = depth = within = 0
    while at < len(raw):
        piece = raw[at : at + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) & 1:  # what it escapes is in the same piece
            piece = raw[at : at + _PIECE + 1]
        at += len(piece)
        if b"\\" in piece:  # so that each quotation mark begins a string, or ends one
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        steps = b"".join(parts[within::2]).translate(_STEPS, _NO_BRACKETS)
        within ^= (len(parts) - 1) & 1
        down = steps.count(b"\x01")
        if depth + down > most and max(accumulate(memoryview(steps).cast("b"), initial=depth)) > most:
            return True
        depth += 2 * down - len(steps)
    return False


def has_long_number(raw: bytes) -> bool:
    """Whether a JSON value, which must be valid, holds a number with more than MAX_DIGITS digits in a row."""
    if len(raw) <= MAX_DIGITS or _LONG_NUMBER not in raw.translate(_AS_ZEROS):
        return False
    outside_strings = raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    return _LONG_NUMBER in b'"'.join(outside_strings).translate(_AS_ZEROS)


def string_or_none(raw: bytes | None) -> bytes | None:
    """`raw` if it is a JSON string, else None."""
    return bytes(raw) if raw is not None and kind_of(raw) == '"' else None


def as_text(raw: bytes) -> bytes:
    """Any JSON value as a JSON string: a string is itself, everything else is serialised into it."""
    return string_or_none(raw) or json_string(bytes(raw).decode("utf-8", "replace"))


def join_object(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    """A JSON object of names and unparsed values, in the given order."""
    return b"{%b}" % b",".join(
        [(_short(name) if len(name) <= 32 else json_string(name)) + b":" + value for name, value in pairs]
    )


_short = functools.lru_cache(256)(json_string)
