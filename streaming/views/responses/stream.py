"""The stream of a response: OpenAI's Responses events."""

from collections.abc import Mapping

import fairlane.streaming.views.responses.items as told
from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_done, read_usage, wait_members
from fairlane.streaming.jsontext import EMPTY_STRING, NO_ARGUMENTS, json_string, kind_of, members, one_line
from fairlane.streaming.views.blocks.stream import BlockStreamView
from fairlane.streaming.views.choice import thoughts_of
from fairlane.streaming.views.responses.items import COMPLETED, IN_PROGRESS, INCOMPLETE, Ids
from fairlane.streaming.views.responses.response import Ended, is_summarised, response
from fairlane.streaming.views.responses.thoughts import sealed, signed, text_of
from fairlane.streaming.views.responses.tools import Tool, Tools
from fairlane.streaming.views.sse import DONE, KEEPALIVE, error_body
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import responses_usage

MAX_NUMBER = 2**62
"""No event has a number that is larger."""
_QUEUED = 1
"""The number of `response.queued`."""


class _Item:
    """The item that is under way."""

    __slots__ = ("call_id", "id", "kind", "logprobs", "parts", "so_far", "thoughts", "tool")

    def __init__(self, kind: str, item_id: bytes) -> None:
        self.kind = kind
        self.id = item_id
        self.parts: list[bytes] = []
        """Those that are whole."""
        self.so_far = bytearray()
        """The inside of the text that is under way, or of the arguments."""
        self.logprobs: list[bytes] = []
        self.thoughts: list[bytes] = []
        """Signed ones."""
        self.call_id, self.tool = EMPTY_STRING, Tool()


