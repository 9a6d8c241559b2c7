"""Anthropic's API: messages and token counts. Official SDKs and Claude Code work unmodified.

A request becomes a chat request (gateway/calls/messages), which any worker for chat can run.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from fairlane.gateway.accounts.callers import Caller, check_model
from fairlane.gateway.api.v1_tasks import ParsedCall, respond, task_of
from fairlane.gateway.calls.bodies import RawObject
from fairlane.gateway.calls.http import JSON, Request
from fairlane.gateway.calls.idempotency import read_idempotency
from fairlane.gateway.calls.messages.request import MessagesRequest, chat_of
from fairlane.gateway.calls.paging import read_limit
from fairlane.gateway.calls.task_builder import read_flag, read_model
from fairlane.gateway.tasks.tasks import Tasks
from fairlane.streaming.views.messages import MessagesBodyView, MessagesStreamView

PAGE = 20
MAX_OF_PAGE = 1000
"""Models in a page: default and maximum."""


async def count_tokens(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /v1/messages/count_tokens: an estimate, as the gateway does not have the model's tokenizer."""
    body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    check_model(caller, read_model(fields, caller.only_model))
    chat = await _chat_of(tasks, body, fields, stream=False, bounded=False)
    counted = {"input_tokens": chat.estimated_input, "estimated": True}
    del body, fields, chat
    await request.respond(200, msgspec.json.encode(counted), [JSON])


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
) -> MessagesRequest:
    """Return the chat request, within the limit of a body."""
    most, hosted = tasks.settings.max_body_bytes, tasks.settings.hosted_tools
    read = partial(chat_of, bounded=bounded, most=most, hosted_tools=hosted)
    return await tasks.bodies.run(len(body), read, fields, stream=stream)


messages = partial(respond, read=_read)
"""POST /v1/messages."""
