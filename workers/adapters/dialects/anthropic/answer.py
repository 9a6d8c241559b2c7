"""Anthropic's messages, streamed or whole, as OpenAI's deltas. Pure."""

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from fairlane.workers.adapters.choices import MAX_CHOICES
from fairlane.workers.adapters.dialects.chat import Head, calls_delta, usage_from
from fairlane.workers.adapters.dialects.normal import NormalReader
from fairlane.workers.adapters.failures import UpstreamSaid, is_error
from fairlane.workers.adapters.lenient import count, encoded, lenient
from fairlane.workers.sdk.values import Delta

_SILENT = frozenset({"ping", "message_start", "content_block_start", "content_block_delta", "message_delta"})
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
MAX_THINKING = 1024 * 1024
"""Characters of thinking that are kept to be sent back; longer thoughts are shown, but cannot be."""


class _Block(Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    input: Any = None


class _Message(Struct):
    id: str = ""
    model: str = ""
    content: list[_Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Any = None


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
    usage: Any = None


@dataclass
class _Open:
    """A block that has not ended."""

    type: str
    call: int
    empty: bool = True
    thinking: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    length: int = 0


class AnthropicReader(NormalReader):
    """Reads one message. See `Reader`."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self._counts: dict[str, int] = {}
        """So far, each replacing the one before."""
        self._open: dict[int, _Open] = {}
        self._calls = 0

    def _read(self, event: bytes) -> list[Delta]:
        said = self._as(event, _Event)
        deltas: list[Delta] = []
        self._count(said.usage)
        if said.type == "message_start" and said.message is not None:
            self._begin(said.message)
        elif said.type == "content_block_start" and said.content_block is not None:
            self._start(deltas, said.index, said.content_block)
        elif said.type == "content_block_delta" and said.delta is not None:
            self._continue(deltas, said.index, said.delta)
        elif said.type == "content_block_stop":
            self._stop(deltas, said.index)
        elif said.type == "message_delta" and said.delta is not None:
            self._end(deltas, said.delta.stop_reason, said.delta.stop_sequence)
        elif said.type == "message_stop":
            self.done = True
        elif said.type == "message":
            self._message(deltas, self._as(event, _Message))
        elif said.type not in _SILENT:
            value = lenient(event)
            if said.type == "error" or is_error(value, answers=False):
                raise UpstreamSaid(event)
        return deltas

    def _message(self, deltas: list[Delta], message: _Message) -> None:
        """Read a whole message."""
        self._begin(message)
        for index, block in enumerate(message.content):
            self._start(deltas, index, block)
            self._stop(deltas, index)
        self._end(deltas, message.stop_reason, message.stop_sequence)

    def _begin(self, message: _Message) -> None:
        self._about = {"id": message.id} if message.id else {}
        self._top["model"] = message.model or self._head.model
        self._count(message.usage)

    def _start(self, deltas: list[Delta], index: int, block: _Block) -> None:
        if len(self._open) >= MAX_CHOICES or self._calls >= MAX_CHOICES:
            raise ValueError(f"more than {MAX_CHOICES} blocks")
        opened = self._open[index] = _Open(block.type, self._calls)
        if block.type == "tool_use":
            self._calls += 1
            opened.empty = not block.input
            text = "" if opened.empty else bytes(encoded(block.input)).decode()
            self._say(deltas, Delta(tool_calls=calls_delta(opened.call, block.id, block.name, text)))
        elif block.type == "redacted_thinking":
            self._think(deltas, {"type": block.type, "data": block.data})
        else:
            given = _Delta(text=block.text, thinking=block.thinking, signature=block.signature)
            self._continue(deltas, index, given)

    def _continue(self, deltas: list[Delta], index: int, delta: _Delta) -> None:
        opened = self._open.get(index)
        if opened is None:
            raise ValueError(f"a delta of block {index}, which is not open")
        if opened.type == "tool_use" and delta.partial_json:
            opened.empty = False
            self._add_arguments(deltas, opened.call, delta.partial_json)
        elif opened.type == "thinking":
            opened.length += len(delta.thinking) + len(delta.signature)
            if opened.length <= MAX_THINKING:
                opened.thinking.append(delta.thinking)
                opened.signature.append(delta.signature)
            self._say(deltas, Delta(reasoning=delta.thinking or None))
        elif opened.type == "text":
            self._say(deltas, Delta(content=delta.text or None))

    def _stop(self, deltas: list[Delta], index: int) -> None:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        if opened.type == "tool_use" and opened.empty:
            self._add_arguments(deltas, opened.call, "{}")
        signature = "".join(opened.signature)
        if opened.type == "thinking" and signature and opened.length <= MAX_THINKING:
            thinking = "".join(opened.thinking)
            self._think(deltas, {"type": "thinking", "thinking": thinking, "signature": signature})

    def _add_arguments(self, deltas: list[Delta], call: int, text: str) -> None:
        piece = {"index": call, "function": {"arguments": text}}
        self._say(deltas, Delta(tool_calls=encoded([piece])))

    def _think(self, deltas: list[Delta], block: dict[str, str]) -> None:
        """Say a thought as it must come back, in the member `thinking_blocks` of the message."""
        self._say(deltas, Delta(), {"delta": {"thinking_blocks": [block]}})

    def _end(self, deltas: list[Delta], reason: str | None, sequence: str | None) -> None:
        if reason is not None:
            extra = {} if sequence is None else {"stop_reason": sequence}
            self._say(deltas, Delta(), extra, reason)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self._counts |= {
                name: tokens for name in _COUNTS if (tokens := count(usage.get(name))) is not None
            }
        if "input_tokens" in self._counts:
            given, cached, written, output = (self._counts.get(name, 0) for name in _COUNTS)
            self.usage = usage_from(
                given + cached + written, output, cached=cached, cache_creation_tokens=written
            )
