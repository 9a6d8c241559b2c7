"""OpenAI's chat completions: the stream of chunks, and the body."""

from collections.abc import Mapping

from fairlane.streaming.jsontext import EMPTY_STRING, NULL, items, join_object, members
from fairlane.streaming.views.choice import NOT_EXTRA, NOT_EXTRA_IN_MESSAGE, Choice, others
from fairlane.streaming.views.openai_common import ChoiceState, OpenAIBodyView, OpenAIStreamView

_ROLE = b'"delta":{"role":"assistant","content":""}'


class ChatStreamView(OpenAIStreamView):
    """A stream of `chat.completion.chunk`: per choice a role, deltas, a finish reason.

    Reasoning is shown as `reasoning_content`, each tool call object in a frame of its own.
    """

    object_name = b"chat.completion.chunk"
    id_prefix = b"chatcmpl-"

    def _opening(self, index: int) -> bytes:
        return self._frame(index, _ROLE)

    def _nothing(self) -> bytes:
        return b'"delta":{}'

    def _delta(self, index: int, state: ChoiceState, kind: str, delta: bytes) -> bytes:
        if kind == "text":
            state.shown_content = True
            return b'%b%d,"delta":{"content":%b}%b' % (self._head, index, delta, self._tail)
        if kind == "reasoning":
            state.shown_reasoning = True
            return self._frame(index, b'"delta":{"reasoning_content":%b}' % delta)
        if kind == "refusal":
            state.shown_content = True
            return self._frame(index, b'"delta":{"refusal":%b}' % delta)
        if kind == "tool":
            state.shown_content = state.calls_tools = True
            frames = [
                self._frame(index, b'"delta":{"tool_calls":[%b]}' % call) for call in items(delta) or ()
            ]
            return b"".join(frames)  # one for each, as clients are used to
        return self._finish_frame(index, state, bytes(delta))

    def _extra(self, index: int, state: ChoiceState, found: Mapping[str, bytes]) -> bytes:
        return self._extra_frame(index, self._hold(state, found), members(found.get("delta")) or {})

    def _extra_frame(
        self, index: int, of_choice: Mapping[str, bytes], of_delta: Mapping[str, bytes]
    ) -> bytes:
        pairs = others(of_choice, NOT_EXTRA)
        delta = others(of_delta, NOT_EXTRA_IN_MESSAGE)
        if not pairs and not delta:
            return b""
        return self._frame(index, join_object([("delta", join_object(delta.items())), *pairs.items()])[1:-1])


class ChatBodyView(OpenAIBodyView):
    """The `chat.completion` body of a completed task."""

    object_name = b"chat.completion"
    id_prefix = b"chatcmpl-"

    def _content(self, choice: Choice) -> tuple[str, bytes]:
        return "message", _message(choice)


def _message(choice: Choice) -> bytes:
    """Content is null where something else stands in its place, and an empty text where nothing does."""
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
    return join_object([*pairs, *more.items()])
