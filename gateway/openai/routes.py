"""OpenAI's API: chat completions, completions, embeddings, models. Official SDKs work unmodified."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.idempotency import KEY_HEADER, read_idempotency
from fairlane.gateway.api.raw_routes import VERSION, RawRoute, page_size, query, sse, submission
from fairlane.gateway.api.schemas import (
    AnthropicError,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAIError,
    json,
    ref,
)
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.http.paging import read_limit
from fairlane.gateway.http.request import JSON, Request
from fairlane.gateway.openai.answers import ParsedCall, respond, task_of
from fairlane.gateway.openai.requests import Read, read_chat, read_completion, read_embedding

PAGE = 20
MAX_OF_PAGE = 1000
"""Models in a page: default and maximum."""


def model_page(rows: Mapping[str, Mapping[str, Any]], request: Request) -> dict[str, Any]:
    """Return Anthropic's page of models: `limit` of them, after `after_id` or before `before_id`."""
    names, most = list(rows), read_limit(request.query("limit"), MAX_OF_PAGE, PAGE)
    after, before = request.query("after_id"), request.query("before_id")
    if after is not None:
        names = [name for name in names if name > after]
    elif before is not None:
        names = [name for name in names if name < before]
    shown = names[-most:] if before is not None and after is None else names[:most]
    return {
        "data": [model_info(rows[name]) for name in shown],
        "has_more": len(names) > len(shown),
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def model_info(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return Anthropic's object of a model."""
    created = datetime.fromtimestamp(row["created"], UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "type": "model",
        "id": row["id"],
        "display_name": row["id"],
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": row.get("context_length"),
        "max_tokens": None,
    }


async def models(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/models: configured models and those that workers serve; for Anthropic's clients in their shape."""
    rows = await tasks.models.rows(caller)
    page = model_page(rows, request) if request.anthropic else {"object": "list", "data": list(rows.values())}
    await request.respond(200, msgspec.json.encode(page), [JSON])


async def model(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/models/{model}."""
    row = await tasks.models.find(caller, request.path_params["model"])
    await request.respond(200, msgspec.json.encode(model_info(row) if request.anthropic else row), [JSON])


async def _read(read: Read, tasks: Tasks, caller: Caller, request: Request) -> ParsedCall:
    """Return a request as a task. Nothing else of the body remains in memory."""
    body, fields = await tasks.bodies.read(request, tasks.current.settings.max_body_bytes)
    wanted = read(fields)
    idempotency = None
    if KEY_HEADER in request.headers:
        idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    task = task_of(
        tasks, caller, request, wanted.task_type, body, fields, idempotency, wanted.streamed is not None
    )
    return ParsedCall(task, wanted.streamed, wanted.whole)


chat_completions = partial(respond, read=partial(_read, read_chat))
"""POST /v1/chat/completions."""
completions = partial(respond, read=partial(_read, read_completion))
"""POST /v1/completions."""
embeddings = partial(respond, read=partial(_read, read_embedding))
"""POST /v1/embeddings."""


_CHUNKS = sse({"description": "JSON of a chunk or an error; the last one is `[DONE]`", "type": "string"})
_EITHER_ERROR = json({"anyOf": [ref(OpenAIError), ref(AnthropicError)]})
ROUTES = (
    submission("chat/completions", chat_completions, "Create a chat completion", json(ChatRequest), _CHUNKS),
    submission("completions", completions, "Create a text completion", json(CompletionRequest), _CHUNKS),
    submission("embeddings", embeddings, "Create embeddings", json(EmbeddingRequest), {}),
    RawRoute(
        *("GET", "/v1/models", models, "models.list", "List models"),
        access=Access.TASKS,
        description="The models that are configured or that workers serve, as far as the key may use them.",
        parameters=(
            VERSION,
            page_size(MAX_OF_PAGE),
            query("after_id", "the page begins after this model"),
            query("before_id", "the page ends before this model"),
        ),
        error=_EITHER_ERROR,
    ),
    RawRoute(
        *("GET", "/v1/models/{model:path}", model, "models.get", "Get a model"),
        access=Access.TASKS,
        parameters=(VERSION,),
        error=_EITHER_ERROR,
    ),
)
