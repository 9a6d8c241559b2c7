"""Anthropic's Messages: the stream of events, and the message.

Chunks of reasoning are thinking blocks, texts (a refusal too) text blocks, tool calls `tool_use` blocks. Thoughts that a worker
sends as Anthropic does, in `thinking_blocks` of its extra members, have their signatures; others an empty one. Of several choices
the first is shown.
"""

from collections.abc import Mapping, Sequence

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
from fairlane.streaming.views.blocks.stream import BlockStreamView
from fairlane.streaming.views.choice import thoughts_of
from fairlane.streaming.views.messages.content import WHY, input_of, own_id, why_ended
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import anthropic_usage

_DELTAS = {
    "thinking": b'"thinking_delta","thinking"',
    "signature": b'"signature_delta","signature"',
    "input": b'"input_json_delta","partial_json"',
}
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
        self.id: bytes | None = None
        """The upstream's own of the message."""
        self.why = (NULL, NULL)
        """`stop_reason` and `stop_sequence`, when it has ended."""
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
        return before + self._delta("thinking", delta)

    def _refusal(self, delta: bytes) -> bytes:
        return self._text(delta)

    def _begin_call(self, call_id: bytes, name: bytes) -> bytes:
        return self._block("tool", b'{"type":"tool_use","id":%b,"name":%b,"input":{}}' % (call_id, name))

    def _arguments(self, delta: bytes) -> bytes:
        return self._delta("input", delta)

    def _end_call(self) -> bytes:
        return self._close()

    def _extra(self, found: Mapping[str, bytes]) -> bytes:
        self._told |= {name: bytes(found[name]) for name in WHY if name in found}
        if not self._begun:
            self.id = own_id((members(found.get("response")) or {}).get("id")) or self.id
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
                before += self._delta("thinking", one_line(text))
        return before + self._delta("signature", one_line(signature)) + self._close()

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

    def _delta(self, member: str, delta: bytes) -> bytes:
        """More of a member of the open block."""
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b:%b}}\n\n'
            % (self._at, _DELTAS[member], delta)
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
        message = _message(self._info, self.id, b"[]", (NULL, NULL), msgspec.json.encode(usage))
        return b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % message

    def _end(self, event: Event) -> bytes:
        if event.type == "done":
            return self._finished(event)
        return self.failed(*why_failed(event))

    def _finished(self, event: Event) -> bytes:
        done = read_done(event.data)
        frames = [self._left(done.result), self._close()]
        if not self._begun:
            frames.append(self._start())
        self.why = why_ended(
            self._finish or done.finish_reason, self._told, called=self._called, refused=self._refused
        )
        usage = msgspec.json.encode(anthropic_usage(done.usage, done.result, self._latest_usage))
        frames.append(
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":%b,"stop_sequence":%b},"usage":%b}\n\n'
            % (*self.why, usage)
        )
        return b"".join(frames) + _MESSAGE_STOP


class _Blocks(MessagesStreamView):
    """The same blocks, put together instead of drawn: each by its members, texts as the insides of JSON strings."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._blocks: list[tuple[bytes, dict[str, bytearray]]] = []

    def json(self) -> bytes:
        """All blocks so far."""
        return b"[%b]" % b",".join([_whole_block(block, texts) for block, texts in self._blocks])

    def _text(self, delta: bytes) -> bytes:
        if self._open != "text":
            self._block("text", b'{"type":"text","text":""}')
        return self._delta("text", delta)

    def _block(self, kind: str, block: bytes) -> bytes:
        self._open, self._begun = kind, True
        self._blocks.append((block, {}))
        return b""

    def _delta(self, member: str, delta: bytes) -> bytes:
        self._blocks[-1][1].setdefault(member, bytearray()).extend(memoryview(delta)[1:-1])
        return b""

    def _close(self) -> bytes:
        self._open = ""
        return b""


def _whole_block(block: bytes, texts: dict[str, bytearray]) -> bytes:
    values = {name: b'"%b"' % bytes(text) for name, text in texts.items()}
    if "input" in values:
        values["input"] = input_of(values["input"])
    return join_object({**(members(block) or {}), **values}.items())


class MessagesBodyView(ResultView):
    """The message of a completed task: what its stream says."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._stream = _Blocks(info)

    def feed(self, event: Event) -> None:
        if event.type != "chunk":
            super().feed(event)
        self._stream.feed(event)

    def body(self) -> bytes:
        usage = msgspec.json.encode(anthropic_usage(self.usage))
        return _message(self.info, self._stream.id, self._stream.json(), self._stream.why, usage)


TOO_LONG = "prompt is too long"


def error_body(
    message: str,
    code: str,
    request_id: str | None = None,
    status: int | None = None,
    unsupported: Sequence[str | None] = (),
) -> bytes:
    """Anthropic's error object for a failure code; `status`: the HTTP status, if not that of the code. Claude Code shortens a
    conversation when it reads Anthropic's words for one that is too long."""
    row = failure_row(code)
    if code == "CONTEXT_LENGTH" and TOO_LONG not in message.lower():
        message = f"{TOO_LONG}: {message}"
    error = b'{"type":"error","error":{"type":"%b","message":%b,"details":{"error_code":%b%b}}' % (
        anthropic_kind(status or row.openai).encode(),
        json_string(message),
        json_string(code),
        b',"unsupported":%b' % msgspec.json.encode(unsupported) if unsupported else b"",
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
