"""Anthropic's Messages: the stream of events, and the message.

Chunks of reasoning are thinking blocks, texts (a refusal too) text blocks, tool calls `tool_use` blocks. Thoughts that a worker
sends as Anthropic does, in `thinking_blocks` of its extra members, have their signatures; others an empty one. Of several choices
the first is shown.
"""

from collections.abc import Mapping, Sequence

import msgspec

from fairlane.queues.failures import anthropic_kind, failure_row
from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_done, wait_members
from fairlane.streaming.jsontext import NULL, join_object, json_string, members, one_line, string_or_none
from fairlane.streaming.views.blocks import BlockStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.sse import typed_frame
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.thoughts import Thought, signed_thoughts
from fairlane.streaming.views.usage import anthropic_usage

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
"""By finish reason; any other one is `end_turn`."""
OWN_REASONS = frozenset(
    {*STOP_REASONS.values(), "stop_sequence", "pause_turn", "model_context_window_exceeded"}
)
"""Anthropic's, which their upstream sends as its own word (`native_finish_reason`)."""
_WHY = ("native_finish_reason", "stop_reason", "matched_stop")
"""Members of a choice that say why it ended: Anthropic's own word, and the stop sequence that was met, by
vLLM's name and by SGLang's."""
_MAX_ID = 256
TOO_LONG = "prompt is too long"
_DELTAS = {
    "text": b'"text_delta","text"',
    "thinking": b'"thinking_delta","thinking"',
    "signature": b'"signature_delta","signature"',
    "input": b'"input_json_delta","partial_json"',
}
_TEXT = b'{"type":"text","text":""}'
_THINKING = b'{"type":"thinking","thinking":"","signature":""}'


class MessagesStreamView(BlockStreamView):
    """Events of a Messages stream: `message_start` comes with the first output, and the end is the last block's end,
    `message_delta` with the reason and the usage, `message_stop`."""

    silence = typed_frame(b"ping")

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self.id: bytes | None = None
        """The upstream's own of the message."""
        self.why = (NULL, NULL)
        """`stop_reason` and `stop_sequence`, when it has ended."""
        self._begun = False
        self._number = 0
        """Of the block that is open, or of the next one."""
        self._ended_by: dict[str, bytes] = {}
        """Members of the choice that say why it ended."""

    def queue_chunk(self, place: Place) -> bytes:
        """An event for a stream that waits: shows its place and keeps clients from giving up."""
        values = place.position, wait_members(place)
        return typed_frame(b"ping", b',"fairlane":{"queuePosition":%d,%b}' % values)

    def failed(self, message: str, code: str) -> bytes:
        """How a stream ends in failure."""
        return b"event: error\ndata: %b\n\n" % error_body(message, code)

    def _text(self, delta: bytes) -> bytes:
        before = b"" if self._open == "text" else self._block("text", _TEXT)
        return before + self._delta("text", delta)

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
        self._ended_by |= {name: bytes(found[name]) for name in _WHY if name in found}
        reported = string_or_none((members(found.get("response")) or {}).get("id"))
        if reported is not None and reported.startswith(b'"msg_') and len(reported) <= _MAX_ID:
            self.id = self.id if self._begun else one_line(reported)
        return b"".join(map(self._signed, signed_thoughts(found)))

    def _signed(self, thought: Thought) -> bytes:
        """A thought as it must come back: what was shown of it is signed, else all of it is shown."""
        if thought.data:
            block = b'{"type":"redacted_thinking","data":%b}' % json_string(thought.data)
            return self._block("redacted", block) + self._close()
        before = b""
        if self._open != "thinking":
            if self._thought and thought.thinking:
                return b""  # it was shown
            before = self._block("thinking", _THINKING)
            if thought.thinking:
                before += self._delta("thinking", json_string(thought.thinking))
        return before + self._delta("signature", json_string(thought.signature or "")) + self._close()

    def _block(self, kind: str, block: bytes) -> bytes:
        """Begin a block, behind all that comes before it."""
        before = self._close()
        if not self._begun:
            self._begun = True
            before = self._start()
        self._open = kind
        return before + typed_frame(
            b"content_block_start", b',"index":%d,"content_block":%b' % (self._number, block)
        )

    def _delta(self, member: str, delta: bytes) -> bytes:
        """More of a member of the open block."""
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":%b:%b}}\n\n'
            % (self._number, _DELTAS[member], delta)
        )

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open, number = "", self._number
        self._number += 1
        return typed_frame(b"content_block_stop", b',"index":%d' % number)

    def _start(self) -> bytes:
        usage = anthropic_usage(self._latest_usage)
        usage.pop("output_tokens_details", None)
        message = _message(self._info, self.id, b"[]", (NULL, NULL), msgspec.json.encode(usage))
        return typed_frame(b"message_start", b',"message":%b' % message)

    def _done(self, event: Event) -> bytes:
        done = read_done(event.data)
        frames = self._left(done.result) + self._close()
        if not self._begun:
            frames += self._start()
        self.why = self._why_ended(self._finish or done.finish_reason)
        usage = msgspec.json.encode(anthropic_usage(self._usage(done)))
        why = b',"delta":{"stop_reason":%b,"stop_sequence":%b},"usage":%b' % (*self.why, usage)
        return frames + typed_frame(b"message_delta", why) + typed_frame(b"message_stop")

    def _why_ended(self, finish: bytes | None) -> tuple[bytes, bytes]:
        """`stop_reason` and `stop_sequence`: as an upstream of Anthropic's said it, else by the finish reason. Calls of tools are
        the reason also if the server says `stop`."""
        sequence = next(filter(None, (string_or_none(self._ended_by.get(name)) for name in _WHY[1:])), None)
        own = _said(self._ended_by.get(_WHY[0]))
        reason = own if own in OWN_REASONS else STOP_REASONS.get(_said(finish) or "stop", "end_turn")
        if reason == "end_turn":
            met = ((self._called, "tool_use"), (self._refused, "refusal"), (sequence, "stop_sequence"))
            reason = next((other for holds, other in met if holds), reason)
        if reason != "stop_sequence":
            sequence = None
        return b'"%b"' % reason.encode(), NULL if sequence is None else one_line(sequence)


class _Blocks(MessagesStreamView):
    """The same blocks, put together instead of drawn: each by its members, texts as the insides of JSON strings."""

    def __init__(self, info: TaskInfo) -> None:
        super().__init__(info)
        self._blocks: list[tuple[bytes, dict[str, bytearray]]] = []

    def json(self) -> bytes:
        """All blocks so far."""
        return b"[%b]" % b",".join([_whole_block(block, texts) for block, texts in self._blocks])

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
        values["input"] = _input_of(values["input"])
    return join_object({**(members(block) or {}), **values}.items())


def _input_of(arguments: bytes) -> bytes:
    """The arguments of a call (a JSON string) as an object: a text that is none becomes one with the member `arguments`."""
    raw = (_said(arguments) or "").strip().encode()
    return one_line(raw) if members(raw) is not None else b'{"arguments":%b}' % arguments if raw else b"{}"


def _said(raw: bytes | None) -> str | None:
    found = string_or_none(raw)
    return None if found is None else str(msgspec.json.decode(found, type=str))


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
