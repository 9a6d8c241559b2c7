"""Anthropic's API: messages and token counts. Official SDKs and Claude Code work unmodified.

A request becomes a chat request (`request.py`), which any worker for chat can run.
"""

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller, forbidden
from fairlane.gateway.api.idempotency import read_idempotency
from fairlane.gateway.api.raw_routes import EVENTS, OPTIONS, VERSION, RawRoute, header
from fairlane.gateway.api.schemas import (
    INTEGER,
    OBJECT,
    AnthropicError,
    ManyTokens,
    Model,
    fields,
    json,
    says,
)
from fairlane.gateway.core.bodies import RawObject
from fairlane.gateway.core.spec import read_flag, read_model
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.http.request import JSON, Request
from fairlane.gateway.messages.request import MessagesRequest as ChatOf
from fairlane.gateway.messages.request import chat_of
from fairlane.gateway.openai.answers import ParsedCall, respond, task_of
from fairlane.streaming.views.messages import MessagesBodyView, MessagesStreamView


class CountTokensRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """See Anthropic's reference."""

    model: Model
    messages: Annotated[list[Any], Meta(min_length=1)]
    system: str | list[Any] | None = None
    tools: Annotated[list[Any] | None, says("with an `input_schema`; Anthropic's own are rejected")] = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: Annotated[dict[str, Any] | None, says("`effort`, and `format` with a JSON schema")] = None
    output_format: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    speed: Literal["standard"] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """See Anthropic's reference. Any worker for chat completions answers it."""

    max_tokens: ManyTokens
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: Annotated[dict[str, Any] | None, says("`user_id`")] = None
    service_tier: str | None = None
    diagnostics: Any = None


async def count_tokens(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /v1/messages/count_tokens: an estimate, as the gateway does not have the model's tokenizer."""
    body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    if not caller.may_use(model := read_model(fields, caller.only_model)):
        raise forbidden(caller, model)
    chat = await _chat_of(tasks, body, fields, stream=False, bounded=False)
    counted = {"input_tokens": chat.estimated_input, "estimated": True}
    del body, fields, chat
    await request.respond(200, msgspec.json.encode(counted), [JSON])


async def _read(tasks: Tasks, caller: Caller, request: Request) -> ParsedCall:
    """Return a request as a task. Nothing else of the body remains in memory."""
    body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    stream = read_flag(fields, "stream")
    idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    chat = await _chat_of(tasks, body, fields, stream=stream)
    request.words = chat.words
    task = task_of(tasks, caller, request, "openaiLike", chat.payload, chat.fields, idempotency, stream)
    return ParsedCall(task, MessagesStreamView if stream else None, MessagesBodyView)


async def _chat_of(
    tasks: Tasks, body: bytes, fields: RawObject, *, stream: bool, bounded: bool = True
) -> ChatOf:
    """Return the chat request, within the limit of a body."""
    most, hosted = tasks.settings.max_body_bytes, tasks.settings.hosted_tools
    read = partial(chat_of, bounded=bounded, most=most, hosted_tools=hosted)
    return await tasks.bodies.run(len(body), read, fields, stream=stream)


messages = partial(respond, read=_read)
"""POST /v1/messages."""


_ANTHROPIC = (
    *OPTIONS,
    header("x-api-key", "a key, instead of `Authorization: Bearer`"),
    VERSION,
    header("anthropic-beta", "ignored"),
)

ROUTES = (
    RawRoute(
        *("POST", "/v1/messages", messages, "messages.create", "Create a message"),
        access=Access.TASKS,
        description="Create a message, as in Anthropic's reference. Members that a chat model cannot serve are rejected by name.",
        submits=True,
        parameters=_ANTHROPIC,
        tag="anthropic",
        error=json(AnthropicError),
        body=json(MessagesRequest),
        answer=json(OBJECT) | EVENTS,
    ),
    RawRoute(
        *(
            "POST",
            "/v1/messages/count_tokens",
            count_tokens,
            "messages.count_tokens",
            "Estimate the input tokens of a message",
        ),
        access=Access.TASKS,
        description="An estimate: a quarter of the bytes. No task is created.",
        parameters=_ANTHROPIC,
        tag="anthropic",
        error=json(AnthropicError),
        body=json(CountTokensRequest),
        answer=json(fields(input_tokens=INTEGER, estimated={"const": True})),
    ),
)