class ResponsesStreamView(BlockStreamView):
    """Events of a Responses stream from all events of a task in order.

    The sequence number of each event is a function of the log, dense from 0, the same for each reader at any time:
    `response.created` (0), `response.queued` (1), `response.in_progress` (2) with the log's first `start`, then the items, each
    whole before the next one begins, and the end, behind which `[DONE]` comes. Of these only those behind `starting_after` are
    drawn. The first two are drawn by `open`, or with what comes next. A failure and a cancellation end the stream with
    `response.failed`, lost events with an `error` event, as the response continues. After the end, `ended` is true and all events
    are ignored. A worker's result is shown where its chunks showed no content.
    """

    silence = KEEPALIVE
    """What is sent to keep the stream alive."""
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
        self._ids, self._tools_called = Ids(info.task_id), Tools(echo)
        self._summarised = is_summarised(echo)
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
        pairs = b'"code":%b,"message":%b,"param":null,%b' % (
            bytes(error["code"]),
            bytes(error["message"]),
            body[1:-1],
        )
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

    def _of_item(self, name: bytes, pairs: bytes) -> bytes:
        """An event of the item that is under way."""
        assert self._item is not None
        return self._event(
            name, b'"item_id":%b,"output_index":%d,%b' % (self._item.id, len(self._output), pairs)
        )

    # ---- items ----------

    def _begin(self, kind: str, item_id: bytes, item: bytes) -> bytes:
        before = self._close() + self._head()
        self._item = _Item(kind, item_id)
        return before + self._event(
            b"response.output_item.added", b'"output_index":%d,"item":%b' % (len(self._output), item)
        )

    def _close(self, status: bytes = COMPLETED) -> bytes:
        """The end of the item that is under way."""
        item = self._item
        if item is None:
            return b""
        frames = self._end_part()
        if item.kind == "call":
            frames += self._end_arguments(item)
        whole = self._whole_item(item, item.parts, status)
        self._open, self._item = "", None
        done = self._event(
            b"response.output_item.done", b'"output_index":%d,"item":%b' % (len(self._output), whole)
        )
        self._output.append(whole)
        return frames + done

    def _whole_item(self, item: _Item, parts: list[bytes], status: bytes) -> bytes:
        """An item with these parts, or with the arguments so far."""
        if item.kind == "message":
            return told.message(item.id, parts, status)
        if item.kind == "reasoning":
            seal = sealed(item.thoughts) if item.thoughts else b""
            return told.reasoning(item.id, parts, seal, summarised=self._summarised)
        content = item.tool.content_of(b'"%b"' % bytes(item.so_far))
        return item.tool.call(item.id, item.call_id, content, status)

    def _end_arguments(self, item: _Item) -> bytes:
        """Return the last events of a call before its item is whole. A custom tool shows its input here, when it is known."""
        frames = b"" if item.so_far else self._arguments(NO_ARGUMENTS)
        content = item.tool.content_of(b'"%b"' % bytes(item.so_far))
        if item.tool.item == b"function_call":
            return frames + self._of_item(
                b"response.function_call_arguments.done", b'"arguments":%b' % content
            )
        if item.tool.item == b"custom_tool_call":
            frames = self._of_item(b"response.custom_tool_call_input.delta", b'"delta":%b' % content)
            return frames + self._of_item(b"response.custom_tool_call_input.done", b'"input":%b' % content)
        return b""

    def _part_event(self, suffix: bytes, part: bytes) -> bytes:
        assert self._item is not None
        kind, index = (b"content", b"content") if not self._in_summary else (b"reasoning_summary", b"summary")
        pairs = b'"%b_index":%d,"part":%b' % (index, len(self._item.parts), part)
        return self._of_item(b"response.%b_part.%b" % (kind, suffix), pairs)

    @property
    def _in_summary(self) -> bool:
        return self._open == "thinking" and self._summarised

    def _draw(self, text: bytes) -> bytes:
        """The part that is open, with this text."""
        assert self._item is not None
        if self._open == "text":
            return told.text_part(text, b"[%b]" % b",".join(self._item.logprobs))
        if self._open == "refusal":
            return told.refusal_part(text)
        return told.summary_part(text) if self._summarised else told.reasoning_part(text)

    def _begin_part(self, kind: str) -> bytes:
        assert self._item is not None
        self._open = kind
        name, index, _ = _PARTS["summary" if self._in_summary else kind]
        self._lead = (
            b'event: response.%b.delta\ndata: {"type":"response.%b.delta","sequence_number":' % (name, name),
            b',"item_id":%b,"output_index":%d,"%b":%d,"delta":'
            % (self._item.id, len(self._output), index, len(self._item.parts)),
        )
        return self._part_event(b"added", self._draw(EMPTY_STRING))

    def _end_part(self) -> bytes:
        item = self._item
        if item is None or self._open not in _PARTS:
            return b""
        text = b'"%b"' % bytes(item.so_far)
        part = self._draw(text)
        name, index, member = _PARTS["summary" if self._in_summary else self._open]
        more = b',"logprobs":[%b]' % b",".join(item.logprobs) if self._open == "text" else b""
        frames = self._of_item(
            b"response.%b.done" % name, b'"%b":%d,"%b":%b%b' % (index, len(item.parts), member, text, more)
        ) + self._part_event(b"done", part)
        item.parts.append(part)
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

    def _say(self, kind: str, delta: bytes) -> bytes:
        """More of what the message says."""
        before = b""
        if self._open != kind:
            goes_on = self._item is not None and self._item.kind == "message"
            before = self._end_part() if goes_on else self._begin_message()
            before += self._begin_part(kind)
        if kind == "refusal":
            return before + self._more(delta)
        if not self._logprobs:
            return before + self._more(delta, b',"logprobs":[]')
        assert self._item is not None
        logprobs, self._logprobs = self._logprobs, []
        self._item.logprobs += logprobs
        return before + self._more(delta, b',"logprobs":[%b]' % b",".join(logprobs))

    def _begin_message(self) -> bytes:
        item_id = self._ids.next(b"msg")
        return self._begin("message", item_id, told.message(item_id, (), IN_PROGRESS))

    def _text(self, delta: bytes) -> bytes:
        return self._say("text", delta) if _says(delta) else b""

    def _refusal(self, delta: bytes) -> bytes:
        return self._say("refusal", delta) if _says(delta) else b""

    def _thinking(self, delta: bytes) -> bytes:
        if not _says(delta):
            return b""
        before = self._think()
        if self._open != "thinking":
            before += self._begin_part("thinking")
        return before + self._more(delta)

    def _think(self) -> bytes:
        """Begin a reasoning item, if none is under way."""
        if self._item is not None and self._item.kind == "reasoning":
            return b""
        item_id = self._ids.next(b"rs")
        return self._begin(
            "reasoning", item_id, told.reasoning(item_id, (), b"", summarised=self._summarised)
        )

    def _begin_call(self, call_id: bytes, name: bytes) -> bytes:
        tool = self._tools_called.find(name)
        item_id = self._ids.next(tool.id_kind)
        frames = self._begin("call", item_id, tool.call(item_id, call_id, tool.empty, IN_PROGRESS))
        assert self._item is not None
        self._item.call_id, self._item.tool, self._open = call_id, tool, "tool"
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
        if kind_of(found.get("logprobs")):
            self._logprobs += told.logprobs_of(found["logprobs"])
        return self._signed(signed(thoughts_of(members(found.get("delta")) or {})))

    def _signed(self, thoughts: list[bytes]) -> bytes:
        """Thoughts as they must come back: what was not shown of them is shown."""
        frames = []
        for raw in thoughts:
            frames.append(self._think())
            if (text := text_of(raw)) and not self._thought:
                frames.append(self._thinking(one_line(json_string(text))))
            assert self._item is not None
            self._item.thoughts.append(raw)
        return b"".join(frames)

    # ---- the end ----------

    def _end(self, event: Event) -> bytes:
        if event.type in ("gap", "restart"):
            return self.failed("A part of the output was lost", "EVENTS_LOST")
        if event.type != "done":
            self.how = ended = Ended.by(event, None)
            frames = (self._head() if self._begun else self.open()) + self._left() + self._close(INCOMPLETE)
            used = read_usage(event.data) if event.type == "error" else None
            usage = responses_usage(used, None, self._latest_usage)
            return frames + self._event(b"response.failed", self._object(self._info, ended, usage)) + DONE
        done = read_done(event.data)
        frames = self._head() + self._left(done.result)
        self.how = ended = Ended.by(event, self._finish or done.finish_reason)
        frames += self._close(ended.last)
        usage = responses_usage(done.usage, done.result, self._latest_usage)
        name = b"response.incomplete" if ended.status == INCOMPLETE else b"response.completed"
        return frames + self._event(name, self._object(self._info, ended, usage)) + DONE

    def items(self) -> list[bytes]:
        """Return the output items so far, each one line of JSON; one that is under way as it stands."""
        item = self._item
        if item is None:
            return self._output
        parts = (
            [*item.parts, self._draw(b'"%b"' % bytes(item.so_far))] if self._open in _PARTS else item.parts
        )
        return [*self._output, self._whole_item(item, parts, IN_PROGRESS)]


_PARTS = {
    "text": (b"output_text", b"content_index", b"text"),
    "refusal": (b"refusal", b"content_index", b"refusal"),
    "thinking": (b"reasoning_text", b"content_index", b"text"),
    "summary": (b"reasoning_summary_text", b"summary_index", b"text"),
}
"""By what is open: the name of its events, of its index, and of its text."""


def _says(delta: bytes) -> bool:
    """Whether a text is not empty."""
    return len(memoryview(delta)) > len(EMPTY_STRING)


def _frame(name: bytes, number: int, pairs: bytes) -> bytes:
    return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, number, pairs)
