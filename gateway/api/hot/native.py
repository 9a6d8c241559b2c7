"""The native calls: tasks of any type, what becomes of them, and their events; also under the paths of plain clients."""

from typing import Annotated, Any

from fastapi import Header, Path, Query
from fastapi.responses import StreamingResponse

from fairlane.gateway.access import Access
from fairlane.gateway.api import native, plain
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import READ, SUBMIT, Text, stream_of
from fairlane.gateway.api.models.base import REF, IdempotencyHeader
from fairlane.gateway.api.models.native import Accepted, Cancelled, NativeRequest, TaskRequest, TaskStatus
from fairlane.gateway.api.models.plain import (
    PlainCancelled,
    PlainStatus,
    PlainSubmitted,
    PlainTask,
    PlainTaskId,
)

FromLatest = Annotated[Text, Query(alias="fromLatest", description="1: only what comes from now on")]
After = Annotated[Text, Query(description="the last event's id that was seen")]
LastEventId = Annotated[Text, Header(alias="Last-Event-ID", description="beats `after`")]
Ticket = Annotated[Text, Query(description="of a `streamUrl`, in place of a key")]
EVENTS = {"after": After, "from_latest": FromLatest, "token": Ticket, "last_event_id": LastEventId}
TASK_ID = {"task_id": Annotated[str, Path()]}
NAMED = {"named": Annotated[IdempotencyHeader, Header()]}
READINGS = (
    "\n\nWith `async` the answer is an id at once, to be polled or followed. With `stream` it is the task's events. "
    "Else the call waits for the result."
)
EVENT_STREAM = stream_of({"$ref": REF.format(model="NativeEvent")})


def _native(path: str, call: Any, body: Any, says: str) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, submits=True)
    responses[200] = {
        "description": "The result, any JSON; or with `stream` the task's events",
        "content": {"application/json": {"schema": {}}, **EVENT_STREAM},
    }
    responses[202] = {"model": Accepted, "description": "With `async`: where to read it later"}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=True,
        body=body,
        parameters=NAMED,
        description=says,
        response_model=None,
        responses=responses,
        tags=["native"],
    )


def _events(path: str, parameters: dict[str, Any], says: str) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*READ)
    responses[401]["description"] += ", LINK_INVALID"
    responses[200] = {"content": EVENT_STREAM}
    responses[204] = {"description": "The last event was seen: there is nothing to come"}
    return HotRoute(
        *("GET", path, native.events, Access.READER),
        parameters=parameters,
        description=says,
        response_model=None,
        response_class=StreamingResponse,
        responses=responses,
        tags=["native"],
    )


ROUTES = (
    _native(
        "/api/openai",
        native.openai,
        NativeRequest,
        "Submits any JSON object as a task of type `openaiLike`." + READINGS,
    ),
    _native(
        "/api/tasks",
        native.submit_task,
        TaskRequest,
        "Submits a task of any type, with its own payload; one of a `template`; a `chain` of several stages; a request to an "
        "endpoint (`http`), or for a permit to call it oneself (`permit`)." + READINGS,
    ),
    HotRoute(
        *("POST", "/api/submitTask", plain.submit, Access.CALLER),
        submits=True,
        body=PlainTask,
        parameters=NAMED,
        description="Has an endpoint called in its turn (`offline`), or asks for a permit to call it (`online`).",
        response_model=PlainSubmitted,
        responses=refusals(*SUBMIT, submits=True),
        tags=["native"],
    ),
    HotRoute(
        *("GET", "/api/queryTask", plain.query, Access.CALLER),
        parameters={"task_id": Annotated[str, Query()]},
        description="How such a task stands, with the answer of its endpoint when it is completed.",
        response_model=PlainStatus,
        responses=refusals(*READ),
        tags=["native"],
    ),
    HotRoute(
        *("POST", "/api/cancelTask", plain.cancel, Access.CALLER),
        body=PlainTaskId,
        description="Cancels such a task. One that has ended stays as it is.",
        response_model=PlainCancelled,
        responses=refusals(*READ, 408, 413, 415),
        tags=["native"],
    ),
    _events(
        "/api/sse-stream",
        {"task_id": Annotated[str, Query(alias="taskId")], **EVENTS},
        "The same as `GET /api/task/{task_id}/events`, with the id in the query.",
    ),
    HotRoute(
        *("GET", "/api/task/{task_id}", native.status, Access.CALLER),
        description="How a task stands: its place and estimated wait while it waits, its result when it is completed.",
        parameters=TASK_ID,
        response_model=TaskStatus,
        responses=refusals(*READ),
        tags=["native"],
    ),
    HotRoute(
        *("POST", "/api/task/{task_id}/cancel", native.cancel, Access.CALLER),
        description="Cancels a task. One that has ended stays as it is, and the answer says how it ended.",
        parameters=TASK_ID,
        response_model=Cancelled,
        responses=refusals(*READ),
        tags=["native"],
    ),
    _events(
        "/api/task/{task_id}/events",
        TASK_ID | EVENTS,
        "A task's events as server-sent events, from its first or behind one that was seen, then as they come.",
    ),
)
