"""OpenAI's Responses. Official SDKs work unmodified.

A request becomes a chat request (`request/`), which any worker for chat can run.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.idempotency import REPLAYED, read_idempotency
from fairlane.gateway.api.raw_routes import EVENTS, ORDER, RawRoute, page_size, query, submission
from fairlane.gateway.api.schemas import BOOLEAN, OBJECT, ManyTokens, Model, json
from fairlane.gateway.core.spec import read_flag
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import ApiError, result_gone
from fairlane.gateway.http.request import JSON, Request
from fairlane.gateway.openai.answers import ParsedCall, respond, task_of
from fairlane.gateway.responses import stored_routes
from fairlane.gateway.responses.items import MAX_OF_PAGE
from fairlane.gateway.responses.pending import PendingResponse
from fairlane.gateway.responses.request.request import WORDS, chat_of, read_storage_options
from fairlane.gateway.responses.responses import Responses
from fairlane.gateway.responses.store import Row
from fairlane.gateway.responses.stored_routes import follow
from fairlane.queues.ids import issued_ms, new_task_id
from fairlane.queues.tasks import ExistingTask, TaskSpec
from fairlane.streaming.views.responses import ResponsesBodyView, ResponsesStreamView, response_id
from fairlane.streaming.views.task import TaskInfo


class ResponsesRequest(Struct, kw_only=True):
    """See OpenAI's reference. Any worker for chat completions answers it; it rejects members that it does not know."""

    model: Model
    input: str | list[Any]
    instructions: str | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    max_output_tokens: ManyTokens | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None


async def _read(tasks: Tasks, caller: Caller, request: Request) -> ParsedCall:
    """Return a request as a task. Of the body, only the parts to be stored remain in memory."""
    request.words = WORDS
    body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    stream = read_flag(fields, "stream")
    idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    wishes = await tasks.bodies.run(len(body), read_storage_options, fields)
    stored, most = tasks.part(Responses), tasks.settings.max_body_bytes
    previous, background = wishes.previous, wishes.background
    stores = await stored.stores(wishes)
    owner = caller.named(fields)
    history: Sequence[bytes] = await stored.history(owner, previous, most) if previous is not None else ()
    known = await stored.referenced(owner, wishes.references, most)
    task_id = new_task_id()
    size = len(body) + sum(map(len, history)) + sum(map(len, known.values()))
    read = partial(chat_of, history=history, known=known, hosted_tools=tasks.settings.hosted_tools)
    chat = await tasks.bodies.run(size, read, fields, stream=stream, store=stores, most=most)
    task = task_of(
        *(tasks, caller, request, "openaiLike", chat.payload, chat.fields, idempotency, stream),
        wait=not background,
        task_id=task_id,
    )
    pending = stored.pending(task, wishes, stores=stores, echo=chat.echo, input_items=chat.input_items)
    if background:
        instead = partial(_in_background, tasks, owner, request, task, pending, stream)
        return ParsedCall(task, None, None, instead)
    streamed = partial(_stream_view, pending) if stream else None
    return ParsedCall(
        task, streamed, partial(_body_view, pending), accepted=pending.accepted if stores else None
    )


async def _in_background(
    tasks: Tasks, owner: Caller, request: Request, task: TaskSpec, pending: PendingResponse, stream: bool
) -> None:
    """Answer as soon as the task is accepted; with `stream`, with its events."""
    submitted = await tasks.submit(task, accepted=pending.accepted)
    request.rate_limits = submitted.rate_limits
    row, headers = pending.row, list[tuple[bytes, bytes]]()
    if isinstance(submitted, ExistingTask):
        row, headers = await _earlier(tasks, owner, submitted.task_id), REPLAYED
    assert row is not None  # a background response requires storage
    if stream:
        await follow(tasks, request, row, headers=headers)
        return
    if isinstance(submitted, ExistingTask):
        body = await tasks.part(Responses).body(row)
    else:
        body = tasks.part(Responses).accepted(row, submitted.place)
    await request.respond(200, body, [JSON, (b"x-task-id", row.task_id.encode()), *headers])


async def _earlier(tasks: Tasks, owner: Caller, task_id: str) -> Row:
    """Return the response of an idempotency key. Raise ApiError(410) if it is no longer stored."""
    try:
        return await tasks.part(Responses).find(owner, response_id(task_id))
    except ApiError as error:
        if error.status != 404:
            raise
        raise result_gone(task_id) from None


def _stream_view(pending: PendingResponse, info: TaskInfo) -> ResponsesStreamView:
    return ResponsesStreamView(_info(pending.row, info), pending.echo)


def _body_view(pending: PendingResponse, info: TaskInfo) -> ResponsesBodyView:
    return ResponsesBodyView(_info(pending.row, info), pending.echo)


def _info(row: Row | None, info: TaskInfo) -> TaskInfo:
    """Return the task info for views: the same as in later reads of the response."""
    if row is not None:
        return row.info
    return msgspec.structs.replace(info, created=issued_ms(info.task_id) // 1000)


responses = partial(respond, read=_read)
"""POST /v1/responses."""


ROUTES = (
    submission("responses", responses, "Create a response", json(ResponsesRequest), EVENTS),
    RawRoute(
        *(
            "GET",
            "/v1/responses/{response_id}",
            stored_routes.retrieve,
            "responses.get",
            "Get a stored response",
        ),
        access=Access.TASKS,
        description="Get a stored response, or with `stream` its events.",
        parameters=(
            query("stream", "return its events", BOOLEAN),
            query(
                "starting_after",
                "with `stream`: the `sequence_number` of the last event seen",
                {"type": "integer", "minimum": 0},
            ),
        ),
        answer=json(OBJECT) | EVENTS,
    ),
    RawRoute(
        *(
            "DELETE",
            "/v1/responses/{response_id}",
            stored_routes.delete,
            "responses.delete",
            "Delete a stored response",
        ),
        description="A response that is running is cancelled.",
    ),
    RawRoute(
        *(
            "POST",
            "/v1/responses/{response_id}/cancel",
            stored_routes.cancel,
            "responses.cancel",
            "Cancel a background response",
        ),
        access=Access.TASKS,
    ),
    RawRoute(
        *("GET", "/v1/responses/{response_id}/input_items", stored_routes.input_items),
        *("responses.input_items.list", "List the input items of a stored response"),
        access=Access.TASKS,
        parameters=(
            page_size(MAX_OF_PAGE),
            query("order", "default: desc, the newest first", ORDER),
            query("after", "the page begins after this item"),
        ),
    ),
)
