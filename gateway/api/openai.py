"""OpenAI's API: chat completions, completions, embeddings, models. Official SDKs work unmodified."""

from functools import partial

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.v1_tasks import ParsedCall, respond, task_of
from fairlane.gateway.calls.http import JSON, Request
from fairlane.gateway.calls.idempotency import read_idempotency
from fairlane.gateway.calls.openai import Read, read_chat, read_completion, read_embedding
from fairlane.gateway.messages.routes import model_info, model_page
from fairlane.gateway.tasks.tasks import Tasks


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
    body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    wanted = read(fields)
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
