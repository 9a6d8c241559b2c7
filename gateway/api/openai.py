"""OpenAI's surface: chat completions, completions, embeddings, models. Official SDKs work unmodified."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.answering import Asking, answer, task_of, wait
from fairlane.gateway.api.messages import model_info, model_page
from fairlane.gateway.calls.bodies import Members, value_of
from fairlane.gateway.calls.http import JSON, Request
from fairlane.gateway.calls.idempotency import read_idempotency
from fairlane.gateway.calls.intake import check_choices, read_flag
from fairlane.gateway.errors import bad_request, model_not_found
from fairlane.gateway.tasks.tasks import Tasks
from fairlane.queues.tasks import TaskSpec
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.completions import CompletionBodyView, CompletionStreamView
from fairlane.streaming.views.embeddings import EmbeddingBodyView
from fairlane.streaming.views.openai_common import OpenAIBodyView, OpenAIStreamView
from fairlane.streaming.views.task import TaskInfo


def chat_completions(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/chat/completions."""
    return answer(tasks, caller, request, _READ_CHAT)


def completions(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/completions."""
    return answer(tasks, caller, request, _READ_COMPLETION)


async def embeddings(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /v1/embeddings."""
    task, encoding = await _read_embedding(tasks, caller, request)
    await wait(tasks, request, task, partial(EmbeddingBodyView, encoding_format=encoding))


async def models(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/models: what is configured or offered now; for Anthropic's clients as they know it."""
    rows = await tasks.models.rows(caller)
    told = model_page(rows, request) if request.anthropic else {"object": "list", "data": list(rows.values())}
    request.standing = await tasks.allowances.standing(caller)
    await request.respond(200, msgspec.json.encode(told), [JSON])


async def model(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/models/{model}."""
    name = request.path_params["model"]
    row = (await tasks.models.rows(caller)).get(name)
    if row is None:
        raise model_not_found(name)
    request.standing = await tasks.allowances.standing(caller)
    await request.respond(200, msgspec.json.encode(model_info(row) if request.anthropic else row), [JSON])


# ---- the way of a request ----------


class _Call(NamedTuple):
    """What differs between the calls that may stream: the type of their tasks, a member they must have, and their views."""

    task_type: str
    member: str
    kind: str
    """What it begins with; '' = with anything."""
    sentence: str
    streamed: Callable[..., OpenAIStreamView]
    whole: Callable[[TaskInfo], OpenAIBodyView]


_CHAT = _Call(
    "openaiLike", "messages", "[", "messages must be a list of messages", ChatStreamView, ChatBodyView
)
_COMPLETION = _Call(
    "openaiCompletion", "prompt", "", "You must provide a prompt", CompletionStreamView, CompletionBodyView
)


async def _read(call: _Call, tasks: Tasks, caller: Caller, request: Request) -> Asking:
    """What a request asks for. Nothing else of the body is left."""
    body = await request.json_body(tasks.settings.max_body_bytes, tasks.bodies.arriving)
    fields = await tasks.bodies.parse(body, caller=request.opener)
    member = fields.get(call.member)
    if member is None or (call.kind and kind_of(member) != call.kind):
        raise bad_request(call.sentence, call.member)
    check_choices(fields)
    stream = read_flag(fields, "stream")
    said = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    task = task_of(tasks, caller, request, call.task_type, body, fields, said, stream)
    streamed = partial(call.streamed, include_usage=_include_usage(fields)) if stream else None
    return Asking(task, streamed, call.whole)


async def _read_embedding(tasks: Tasks, caller: Caller, request: Request) -> tuple[TaskSpec, str]:
    body = await request.json_body(tasks.settings.max_body_bytes, tasks.bodies.arriving)
    fields = await tasks.bodies.parse(body, caller=request.opener)
    if "input" not in fields:
        raise bad_request("You must provide an input", "input")
    wanted = value_of(fields, "encoding_format") if "encoding_format" in fields else "float"
    if wanted not in ("float", "base64"):
        raise bad_request("encoding_format must be float or base64", "encoding_format")
    said = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    return task_of(tasks, caller, request, "openaiEmbedding", body, fields, said, stream=False), wanted


def _include_usage(fields: Members) -> bool:
    options = value_of(fields, "stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_request("stream_options must be an object", "stream_options")
    value = options.get("include_usage")
    if value is not None and not isinstance(value, bool):
        raise bad_request("include_usage must be true or false", "include_usage")
    return bool(value)


_READ_CHAT, _READ_COMPLETION = partial(_read, _CHAT), partial(_read, _COMPLETION)
