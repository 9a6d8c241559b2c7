"""A form as the JSON object that its task's payload is: the same that a call with a JSON body would have.

| in the form | in the payload |
|---|---|
| a field | a text; a number or true and false where OpenAI's reference says so |
| a name that comes more than once, or ends with `[]` | a list, in the order in which they came |
| `name[key]` | a member `key` of the object `name` |
| a file | `{"filename", "contentType", "data"}`, its bytes as base64 |

The way back is `workers/adapters/dialects/media.py`.
"""

import re
from base64 import b64encode
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.gateway.core.bodies import RawObject
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.http.multipart import WholePart
from fairlane.streaming.jsontext import json_string
from fairlane.workers.tasktypes import FILES

MAX_LEVELS = 3
"""Depth of names in brackets."""
NUMBERS = frozenset(
    {
        *("temperature", "n", "partial_images", "output_compression", "frame_count", "frame_duration_ms"),
        *("prefix_padding_ms", "silence_duration_ms", "threshold", "speed"),
    }
)
FLAGS = frozenset({"stream"})
_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_KEY = re.compile(r"\[([^\[\]]*)\]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?")
_TYPE = re.compile(r"[!-~ ]{1,100}")
_OTHER_TYPE = "application/octet-stream"

Node = dict[str, Any]
"""Names to what they hold: Raw, a list of it, or a Node."""


def members_of(parts: list[WholePart]) -> RawObject:
    """Return the members of the payload of a form. Raise ApiError(400) for names that make no sense together, and values that
    are invalid. Parts are taken out of their list, as each may be long.
    """
    root: Node = {}
    while parts:
        part = parts.pop(0)
        base, keys = _path(part.name)
        _put(root, base, keys, _value(part, base, keys), part.name)
    return {name: _json(value) for name, value in root.items()}


def _path(name: str) -> tuple[str, list[str]]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise bad_request(f"{name[:100]!r} cannot be the name of a field", name[:100])
    keys = _KEY.findall(found[2])
    if len(keys) > MAX_LEVELS:
        raise bad_request(f"{name[:100]} has more than {MAX_LEVELS} names in brackets", found[1][:100])
    if "" in keys[:-1]:
        raise bad_request(
            f"{name[:100]}: empty brackets are allowed only at the end of a name", found[1][:100]
        )
    return found[1], keys


def _put(node: Node, name: str, keys: list[str], value: Raw, full_name: str) -> None:
    """Put a value where its name says."""
    for key in keys:
        if key == "":
            break
        inner = node.setdefault(name, {})
        if not isinstance(inner, dict):
            raise _twice(full_name)
        node = inner
        name = key
    known = node.get(name)
    if isinstance(known, dict):
        raise _twice(full_name)
    if known is None:
        node[name] = [value] if keys and keys[-1] == "" else value
    elif isinstance(known, list):
        known.append(value)
    else:
        node[name] = [known, value]


def _twice(name: str) -> ApiError:
    return bad_request(f"{name[:100]} is given as a value, and as an object with members", name[:100])


def _value(part: WholePart, base: str, keys: list[str]) -> Raw:
    """Return the value of a part as JSON. Raise ApiError(400)."""
    if part.filename is not None:
        return Raw(_file(part))
    if base in FILES:
        raise bad_request(f"{base} must be a file: send it as a part with a filename", base)
    try:
        text = part.data.decode()
    except UnicodeDecodeError:
        raise bad_request(f"{part.name[:100]} is not valid UTF-8", part.name[:100]) from None
    last = next((key for key in reversed(keys) if key), base)
    if last in NUMBERS:
        if not _NUMBER.fullmatch(text):
            raise bad_request(f"{last} must be a number", last)
        return Raw(text.encode())
    if last in FLAGS:
        if text not in ("true", "false"):
            raise bad_request(f"{last} must be true or false", last)
        return Raw(text.encode())
    return Raw(json_string(text))


def _file(part: WholePart) -> bytes:
    kind = part.content_type if _TYPE.fullmatch(part.content_type) else _OTHER_TYPE
    return b'{"filename":%b,"contentType":%b,"data":"%b"}' % (
        json_string(part.filename or ""),
        json_string(kind),
        b64encode(part.data),
    )


def _json(value: Any) -> Raw:
    return value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))
