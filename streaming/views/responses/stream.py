"""The stream of a response: OpenAI's Responses events; and the response itself, which is what they say."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_done, wait_members
from fairlane.streaming.jsontext import (
    EMPTY_STRING,
    NO_ARGUMENTS,
    items,
    json_string,
    members,
    one_line,
    string_or_none,
)
from fairlane.streaming.views.blocks import BlockStreamView
from fairlane.streaming.views.responses.response import COMPLETED, IN_PROGRESS, INCOMPLETE, Ended, response
from fairlane.streaming.views.responses.tools import Tool, Tools
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.sse import DONE, error_body, typed_frame
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.thoughts import Thought, sealed, signed_thoughts
from fairlane.streaming.views.usage import responses_usage

MAX_NUMBER = 2**62
"""No event has a number that is larger."""
_QUEUED = 1
"""The number of `response.queued`."""
_STATES = {"queued": b"queued", "executing": IN_PROGRESS, "failed": b"failed", "cancelled": b"cancelled"}


class _Part(NamedTuple):
    """A part of an item: the name of its text's events, that of the part's own, the list that it is in, its type and member."""

    of_text: bytes
    of_part: bytes
    list: bytes
    type: bytes
    member: bytes


_PARTS = {
    "text": _Part(b"output_text", b"content_part", b"content", b"output_text", b"text"),
    "refusal": _Part(b"refusal", b"content_part", b"content", b"refusal", b"refusal"),
    "thinking": _Part(b"reasoning_text", b"content_part", b"content", b"reasoning_text", b"text"),
    "summary": _Part(
        b"reasoning_summary_text", b"reasoning_summary_part", b"summary", b"summary_text", b"text"
    ),
}
"""By what is open."""


class _Item:
    """The item that is under way."""

    __slots__ = ("call_id", "id", "kind", "logprobs", "parts", "so_far", "thoughts", "tool")

    def __init__(
        self, kind: str, item_id: bytes, call_id: bytes = EMPTY_STRING, tool: Tool | None = None
    ) -> None:
        self.kind = kind
        self.id = item_id
        self.call_id = call_id
        self.tool = tool or Tool()
        self.parts: list[bytes] = []
        """Those that are whole."""
        self.so_far = bytearray()
        """The inside of the text that is under way, or of the arguments."""
        self.logprobs: list[bytes] = []
        self.thoughts: list[Thought] = []
        """Signed ones."""

    @property
    def text(self) -> bytes:
        """The same as a JSON string."""
        return b'"%b"' % bytes(self.so_far)


class ResponsesStreamView(BlockStreamView):
    """Events of a Responses stream.

    The sequence number of each event is a function of the log, dense from 0, the same for each reader at any time:
    `response.created` (0), `response.queued` (1), `response.in_progress` (2) with the log's first `start`, then the items, each
    whole before the next one begins, and the end, behind which `[DONE]` comes. Of these only those behind `starting_after` are
    drawn. The first two are drawn by `open`, or with what comes next. A failure and a cancellation end the stream with
    `response.failed`, lost events with an `error` event, as the response continues.
    """

    place_every_s = 5.0
    """Seconds between two events with a new place, at least: each repeats the response."""

    def __init__(self, info: TaskInfo, echo: bytes, *, starting_after: int = -1) -> None:
        super().__init__(info)
        self._echo = echo
        self._after = starting_after
        self._number = 0
        self._asked = info
        self._begun: TaskInfo | None = None
        """What was known at the first `start`, while that was not drawn."""
        self._opened = self._progress = False
        self._ids: Counter[bytes] = Counter()
        """How many items there are of each kind, which is what their ids count: so they do not depend on the order of items."""
        self._tools_called = Tools(echo)
        reasoning = members((members(echo) or {}).get("reasoning")) or {}
        self._thinks = "thinking" if string_or_none(reasoning.get("summary")) is None else "summary"
        """The part that shows thoughts: the summary where that is asked for."""
        self._output: list[bytes] = []
        self._item: _Item | None = None
        self._logprobs: list[bytes] = []
        """Of the text that comes next."""
        self._lead = (b"", b"")
        """What stands before the number of each delta of the open part, and between it and the delta."""
        self.how: Ended | None = None
        """How it ended."""

    def open(self) -> bytes:
        """The first events, when a reader is to see them; nothing a second time."""
        if self._opened:
            return b""
        self._opened = True
        queued = self._object(self._asked, Ended(b"queued"))
        return self._event(b"response.created", queued) + self._event(b"response.queued", queued)

    def queue_chunk(self, place: Place) -> bytes:
        """`response.queued` once more, under the number that it has, with the place in line."""
        told_place = b'%b,"fairlane":{"queuePosition":%d,%b}' % (
            self._object(self._asked, Ended(b"queued")),
            place.position,
            wait_members(place),
        )
        return self.open() + _frame(b"response.queued", _QUEUED, told_place)

    def failed(self, message: str, code: str) -> bytes:
        """The end of a stream that fails independently of its task's log: an `error` event.

        The response may continue, so the event has the number of the last one before it: a reader resumes there without a gap.
        """
        body = error_body(message, code)
        error = members((members(body) or {}).get("error")) or {}
        fields = bytes(error["code"]), bytes(error["message"]), body[1:-1]
        pairs = b'"code":%b,"message":%b,"param":null,%b' % fields
        return _frame(b"error", max(self._number - 1, self._after, 0), pairs)

    def _started(self) -> bytes:
        self._begun = self._begun or self._info
        return self._head() if self._opened else b""

    def _head(self) -> bytes:
        """What stands before the first item."""
        before = self.open()
        if self._progress:
            return before
        self._progress = True
        progress = self._object(self._begun or self._info, Ended(IN_PROGRESS))
        return before + self._event(b"response.in_progress", progress)

    def _object(self, info: TaskInfo, ended: Ended, usage: bytes | None = None) -> bytes:
        return b'"response":%b' % response(info, self._echo, ended, self._output, usage)

    def _event(self, name: bytes, pairs: bytes) -> bytes:
        number = self._number
        self._number += 1
        return b"" if number <= self._after else _frame(name, number, pairs)

    # ---- items ----------

    def _item_event(self, name: bytes, item: bytes) -> bytes:
        return self._event(name, b'"output_index":%d,"item":%b' % (len(self._output), item))

    def _of_item(self, name: bytes, pairs: bytes) -> bytes:
        """An event of the item that is under way."""
        assert self._item is not None
        return self._event(
            name, b'"item_id":%b,"output_index":%d,%b' % (self._item.id, len(self._output), pairs)
        )

    def _begin(
        self, kind: str, id_kind: bytes, call_id: bytes = EMPTY_STRING, tool: Tool | None = None
    ) -> bytes:
        """Begin an item; `id_kind` is msg, rs, or that of a tool."""
        before = self._close() + self._head()
        item_id = b'"%b_%b_%d"' % (id_kind, self._info.task_id.encode(), self._ids[id_kind])
        self._ids[id_kind] += 1
        self._item = _Item(kind, item_id, call_id, tool)
        return before + self._item_event(
            b"response.output_item.added", self._whole_item(self._item, [], IN_PROGRESS)
        )

    def _close(self, status: bytes = COMPLETED) -> bytes:
        """The end of the item that is under way."""
        item = self._item
        if item is None:
            return b""
        frames = self._end_arguments(item) if item.kind == "call" else self._end_part()
        whole = self._whole_item(item, item.parts, status)
        self._open, self._item = "", None
        done = self._item_event(b"response.output_item.done", whole)
        self._output.append(whole)
        return frames + done

    def _whole_item(self, item: _Item, parts: list[bytes], status: bytes) -> bytes:
        """An item with these parts, or with the arguments so far."""
        listed = b",".join(parts)
        if item.kind == "call":
            return item.tool.call(item.id, item.call_id, item.tool.content_of(item.text), status)
        if item.kind == "message":
            fields = item.id, status, listed
            return b'{"id":%b,"type":"message","status":"%b","role":"assistant","content":[%b]}' % fields
        seal = b',"encrypted_content":%b' % sealed(item.thoughts) if item.thoughts else b""
        content = b'"summary":[%b]' if self._thinks == "summary" else b'"summary":[],"content":[%b]'
        return b'{"id":%b,"type":"reasoning",%b%b}' % (item.id, content % listed, seal)

    def _end_arguments(self, item: _Item) -> bytes:
        """Return the last events of a call before its item is whole. A custom tool shows its input here, when it is known."""
        frames = b"" if item.so_far else self._arguments(NO_ARGUMENTS)
        content = item.tool.content_of(item.text)
        if item.tool.item == b"function_call":
            return frames + self._of_item(
                b"response.function_call_arguments.done", b'"arguments":%b' % content
            )
        if item.tool.item == b"custom_tool_call":
            frames = self._of_item(b"response.custom_tool_call_input.delta", b'"delta":%b' % content)
            return frames + self._of_item(b"response.custom_tool_call_input.done", b'"input":%b' % content)
        return b""

    # ---- parts ----------

    def _part_event(self, name: bytes, more: bytes) -> bytes:
        """An event of the part that is open, with the place of it."""
        assert self._item is not None
        part = _PARTS[self._open]
        return self._of_item(
            b"response.%b" % name, b'"%b_index":%d,%b' % (part.list, len(self._item.parts), more)
        )

    def _draw(self, text: bytes) -> bytes:
        """The part that is open, with this text."""
        assert self._item is not None
        part, more = _PARTS[self._open], b""
        if self._open == "text":
            more = b',"annotations":[],"logprobs":[%b]' % b",".join(self._item.logprobs)
        return b'{"type":"%b","%b":%b%b}' % (part.type, part.member, text, more)

    def _begin_part(self, kind: str) -> bytes:
        assert self._item is not None
        self._open, part = kind, _PARTS[kind]
        self._lead = (
            b'event: response.%b.delta\ndata: {"type":"response.%b.delta","sequence_number":'
            % (part.of_text, part.of_text),
            b',"item_id":%b,"output_index":%d,"%b_index":%d,"delta":'
            % (self._item.id, len(self._output), part.list, len(self._item.parts)),
        )
        return self._part_event(part.of_part + b".added", b'"part":%b' % self._draw(EMPTY_STRING))

    def _end_part(self) -> bytes:
        item = self._item
        if item is None or self._open not in _PARTS:
            return b""
        part, whole = _PARTS[self._open], self._draw(item.text)
        more = b',"logprobs":[%b]' % b",".join(item.logprobs) if self._open == "text" else b""
        frames = self._part_event(part.of_text + b".done", b'"%b":%b%b' % (part.member, item.text, more))
        frames += self._part_event(part.of_part + b".done", b'"part":%b' % whole)
        item.parts.append(whole)
        item.so_far, item.logprobs, self._open = bytearray(), [], ""
        return frames

    def _more(self, delta: bytes, more: bytes = b"") -> bytes:
        """More of the part that is open."""
        assert self._item is not None
        self._item.so_far += memoryview(delta)[1:-1]
        number = self._number
        self._number += 1
        if number <= self._after:
            return b""
        before, between = self._lead
        return b"%b%d%b%b%b}\n\n" % (before, number, between, delta, more)

    # ---- what chunks add ----------

    def _text(self, delta: bytes) -> bytes:
        if not _says(delta):
            return b""
        before = b"" if self._open == "text" else self._say("text")
        if not self._logprobs:
            return before + self._more(delta, b',"logprobs":[]')
        assert self._item is not None
        logprobs, self._logprobs = self._logprobs, []
        self._item.logprobs += logprobs
        return before + self._more(delta, b',"logprobs":[%b]' % b",".join(logprobs))

    def _refusal(self, delta: bytes) -> bytes:
        return self._say("refusal") + self._more(delta) if _says(delta) else b""

    def _say(self, kind: str) -> bytes:
        """Begin a part of a message, if it is not the open one."""
        if self._open == kind:
            return b""
        continues = self._item is not None and self._item.kind == "message"
        before = self._end_part() if continues else self._begin("message", b"msg")
        return before + self._begin_part(kind)

    def _thinking(self, delta: bytes) -> bytes:
        if not _says(delta):
            return b""
        before = self._think()
        if self._open != self._thinks:
            before += self._begin_part(self._thinks)
        return before + self._more(delta)

    def _think(self) -> bytes:
        """Begin a reasoning item, if none is under way."""
        if self._item is not None and self._item.kind == "reasoning":
            return b""
        return self._begin("reasoning", b"rs")

    def _begin_call(self, call_id: bytes, name: bytes) -> bytes:
        tool = self._tools_called.find(name)
        frames = self._begin("call", tool.id_kind, call_id, tool)
        self._open = "tool"
        return frames

    def _arguments(self, delta: bytes) -> bytes:
        assert self._item is not None
        self._item.so_far += memoryview(delta)[1:-1]
        if self._item.tool.item != b"function_call":
            return b""
        return self._of_item(b"response.function_call_arguments.delta", b'"delta":%b' % delta)

    def _end_call(self) -> bytes:
        """Its item is closed by what comes next, or by the end, which may have cut it off."""
        self._open = ""
        return b""

    def _extra(self, found: Mapping[str, bytes]) -> bytes:
        tokens = items((members(found.get("logprobs")) or {}).get("content"))
        self._logprobs += map(one_line, tokens or ())
        frames = []
        for thought in signed_thoughts(found):  # as they must come back: what was not shown of them is shown
            frames.append(self._think())
            if thought.thinking and not self._thought:
                frames.append(self._thinking(json_string(thought.thinking)))
            assert self._item is not None
            self._item.thoughts.append(thought)
        return b"".join(frames)

    # ---- the end ----------

    def _end(self, event: Event) -> bytes:
        return self._done(event) if event.terminal else super()._end(event)

    def _done(self, event: Event) -> bytes:
        done = read_done(event.data)  # a failure has usage at most
        # a task that failed before it began has no `response.in_progress`
        frames = self._head() if event.type == "done" or self._begun else self.open()
        frames += self._left(done.result)
        self.how = ended = Ended.by(event, self._finish or done.finish_reason)
        frames += self._close(ended.last)
        name = ended.status if ended.status in (COMPLETED, INCOMPLETE) else b"failed"
        usage = responses_usage(self._usage(done))
        return frames + self._event(b"response." + name, self._object(self._info, ended, usage)) + DONE

    def items(self) -> list[bytes]:
        """Return the output items so far, each one line of JSON; one that is under way as it stands."""
        item = self._item
        if item is None:
            return self._output
        parts = [*item.parts, self._draw(item.text)] if self._open in _PARTS else item.parts
        return [*self._output, self._whole_item(item, parts, IN_PROGRESS)]


class ResponsesBodyView(ResultView):
    """The response of a task, whatever its state: what its stream says."""

    def __init__(self, info: TaskInfo, echo: bytes) -> None:
        super().__init__(info)
        self._echo = echo
        self._stream = ResponsesStreamView(info, echo, starting_after=MAX_NUMBER)

    def feed(self, event: Event) -> None:
        if event.type != "chunk":
            super().feed(event)
        self._stream.feed(event)

    def body(self) -> bytes:
        """Return the response object."""
        return response(self.info, self._echo, self._how, self.output(), responses_usage(self.usage))

    @property
    def response_status(self) -> str:
        """The `status` of the response object."""
        return self._how.status.decode()

    @property
    def _how(self) -> Ended:
        return self._stream.how or Ended(_STATES[self.status])

    def output(self) -> list[bytes]:
        """Return the output items, each one line of JSON, with their ids."""
        return self._stream.items()


def _says(delta: bytes) -> bool:
    """Whether a text is not empty."""
    return len(memoryview(delta)) > len(EMPTY_STRING)


def _frame(name: bytes, number: int, pairs: bytes) -> bytes:
    return typed_frame(name, b',"sequence_number":%d,%b' % (number, pairs))
