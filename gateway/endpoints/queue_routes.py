"""The queue-service API: `submitTask`, `queryTask` and `cancelTask`.

Its tasks are those of `/api/tasks` with the type `http` or `permit`. Its statuses are `pending`, `processing`, `completed`,
`failed` and `cancelled`, its times RFC 3339, its members snake_case.
"""

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.answers import attach
from fairlane.gateway.api.idempotency import FIELD, REPLAYED, read_idempotency, state_fields
from fairlane.gateway.api.native import cancelled_state
from fairlane.gateway.api.raw_routes import IDEMPOTENCY_KEY, RawRoute
from fairlane.gateway.api.schemas import STRING, PlainStatusName, json, says
from fairlane.gateway.api.schemas import fields as members
from fairlane.gateway.core.bodies import RawObject, value_of
from fairlane.gateway.core.spec import Options
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.endpoints.endpoints import per_second
from fairlane.gateway.endpoints.requests import (
    JSON_TYPE,
    EndpointRequest,
    endpoint_task,
    read_body,
    read_text,
)
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.http.request import JSON, Request
from fairlane.gateway.permits.gate import PERMIT_MEMBERS
from fairlane.gateway.settings import suggestion
from fairlane.queues.ids import new_task_id
from fairlane.queues.tasks import HTTP, PERMIT, TERMINAL, ExistingTask, Place, Record, State, TaskSpec


class PlainTask(Struct, kw_only=True):
    """A request to an endpoint."""

    target_url: Annotated[str, says("the whole URL")]
    http_method: Annotated[str | None, says("default: POST with a body, else GET")] = None
    body: Annotated[Any, says("a text, sent as it is")] = None
    priority: Annotated[int, Meta(ge=0)] | None = None
    timestamp: Annotated[int, Meta(ge=0, description="ignored")] | None = None
    task_type: Annotated[Literal["offline", "online"] | None, says("default: offline")] = None
    idempotencyKey: str | None = None  # noqa: N815 - the same name as in all native calls


class PlainSubmitted(Struct, kw_only=True):
    task_id: str
    task_status: PlainStatusName
    created_at: Annotated[str, says("RFC 3339; so below")]
    wait_num: Annotated[int, says("tasks that come before it")]


class PlainStatus(Struct, kw_only=True):
    task_status: PlainStatusName
    task_result: str
    wait_num: int
    wait_time: Annotated[int, says("the estimated wait in seconds; -1: unknown")]
    created_at: str
    started_at: Annotated[str, says("empty: not yet; so below")]
    ended_at: str
    http_status: Annotated[int, says("of the endpoint's answer")] = 0
    task_result_base64: Annotated[str, says("its body, where that is no text")] = ""


class PlainCancelled(Struct, kw_only=True):
    task_id: str
    task_status: PlainStatusName


SUBMIT = ("target_url", "http_method", "body", "priority", "timestamp", "task_type", FIELD)
"""The members of `submitTask`."""
TYPES = {"offline": HTTP, "online": PERMIT}
STATUSES = {
    State.QUEUED: "pending",
    State.EXECUTING: "processing",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}
MAX_PRIORITY = 5


