"""OpenAI's completions: the stream, and the body; both are `text_completion` objects.

They hold text only. Reasoning, refusals and tool calls have no place here and are left out.
"""

from collections.abc import Mapping
from typing import ClassVar

from fairlane.streaming.jsontext import EMPTY_STRING, items, kind_of, members
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.choice import Choice
from fairlane.streaming.views.result import misfit

_TEXTS = ("text", "message", "content")


def check(result: bytes) -> None:
    """Raise ResultShapeError for a result that is no text, has none, and has no choices with texts or messages."""
    found = members(result)
    texts = [result if found is None else found.get("content")]
    if found is not None and (listed := items(found.get("choices"))) is not None:
        choices = [members(raw) or {} for raw in listed]
        texts = [next((one[name] for name in _TEXTS if kind_of(one.get(name))), None) for one in choices]
        if choices and all(map(kind_of, texts)):
            return
    elif kind_of(texts[0]) == '"':
        return
    raise misfit(result, "a completion")


class CompletionStreamView(ChatStreamView):
    """A stream of `text_completion` chunks: the text, then a finish reason per choice."""

    object_name = b"text_completion"
    id_prefix = b"cmpl-"
    opening = b""
    nothing = b'"text":""'
    before_finish = b',"logprobs":null'
    shapes: ClassVar = {"text": (b'"text":', b"")}
    check = staticmethod(check)

    def _other_output(self, found: Mapping[str, bytes]) -> bytes:  # noqa: ARG002
        return b""


class CompletionBodyView(ChatBodyView):
    """The `text_completion` body of a completed task."""

    object_name = b"text_completion"
    id_prefix = b"cmpl-"

    def body(self) -> bytes:
        """A result whose choices have texts as it is, but for missing usage; otherwise a body made of the text that there is.
        Raises ResultShapeError.
        """
        result = self.result
        if result is not None:
            found = members(result) or {}
            listed = items(found.get("choices"))
            if listed and all(kind_of((members(raw) or {}).get("text")) == '"' for raw in listed):
                return self.with_usage(result, found)
            check(result)
        return self._made()

    def _content(self, choice: Choice) -> tuple[str, bytes]:
        return "text", choice.content or EMPTY_STRING
