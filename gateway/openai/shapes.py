"""Decodes parts of a request as types, and explains which member does not fit. Pure.

For APIs whose requests are converted. A type lists all known members; any other one is rejected by its name. Values that are
passed on unchanged stay unparsed.
"""

from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from fairlane.gateway.errors import ApiError, bad_request, too_large
from fairlane.streaming.jsontext import EMPTY_STRING, join_object, json_string, kind_of
from fairlane.workers.adapters.dialects.chat_only import joined

MAX_BYTES = 16 << 20
"""Maximum size of a chat request by default."""
NULL = Raw(b"null")
EMPTY = (b'""', b"[]", b"{}")
_names = msgspec.json.Decoder(list[str])
_content = msgspec.json.Decoder(str | list[Raw]).decode
NOT_HERE = "is not supported; leave it out"
_WORDS = {
    "`str`": "a string",
    "`int`": "an integer",
    "`float`": "a number",
    "`array`": "a list",
    "`object`": "an object",
    "`bool`": "true or false",
}
_SYSTEM = b'{"role":"system","content":'

HostedTools = Literal["reject", "drop"]
"""The values of the setting `hosted_tools`."""


class StrictStruct(Struct, forbid_unknown_fields=True):
    """A type that rejects unknown members."""


class Typed(Struct):
    type: Any = None


Shape = TypeVar("Shape")


class SizeLimit:
    """Bounds the size of a converted request."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0

    def grow(self, size: int) -> None:
        """Count bytes that were read. Raise ApiError(413) if they exceed the limit."""
        self._bytes += size
        if self._bytes > self._most_bytes:
            raise too_large(self._most_bytes)

    def check_escaped(self, raw: Raw) -> None:
        """Raise ApiError(413) if a value would not fit as a JSON text, before it is encoded."""
        data = bytes(raw)
        if len(data) + data.count(b'"') + data.count(b"\\") > self._most_bytes:
            raise too_large(self._most_bytes)


def read(raw: bytes | Raw, decoder: msgspec.json.Decoder[Shape], place: str) -> Shape:
    """Return a value of the decoder's type. Raise ApiError(400) that names the member that does not fit."""
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise invalid(place, "is nested too deeply") from None
    except msgspec.MsgspecError as error:
        raise _shape_error(str(error), place) from None


def _shape_error(message: str, place: str) -> ApiError:
    """Return the error of a value of another type, in our words."""
    sentence, found, inside = message.rpartition(" - at `$")
    if found:
        place += inside.rstrip("`")
    else:
        sentence = message
    for begin, why in (
        ("Object contains unknown field `", NOT_HERE),
        ("Object missing required field `", "is missing"),
    ):
        if sentence.startswith(begin):
            return invalid(f"{place}.{sentence.removeprefix(begin).rstrip('`')}", why)
    if sentence.startswith("Invalid value "):
        return invalid(place, f"{sentence.removeprefix('Invalid value ')[:100]} is not supported")
    for word, ours in _WORDS.items():
        sentence = sentence.replace(word, ours)
    return invalid(place, sentence[:1].lower() + sentence[1:300])


def invalid(place: str, why: str) -> ApiError:
    """Return the error of a value at a place of the request."""
    place = place[:200]
    return bad_request(f"{place}: {why}", place)


def text(raw: Raw, place: str) -> bytes:
    """Return the inside of a JSON text, without quotes. Raise ApiError(400)."""
    if kind_of(raw) != '"':
        raise invalid(place, "must be a string")
    return bytes(raw).strip()[1:-1]


def string(raw: Raw, place: str) -> bytes:
    """Return a text, as JSON. Raise ApiError(400)."""
    return b'"%b"' % text(raw, place)


def is_null(raw: Raw) -> bool:
    """Return whether a member is absent or null."""
    return raw is NULL or kind_of(raw) == ""


def is_empty(raw: Raw) -> bool:
    """Return whether a member says nothing: it is absent, null, or an empty text, list or object."""
    return is_null(raw) or bytes(memoryview(raw)[:64]) in EMPTY


def check_callers(raw: Raw, place: str) -> None:
    """Raise ApiError(400) for a tool that the model itself may not call."""
    if not is_null(raw) and "direct" not in read(raw, _names, place):
        raise invalid(place, "must contain 'direct': only the model can call tools")


def add_system(messages: list[bytes | bytearray], content: bytes) -> None:
    """Add a system message to those of a chat, if it says something; leading ones become one, because templates of many models
    take no second one."""
    if content in (EMPTY_STRING, b"[]"):
        return
    before = bytes(messages[0]) if len(messages) == 1 else b""
    if before.startswith(_SYSTEM):
        content = msgspec.json.encode(joined(_content(before[len(_SYSTEM) : -1]), _content(content)))
        messages.clear()
    messages.append(b"%b%b}" % (_SYSTEM, content))


def check_hosted(kind: Any, place: str, hosted: HostedTools) -> None:
    """Raise ApiError(400) for a tool of a type that only its provider runs, unless such tools are dropped."""
    if not isinstance(kind, str):
        raise invalid(place, "must be a string")
    if hosted == "reject":
        sentence = f"{kind[:100]!r} runs only at its provider. Turn it off in the client"
        raise invalid(place, f"{sentence}, or ask the operator to set hosted_tools: drop")


def json_object(**pairs: bytes | str) -> bytes:
    """Return an object of these members: texts, and JSON as it is."""
    return join_object(
        (name, json_string(value) if isinstance(value, str) else value) for name, value in pairs.items()
    )
