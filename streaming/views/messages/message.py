"""Anthropic's Messages: the stream of events, and the message.

Chunks of reasoning are thinking blocks, texts (a refusal too) text blocks, tool calls `tool_use` blocks. Thoughts that a worker
sends as Anthropic does, in `thinking_blocks` of its extra members, have their signatures; others an empty one. Of several choices
the first is shown.
"""

from collections.abc import Mapping

import msgspec

from fairlane.queues.failures import anthropic_kind, failure_row
from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_done, wait_members, why_failed
from fairlane.streaming.jsontext import (
    EMPTY_STRING,
    NULL,
    join_object,
    json_string,
    members,
    one_line,
    string_or_none,
)
from fairlane.streaming.views.blocks.stream import BlockStreamView, first_of
from fairlane.streaming.views.choice import choices_of_result, thoughts_of
from fairlane.streaming.views.messages.content import WHY, blocks_of, own_id, why_ended
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import anthropic_usage

_THINKING = b'{"type":"thinking","thinking":"","signature":""}'
_MESSAGE_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'


class MessagesStreamView(BlockStreamView):
    """Events of a Messages stream from all events of a task in order.

    `message_start` comes with the first output, each block is whole before the next one begins, and the end is in one piece: the
    last block's end, `message_delta` with the reason and the usage, `message_stop`. A failure, a cancellation and lost events end
    the stream with an `error` event. After the end, `ended` is true and every event is ignored. A worker's result is shown where
    its chunks showed no content.
    """

    silence = b'event: ping\ndata: {"type":"ping"}\n\n'
    """What is sent to keep the stream alive."""
    place_every_s = 0.0
    """Seconds between two events with a new place, at least."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._id: bytes | None = None
        self._begun = False
        self._at = 0
        """The number of the block that is open, or of the next one."""
        self._told: dict[str, bytes] = {}
        """Members of the choice that say why it ended."""

    @staticmethod
    def open() -> bytes:
        """Nothing stands before the first output."""
        return b""

    def queue_chunk(self, place: Place) -> bytes:
        """An event for a stream that waits: shows its place and keeps clients from giving up."""
        return b'event: ping\ndata: {"type":"ping","fairlane":{"queuePosition":%d,%b}}\n\n' % (
            place.position,
            wait_members(place),
        )

    @staticmethod
    def failed(message: str, code: str) -> bytes:
        """How a stream ends in failure."""
        return b"event: error\ndata: %b\n\n" % error_body(message, code)

    def _text(self, delta: bytes) -> bytes:
        before = b"" if self._open == "text" else self._block("text", b'{"type":"text","text":""}')
        return (
            b'%bevent: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":%b}}\n\n' % (before, self._at, delta)
        )

    def _thinking(self, delta: bytes) -> bytes:
        before = b"" if self._open == "thinking" else self._block("thinking", _THINKING)
        return before + self._delta(b'"thinking_delta","thinking":%b' % delta)

    def _refusal(self, delta: bytes) -> bytes:
        return self._text(delta)

    def _begin_call(self, call_id: bytes, name: bytes) -> bytes:
        return self._block("tool", _tool_use(call_id, name))

    def _arguments(self, delta: bytes) -> bytes:
        return self._delta(b'"input_json_delta","partial_json":%b' % delta)

    def _end_call(self) -> bytes:
        return self._close()

    def _extra(self, found: Mapping[str, bytes]) -> bytes:
        self._told |= {name: bytes(found[name]) for name in WHY if name in found}
        if not self._begun:
            self._id = own_id((members(found.get("response")) or {}).get("id")) or self._id
        return b"".join(map(self._signed, thoughts_of(members(found.get("delta")) or {})))

    def _signed(self, raw: bytes) -> bytes:
        """A thought as it must come back: what was shown of it is signed, else all of it is shown."""
        thought = members(raw) or {}
        data, signature = string_or_none(thought.get("data")), string_or_none(thought.get("signature"))
        if data is not None:
            return (
                self._block("redacted", b'{"type":"redacted_thinking","data":%b}' % one_line(data))
                + self._close()
            )
        if signature is None:
            return b""
        before = b""
        if self._open != "thinking":
            text = string_or_none(thought.get("thinking")) or EMPTY_STRING
            if self._thought and text != EMPTY_STRING:
                return b""  # it was shown
            before = self._block("thinking", _THINKING)
            if text != EMPTY_STRING:
                before += self._delta(b'"thinking_delta","thinking":%b' % one_line(text))
        return before + self._delta(b'"signature_delta","signature":%b' % one_line(signature)) + self._close()

    def _block(self, kind: str, block: bytes) -> bytes:
        """Begin a block, behind all that comes before it."""
        before = self._close()
        if not self._begun:
            self._begun = True
            before = self._start()
        self._open = kind
        return (
            b'%bevent: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
            % (before, self._at, block)
        )

    def _delta(self, delta: bytes) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b}}\n\n'
            % (self._at, delta)
        )

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open, at = "", self._at
        self._at += 1
        return b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n' % at

    def _start(self) -> bytes:
        usage = anthropic_usage(self._latest_usage)
        usage.pop("output_tokens_details", None)
        message = _message(self._info, self._id, b"[]", (NULL, NULL), msgspec.json.encode(usage))
        return b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % message

    def _end(self, event: Event) -> bytes:
        if event.type == "done":
            return self._finished(event)
        return self.failed(*why_failed(event))

    def _finished(self, event: Event) -> bytes:
        done = read_done(event.data)
        frames = [self._left()]
        if done.result is not None:
            frames.append(self._whole(done.result))
        frames.append(self._close())
        if not self._begun:
            frames.append(self._start())
        reason, sequence = why_ended(
            self._finish or done.finish_reason, self._told, called=self._called, refused=self._refused
        )
        usage = msgspec.json.encode(anthropic_usage(done.usage, done.result, self._latest_usage))
        frames.append(
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":%b,"stop_sequence":%b},"usage":%b}\n\n'
            % (reason, sequence, usage)
        )
        return b"".join(frames) + _MESSAGE_STOP

    def _whole(self, result: bytes) -> bytes:
        """What a result says that the chunks did not."""
        choice = first_of(choices_of_result(result))
        self._finish = choice.finish or self._finish
        self._told |= {name: choice.members[name] for name in WHY if name in choice.members}
        if self._content:
            return b""
        if not self._begun:
            told = members((members(result) or {}).get("response")) or members(result) or {}
            self._id = own_id(told.get("id")) or self._id
        self._called, self._refused = bool(choice.tool_calls), choice.refusal is not None
        frames = []
        for block in blocks_of(choice):
            kind = string_or_none(block["type"])
            if kind in (b'"thinking"', b'"redacted_thinking"') and self._thought:
                continue
            frames.append(self._shown(kind, block))
        return b"".join(frames)

    def _shown(self, kind: bytes | None, block: Mapping[str, bytes]) -> bytes:
        """A whole block as its events."""
        if kind == b'"text"':
            return self._text(block["text"])
        if kind == b'"tool_use"':
            begin = self._block("tool", _tool_use(block["id"], block["name"]))
            return (
                begin
                + self._delta(b'"input_json_delta","partial_json":%b' % json_string(block["input"].decode()))
                + self._close()
            )
        if kind == b'"redacted_thinking"':
            return self._block("redacted", join_object(block.items())) + self._close()
        frames = self._thinking(block["thinking"])
        if block["signature"] != EMPTY_STRING:
            frames += self._delta(b'"signature_delta","signature":%b' % block["signature"])
        return frames + self._close()


class MessagesBodyView(ResultView):
    """The message of a completed task."""

    def body(self) -> bytes:
        choice = first_of(self.choices())
        told = members(choice.members.get("response")) or members(self.result) or {}
        why = why_ended(
            choice.finish or self.default_finish,
            choice.members,
            called=bool(choice.tool_calls),
            refused=choice.refusal is not None,
        )
        content = b"[%b]" % b",".join([join_object(block.items()) for block in blocks_of(choice)])
        usage = msgspec.json.encode(anthropic_usage(self.usage))
        return _message(self.info, own_id(told.get("id")), content, why, usage)


TOO_LONG = "prompt is too long"


def error_body(message: str, code: str, request_id: str | None = None, status: int | None = None) -> bytes:
    """Anthropic's error object for a failure code; `status`: the HTTP status, if not that of the code. Claude Code shortens a
    conversation when it reads Anthropic's words for one that is too long."""
    row = failure_row(code)
    if code == "CONTEXT_LENGTH" and TOO_LONG not in message.lower():
        message = f"{TOO_LONG}: {message}"
    error = b'{"type":"error","error":{"type":"%b","message":%b,"details":{"error_code":%b}}' % (
        anthropic_kind(status or row.openai).encode(),
        json_string(message),
        json_string(code),
    )
    return error + (b"}" if request_id is None else b',"request_id":%b}' % json_string(request_id))


def _message(
    info: TaskInfo, told_id: bytes | None, content: bytes, why: tuple[bytes, bytes], usage: bytes
) -> bytes:
    pairs = (
        ("id", told_id or b'"msg_%b"' % info.task_id.encode()),
        ("type", b'"message"'),
        ("role", b'"assistant"'),
        ("model", json_string(info.model)),
        ("content", content),
        ("stop_reason", why[0]),
        ("stop_sequence", why[1]),
        ("usage", usage),
    )
    return join_object(pairs)


def _tool_use(call_id: bytes, name: bytes) -> bytes:
    return b'{"type":"tool_use","id":%b,"name":%b,"input":{}}' % (call_id, name)
