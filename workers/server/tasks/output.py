"""Reads the output of one attempt: whether it is in order and in form, and how much of it there is."""

from collections.abc import Callable

from msgspec import UNSET

from fairlane.streaming.jsontext import MAX_DEPTH, too_deep
from fairlane.streaming.tool_calls import CallDeltas
from fairlane.streaming.writer import TaskWriter, bytes_of
from fairlane.workers.protocol import Delta, TaskChunk

TOO_DEEP = f"has more than {MAX_DEPTH} levels"
INCOMPLETE = "The worker lost a part of its output"

Take = Callable[[int, str, str | bytes], None]
"""Takes a piece of output: the choice, its kind, and text or JSON."""


class BadOutput(Exception):
    """A chunk frame that ends its task: what is wrong with it, for the worker, and why the task failed, for clients."""

    def __init__(self, wrong: str, why: str = "", *, too_large: bool = False) -> None:
        super().__init__(wrong)
        self.why = why or "The worker sent output that cannot be read"
        self.too_large = too_large


class Output:
    """See the module. `frames`: those that came. `finish_reason`: of the first choice."""

    __slots__ = ("_calls", "_task_id", "_unread_bytes", "_writer", "finish_reason", "frames")

    def __init__(self, task_id: str, writer: TaskWriter) -> None:
        self._task_id = task_id
        self._writer = writer
        self.frames = 0
        self.finish_reason: str | None = None
        self._calls: dict[int, CallDeltas] = {}
        """By choice."""
        self._unread_bytes = 0  # that came after the end, while the worker continued

    def read(self, message: TaskChunk, version: int, take: Take) -> None:
        """Take a frame; one that was read before is ignored. Raise BadOutput."""
        if version == 1:
            if message.delta is not None:
                take(0, "text", message.delta)
            return
        if message.seq == 0 or message.delta is not None:
            raise BadOutput("a chunk has a `seq`, from 1, and `deltas`")
        if message.seq != self.frames + 1:
            if message.seq <= self.frames:
                return
            raise BadOutput(f"chunk {message.seq} came after chunk {self.frames}", INCOMPLETE)
        self.frames = message.seq
        for delta in message.deltas:
            # first, as what it says (log probabilities) is about the text next to it
            if delta.extra is not UNSET and (extra := bytes(delta.extra)) != b"null":
                if not extra.startswith(b"{"):
                    raise BadOutput("extra must be an object")
                _check_depth("The extra of a delta", extra)
                take(delta.index, "extra", extra)
            if delta.reasoning:
                take(delta.index, "reasoning", delta.reasoning)
            if delta.content:
                take(delta.index, "text", delta.content)
            if delta.refusal:
                take(delta.index, "refusal", delta.refusal)
            if delta.tool_calls is not UNSET:
                self._read_calls(delta, take)
            if delta.finish_reason:
                self._end_calls(delta.index, take)
                take(delta.index, "finish", delta.finish_reason)
                if delta.index == 0:
                    self.finish_reason = delta.finish_reason

    def _read_calls(self, delta: Delta, take: Take) -> None:
        calls = bytes(delta.tool_calls)  # type: ignore[arg-type]
        if calls == b"null":
            return
        if not calls.startswith(b"["):
            raise BadOutput("toolCalls must be a list")
        _check_depth("A list of tool calls", calls)
        known = self._calls.get(delta.index)
        if known is None:
            known = self._calls[delta.index] = CallDeltas(self._task_id, delta.index)
        if (normal := known.normal(calls)) is not None:
            take(delta.index, "tool", normal)

    def _end_calls(self, index: int, take: Take) -> None:
        """Take what is held back of the calls of a choice."""
        if (calls := self._calls.get(index)) is not None and (held := calls.end()) is not None:
            take(index, "tool", held)

    def end(self, take: Take) -> None:
        """Take what is held back of all calls: the output is complete."""
        for index in self._calls:
            self._end_calls(index, take)

    def skip(self, message: TaskChunk) -> None:
        """Count a frame that came after the end."""
        self._unread_bytes += bytes_of(message.delta or "")
        for delta in message.deltas:
            for text in (delta.content, delta.reasoning, delta.refusal):
                self._unread_bytes += bytes_of(text or "")
            if delta.tool_calls is not UNSET:
                self._unread_bytes += len(bytes(delta.tool_calls))

    @property
    def in_log(self) -> bool:
        """Whether the worker wrote anything before the end."""
        return self._writer.chunks > 0

    @property
    def any(self) -> bool:
        """Whether the worker wrote anything."""
        return self.in_log or self._unread_bytes > 0

    @property
    def size(self) -> int:
        """Bytes of text that the worker wrote."""
        size = self._writer.text_bytes + self._unread_bytes
        for calls in self._calls.values():
            size += calls.said_bytes
        return size


def _check_depth(what: str, value: bytes) -> None:
    if too_deep(value):
        sentence = f"{what} {TOO_DEEP}"
        raise BadOutput(sentence, sentence, too_large=True)
