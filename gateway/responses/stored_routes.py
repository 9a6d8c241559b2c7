"""OpenAI's calls on stored responses: retrieve, stream from any event on, cancel, delete, list the input."""

from collections.abc import Sequence

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.audit.log import actor_of
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import Headers, bad_request
from fairlane.gateway.http.request import JSON, SSE_HEADERS, Request
from fairlane.gateway.openai.answers import OpenAIStream
from fairlane.gateway.responses.items import page_of, read_page
from fairlane.gateway.responses.responses import Responses
from fairlane.gateway.responses.store import Row
from fairlane.streaming.jsontext import join_object, json_string
from fairlane.streaming.views.responses import ResponsesStreamView

MAX_SEQUENCE = 10**12


class StoredStream(OpenAIStream):
    """The stream of a stored response, which its client can read again."""

    __slots__ = ()
    resumable = True


async def retrieve(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/responses/{response_id}: the response object; with `stream` the events after `starting_after`, also new ones."""
    stream, after = read_query(request)
    row = await _find(tasks, caller, request)
    if stream:
        await follow(tasks, request, row, after)
        return
    result = await tasks.part(Responses).body(row)
    await _answer(request, row, result)


async def cancel(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /v1/responses/{response_id}/cancel: succeeds also after the end."""
    row = await _find(tasks, caller, request)
    result = await tasks.part(Responses).cancel(row, caller, actor_of(caller, request.address))
    await _answer(request, row, result)


async def delete(tasks: Tasks, caller: Caller, request: Request) -> None:
    """DELETE /v1/responses/{response_id}: one that runs is cancelled first."""
    row = await _find(tasks, caller, request)
    await tasks.part(Responses).delete(row, caller, actor_of(caller, request.address))
    body = join_object([("id", json_string(row.id)), ("object", b'"response"'), ("deleted", b"true")])
    await _answer(request, row, body)


async def input_items(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/responses/{response_id}/input_items: a page of them."""
    page = read_page(request.query("limit"), request.query("order"), request.query("after"))
    row = await _find(tasks, caller, request)
    found = await tasks.part(Responses).input_items(row)
    await _answer(request, row, page_of(row.task_id, found, page))


async def follow(
    tasks: Tasks, request: Request, row: Row, after: int = -1, *, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Stream a response after an event. A disconnect of this client does not affect it."""
    async with tasks.part(Responses).follow(row) as following:
        view = ResponsesStreamView(row.info, row.echo, starting_after=after)
        reader, place = following
        if place is not None and reader.feed is not None:
            tasks.positions.add(reader.feed, place, reader.feed.top)
        answer = StoredStream(tasks, request, reader, view, [*SSE_HEADERS, *_ids(row), *headers])
        answer.place = place
        await answer.write()


def read_query(request: Request) -> tuple[bool, int]:
    """Return whether the client wants events, and after which. Raise ApiError(400)."""
    stream = request.query("stream")
    if stream not in (None, "true", "false", "1", "0"):
        raise bad_request("stream must be true or false", "stream")
    after = request.query("starting_after")
    if after is None:
        return stream in ("true", "1"), -1
    if not (after.isascii() and after.isdigit() and len(after) <= len(str(MAX_SEQUENCE))):
        raise bad_request("starting_after must be the sequence_number of an event", "starting_after")
    if stream not in ("true", "1"):
        raise bad_request("starting_after needs stream=true", "starting_after")
    return True, int(after)


async def _find(tasks: Tasks, caller: Caller, request: Request) -> Row:
    return await tasks.part(Responses).find(caller, request.path_params["response_id"])


async def _answer(request: Request, row: Row, body: bytes) -> None:
    await request.respond(200, body, [JSON, *_ids(row)])


def _ids(row: Row) -> Headers:
    return [(b"x-task-id", row.task_id.encode())]
