"""Checks outgoing messages as the gateway will: one that it would reject fails its task here, not the connection. Pure."""

import msgspec

from fairlane.workers.protocol import Delta, from_worker

HEADROOM = 200
"""Levels by which a message may be nested less than this process could read. Gateways keep back fewer."""
_OPEN, _CLOSE = b"[" * HEADROOM, b"]" * HEADROOM
_any = msgspec.json.Decoder(msgspec.Raw)
_delta = msgspec.json.Decoder(Delta)


def check_delta(encoded: bytes) -> None:
    """Raise ValueError or RecursionError for a delta that the gateway would not take."""
    delta = _delta.decode(encoded)
    if delta.tool_calls is not msgspec.UNSET and bytes(delta.tool_calls)[:1] not in (b"[", b"n"):
        raise ValueError("tool_calls is no list")
    if delta.extra is not msgspec.UNSET and bytes(delta.extra)[:1] not in (b"{", b"n"):
        raise ValueError("extra is no object")
    _check_depth(encoded)


def check_message(frame: bytes) -> None:
    """The same for a whole message."""
    from_worker.decode(frame)
    _check_depth(frame)


def _check_depth(text: bytes) -> None:
    if len(text) > HEADROOM and text.count(b"[") + text.count(b"{") > HEADROOM:
        _any.decode(b"%b%b%b" % (_OPEN, text, _CLOSE))
