"""JSON bodies, looked into no further than needed.

A JSON text of 16 MiB becomes up to 400 MB of Python objects. So a body is split into its members, which stay the bytes that came;
the gateway reads from there what it must know.
"""

import asyncio
import re
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Raw

from fairlane.gateway.errors import ApiError, bad_request
from fairlane.streaming.jsontext import MAX_DIGITS, has_long_number, kind_of, too_deep

Args = ParamSpec("Args")
Made = TypeVar("Made")
RawObject = dict[str, Raw]
"""The members of a JSON object, values unparsed. They keep the whole text alive."""

LARGE = 1 << 20
"""Bytes from which on a body is decoded and converted in a thread, one body at a time."""
MAX_VALUE = 8192
"""Bytes of a member that the gateway reads itself: names, numbers, flags. None that is longer is valid."""

_any = msgspec.json.Decoder()
_members = msgspec.json.Decoder(RawObject)
_WRONG = (RecursionError, UnicodeDecodeError, msgspec.MsgspecError)
_HALF = re.compile("surrogate|hex escape|truncated")
_LONE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F]"
)
_IMAGE = re.compile(rb'"type"\s*:\s*"(?:image_url|image|input_image)"')


class _Oversized:
    """Stands for a value that is too long to be read; it is of no type that any field takes."""


OVERSIZED = _Oversized()


def parse_object(body: bytes, what: str = "The body") -> RawObject:
    """Return the members of a JSON object. Raise ApiError(400) with what is wrong; `what` begins its sentences."""
    try:
        fields = _members.decode(body)
        if not body.isascii():
            body.decode()
    except _WRONG as error:
        raise _explained(error, body, what) from None
    if too_deep(body):
        raise bad_request(f"{what} is nested too deeply")
    if has_long_number(body):
        raise bad_request(f"{what} holds a number of more than {MAX_DIGITS} digits")
    return fields


def parse_values(body: bytes, what: str = "The body") -> dict[str, Any]:
    """Return a JSON object as Python values. Raise ApiError(400) as `parse_object`, also for numbers out of range."""
    try:
        value = _any.decode(body)
        if not body.isascii():
            body.decode()
    except _WRONG as error:
        raise _explained(error, body, what) from None
    if not isinstance(value, dict):
        raise _no_object(what)
    return value


def value_of(fields: RawObject, name: str) -> Any:
    """Return a member as Python values; None when it is absent, null or empty, OVERSIZED if it is too long to be valid."""
    raw = fields.get(name)
    if raw is None:
        return None
    text = memoryview(raw)
    if len(text) > MAX_VALUE:
        return OVERSIZED if kind_of(raw) else None
    try:
        value = _any.decode(text)
    except _WRONG as error:
        raise _explained(error, raw, "The body") from None
    return None if value in ("", [], {}) else value


def encode_members(fields: RawObject, without: Collection[str] = ()) -> bytes:
    """Return the members as a JSON object, except some: values byte for byte, and each name once."""
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if name not in without:
            parts += (b",", msgspec.json.encode(name), b":", memoryview(value))
    parts[:1] = (b"{",)
    parts.append(b"}")
    return b"".join(parts)  # copied once: they may be long


class BodySource(Protocol):
    """A request (`calls/http.py`)."""

    async def json_body(self, limit: int) -> bytes: ...


class Bodies:
    """Decodes and converts the bodies of one process: large ones in a thread, one at a time."""

    def __init__(self) -> None:
        self._large = asyncio.Semaphore(1)

    async def read(self, request: BodySource, limit: int) -> tuple[bytes, RawObject]:
        """Return a request's body of at most `limit` bytes, and its members. Raise ApiError and ClientGone."""
        body = await request.json_body(limit)
        if len(body) < LARGE:
            return body, parse_object(body)
        return body, await self.parse(body)

    async def parse(self, body: bytes | Raw, what: str = "The body") -> RawObject:
        """Return the members of a JSON object of any size. Raise as `parse_object`."""
        return await self.run(len(body), parse_object, bytes(body), what)

    async def run(
        self, size: int, work: Callable[Args, Made], *args: Args.args, **options: Args.kwargs
    ) -> Made:
        """Return what `work` makes of a body of `size` bytes."""
        if size < LARGE:
            return work(*args, **options)
        async with self._large:
            return await asyncio.to_thread(work, *args, **options)


def has_image(fields: RawObject) -> bool:
    """Return whether the messages, or the items of a Responses request, hold an image: an object of such a type. They are
    searched, not parsed."""
    messages = bytes(fields.get("messages") or fields.get("input") or b"")
    if b'"image' not in messages and b'"input_image"' not in messages:
        return False
    return kind_of(messages) == "[" and _IMAGE.search(messages) is not None


def _no_object(what: str) -> ApiError:
    return bad_request(f"{what} must be a JSON object")


def _explained(error: Exception, body: bytes | Raw, what: str) -> ApiError:
    """Return the error of an invalid JSON text."""
    match error:
        case RecursionError():
            sentence = "is nested too deeply"
        case UnicodeDecodeError():
            sentence = "is not valid UTF-8"
        case msgspec.ValidationError() if str(error).startswith("Expected `object`"):
            return _no_object(what)
        case msgspec.ValidationError():
            sentence = f"holds a number that is out of range: {error}"
        case _ if _HALF.search(str(error)) and _LONE.search(bytes(body)):
            sentence = r"holds half of a surrogate pair, such as \ud83c, which is no character"
        case _ if not bytes(body).strip():
            sentence = "is empty; a JSON object is expected"
        case _:
            sentence = f"is not valid JSON: {error}"
    return bad_request(f"{what} {sentence}")
