"""What OpenAI's chat and completions have in common: the order of a stream, the frame of a body."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from fairlane.queues.tasks import Place
from fairlane.streaming.events import (
    Event,
    read_chunk,
    read_done,
    read_model,
    read_usage,
    wait_members,
    why_failed,
)
from fairlane.streaming.jsontext import NULL, join_object, json_string, kind_of, members, string_or_none
from fairlane.streaming.views.choice import (
    NOT_EXTRA,
    Choice,
    choices_of_result,
    finish_of,
    has_choices,
    others,
    pieces,
)
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.sse import DONE, KEEPALIVE, error_frame
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import openai_usage, pick_usage, with_usage

IN_EACH_FRAME = ("system_fingerprint", "service_tier")
MAX_REPEATED = 256
"""Bytes of what an upstream says that stands in each frame; an id of 3 MB in a thousand frames was 3 GB. More is left out."""
_OWN = frozenset({"id", "object", "created", "model", "choices", "usage"})
"""Members of the answer as a whole that are the gateway's, but for the id."""


class ChoiceState:
    """What the reader has seen of one choice."""

    __slots__ = ("calls_tools", "finish", "finished", "held", "shown_content", "shown_reasoning")

    def __init__(self) -> None:
        self.shown_content = False
        self.shown_reasoning = False
        self.calls_tools = False
        self.finished = False
        self.finish: bytes | None = None
        self.held = b""
        """Members that its next frame has, too: log probabilities, which come before their text."""


