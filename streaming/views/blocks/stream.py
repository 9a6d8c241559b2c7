"""A stream of an answer in blocks: thoughts, texts, calls."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import msgspec

from fairlane.streaming.events import Event, read_chunk, read_model, read_usage
from fairlane.streaming.jsontext import members
from fairlane.streaming.views.blocks.calls import Begin, CallBlocks, More, Step
from fairlane.streaming.views.choice import Choice, choices_of_result, pieces
from fairlane.streaming.views.task import TaskInfo


class BlockStreamView(ABC):
    """Events of such a stream from all events of a task in order; subclasses say what a block looks like.

    Each block is whole before the next one begins. The first choice is shown. After the end, `ended` is true and every
    event is ignored.
    """

    pending = None
    """It draws every end by itself."""

    def __init__(self, info: TaskInfo) -> None:
        self.ended = False
        self._info = info
        self._latest_usage: bytes | None = None
        self._open = ""
        """What the open block is: text, refusal, thinking, tool, or another kind of a subclass."""
        self._calls: CallBlocks | None = None
        """Once there is one: many streams wait, and few call."""
        self._thought = self._content = self._called = self._refused = False
        self._finish: bytes | None = None
        self._held: list[tuple[str, bytes]] = []
        """Chunks that wait for the end of a call."""

    def feed(self, event: Event) -> bytes:
        """The events that this one adds, often none; to be written in one write."""
        if self.ended:
            return b""
        if event.type == "chunk":
            chunk = read_chunk(event.data)
            return self._chunk(chunk.kind, chunk.delta) if chunk.index == 0 else b""
        if event.type == "usage":
            self._latest_usage = read_usage(event.data)
            return b""
        if event.type == "start":
            if self._info.has_fallback:
                self._info = msgspec.structs.replace(self._info, model=read_model(event.data))
            return self._started()
        if event.terminal or event.type in ("gap", "restart"):
            self.ended = True
            return self._end(event)
        return b""

    def _chunk(self, kind: str, delta: bytes) -> bytes:
        if self._open == "tool" and kind != "finish":
            return self._beside_call(kind, delta)
        if kind == "text":
            self._content = True
            return self._text(delta)
        if kind == "reasoning":
            self._thought = True
            return self._thinking(delta)
        if kind == "refusal":
            self._content = self._refused = True
            return self._refusal(delta)
        if kind == "tool":
            self._calls = self._calls or CallBlocks()
            return self._tools(self._calls.add(delta))
        if kind == "finish":
            self._finish = bytes(delta)
        elif kind == "extra":
            return self._extra(members(delta) or {})
        return b""

    def _beside_call(self, kind: str, delta: bytes) -> bytes:
        """While a call's arguments are no whole object everything else waits, as no two blocks may be open."""
        assert self._calls is not None
        if kind != "tool" and self._calls.busy:
            self._held.append((kind, delta))
            return b""
        if kind != "tool":
            return self._tools(self._calls.leave()) + self._chunk(kind, delta)
        frames = self._tools(self._calls.add(delta))
        return frames if not self._held or self._calls.busy else frames + self._release()

    def _release(self) -> bytes:
        """What waited for calls."""
        frames = [self._tools(self._calls.leave())] if self._calls else []
        held, self._held = self._held, []
        return b"".join([*frames, *(self._chunk(kind, delta) for kind, delta in held)])

    def _left(self, result: bytes | None = None) -> bytes:
        """What is left: no more chunks come. Of a result, what it says where the chunks showed no content."""
        frames = []
        if result is not None:
            choices = choices_of_result(result, self._info.task_id)
            choice = next((one for one in choices if one.index == 0), Choice(0))
            self._finish = choice.finish or self._finish
            if not self._content:
                frames = [self._chunk(kind, delta) for kind, delta in pieces(choice, thought=self._thought)]
        ends = self._tools(self._calls.end()) if self._calls else b""
        return b"".join([*frames, ends, self._release()])

    def _tools(self, steps: Iterator[Step]) -> bytes:
        frames = []
        for step in steps:
            if isinstance(step, Begin):
                self._content = self._called = True
                frames.append(self._begin_call(step.id, step.name))
            elif isinstance(step, More):
                frames.append(self._arguments(step.arguments))
            else:
                frames.append(self._end_call())
        return b"".join(frames)

    def _started(self) -> bytes:
        """An attempt has begun."""
        return b""

    @abstractmethod
    def _text(self, delta: bytes) -> bytes:
        """More of a text."""

    @abstractmethod
    def _refusal(self, delta: bytes) -> bytes:
        """More of a refusal."""

    @abstractmethod
    def _thinking(self, delta: bytes) -> bytes:
        """More of what the model thinks."""

    @abstractmethod
    def _begin_call(self, call_id: bytes, name: bytes) -> bytes:
        """A call begins; both are JSON strings. It is the open block, `tool`."""

    @abstractmethod
    def _arguments(self, delta: bytes) -> bytes:
        """More of its arguments."""

    @abstractmethod
    def _end_call(self) -> bytes:
        """It is whole, and no block is open."""

    @abstractmethod
    def _extra(self, found: Mapping[str, bytes]) -> bytes:
        """Other members of the choice."""

    @abstractmethod
    def _end(self, event: Event) -> bytes:
        """The end, of whatever kind."""
