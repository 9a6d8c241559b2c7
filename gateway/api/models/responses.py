"""Requests and answers of OpenAI's Responses as pydantic models, for the document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.api.models.base import Answer, Model, Ms


class _Told(BaseModel):
    model_config = ConfigDict(extra="allow")


class ResponsesRequest(BaseModel):
    """As in OpenAI's reference; any worker for chat completions answers it, and a member that is not named is refused."""

    model_config = ConfigDict(extra="allow")
    model: Model
    input: str | list[Any] = Field(
        description="a text, or items: message, function_call, function_call_output, reasoning, item_reference"
    )
    instructions: str | None = None
    stream: bool | None = None
    tools: list[Any] | None = Field(None, description="functions")
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = Field(None, description="`format` and `verbosity`")
    reasoning: dict[str, Any] | None = Field(None, description="`effort` and `summary`")
    max_output_tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    truncation: Literal["disabled"] | None = None
    metadata: dict[str, str] | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None


class ResponseUsage(_Told):
    input_tokens: int
    output_tokens: int
    total_tokens: int


class OutputItem(_Told):
    id: str
    type: str = Field(description="message, function_call, reasoning")


class ResponseError(_Told):
    code: str = Field(description="as in the table of failures")
    message: str


class ResponseObject(_Told):
    """A response, as in OpenAI's reference. It repeats what its request says, and what holds where that says nothing."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: dict[str, Any] | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None


class ResponseDeleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItem(_Told):
    id: str


class InputItems(BaseModel):
    """A page of a response's input."""

    object: Literal["list"]
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseEvent(_Told):
    """An event of a streamed response, as in OpenAI's reference. The stream ends with `response.completed`, `response.incomplete`
    or `response.failed`, or, where it fails and the response does not, with `error`. While the task waits, `response.queued`
    comes again and tells its place."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.output_item.added",
        "response.output_item.done",
        "response.content_part.added",
        "response.content_part.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_text.annotation.added",
        "response.refusal.delta",
        "response.refusal.done",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "error",
    ]
    sequence_number: int


class KeptResponse(Answer):
    id: str
    task_id: str
    key: str
    user: str
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    created_at: Ms
    ended_at: Ms | None = Field(description="null: SQL does not have its end yet")
    expires_at: Ms


class KeptResponsePage(Answer):
    responses: list[KeptResponse]
    next: str | None
