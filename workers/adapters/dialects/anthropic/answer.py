"""Anthropic's messages, streamed or whole, as OpenAI's deltas. Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from fairlane.workers.adapters.chunks import MAX_CHOICES, StreamError, check_event, is_null
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.chat import Head, calls_delta, completion_of, told_once, usage_from
from fairlane.workers.sdk.values import Delta, Result, Usage

FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Stop reasons; others stay as they are."""
MAX_THINKING = 1024 * 1024
"""Characters of thinking that are kept to be sent back; longer thoughts are shown, but cannot be."""


class _Usage(Struct):
    """Counts so far, each replacing the one before."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class _Block(Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    input: Raw = Raw(b"{}")


class _Message(Struct):
    id: str = ""
    model: str = ""
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None


class _Delta(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Event(Struct):
    type: str = ""
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Raw = Raw(b"null")


class _Whole(_Message, kw_only=True):
    type: str
    error: Raw = Raw(b"null")


class _Open:
    """A block that has not ended."""

    def __init__(self, type: str, call: int) -> None:
        self.type = type
        self.call = call
        self.empty = True
        self.thinking: list[str] = []
        self.signature: list[str] = []
        self.length = 0


class AnthropicReader:
    """Reads one message. See `Reader`."""

    def __init__(self, head: Head) -> None:
        self.usage: Usage | None = None
        self.done = False
        self._head = head
        self._counts = _Usage()
        self._open: dict[int, _Open] = {}
        self._calls = 0
        self._id = ""

    @property
    def complete(self) -> bool:
        return self.done

    def last(self) -> Delta | None:
        return None

    def read(self, event: bytes) -> list[Delta]:
        check_event(event)
        said = msgspec.json.decode(event, type=_Event)
        if said.type == "error" or not is_null(said.error):
            raise StreamError(said.error)
        self._count(said.usage)
        deltas: list[Delta] = []
        if said.type == "message_start" and said.message is not None:
            self._begin(said.message)
        elif said.type == "content_block_start" and said.content_block is not None:
            deltas = self._start(said.index, said.content_block)
        elif said.type == "content_block_delta" and said.delta is not None:
            deltas = self._continue(said.index, said.delta)
        elif said.type == "content_block_stop":
            deltas = self._stop(said.index)
        elif said.type == "message_delta" and said.delta is not None:
            deltas = self._end(said.delta.stop_reason, said.delta.stop_sequence)
        elif said.type == "message_stop":
            self.done = True
        if deltas and self._id:
            told_once(deltas[0], self._id)
            self._id = ""
        return deltas

    def whole(self, body: bytes) -> list[Output]:
        check_event(body)
        message = msgspec.json.decode(body, type=_Whole)
        if not is_null(message.error):
            raise StreamError(message.error)
        if message.stop_reason is None:
            raise ValueError("it has no stop_reason")
        self._begin(message)
        deltas = []
        for index, block in enumerate(message.content):
            deltas += [*self._start(index, block), *self._stop(index)]
        deltas += self._end(message.stop_reason, message.stop_sequence)
        if deltas and self._id:
            told_once(deltas[0], self._id)
        head = Head(self._head.task_id, message.model or self._head.model, self._head.created)
        answer = Result(completion_of(deltas, self.usage, head))
        return [answer] if self.usage is None else [self.usage, answer]

    def _begin(self, message: _Message) -> None:
        self._id = message.id
        self._count(message.usage)

    def _start(self, index: int, block: _Block) -> list[Delta]:
        if len(self._open) >= MAX_CHOICES or self._calls >= MAX_CHOICES:
            raise ValueError(f"more than {MAX_CHOICES} blocks")
        opened = self._open[index] = _Open(block.type, self._calls)
        if block.type == "tool_use":
            self._calls += 1
            arguments = bytes(block.input).decode()
            opened.empty = arguments == "{}"
            text = "" if opened.empty else arguments
            return [Delta(tool_calls=calls_delta(opened.call, block.id, block.name, text))]
        if block.type == "redacted_thinking":
            return [_thinking_block({"type": block.type, "data": block.data})]
        given = _Delta(text=block.text, thinking=block.thinking, signature=block.signature)
        return self._continue(index, given)

    def _continue(self, index: int, delta: _Delta) -> list[Delta]:
        opened = self._open.get(index)
        if opened is None:
            raise ValueError(f"a delta of block {index}, which is not open")
        if opened.type == "tool_use" and delta.partial_json:
            opened.empty = False
            call = {"index": opened.call, "function": {"arguments": delta.partial_json}}
            return [Delta(tool_calls=Raw(msgspec.json.encode([call])))]
        if opened.type == "thinking":
            opened.length += len(delta.thinking) + len(delta.signature)
            if opened.length <= MAX_THINKING:
                opened.thinking.append(delta.thinking)
                opened.signature.append(delta.signature)
            return [Delta(reasoning=delta.thinking)] if delta.thinking else []
        if opened.type == "text" and delta.text:
            return [Delta(content=delta.text)]
        return []

    def _stop(self, index: int) -> list[Delta]:
        opened = self._open.pop(index, None)
        if opened is None:
            return []
        if opened.type == "tool_use" and opened.empty:
            call = {"index": opened.call, "function": {"arguments": "{}"}}
            return [Delta(tool_calls=Raw(msgspec.json.encode([call])))]
        signature = "".join(opened.signature)
        if opened.type == "thinking" and signature and opened.length <= MAX_THINKING:
            thinking = "".join(opened.thinking)
            return [_thinking_block({"type": "thinking", "thinking": thinking, "signature": signature})]
        return []

    def _end(self, reason: str | None, sequence: str | None) -> list[Delta]:
        if reason is None:
            return []
        extra: dict[str, Any] = {"native_finish_reason": reason}
        if sequence is not None:
            extra["stop_reason"] = sequence
        return [Delta(finish_reason=FINISHES.get(reason, reason), extra=Raw(msgspec.json.encode(extra)))]

    def _count(self, usage: _Usage | None) -> None:
        if usage is None:
            return
        for name in _Usage.__struct_fields__:
            if (count := getattr(usage, name)) is not None:
                setattr(self._counts, name, count)
        counts = self._counts
        cached, written = counts.cache_read_input_tokens or 0, counts.cache_creation_input_tokens or 0
        prompt = (counts.input_tokens or 0) + cached + written
        self.usage = usage_from(
            prompt, counts.output_tokens or 0, cached=cached, cache_creation_tokens=written
        )


def _thinking_block(block: dict[str, str]) -> Delta:
    """A thought as it must come back, in the member `thinking_blocks` of the message."""
    return Delta(extra=Raw(msgspec.json.encode({"delta": {"thinking_blocks": [block]}})))
