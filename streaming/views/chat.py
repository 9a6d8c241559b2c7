"""OpenAI's chat completions: the stream of chunks, and the body. Completions are variants of both."""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Raw

from fairlane.queues.tasks import Place
from fairlane.streaming.events import Event, read_done, wait_members
from fairlane.streaming.jsontext import (
    EMPTY_STRING,
    NULL,
    items,
    join_object,
    json_string,
    kind_of,
    members,
    string_or_none,
)
from fairlane.streaming.views.choice import (
    NOT_EXTRA,
    NOT_EXTRA_IN_MESSAGE,
    Choice,
    choices_of_result,
    others,
    pieces,
)
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.sse import DONE
from fairlane.streaming.views.stream import StreamView
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import openai_usage

IN_EACH_FRAME = ("system_fingerprint", "service_tier")
MAX_REPEATED = 256
"""Bytes of what an upstream says that stands in each frame; an id of 3 MB in a thousand frames was 3 GB. More is left out."""
_OWN = frozenset({"id", "object", "created", "model", "choices", "usage"})
"""Members of the answer as a whole that are the gateway's, but for the id."""


class ChoiceState:
    """What the reader has seen of one choice."""

    __slots__ = ("calls_tools", "finish", "finished", "held", "shown_content", "shown_reasoning")

    def __init__(self) -> None:
        self.shown_content = self.shown_reasoning = self.calls_tools = self.finished = False
        self.finish: bytes | None = None
        self.held = b""
        """Members that its next frame has, too: log probabilities, which come before their text."""