class OpenAIStreamView(ABC):
    """Frames of an OpenAI stream from all events of a task in order. Subclasses say what a choice looks like.

    The end is in one piece: finish reasons, usage if asked for and known, `[DONE]`. A failure, a cancellation
    and lost events end it with an error frame and without `[DONE]`. After the end, `ended` is true and every
    event is ignored. A worker's result is shown where the chunks of its choice showed no content; what was
    shown is not repeated.
    """

    object_name: bytes
    id_prefix: bytes
    silence = KEEPALIVE
    """What is sent to keep the stream alive."""
    place_every_s = 0.0
    """Seconds between two chunks with a new place, at least."""
    before_finish = b""
    """What stands in each frame before the finish reason, in the place of log probabilities."""
    pending = None
    """It draws every end by itself."""

    def __init__(self, info: TaskInfo, include_usage: bool = False) -> None:
        self.ended = False
        self._include_usage = include_usage
        self._latest_usage: bytes | None = None
        self._choices: dict[int, ChoiceState] = {}
        self._info = info
        self._timings = b""
        self._rest = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._placed = False
        """A chunk with the position in the queue was shown: all others have its id."""
        self._told: dict[str, bytes] = {}
        """What stands in each frame of the upstream's answer as a whole."""
        self._address()
        self._tail = b',"finish_reason":null}]' + self._rest

    def feed(self, event: Event) -> bytes:
        """The frames that this event adds, often none; to be written in one write."""
        if self.ended:
            return b""
        if event.type == "chunk":
            chunk = read_chunk(event.data)
            return self._chunk(chunk.index, chunk.kind, chunk.delta)
        if event.type == "usage":
            self._latest_usage = read_usage(event.data)
            return b""
        if event.type == "start" and self._info.has_fallback:
            self._info = msgspec.structs.replace(self._info, model=read_model(event.data))
            self._told = {}
            self._address()
            return b""
        if event.terminal or event.type in ("gap", "restart"):
            self.ended = True
            return self._end(event)
        return b""

    @staticmethod
    def open() -> bytes:
        """Nothing stands before the first output."""
        return b""

    def _chunk(self, index: int, kind: str, delta: bytes) -> bytes:
        if kind == "extra":
            return self._feed_extra(index, members(delta) or {})
        opening, state = b"", self._choices.get(index)
        if state is None:
            opening, state = self._open(index)
        frames = self._delta(index, state, kind, delta)
        if state.held:
            frames = self._with_held(state, frames)
        return opening + frames if opening else frames

    def _feed_extra(self, index: int, found: dict[str, Raw]) -> bytes:
        response = found.pop("response", None)
        if response is not None:
            self._learn(members(response) or {})
        if not found:
            return b""
        opening, state = b"", self._choices.get(index)
        if state is None:
            opening, state = self._open(index)
        return opening + self._extra(index, state, found)

    def _address(self) -> None:
        """Begin each frame with what is known of the answer as a whole."""
        told = self._told
        own_id = b'"%b%b"' % (self.id_prefix, self._info.task_id.encode())
        envelope = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,' % (
            string_or_none(told.get("id")) or own_id,
            self.object_name,
            self._info.created,
            json_string(self._info.model),
        )
        for name in IN_EACH_FRAME:
            if name in told and kind_of(told[name]):
                envelope += b'"%b":%b,' % (name.encode(), bytes(told[name]))
        self._envelope = envelope
        self._head = self._envelope + b'"choices":[{"index":'

    def _learn(self, told: Mapping[str, bytes]) -> None:
        """Members of the upstream's answer as a whole: they stand in each frame from now on, or in the last one."""
        for name in IN_EACH_FRAME if self._placed or self._choices else ("id", *IN_EACH_FRAME):
            value = told.get(name)
            if value is not None and len(memoryview(value)) <= MAX_REPEATED:
                self._told[name] = value
        self._address()
        if kind_of(told.get("timings")):
            self._timings = b'"timings":%b,' % bytes(told["timings"])

    def _hold(self, state: ChoiceState, found: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Keep further members of a choice for its next frame, if log probabilities are among them. Returns those not kept."""
        if not kind_of(found.get("logprobs")) or state.held or state.finished:
            return found
        state.held = join_object(others(found, NOT_EXTRA).items())[1:-1]
        return {}

    def _with_held(self, state: ChoiceState, frames: bytes) -> bytes:
        """Frames of a choice with what is held for it in the first of them."""
        before, finish, behind = frames.partition(
            self.before_finish + b',"finish_reason":'
        )  # escaped in texts
        if not finish or not state.held:
            return frames
        held, state.held = state.held, b""
        return b'%b,%b,"finish_reason":%b' % (before, held, behind)

    def queue_chunk(self, place: Place) -> bytes:
        """A chunk for a stream that waits: shows its place, keeps clients from giving up. Its one choice says nothing (many read
        `choices[0]` of every chunk).
        """
        self._placed = True
        return b'%b0,%b,"finish_reason":null}],"fairlane":{"queuePosition":%d,%b}%b' % (
            self._head,
            self._nothing(),
            place.position,
            wait_members(place),
            self._rest,
        )

    @staticmethod
    def failed(message: str, code: str) -> bytes:
        """How a stream ends in failure. No `[DONE]` follows."""
        return error_frame(message, code)

    def _end(self, event: Event) -> bytes:
        if event.type == "done":
            return self._finish(event)
        return self.failed(*why_failed(event))

    def _finish(self, event: Event) -> bytes:
        done = read_done(event.data)
        frames = []
        shown = any(state.shown_content for state in self._choices.values())
        if done.result is not None and not shown and (sentence := self._misfit(done.result)):
            return error_frame(sentence, "JSON_PARSE_FAILED")
        if done.result is not None:
            frames = [self._show(choice) for choice in choices_of_result(done.result, self._info.task_id)]
        if not self._choices:
            frames.append(self._open(0)[0])
        for index, state in self._choices.items():
            if not state.finished:
                reason = state.finish or done.finish_reason or finish_of(state.calls_tools)
                frames.append(self._with_held(state, self._finish_frame(index, state, reason)))
        late = self._timings
        usage = (
            openai_usage(pick_usage(done.usage, done.result, self._latest_usage))
            if self._include_usage
            else None
        )
        if usage is not None:
            frames.append(b'%b"choices":[],%b"usage":%b}\n\n' % (self._envelope, late, usage))
        elif late:
            frames.append(
                b'%b0,%b,"finish_reason":null}],%b%b' % (self._head, self._nothing(), late[:-1], self._rest)
            )
        return b"".join(frames) + DONE

    def _open(self, index: int) -> tuple[bytes, ChoiceState]:
        """Begin a choice: the frame that does it, and its state."""
        state = self._choices[index] = ChoiceState()
        return self._opening(index), state

    def _show(self, choice: Choice) -> bytes:
        """What a result says of a choice whose chunks showed no content."""
        index, state = choice.index, self._choices.get(choice.index)
        frames = []
        if state is None or not (state.finished or state.shown_content):
            said = pieces(choice, thought=state is not None and state.shown_reasoning)
            frames = [self._chunk(index, kind, delta) for kind, delta in said]
        if index not in self._choices:
            frames.append(self._open(index)[0])
        self._choices[index].finish = choice.finish
        return b"".join(frames)

    def _frame(self, index: int, body: bytes) -> bytes:
        """A frame of one choice: `body` is its members between `index` and `finish_reason`."""
        return b"%b%d,%b%b" % (self._head, index, body, self._tail)

    def _finish_frame(self, index: int, state: ChoiceState, reason: bytes) -> bytes:
        state.finished = True
        return b'%b%d,%b,"finish_reason":%b}]%b' % (self._head, index, self._nothing(), reason, self._rest)

    def _misfit(self, result: bytes) -> str | None:  # noqa: ARG002
        """What is wrong with a result that is no answer to this call."""
        return None

    @abstractmethod
    def _extra(self, index: int, state: ChoiceState, found: Mapping[str, bytes]) -> bytes:
        """The frames of a chunk of other members, if there are any."""

    @abstractmethod
    def _opening(self, index: int) -> bytes:
        """What stands before a choice's first delta."""

    @abstractmethod
    def _nothing(self) -> bytes:
        """The members of a choice that says nothing new."""

    @abstractmethod
    def _delta(self, index: int, state: ChoiceState, kind: str, delta: bytes) -> bytes:
        """The frames of one chunk."""


class OpenAIBodyView(ResultView, ABC):
    """The body of a completed task. Subclasses say what a choice looks like."""

    object_name: bytes
    id_prefix: bytes

    def body(self) -> bytes:
        """A result that has `choices` as it is, but for missing usage; otherwise a body made of the result, or of the chunks."""
        result = self.result
        if result is not None and has_choices(result):
            if (
                self.info.has_fallback
            ):  # its caller named a route: the answer has the gateway's name of the model
                found = members(result) or {}
                result = join_object({**found, "model": Raw(json_string(self.info.model))}.items())
            return with_usage(result, self.usage)
        return self._made()

    def _made(self) -> bytes:
        """A body of the choices that there are."""
        told: dict[str, bytes] = {}
        listed = self.choices()
        for choice in listed:
            if "response" in choice.members:
                told |= members(choice.members.pop("response")) or {}
        choices = [join_object(self._shown(choice)) for choice in listed]
        own_id = b'"%b%b"' % (self.id_prefix, self.info.task_id.encode())
        pairs = [
            ("id", string_or_none(told.get("id")) or own_id),
            ("object", b'"%b"' % self.object_name),
            ("created", b"%d" % self.info.created),
            ("model", json_string(self.info.model)),
            ("choices", b"[%b]" % b",".join(choices)),
        ]
        pairs += [(name, bytes(value)) for name, value in told.items() if name not in _OWN and kind_of(value)]
        usage = self.openai_usage()
        if usage is not None:
            pairs.append(("usage", usage))
        return join_object(pairs)

    def _shown(self, choice: Choice) -> list[tuple[str, bytes]]:
        others = {"logprobs": NULL, **choice.members}
        return [
            ("index", b"%d" % choice.index),
            self._content(choice),
            ("finish_reason", choice.finish or self.default_finish or finish_of(bool(choice.tool_calls))),
            *others.items(),
        ]

    @abstractmethod
    def _content(self, choice: Choice) -> tuple[str, bytes]:
        """The member that holds the choice's content."""
