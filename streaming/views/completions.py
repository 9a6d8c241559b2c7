"""OpenAI's completions: the stream, and the body; both are `text_completion` objects.

They hold text only. Reasoning, refusals and tool calls have no place here and are left out.
"""

from collections.abc import Mapping

from fairlane.streaming.jsontext import EMPTY_STRING, items, join_object, kind_of, members
from fairlane.streaming.views.choice import NOT_EXTRA, Choice, others, what_came
from fairlane.streaming.views.openai_common import ChoiceState, OpenAIBodyView, OpenAIStreamView
from fairlane.streaming.views.result import ResultShapeError
from fairlane.streaming.views.usage import with_usage

_TEXTS = ("text", "message", "content")


class CompletionStreamView(OpenAIStreamView):
    """A stream of `text_completion` chunks: the text, then a finish reason per choice."""

    object_name = b"text_completion"
    id_prefix = b"cmpl-"
    before_finish = b',"logprobs":null'

    def _misfit(self, result: bytes) -> str | None:
        return None if _has_text(result) else _misfit(result)

    def _opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def _nothing(self) -> bytes:
        return b'"text":"","logprobs":null'

    def _delta(self, index: int, state: ChoiceState, kind: str, delta: bytes) -> bytes:
        if kind == "text":
            state.shown_content = True
            return b'%b%d,"text":%b,"logprobs":null%b' % (self._head, index, delta, self._tail)
        if kind == "finish":
            return self._finish_frame(index, state, bytes(delta))
        return b""

    def _extra(self, index: int, state: ChoiceState, found: Mapping[str, bytes]) -> bytes:
        return self._extra_frame(index, self._hold(state, found))

    def _extra_frame(self, index: int, of_choice: Mapping[str, bytes]) -> bytes:
        pairs = others(of_choice, NOT_EXTRA)
        if not pairs:
            return b""
        return self._frame(index, join_object([("text", EMPTY_STRING), *pairs.items()])[1:-1])


class CompletionBodyView(OpenAIBodyView):
    """The `text_completion` body of a completed task."""

    object_name = b"text_completion"
    id_prefix = b"cmpl-"

    def body(self) -> bytes:
        """A result whose choices have texts as it is, but for missing usage; otherwise a body made of the text that there is.
        Raises ResultShapeError.
        """
        result = self.result
        if result is not None:
            if _is_completion(result):
                return with_usage(result, self.usage)
            if not _has_text(result):
                raise ResultShapeError(_misfit(result))
        return self._made()

    def _content(self, choice: Choice) -> tuple[str, bytes]:
        return "text", choice.content or EMPTY_STRING


def _is_completion(result: bytes) -> bool:
    listed = items((members(result) or {}).get("choices"))
    return bool(listed) and all(kind_of((members(raw) or {}).get("text")) == '"' for raw in listed or ())


def _has_text(result: bytes) -> bool:
    """Whether a result is a text, has one, or has choices with texts or messages."""
    found = members(result)
    if found is None:
        return kind_of(result) == '"'
    listed = items(found.get("choices"))
    if listed is None:
        return kind_of(found.get("content")) == '"'
    choices = [members(raw) or {} for raw in listed]
    return bool(choices) and all(any(kind_of(one.get(name)) for name in _TEXTS) for one in choices)


def _misfit(result: bytes) -> str:
    return f"The worker answered with {what_came(result)}, not with a completion"