class ChatStreamView(StreamView):
    """A stream of `chat.completion.chunk`: per choice a role, deltas, a finish reason; at the end usage if asked for and known,
    and `[DONE]`, which no failure has.

    Reasoning is shown as `reasoning_content`, each tool call object in a frame of its own.
    """

    object_name = b"chat.completion.chunk"
    id_prefix = b"chatcmpl-"
    opening = b'"delta":{"role":"assistant","content":""}'
    """The members of a choice's first frame; none: it has no such frame."""
    nothing = b'"delta":{}'
    """The members of a choice that says nothing new."""
    before_finish = b""
    """What stands in each frame before the finish reason, in the place of log probabilities."""
    shapes: ClassVar[Mapping[str, tuple[bytes, bytes]]] = {
        "text": (b'"delta":{"content":', b"}"),
        "reasoning": (b'"delta":{"reasoning_content":', b"}"),
        "refusal": (b'"delta":{"refusal":', b"}"),
        "tool": (b'"delta":{"tool_calls":[', b"]}"),
    }
    """What stands around a delta, by the kinds that are shown."""

    def __init__(self, info: TaskInfo, include_usage: bool = False) -> None:
        super().__init__(info)
        self._include_usage = include_usage
        self._choices: dict[int, ChoiceState] = {}
        self._timings = b""
        self._rest = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._tail = b'%b,"finish_reason":null}]%b' % (self.before_finish, self._rest)
        before, after = self.shapes["text"]
        self._before_text, self._after_text = b"," + before, after + self._tail
        self._placed = False
        """A chunk with the position in the queue was shown: all others have its id."""
        self._reported: dict[str, bytes] = {}
        """What stands in each frame of the upstream's answer as a whole."""
        self._address()

    def queue_chunk(self, place: Place) -> bytes:
        """A chunk for a stream that waits: shows its place, keeps clients from giving up. Its one choice says nothing (many read
        `choices[0]` of every chunk).
        """
        self._placed = True
        return self._of_nothing(b'"fairlane":{"queuePosition":%d,%b}' % (place.position, wait_members(place)))

    def _started(self) -> bytes:
        if self._info.has_fallback:
            self._reported = {}
            self._address()
        return b""

    def _chunk(self, index: int, kind: str, delta: bytes) -> bytes:
        if kind == "extra":
            return self._extra(index, self._learn(members(delta) or {}))
        state = self._choices.get(index)
        if state is None:
            return self._open(index) + self._chunk(index, kind, delta)
        frames = self._delta(index, state, kind, delta)
        return self._with_held(state, frames) if state.held else frames

    def _delta(self, index: int, state: ChoiceState, kind: str, delta: bytes) -> bytes:
        if kind == "text":
            state.shown_content = True
            return b"%b%d%b%b%b" % (self._head, index, self._before_text, delta, self._after_text)
        if kind == "finish":
            return self._finish_frame(index, state, bytes(delta))
        if kind not in self.shapes:
            return b""
        before, after = self.shapes[kind]
        if kind == "reasoning":
            state.shown_reasoning = True
        else:
            state.shown_content = True
        deltas = [delta]
        if kind == "tool":  # one frame for each, as clients are used to
            state.calls_tools, deltas = True, items(delta) or []
        return b"".join(
            [b"%b%d,%b%b%b%b" % (self._head, index, before, one, after, self._tail) for one in deltas]
        )

    def _extra(self, index: int, found: Mapping[str, bytes]) -> bytes:
        """The frame of other members of a choice, if there are any. Log probabilities, and all members that come with them, wait
        for the next frame of their choice."""
        if not found:
            return b""
        opening = b"" if index in self._choices else self._open(index)
        state, pairs = self._choices[index], others(found, NOT_EXTRA)
        if "logprobs" in pairs and not (state.held or state.finished):
            state.held, pairs = join_object(pairs.items())[1:-1], {}
        rest = self._other_output(found)
        if not pairs and not rest:
            return opening
        more = [rest or self.nothing] + ([join_object(pairs.items())[1:-1]] if pairs else [])
        return opening + b'%b%d,%b,"finish_reason":null}]%b' % (
            *(self._head, index, b",".join(more)),
            self._rest,
        )

    def _other_output(self, found: Mapping[str, bytes]) -> bytes:
        """The member of a choice that holds further output; empty for none."""
        delta = others(members(found.get("delta")) or {}, NOT_EXTRA_IN_MESSAGE)
        return b'"delta":%b' % join_object(delta.items()) if delta else b""

    def _address(self) -> None:
        """Begin each frame with what is known of the answer as a whole."""
        reported = self._reported
        own_id = b'"%b%b"' % (self.id_prefix, self._info.task_id.encode())
        envelope = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,' % (
            string_or_none(reported.get("id")) or own_id,
            self.object_name,
            self._info.created,
            json_string(self._info.model),
        )
        for name in IN_EACH_FRAME:
            if name in reported and kind_of(reported[name]):
                envelope += b'"%b":%b,' % (name.encode(), bytes(reported[name]))
        self._envelope = envelope
        self._head = envelope + b'"choices":[{"index":'

    def _learn(self, found: dict[str, Raw]) -> Mapping[str, bytes]:
        """Members of the upstream's answer as a whole: they stand in each frame from now on, or in the last one. Returns the
        other members of a chunk of kind `extra`."""
        reported = members(found.pop("response", None)) or {}
        if not reported:
            return found
        for name in IN_EACH_FRAME if self._placed or self._choices else ("id", *IN_EACH_FRAME):
            value = reported.get(name)
            if value is not None and len(memoryview(value)) <= MAX_REPEATED:
                self._reported[name] = bytes(value)
        self._address()
        if kind_of(reported.get("timings")):
            self._timings = b'"timings":%b' % bytes(reported["timings"])
        return found

    def _with_held(self, state: ChoiceState, frames: bytes) -> bytes:
        """Frames of a choice with what is held for it in the first of them."""
        mark = self.before_finish + b',"finish_reason":'  # escaped in texts
        before, finish, behind = frames.partition(mark)
        if not finish or not state.held:
            return frames
        held, state.held = state.held, b""
        return b'%b,%b,"finish_reason":%b' % (before, held, behind)

    def _done(self, event: Event) -> bytes:
        done = read_done(event.data)
        shown = any(state.shown_content for state in self._choices.values())
        frames = []
        if done.result is not None:
            if not shown:
                self.check(done.result)
            frames = [self._show(choice) for choice in choices_of_result(done.result, self._info.task_id)]
        if not self._choices:
            frames.append(self._open(0))
        for index, state in self._choices.items():
            if not state.finished:
                reason = state.finish or done.finish_reason or finish_of(state.calls_tools)
                frames.append(self._with_held(state, self._finish_frame(index, state, reason)))
        usage = openai_usage(self._usage(done)) if self._include_usage else None
        if usage is not None:
            late = self._timings and self._timings + b","
            frames.append(b'%b"choices":[],%b"usage":%b}\n\n' % (self._envelope, late, usage))
        elif self._timings:
            frames.append(self._of_nothing(self._timings))
        return b"".join(frames) + DONE

    @staticmethod
    def check(result: bytes) -> None:
        """Raise ResultShapeError for a result that is no answer to this call."""

    def _open(self, index: int) -> bytes:
        """Begin a choice. Returns the frame that does it."""
        self._choices[index] = ChoiceState()
        return b"%b%d,%b%b" % (self._head, index, self.opening, self._tail) if self.opening else b""

    def _show(self, choice: Choice) -> bytes:
        """What a result says of a choice whose chunks showed no content."""
        index, state = choice.index, self._choices.get(choice.index)
        frames = []
        if state is None or not (state.finished or state.shown_content):
            said = pieces(choice, thought=state is not None and state.shown_reasoning)
            frames = [self._chunk(index, kind, delta) for kind, delta in said]
        if index not in self._choices:
            frames.append(self._open(index))
        self._choices[index].finish = choice.finish
        return b"".join(frames)

    def _of_nothing(self, more: bytes) -> bytes:
        """A frame with a member of the whole answer, whose one choice says nothing."""
        choice = b'%b0,%b%b,"finish_reason":null}]' % (self._head, self.nothing, self.before_finish)
        return b"%b,%b%b" % (choice, more, self._rest)

    def _finish_frame(self, index: int, state: ChoiceState, reason: bytes) -> bytes:
        state.finished = True
        choice = b'%b%d,%b%b,"finish_reason":%b}]' % (
            *(self._head, index, self.nothing, self.before_finish),
            reason,
        )
        return choice + self._rest


