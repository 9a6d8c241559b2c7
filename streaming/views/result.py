"""What a task has come to so far: the view that sync answers, polls and every JSON body read from.

The native result is the worker's own if its `done` event carries one that is not null. Otherwise it is made
of the chunks: `{"id", "content", "reasoning"?, "refusal"?, "toolCalls"?, "finishReason"?, "extra"?,
"choices"?, "usage"?}`, where `id` is the task's id and everything before `choices` is about choice 0.
`finishReason` is left out when it is `stop`. `extra` holds what the worker sent in chunks of that kind, put
together. `choices` is there when there is more than one: the same members per choice, with its `index`.
`usage` is as the worker reported it, or as the gateway counted (`estimated`).
"""

from collections.abc import Callable

import msgspec
from msgspec import Raw

from fairlane.streaming.events import (
    TEXT_KINDS,
    Chunk,
    Event,
    Failure,
    read_chunk,
    read_done,
    read_error,
    read_model,
    read_usage,
)
from fairlane.streaming.jsontext import EMPTY_STRING, join_object, json_string, kind_of, members
from fairlane.streaming.views.accumulate import ToolCalls, Value
from fairlane.streaming.views.choice import (
    NOT_EXTRA,
    NOT_EXTRA_IN_MESSAGE,
    Choice,
    choices_of_result,
    others,
    what_came,
)
from fairlane.streaming.views.task import TaskInfo
from fairlane.streaming.views.usage import Members, openai_usage, pick_usage

_STOP = b'"stop"'


class ResultShapeError(Exception):
    """The result of a completed task is no answer to the call that asked for it; the sentence says what came instead."""


def misfit(came: bytes | str | None, wanted: str) -> ResultShapeError:
    """That this result, or what the text says, came instead of what was wanted."""
    came = came if isinstance(came, str) else what_came(came)
    return ResultShapeError(f"The worker answered with {came}, not with {wanted}")


class _Output:
    """What the chunks of one choice add up to.

    Texts are kept as insides of JSON strings, so nothing is decoded.
    """

    __slots__ = ("extra", "finish", "texts", "tools")

    def __init__(self) -> None:
        self.texts: dict[str, bytearray] = {}
        self.tools: ToolCalls | None = None
        self.finish: bytes | None = None
        self.extra: Value | None = None

    def add(self, kind: str, delta: bytes) -> None:
        if kind in TEXT_KINDS:
            text = self.texts.get(kind)
            if text is None:
                text = self.texts[kind] = bytearray()
            text += memoryview(delta)[1:-1]
        elif kind == "tool":
            self.tools = self.tools or ToolCalls()
            self.tools.add(delta)
        elif kind == "finish":
            self.finish = bytes(delta)
        elif found := members(delta):
            self.extra = self.extra or Value(b"{}")
            for name, value in found.items():
                if name != "delta" or kind_of(value) == "{":
                    self.extra.add_member(name, value, join=name == "delta")

    def choice(self, index: int) -> Choice:
        extra = {} if self.extra is None else self.extra.members()
        texts = {kind: b'"%b"' % bytes(inside) for kind, inside in self.texts.items()}
        return Choice(
            index,
            content=texts.get("text"),
            reasoning=texts.get("reasoning"),
            refusal=texts.get("refusal"),
            tool_calls=self.tools.finished() if self.tools else [],
            finish=self.finish,
            members=others(extra, NOT_EXTRA),
            message=others(members(extra.get("delta")) or {}, NOT_EXTRA_IN_MESSAGE),
        )


