"""Thoughts that must come back unchanged. Pure.

Anthropic's models sign what they think, and want it back in a loop of tools. A Responses client keeps a reasoning item's
`encrypted_content` without reading it, so it is where this stands: packed, not secret, as the readable thoughts are not.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from fairlane.streaming.jsontext import items, members
from fairlane.streaming.views.choice import THOUGHTS

_PREFIX = "fairlane1."


class Thought(Struct, omit_defaults=True):
    """A thought as Anthropic sends it."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


_thought = msgspec.json.Decoder(Thought).decode
_thoughts = msgspec.json.Decoder(list[Thought]).decode
_WRONG = (binascii.Error, msgspec.MsgspecError, RecursionError, ValueError)


def signed_thoughts(found: Mapping[str, bytes]) -> list[Thought]:
    """Those thoughts among the members of a chunk of kind `extra` that must come back."""
    thoughts = []
    for raw in items((members(found.get("delta")) or {}).get(THOUGHTS)) or ():
        try:
            thought = _thought(raw)
        except _WRONG:
            continue
        if thought.signature or thought.data:
            thoughts.append(thought)
    return thoughts


def sealed(thoughts: Sequence[Thought]) -> bytes:
    """Signed thoughts as one text, a JSON string."""
    return b'"%b%b"' % (_PREFIX.encode(), base64.b64encode(msgspec.json.encode(thoughts)))


def unsealed(sealed: str) -> list[bytes] | None:
    """The thoughts that such a text holds, each JSON; None for one that was made elsewhere."""
    if not sealed.startswith(_PREFIX):
        return None
    try:
        thoughts = _thoughts(base64.b64decode(sealed.removeprefix(_PREFIX), validate=True))
    except _WRONG:
        return None
    return [msgspec.json.encode(thought) for thought in thoughts]
