"""OpenAI's requests for chat completions, completions and embeddings, and the views of their answers. Pure."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from fairlane.gateway.core.bodies import RawObject, value_of
from fairlane.gateway.core.spec import check_choices, read_flag
from fairlane.gateway.errors import bad_request
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.completions import CompletionBodyView, CompletionStreamView
from fairlane.streaming.views.embeddings import EmbeddingBodyView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
"""Metadata: the number of pairs, and the characters of a key and of a value."""
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
"""Bounds of a file's expiry."""


class OpenAIRequest(NamedTuple):
    """A request: the type of its task, and the views of its answer."""

    task_type: str
    streamed: Callable[[TaskInfo], ChatStreamView] | None
    """None: the request does not stream."""
    whole: Callable[[TaskInfo], ResultView]


Read = Callable[[RawObject], OpenAIRequest]
"""Reads what a body of these members asks for. Raises ApiError(400)."""


def read_chat(fields: RawObject) -> OpenAIRequest:
    """Read the body of POST /v1/chat/completions."""
    if "messages" not in fields or kind_of(fields["messages"]) != "[":
        raise bad_request("messages must be a list of messages", "messages")
    if "n" in fields:
        check_choices(fields)
    if "tool_choice" in fields and value_of(fields, "tools") is None:
        if value_of(fields, "tool_choice") not in (None, "auto", "none"):
            raise bad_request("tool_choice: there are no tools", "tool_choice")
    return OpenAIRequest("openaiLike", _streamed(ChatStreamView, fields), ChatBodyView)


def read_completion(fields: RawObject) -> OpenAIRequest:
    """Read the body of POST /v1/completions."""
    if "prompt" not in fields:
        raise bad_request("You must provide a prompt", "prompt")
    check_choices(fields)
    return OpenAIRequest("openaiCompletion", _streamed(CompletionStreamView, fields), CompletionBodyView)


def read_embedding(fields: RawObject) -> OpenAIRequest:
    """Read the body of POST /v1/embeddings."""
    if "input" not in fields:
        raise bad_request("You must provide an input", "input")
    encoding = value_of(fields, "encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise bad_request("encoding_format must be float or base64", "encoding_format")
    return OpenAIRequest("openaiEmbedding", None, partial(EmbeddingBodyView, encoding_format=encoding))


def _streamed(
    view: Callable[..., ChatStreamView], fields: RawObject
) -> Callable[[TaskInfo], ChatStreamView] | None:
    if "stream" not in fields or not read_flag(fields, "stream"):
        return None
    return partial(view, include_usage=_include_usage(fields))


def _include_usage(fields: RawObject) -> bool:
    options = value_of(fields, "stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_request("stream_options must be an object", "stream_options")
    value = options.get("include_usage")
    if value is not None and not isinstance(value, bool):
        raise bad_request("include_usage must be true or false", "include_usage")
    return bool(value)


CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
RESPONSES: Final = "/v1/responses"