class ResultView:
    """Feed it a task's events in order; it may be asked at any moment and answers for what it was fed.

    A new attempt and a `restart` discard what came before them. Nothing after the terminal event changes the
    answer.
    """

    content_type = b"application/json"
    """Of `body`."""

    def __init__(self, info: TaskInfo) -> None:
        self.info = info
        self.status = "queued"
        """`queued`, `executing`, `completed`, `failed` or `cancelled`."""
        self.error: Failure | None = None
        self._ended = False
        self._forget()

    def _forget(self) -> None:
        self._outputs: dict[int, _Output] = {}
        self._result: bytes | None = None
        self._own_usage: bytes | None = None
        self._latest_usage: bytes | None = None
        self._finish: bytes | None = None

    def feed(self, event: Event) -> None:
        if self._ended:
            return
        if event.type == "chunk":
            self.add_chunk(read_chunk(event.data))
        elif event.type in ("start", "restart"):
            self._forget()
            self.status = "executing" if event.type == "start" else "queued"
            if self.info.has_fallback and event.type == "start":
                self.info = msgspec.structs.replace(self.info, model=read_model(event.data))
        elif event.type == "usage":
            self._latest_usage = read_usage(event.data)
        elif event.terminal:
            self._end(event)

    def add_chunk(self, chunk: Chunk) -> None:
        """What `feed` does with a chunk event, for those who have read it already."""
        output = self._outputs.get(chunk.index)
        if output is None:
            output = self._outputs[chunk.index] = _Output()
        output.add(chunk.kind, chunk.delta)

    def _end(self, event: Event) -> None:
        self._ended = True
        if event.type == "done":
            self.status = "completed"
            self._result, self._own_usage, self._finish = read_done(event.data)
        elif event.type == "error":
            self.status = "failed"
            self.error = read_error(event.data)
            self._own_usage = read_usage(event.data)
        else:
            self.status = "cancelled"

    @property
    def result(self) -> bytes | None:
        """The worker's own result, if its `done` event carries one."""
        return self._result

    @property
    def usage(self) -> bytes | None:
        """The usage object that counts, in the worker's words."""
        return pick_usage(self._own_usage, self._result, self._latest_usage)

    def with_usage(
        self, body: bytes, found: Members, draw: Callable[[bytes | None], bytes | None] = openai_usage
    ) -> bytes:
        """`body`, an object with the members `found`, as it is; with the usage in the form of `draw`, if it has none."""
        if kind_of(found.get("usage")) or (reported := draw(self.usage)) is None:
            return body
        return join_object({**found, "usage": Raw(reported)}.items())

    def choices(self) -> list[Choice]:
        """The answer as choices: of the worker's result if there is one, else of the chunks. Never empty."""
        if self._result is not None:
            return choices_of_result(self._result, self.info.task_id)
        outputs = sorted(self._outputs.items())
        return [output.choice(index) for index, output in outputs] or [Choice(0)]

    def misfit(self, wanted: str) -> ResultShapeError:
        """That the worker answered with something else."""
        return misfit("text" if self._outputs and not self._result else self._result, wanted)

    def body(self) -> bytes:
        """The body of an answer to the call. Raises ResultShapeError for a result that is no answer to it."""
        return self.result_json()

    def result_json(self) -> bytes:
        """The native result, one line of JSON (see the top of this file).

        Before the end: of what there is so far.
        """
        if self._result is not None:
            return self._result
        choices = self.choices()
        first = choices[0] if choices[0].index == 0 else Choice(0)
        pairs = [("id", json_string(self.info.task_id)), *self._native(first)]
        if len(choices) > 1 or choices[0] is not first:
            listed = [
                join_object([("index", b"%d" % choice.index), *self._native(choice)]) for choice in choices
            ]
            pairs.append(("choices", b"[%b]" % b",".join(listed)))
        usage = self.usage
        if usage is not None:
            pairs.append(("usage", usage))
        return join_object(pairs)

    def _native(self, choice: Choice) -> list[tuple[str, bytes]]:
        pairs = [("content", choice.content or EMPTY_STRING)]
        for name, text in (("reasoning", choice.reasoning), ("refusal", choice.refusal)):
            if text is not None:
                pairs.append((name, text))
        if choice.tool_calls:
            pairs.append(("toolCalls", b"[%b]" % b",".join(choice.tool_calls)))
        finish = choice.finish or self._finish
        if finish is not None and finish != _STOP:
            pairs.append(("finishReason", finish))
        output = self._outputs.get(choice.index)
        if output is not None and output.extra is not None:
            pairs.append(("extra", output.extra.json()))
        return pairs
