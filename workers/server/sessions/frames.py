"""Reads a worker's frames. Pure.

JSON may hold half of a surrogate pair (`"\\ud83d"`): `json.dumps` writes that when a token splits a character, and the other half
follows with the next token. Strict decoders reject such a frame. Here a half becomes U+FFFD.
"""

import json

import msgspec

from fairlane.workers.protocol import PRINTABLE, FromWorker, from_worker

HEADROOM = 100
"""Levels by which a frame may be nested less than the decoder can take: who reads it later calls from deeper down."""
LARGE = 512 * 1024
"""Characters. Only results and output may be larger."""
MAX_REPAIRED = 256 * 1024
"""Characters. In a larger frame half of a surrogate pair is an error, as finding all of them would take too long."""
_OPEN, _CLOSE = "[" * HEADROOM, "]" * HEADROOM
_any = msgspec.json.Decoder(msgspec.Raw)
_PRINTABLE = f"`str` matching regex {PRINTABLE!r}"


class _Kind(msgspec.Struct):
    type: str = ""


_kind = msgspec.json.Decoder(_Kind)


def read_frame(data: str | bytes) -> FromWorker:
    """Return the message in a frame.

    Raise what the decoder raises: msgspec.DecodeError (also for wrong fields), UnicodeDecodeError, RecursionError.
    """
    text = data if isinstance(data, str) else data.decode()
    try:
        if len(text) > HEADROOM and text.count("[") + text.count("{") > HEADROOM:
            _check_depth(text)
        if len(text) > LARGE:
            _check_size(text)
        return from_worker.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # it may be for a half
        if len(text) > MAX_REPAIRED or ("\\ud" not in text and "\\uD" not in text):
            raise
        whole = _without_halves(text)
        _check_depth(whole)
        return from_worker.decode(whole)


def _check_depth(text: str) -> None:
    """Raise RecursionError where a frame is nested too deeply."""
    _any.decode(_OPEN + text + _CLOSE)


def _check_size(text: str) -> None:
    """Raise ValidationError for a large message without output."""
    if _kind.decode(text).type not in ("taskChunk", "taskResult"):
        raise msgspec.ValidationError(f"A message of this type may have at most {LARGE} characters")


def explain(error: Exception) -> str:
    """Return what is wrong with a frame, for the worker's author."""
    return str(error).replace(_PRINTABLE, "a text without control characters")[:500]


def _without_halves(text: str) -> str:
    """Return JSON with each half of a surrogate pair replaced by U+FFFD. Raise ValueError, RecursionError."""
    whole = json.dumps(json.loads(text), ensure_ascii=False)
    return whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
