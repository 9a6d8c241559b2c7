"""Reads a worker's frames. Pure.

JSON may hold half of a surrogate pair (`"\\ud83d"`): `json.dumps` writes that when a token splits a character, and the other
half comes with the next token. Strict decoders refuse such a frame whole. Here the halves of output text are kept until they
meet; anywhere else a half becomes U+FFFD.
"""

import json
import re
from typing import Any

import msgspec

from fairlane.workers.protocol import Delta, FromWorker, TaskChunk, from_worker

_ESCAPES = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.S,
)
HEADROOM = 100
"""Levels by which a frame may be nested less than the decoder can take: who reads it later calls from deeper down."""
_OPEN, _CLOSE = "[" * HEADROOM, "]" * HEADROOM
_any = msgspec.json.Decoder(msgspec.Raw)
_TEXTS = ("content", "reasoning", "refusal")


def read_frame(data: str | bytes) -> tuple[FromWorker, bool]:
    """The message in a frame, and whether its output text may hold halves of surrogate pairs.

    Raises what the decoder raises: msgspec.DecodeError (also for wrong fields), UnicodeDecodeError, RecursionError.
    """
    text = data if isinstance(data, str) else data.decode()
    if len(text) > HEADROOM and text.count("[") + text.count("{") > HEADROOM:
        _any.decode(_OPEN + text + _CLOSE)
    if "\\ud" not in text and "\\uD" not in text:
        return from_worker.decode(text), False
    mended = _ESCAPES.sub(_mend, text)
    frame = from_worker.decode(mended)
    if mended == text or not isinstance(frame, TaskChunk):
        return frame, False
    loose = json.loads(text)
    if frame.delta is not None:
        frame.delta = loose["delta"]
    for delta, members in zip(frame.deltas, loose.get("deltas", ()), strict=True):
        _restore(delta, members)
    return frame, True


def _mend(match: re.Match[str]) -> str:
    return "\\ufffd" if match.group(2) else match.group(0)


def _restore(delta: Delta, members: dict[str, Any]) -> None:
    for name in _TEXTS:
        if getattr(delta, name) is not None:
            setattr(delta, name, members[name])


class Halves:
    """Joins the halves of characters that were split between deltas of the same choice and kind."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], str] = {}

    def join(self, index: int, kind: str, text: str) -> str:
        """`text` behind the half that waited for it; a first half at its end is kept back. Whole characters only."""
        text = self._held.pop((index, kind), "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[index, kind] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def rest(self) -> list[tuple[int, str]]:
        """Choice and kind of the halves that still wait; they are forgotten: each stands for one U+FFFD."""
        held, self._held = list(self._held), {}
        return held