class ChatBodyView(ResultView):
    """The `chat.completion` body of a completed task."""

    object_name = b"chat.completion"
    id_prefix = b"chatcmpl-"

    def body(self) -> bytes:
        """A result that has `choices` as it is, but for missing usage; otherwise a body made of the result, or of the chunks."""
        result = self.result
        found = members(result) or {}
        if result is None or kind_of(found.get("choices")) != "[":
            return self._made()
        if self.info.has_fallback:  # its caller named a route: the answer has the gateway's name of the model
            found = {**found, "model": Raw(json_string(self.info.model))}
            result = join_object(found.items())
        return self.with_usage(result, found)

    def _made(self) -> bytes:
        """A body of the choices that there are."""
        reported: dict[str, bytes] = {}
        listed = self.choices()
        for choice in listed:
            if "response" in choice.members:
                reported |= members(choice.members.pop("response")) or {}
        choices = [join_object(self._shown(choice)) for choice in listed]
        own_id = b'"%b%b"' % (self.id_prefix, self.info.task_id.encode())
        pairs = [
            ("id", string_or_none(reported.get("id")) or own_id),
            ("object", b'"%b"' % self.object_name),
            ("created", b"%d" % self.info.created),
            ("model", json_string(self.info.model)),
            ("choices", b"[%b]" % b",".join(choices)),
            *others(reported, _OWN).items(),
        ]
        if (usage := openai_usage(self.usage)) is not None:
            pairs.append(("usage", usage))
        return join_object(pairs)

    def _shown(self, choice: Choice) -> list[tuple[str, bytes]]:
        others = {"logprobs": NULL, **choice.members}
        return [
            ("index", b"%d" % choice.index),
            self._content(choice),
            ("finish_reason", choice.finish or self._finish or finish_of(bool(choice.tool_calls))),
            *others.items(),
        ]

    def _content(self, choice: Choice) -> tuple[str, bytes]:
        """The member that holds the choice's content: null where something else stands in its place, and an empty text where
        nothing does."""
        more = others(choice.message, NOT_EXTRA_IN_MESSAGE)
        replaced = choice.tool_calls or choice.refusal is not None or more
        pairs = [
            ("role", b'"assistant"'),
            ("content", choice.content or (NULL if replaced else EMPTY_STRING)),
            ("refusal", choice.refusal or NULL),
        ]
        if choice.reasoning is not None:
            pairs.append(("reasoning_content", choice.reasoning))
        if choice.tool_calls:
            pairs.append(("tool_calls", b"[%b]" % b",".join(choice.tool_calls)))
        return "message", join_object([*pairs, *more.items()])


def finish_of(calls_tools: bool) -> bytes:
    """The finish reason of a choice that has none."""
    return b'"tool_calls"' if calls_tools else b'"stop"'
