"""Helpers of these tests: the events of a Messages stream, checked for their order, and what an SDK makes of them."""

import json
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from streaming_logs import INFO, Log, fold, frames, read

from fairlane.streaming.views.messages import MessagesBodyView, MessagesStreamView

_event = TypeAdapter(RawMessageStreamEvent).validate_python


def events(log: Log, info: Any = INFO) -> list[Any]:
    """The data of all events; each is named by its type, and none has an id."""
    shown = frames(read(MessagesStreamView(info), log.events))
    for frame in shown:
        assert (frame.id, frame.retry, frame.event) == (None, None, frame.json["type"])
    return [frame.json for frame in shown]


def streamed(log: Log, info: Any = INFO) -> Message:
    """What the SDK makes of a stream that came to its end; the order of its events is as Anthropic tells it."""
    told = events(log, info)
    check_order(told)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for data in told:
        snapshot = accumulate_event(event=_event(data), current_snapshot=snapshot, json_bufs=buffers)
    return Message.model_validate(snapshot.to_dict())


def check_order(told: list[Any]) -> None:
    """`message_start`, then whole blocks one after the other, numbered from 0, then `message_delta` and `message_stop`."""
    assert [data["type"] for data in told[-2:]] == ["message_delta", "message_stop"]
    assert told[0]["type"] == "message_start"
    open_at, at = None, 0
    for data in told[1:-2]:
        if data["type"] == "content_block_start":
            assert (open_at, data["index"]) == (None, at)
            open_at = at
        else:
            assert data["index"] == open_at
            if data["type"] == "content_block_stop":
                open_at, at = None, at + 1
            else:
                assert data["type"] == "content_block_delta"
    assert open_at is None


def body(log: Log, info: Any = INFO) -> Message:
    return Message.model_validate(json.loads(fold(MessagesBodyView(info), log.events).body()))


def content(message: Message) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]
