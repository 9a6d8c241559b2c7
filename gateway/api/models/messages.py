"""Requests and answers of Anthropic's calls as pydantic models, for the document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.api.models.base import Left, Model
from fairlane.gateway.api.models.openai import OpenAIHeaders

Kind = Literal[
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
]


class AnthropicHeaders(OpenAIHeaders):
    """Our own wishes on Anthropic's calls, and what its clients send."""

    x_api_key: str | Left = Field(None, description="a key, in place of `Authorization: Bearer`")
    anthropic_version: str | Left = Field(None, description="any: what all versions share is spoken")
    anthropic_beta: str | Left = Field(
        None, description="not looked at: what a request holds says what it wants"
    )


class _Told(BaseModel):
    model_config = ConfigDict(extra="allow")


class AnthropicErrorDetails(_Told):
    error_code: str = Field(description="as in the table of failures, or of refusals")


class AnthropicErrorBody(_Told):
    type: Kind
    message: str
    details: AnthropicErrorDetails


class AnthropicError(_Told):
    """Why a call failed, in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str


class Counted(BaseModel):
    """What is read of a Messages request, and of one that is only counted. A member that is not named is refused."""

    model_config = ConfigDict(extra="forbid")
    model: Model
    messages: Annotated[list[Any], Field(min_length=1)] = Field(
        description="of user, assistant and system, with blocks of text, image, document, search_result, thinking, "
        "redacted_thinking, tool_use and tool_result"
    )
    system: str | list[Any] | None = None
    tools: list[Any] | None = Field(
        None, description="those with an `input_schema`; Anthropic's own are refused"
    )
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = Field(
        None, description="`effort`, and `format` with a JSON schema"
    )
    output_format: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    speed: Literal["standard"] | None = None


class CountTokensRequest(Counted):
    """As in Anthropic's reference."""


class MessagesRequest(Counted):
    """As in Anthropic's reference; any worker for chat completions answers it."""

    max_tokens: Annotated[int, Field(ge=1, le=10_000_000)]
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = Field(None, description="`user_id`")
    service_tier: str | None = None
    diagnostics: Any = None


class TokensCount(BaseModel):
    input_tokens: int
    estimated: Literal[True] = Field(description="nobody here has the model's tokenizer")


class MessageUsage(_Told):
    """Input that was read from a cache, or written to one, counts apart."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Block(_Told):
    type: Literal["text", "thinking", "redacted_thinking", "tool_use"]


Stop = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
]


class Message(BaseModel):
    """A whole answer, as in Anthropic's reference."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: Stop | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageEvent(_Told):
    """An event of a streamed answer, as in Anthropic's reference. It ends with `message_stop`, or with `error`. While the task
    waits, a `ping` tells its place."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]


class AnthropicModel(_Told):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: None


class ModelPage(BaseModel):
    """Models as Anthropic's clients list them: for calls with the header `anthropic-version`."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
