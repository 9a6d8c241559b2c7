"""OpenAI's Responses. Official SDKs work unmodified.

A request is a chat request in other words (gateway/calls/responses), its task one that any worker for chat runs.
"""

from collections.abc import Awaitable
from functools import partial

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.answering import Asking, answer, in_steps, task_of
from fairlane.gateway.calls.http import Request
from fairlane.gateway.calls.idempotency import read_idempotency
from fairlane.gateway.calls.intake import read_flag
from fairlane.gateway.calls.reading import refused
from fairlane.gateway.calls.responses.request import Wishes, chat_steps, wishes_of
from fairlane.gateway.tasks.tasks import Tasks
from fairlane.streaming.views.responses import ResponsesBodyView, ResponsesStreamView


def responses(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/responses."""
    return answer(tasks, caller, request, _read)


async def _read(tasks: Tasks, caller: Caller, request: Request) -> Asking:
    """What a request asks for. Nothing else of the body is left."""
    body = await request.json_body(tasks.settings.max_body_bytes, tasks.bodies.arriving)
    fields = await tasks.bodies.parse(body, caller=request.opener)
    stream = read_flag(fields, "stream")
    said = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    _check_kept(wishes_of(fields))
    steps = chat_steps(fields, stream=stream, most=tasks.settings.max_body_bytes)
    asked = await in_steps(tasks, request, body, steps)
    task = task_of(tasks, caller, request, "openaiLike", asked.payload, asked.fields, said, stream)
    streamed = partial(ResponsesStreamView, echo=asked.echo) if stream else None
    return Asking(task, streamed, partial(ResponsesBodyView, echo=asked.echo))


def _check_kept(wishes: Wishes) -> None:
    for name, asked in (
        ("background", wishes.background),
        ("store", wishes.store),
        ("previous_response_id", wishes.previous),
    ):
        if asked:
            raise refused(name, "responses are not kept here; send the whole conversation as input")
