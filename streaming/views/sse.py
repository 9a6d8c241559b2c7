"""Server-sent events as bytes. LF only; each function returns one whole frame, to be written in one write."""

import msgspec
from msgspec import Struct

from fairlane.queues.failures import FAILURES, failure_row
from fairlane.streaming.events import LOGGED, UNLOGGED, Event
from fairlane.streaming.jsontext import json_string

KEEPALIVE = b": keepalive\n"
"""A comment for silent times.

One LF: after an empty line some OpenAI clients parse an event out of nothing.
"""

DONE = b"data: [DONE]\n\n"

_HEADS = {name: b"event: %b\n" % name.encode() for name in LOGGED | UNLOGGED}


class _Bye(Struct, rename="camel"):
    reconnect_ms: int


_bye = msgspec.json.Decoder(_Bye)


def native_frame(event: Event) -> bytes:
    """The event as native readers see it.

    Only logged events carry an id, so that others never move a cursor; a `restart` has an empty one, which takes the cursor away.
    """
    return frame_with(event, event.data)


def frame_with(event: Event, data: bytes) -> bytes:
    """The event's frame with other data."""
    head = _HEADS.get(event.type) or b"event: %b\n" % event.type.encode()
    if event.epoch:
        return b"id: %d-%d\n%bdata: %b\n\n" % (event.epoch, event.seq, head, data)
    if event.type == "restart":
        return b"id: \n%bdata: %b\n\n" % (head, data)
    if event.type == "bye":
        return b"%bretry: %d\ndata: %b\n\n" % (head, _bye.decode(data).reconnect_ms, data)
    return b"%bdata: %b\n\n" % (head, data)


def frame_parts(event: Event) -> tuple[bytes, bytes]:
    """What stands in the frame of a logged event before its data, and behind them."""
    return b"id: %d-%d\n%bdata: " % (event.epoch, event.seq, _HEADS[event.type]), b"\n\n"


def typed_frame(kind: bytes, members: bytes = b"") -> bytes:
    """A frame whose event is the `type` in its data; `members`: the others, each with a comma before it."""
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (kind, kind, members)


def error_body(message: str, code: str) -> bytes:
    """OpenAI's error object for a failure code, with the address of the explanation of a known one."""
    row = failure_row(code)
    return b'{"error":{"message":%b,"type":"%b","param":null,"code":%b%b}}' % (
        json_string(message),
        row.kind.encode(),
        json_string(row.code),
        b',"docs_url":"/docs#%b"' % code.encode() if code in FAILURES else b"",
    )


def error_frame(message: str, code: str) -> bytes:
    """How an OpenAI stream ends in failure. No `[DONE]` follows."""
    return b"data: %b\n\n" % error_body(message, code)