async def submit(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /api/submitTask."""
    body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    task = await _read(tasks, caller, request, fields)
    del body, fields  # the submission may wait for Redis
    submitted = await tasks.submit(task)
    if isinstance(submitted, ExistingTask):
        known = await state_fields(submitted, tasks.poll, caller)
        answer = _submitted(submitted.task_id, State(known["status"]), submitted.enqueued_ms, submitted.place)
        headers = [JSON, (b"x-task-id", submitted.task_id.encode()), *REPLAYED]
    else:
        answer = _submitted(task.id, submitted.state, submitted.enqueued_ms, submitted.place)
        headers = [JSON, (b"x-task-id", task.id.encode())]
    await request.respond(200, msgspec.json.encode(answer), headers)


def _submitted(task_id: str, state: State, enqueued_ms: int, place: Place) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "task_status": STATUSES[state],
        "created_at": time_text(enqueued_ms),
        "wait_num": _ahead(state, place),
    }


async def _read(tasks: Tasks, caller: Caller, request: Request, fields: RawObject) -> TaskSpec:
    idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=True)
    for member in fields:
        if member not in SUBMIT:
            raise bad_request(f"There is no member {member[:100]!r}{suggestion(member, SUBMIT)}", member)
    kind = read_text(fields, "task_type") or "offline"
    if kind not in TYPES:
        raise bad_request(
            "task_type must be offline (the request is made here) or online (a permit)", "task_type"
        )
    url = read_text(fields, "target_url")
    if not url:
        raise bad_request("target_url is missing: the whole URL that is called", "target_url")
    _whole(fields, "timestamp")  # checked and ignored: the time of arrival counts
    priority = min(_whole(fields, "priority"), MAX_PRIORITY)
    tasks.calls.name(request, caller)
    size = memoryview(fields["body"]).nbytes if "body" in fields else 0
    text, length = await tasks.bodies.run(size, read_body, fields) if TYPES[kind] == HTTP else (None, 0)
    usual = "" if TYPES[kind] == PERMIT else "POST" if text else "GET"
    method = (read_text(fields, "http_method") or usual).upper()
    target = EndpointRequest(
        url, method, body=text, bytes_of_body=length, content_type=JSON_TYPE if text else ""
    )
    task_id = new_task_id()
    subject = idempotency.key if idempotency else task_id
    options = Options(wait=False, priority=priority)
    try:
        task = endpoint_task(
            *(tasks.current, caller, target, TYPES[kind], options),
            task_id=task_id,
            subject=subject,
            part=tasks.part,
        )
    except ApiError as error:
        error.param = _PARAMS.get(error.param or "", error.param)
        raise
    attach(task, request, idempotency)
    return task


_PARAMS = {"url": "target_url", "method": "http_method", "type": "task_type"}
"""This call's names of members in errors."""


def _whole(fields: RawObject, name: str) -> int:
    value = value_of(fields, name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad_request(f"{name} must be a whole number, 0 or more", name)
    return value


async def query(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /api/queryTask?task_id=."""
    task_id = request.query("task_id")
    if not task_id:
        raise bad_request("task_id is missing: /api/queryTask?task_id=…", "task_id")
    headers = [JSON, (b"x-task-id", task_id.encode("ascii", "ignore"))]
    try:
        record = await tasks.poll.find(caller, task_id)
        shown, result = await tasks.poll.describe(task_id, record, "")
    except ApiError as error:
        if error.status != 404:
            raise
        archived = await tasks.poll.archived(task_id, caller)
        end = msgspec.json.decode(archived.answer, type=_Archived)
        members = _result(end.result) if end.result else _failure(end.error, end.code)
        times = archived.enqueued_ms, 0, archived.ended_ms
        await request.respond(200, _encoded(State(archived.state), members, 0, 0, *times), headers)
        return
    state = record.state
    if state is State.COMPLETED:
        members = _result(result if result is not None else b"null")
    elif state in TERMINAL:
        members = _failure(shown.get("error", ""), shown.get("code", ""))
    else:
        permit = {name: shown[name] for name in PERMIT_MEMBERS if name in shown}
        members = {"task_result": msgspec.json.encode(permit).decode() if permit else ""}
    times = record.number("enqueued_at"), record.number("granted_at"), record.number("ended_at")
    ahead = _ahead(state, record.place)
    wait_s = _wait_s(tasks, record, ahead) if state is State.QUEUED else 0
    await request.respond(200, _encoded(state, members, ahead, wait_s, *times), headers)
    await tasks.poll.was_read(caller, task_id, record)


async def cancel(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /api/cancelTask: succeeds also after the task's end."""
    _, fields = await tasks.bodies.read(request, MAX_CANCEL_BYTES)
    task_id = read_text(fields, "task_id")
    if not task_id:
        raise bad_request("task_id is missing", "task_id")
    state = await cancelled_state(tasks, caller, request, task_id)
    body = msgspec.json.encode({"task_id": task_id, "task_status": STATUSES[State(state)]})
    await request.respond(200, body, [JSON, (b"x-task-id", task_id.encode())])


MAX_CANCEL_BYTES = 4096


class _Archived(msgspec.Struct):
    """A stored result."""

    result: msgspec.Raw = msgspec.Raw()
    error: str = ""
    code: str = ""


class _Response(msgspec.Struct):
    """An endpoint's answer, as the worker reports it."""

    status: int
    body: str = ""
    bodyBase64: str | None = None  # noqa: N815 - the worker's name


def _result(raw: bytes | msgspec.Raw) -> dict[str, Any]:
    """Return the members for a completed task: the body as text, or another result as JSON."""
    try:
        answer = msgspec.json.decode(raw, type=_Response)
    except msgspec.DecodeError:
        return {"task_result": bytes(raw).decode("utf-8", "replace")}
    shown: dict[str, Any] = {"task_result": answer.body, "http_status": answer.status}
    if answer.bodyBase64 is not None:
        shown["task_result_base64"] = answer.bodyBase64
    return shown


def _failure(error: str, code: str) -> dict[str, Any]:
    return {
        "task_result": msgspec.json.encode({"error": error, "code": code}).decode() if error or code else ""
    }


def _encoded(
    state: State,
    members: dict[str, Any],
    ahead: int,
    wait_s: int,
    created_ms: int,
    started_ms: int,
    ended_ms: int,
) -> bytes:
    return msgspec.json.encode(
        {
            "task_status": STATUSES[state],
            **members,
            "wait_num": ahead,
            "wait_time": wait_s,
            "created_at": time_text(created_ms),
            "started_at": time_text(started_ms),
            "ended_at": time_text(ended_ms),
        }
    )


def _ahead(state: State, place: Place) -> int:
    """Return the number of tasks before this one."""
    return max(place.position - 1, 0) if state is State.QUEUED else 0


def _wait_s(tasks: Tasks, record: Record, ahead: int) -> int:
    """Estimate the wait in seconds from observation, else from the endpoint's settings; -1: unknown."""
    if not record.place.estimating:
        return math.ceil(record.place.wait_ms / 1000)
    endpoint = tasks.current.endpoints.of_model(record.model)
    rate = endpoint and per_second(endpoint.concurrency, endpoint.mean_ms, endpoint.windows)
    return math.ceil((ahead + 1) / rate) if rate else -1


def time_text(ms: int) -> str:
    """Return a time as RFC 3339; '' for 0."""
    if not ms:
        return ""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


ROUTES = (
    RawRoute(
        *("POST", "/api/submitTask", submit, "queue.submit", "Submit an endpoint request"),
        access=Access.TASKS,
        description="Without `online` the gateway calls the endpoint; with it the client gets a permit to call it.",
        submits=True,
        parameters=(IDEMPOTENCY_KEY,),
        body=json(PlainTask),
        answer=json(PlainSubmitted),
    ),
    RawRoute(
        *("GET", "/api/queryTask", query, "queue.query", "Get an endpoint request"),
        access=Access.TASKS,
        parameters=({"in": "query", "name": "task_id", "required": True, "schema": STRING},),
        answer=json(PlainStatus),
    ),
    RawRoute(
        *("POST", "/api/cancelTask", cancel, "queue.cancel", "Cancel an endpoint request"),
        access=Access.TASKS,
        body=json(members(task_id=STRING)),
        answer=json(PlainCancelled),
    ),
)
