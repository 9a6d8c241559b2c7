"""Thoughts that must come back unchanged, in a reasoning item's `encrypted_content`. Pure.

Anthropic's models sign what they think, and want it back in a loop of tools. A Responses client keeps `encrypted_content` without
reading it, so it is where this stands: packed, not secret, as the readable thoughts are not.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

_PREFIX = "fairlane1."


class _Thought(Struct, omit_defaults=True):
    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


_thought = msgspec.json.Decoder(_Thought).decode
_thoughts = msgspec.json.Decoder(list[_Thought]).decode
_WRONG = (binascii.Error, msgspec.MsgspecError, RecursionError, ValueError)


def signed(raws: Iterable[bytes]) -> list[bytes]:
    """Those of a worker's thoughts that must come back, each one line of JSON."""
    found = []
    for raw in raws:
        try:
            thought = _thought(raw)
        except _WRONG:
            continue
        if thought.signature or thought.data:
            found.append(msgspec.json.encode(thought))
    return found


def text_of(raw: bytes) -> str:
    """What one of them says; empty where that is hidden."""
    return _thought(raw).thinking or ""


def sealed(thoughts: list[bytes]) -> bytes:
    """Signed thoughts as one text, a JSON string."""
    return b'"%b%b"' % (_PREFIX.encode(), base64.b64encode(b"[%b]" % b",".join(thoughts)))


def unsealed(told: str) -> list[bytes] | None:
    """The thoughts that such a text holds, each JSON; None for one that was made elsewhere."""
    if not told.startswith(_PREFIX):
        return None
    try:
        packed = base64.b64decode(told.removeprefix(_PREFIX), validate=True)
        thoughts = _thoughts(packed)
    except _WRONG:
        return None
    return [msgspec.json.encode(thought) for thought in thoughts]
