"""OpenAI's completions: the stream, and the body; both are `text_completion` objects.

They hold text only. Reasoning, refusals and tool calls have no place here and are left out.
"""

from collections.abc import Mapping

from msgspec import Raw

from fairlane.streaming.jsontext import EMPTY_STRING, join_object, members
from fairlane.streaming.views.choice import NOT_EXTRA, Choice, others
from fairlane.streaming.views.openai_common import ChoiceState, OpenAIBodyView, OpenAIStreamView


class CompletionStreamView(OpenAIStreamView):
    """A stream of `text_completion` chunks: the text, then a finish reason per choice."""

    object_name = b"text_completion"
    id_prefix = b"cmpl-"

    def _opening(self, index: int) -> bytes:  # noqa: ARG002
        return b""

    def _nothing(self) -> bytes:
        return b'"text":"","logprobs":null'

    def _delta(self, index: int, state: ChoiceState, kind: str, delta: Raw) -> bytes:
        if kind == "text":
            state.shown_content = True
            return b'%b%d,"text":%b,"logprobs":null%b' % (self._head, index, delta, self._tail)
        if kind == "finish":
            return self._finish_frame(index, state, bytes(delta))
        if kind == "extra":
            return self._extra_frame(index, members(delta) or {})
        return b""

    def _whole(self, state: ChoiceState, choice: Choice) -> bytes:
        state.shown_content = True
        text = choice.content or EMPTY_STRING
        frame = (
            self._frame(choice.index, b'"text":%b,"logprobs":null' % text) if text != EMPTY_STRING else b""
        )
        return frame + self._extra_frame(choice.index, choice.members)

    def _extra_frame(self, index: int, of_choice: Mapping[str, bytes]) -> bytes:
        pairs = others(of_choice, NOT_EXTRA)
        if not pairs:
            return b""
        return self._frame(index, join_object([("text", EMPTY_STRING), *pairs.items()])[1:-1])


class CompletionBodyView(OpenAIBodyView):
    """The `text_completion` body of a completed task."""

    object_name = b"text_completion"
    id_prefix = b"cmpl-"

    def _content(self, choice: Choice) -> tuple[str, bytes]:
        return "text", choice.content or EMPTY_STRING
