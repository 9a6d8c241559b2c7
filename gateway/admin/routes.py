"""The operators' calls on tasks, users, workers, queues and models."""

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Depends, Path, Query, Response
from fastapi import Request as Framed
from fastapi.responses import StreamingResponse
from msgspec import UNSET, UnsetType

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.admin.operator import Operator
from fairlane.gateway.admin.search import FILTERS, describe, search
from fairlane.gateway.api.dependencies import (
    ActorDep,
    CallerDep,
    OperatorDep,
    RequestDep,
    answer,
    described,
    keyed_router,
)
from fairlane.gateway.api.schemas import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    STRING,
    ChainStage,
    Ms,
    Schema,
    TemplateUsed,
    fields,
    listed,
    ref,
    says,
)
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.http.request import SSE_HEADERS
from fairlane.gateway.usage.queries import PLAIN, Filter
from fairlane.queues.chains import chain_of
from fairlane.queues.clock import now_ms
from fairlane.queues.ids import could_be_ours
from fairlane.queues.tasks import TERMINAL, State


class ArchivedTask(Schema, kw_only=True):
    task_id: str
    key: str
    user: str
    status: Literal["completed", "failed", "cancelled"]
    ended_at: Ms
    answer: Annotated[dict[str, Any], says("as of GET /api/task/{taskId}")]
    request: Annotated[Any, says("null: it was not stored")]


class Attempt(Schema, kw_only=True):
    worker_id: str
    model: str | None
    granted_at: Ms | None
    first_output_at: Ms | None = None
    ended_at: Ms | None
    outcome: str | None


class ModelMove(Schema, kw_only=True):
    """A fallback from `model` to another one."""

    model: str
    at: Ms
    reason: str


class Task(Schema, kw_only=True):
    task_id: str
    status: State
    model: str | None
    requested_model: Annotated[str | None, says("the name in the request, where another model may run")]
    moves: Annotated[list[ModelMove], says("its fallbacks, the last ten")]
    repaired: Annotated[bool, says("an output did not match its schema and was retried")]
    stage: Annotated[str | None, says("of a chain: its current or last stage")]
    stage_index: int | None
    part: Annotated[int | None, says("of a part of a stage: its number, from 0")]
    chain: Annotated[str | None, says("of a part: its chain")]
    stage_at: Annotated[Ms | None, says("the start of this stage")]
    queue: str | None
    user: str | None
    key: str | None
    type: str | None
    code: str | None
    category: Annotated[str | None, says("of its code")]
    request_id: Annotated[str | None, says("of the call that submitted it: its `x-request-id`")]
    enqueued_at: Ms | None
    started_at: Ms | None
    first_output_at: Ms | None
    ended_at: Ms | None
    attempt: int | None
    attempts: list[Attempt]


class StageOfTask(ChainStage, kw_only=True):
    """A stage of a chain, and its model and queue, if they are known before it starts."""

    model: str | None
    queue: str | None


class PermitOfTask(Schema, kw_only=True):
    until: Annotated[Ms, says("the end of its validity; once used, the end of its slot's lease")]
    used_at: Ms | None


class TaskDetail(Task, kw_only=True):
    now: Ms
    fallbacks: Annotated[list[str], says("its next models, if this one fails")]
    chain_name: Annotated[str | None, says("of a chain in the configuration")] = None
    stages: Annotated[list[StageOfTask] | UnsetType, says("of a chain")] = UNSET
    permit: Annotated[PermitOfTask | None, says("the current one")]
    template: TemplateUsed | None = None
    priority: int
    tries: int
    stream: bool
    waited: bool
    estimated_input_tokens: int | None
    max_output_tokens: int | None
    payload_bytes: int | None
    wait_deadline_at: Ms | None
    deadline_at: Ms | None
    attempt_deadline_at: Ms | None
    keep_ms: Ms | None
    events: int
    stream_url: str | None
    metadata: Any
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False


class TopUser(Schema, kw_only=True):
    user: str
    waiting: int
    running: int
    tokens: int
    share: float | None
    model: str | None


class TopUsers(Schema, kw_only=True):
    now: Ms
    users: list[TopUser]
    number: int
    complete: bool


class Erased(Schema, kw_only=True):
    """The number of erased rows."""

    usage: int
    days: int
    archived: int
    audit: int
    responses: int
    files: int
    batches: Annotated[int, says("batches that had ended; others were cancelled")]
    webhooks: Annotated[int, says("of this user's webhooks, and deliveries about this user's tasks")]
    results: int
    ledger: int
    unended: Annotated[int, says("batches that were cancelled and have not ended yet")]
    stopping: Annotated[int, says("cancelled tasks that their workers still run")]
    more: Annotated[bool, says("call again for the rest")]


router = keyed_router("operators")

TIME = r"^[0-9]{0,15}$"


@router.get(
    "/api/admin/overview",
    **described("admin.overview.get", "Get the state of queues, models, workers and replicas", OBJECT),
)
async def state(operator: OperatorDep, tasks: Annotated[int, Query(ge=0, le=500)] = 50) -> Response:
    """Return queues, models, workers, counts, replicas, and the newest tasks."""
    return answer(await operator.overview.read(tasks))


@router.get(
    "/api/admin/events",
    **described(
        "admin.overview.stream",
        "Stream the state",
        content={"text/event-stream": {"schema": STRING}},
        response_class=StreamingResponse,
    ),
)
async def feed(operator: OperatorDep, framed: Framed, request: RequestDep) -> Response:
    """Stream server-sent events: once a second an event `overview`, the overview without its tasks.

    `store`: this replica's current view of Redis. `asOf`: the time of the rest, which is repeated while Redis is down; null:
    nothing is known yet. `gateway`: this replica. `audit`: the newest audit log entry.
    """
    current, authorizer = operator.current, framed.app.gateway.authorizer

    async def events() -> AsyncIterator[bytes]:
        callers = current.callers
        async with contextlib.aclosing(operator.live.watch()) as snapshots:
            async for snapshot in snapshots:
                if current.callers is not callers:  # the keys were read again
                    callers = current.callers
                    if not authorizer.still_viewer(request):
                        return
                yield snapshot

    return StreamingResponse(events(), headers={name.decode(): text.decode() for name, text in SSE_HEADERS})


@router.get(
    "/api/admin/timeseries", **described("admin.timeseries.get", "Get rates and latencies over time", OBJECT)
)
async def history(operator: OperatorDep) -> Response:
    """Return the last hour of all replicas, in buckets of 10 s and as a whole (`total`). The newest bucket ends at `until`.

    Columns with one value per bucket, which began `at`: accepted, completed, failed, cancelled, rejected; waiting (counted every
    10 s); and waitMs (to the first grant), firstOutputMs and totalMs (from submission), each with p50, p95 and p99 (null: nothing
    ended), within 2.5 %. `models`: each one's last minute.
    """
    return answer(await operator.history.read())


@router.get("/api/admin/users", **described("admin.users.list", "List the busiest users", TopUsers))
async def users(operator: OperatorDep, limit: Annotated[int, Query(ge=1, le=200)] = 10) -> Response:
    """Return the users with the most waiting tasks, then running tasks, then tokens.

    `tokens`: input and output of tasks that ended in the last ten minutes, and their `share` of all users'. `model`: the one that
    most of the user's tasks wait for. `number`: users with tasks or tokens. `complete` is false if not all were counted: with
    more than 10,000 waiting users, or 1,000 running tasks of a model.
    """
    return answer(await operator.top_users(limit))


async def _task_filter(
    status: Annotated[str, Query(json_schema_extra={"enum": [*State, ""]})] = "",
    user: Filter = "",
    queue: Filter = "",
    model: Filter = "",
    requested: Annotated[Filter, Query(alias="requestedModel")] = "",
    worker: Filter = "",
    code: Filter = "",
) -> dict[str, str]:
    """Return the fields that a task's record must have. Raise ApiError(400)."""
    if status and status not in set(State):
        raise bad_request(f"status must be one of {', '.join(State)}", "status")
    given = {"status": status, "user": user, "queue": queue, "model": model, "requestedModel": requested}
    given |= {"worker": worker, "code": code}
    return {FILTERS[name]: value for name, value in given.items() if value}


TaskFilterDep = Annotated[dict[str, str], Depends(_task_filter)]


@router.get(
    "/api/admin/tasks", **described("admin.tasks.list", "Search tasks", listed("tasks", Task, now=INTEGER))
)
async def find_tasks(
    operator: OperatorDep,
    wanted: TaskFilterDep,
    text: Filter = "",
    since: Annotated[str, Query(alias="from", pattern=TIME)] = "",
    until: Annotated[str, Query(alias="to", pattern=TIME)] = "",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Return the tasks that match, newest first: all running tasks with `status=executing`, else the last 10,000 submitted tasks,
    while their results are stored. Usage records have the code of every failed task.

    `text` is a part of the id or the user, or the beginning of the request id, in any case. `from` and `to` (ms) bound the time
    of submission. All other filters must be equal. `model` is the model that runs or answered; `requestedModel` is the route or
    model in the request.

    `next` is the `after` of the next page, null at the end.
    """
    cursors = [one for one in after.split(",") if one not in ("", "-")]  # of each pool
    if not all(could_be_ours(chain_of(one), now_ms()) for one in cursors):
        raise bad_request("after must be the id of a task", "after")
    times = {"from": since, "to": until}
    wanted = wanted | {name: value for name, value in times.items() if value}
    if text:
        wanted["text"] = text.encode().lower().decode()  # letters of ASCII alone, as the script does
    rows, more = await search(operator.scheduler, wanted, after, limit)
    return answer({"now": now_ms(), "tasks": rows, "next": more})


@router.post(
    "/api/admin/tasks/cancel",
    **described("admin.tasks.cancel", "Cancel tasks", fields(cancelled=INTEGER, more=BOOLEAN)),
)
async def cancel(
    operator: OperatorDep,
    actor: ActorDep,
    wanted: TaskFilterDep,
    task: Filter = "",
    batch: Filter = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """Cancel a `task` or a `batch`, by its id, or all tasks that wait or run and match: at most `limit` of those among the last
    10,000 that were submitted.

    `cancelled`: how many this call ended; results so far stay in the files of a batch. `more`: call again for the rest. Written
    to the audit log as one entry.
    """
    if task:
        record = await operator.poll.record(task)
        reached = await operator.cancel.others(task, record, actor)
        ended = reached is State.CANCELLED and record.state not in TERMINAL
        return answer({"cancelled": int(ended), "more": False})
    if batch:
        if operator.cancel_batch is None:
            raise bad_request("This gateway has batches disabled", "batch")
        ended = await operator.cancel_batch(batch, actor)
        return answer({"cancelled": int(ended), "more": False})
    if wanted.get("state", State.QUEUED) not in (State.QUEUED, State.EXECUTING):
        raise bad_request(f"status must be {State.QUEUED} or {State.EXECUTING}", "status")
    if not wanted.keys() - {"state"}:
        raise bad_request(
            "one of task, batch, user, queue, model, requestedModel and worker must be given", "user"
        )
    cancelled, more = await operator.cancel_all(wanted, limit, actor)
    return answer({"cancelled": len(cancelled), "more": more})


@router.get(
    "/api/admin/tasks/{task_id}",
    **described("admin.tasks.get", "Get a task", {"anyOf": [ref(TaskDetail), ref(ArchivedTask)]}),
)
async def task(operator: OperatorDep, caller: CallerDep, task_id: str, stored: bool = False) -> Response:
    """Everything of a task but its payload and output. `streamUrl` is a link to its events.

    A key that only views gets neither that nor the task's metadata. `stored`: how an async task ended, from the archive, with its
    request where that is stored; for admins. 404 also until it is archived, within seconds of its end.
    """
    if stored:
        return answer(await _stored(operator, caller, task_id))
    record = await operator.poll.record(task_id)
    shown = describe(task_id, record) | await operator.poll.inspected(task_id, record)
    if not caller.admin:
        shown["metadata"] = None
    return answer(shown | {"streamUrl": operator.links.url(task_id) if caller.admin else None})


async def _stored(operator: Operator, caller: Caller, task_id: str) -> dict[str, Any]:
    if not caller.admin:
        raise ApiError(403, "FORBIDDEN", "Reading stored results needs a key with the scope admin")
    found = await operator.poll.archived(task_id, with_request=True)
    return {
        "taskId": task_id,
        "key": found.key_id,
        "user": found.user,
        "status": found.state,
        "endedAt": found.ended_ms,
        "answer": msgspec.Raw(found.answer),
        "request": None if found.request is None else msgspec.Raw(found.request),
    }


@router.post(
    "/api/admin/workers/{worker_id}/drain",
    **described(
        "admin.workers.drain",
        "Drain a worker",
        fields(workerId=STRING, name=STRING, replica=STRING, draining=BOOLEAN),
    ),
)
async def drain(operator: OperatorDep, actor: ActorDep, worker_id: str) -> Response:
    """Assign no more tasks to this worker; its running tasks continue.

    A version 2 worker is notified, and disconnects when it is done. The call returns once the worker's replica has confirmed. A
    second call changes nothing, and adds no audit log entry.
    """
    worker = await operator.drain(worker_id, actor)
    drained = {"workerId": worker_id, "name": worker["name"], "replica": worker["replica"], "draining": True}
    return answer(drained)


UserName = Annotated[
    str,
    Path(
        max_length=512,
        pattern=PLAIN,
        description="as records and the task list name it: `key/user` of a delegating key",
    ),
]


@router.delete("/api/admin/users/{user:path}", **described("admin.users.delete", "Erase a user", Erased))
async def erase(operator: OperatorDep, actor: ActorDep, user: UserName) -> Response:
    """Erase a user permanently: remove stored results of their ended tasks, and replace their name and the ids of requests and
    traces in usage records, sums and the audit log, and in records that are not written yet.

    Tasks that wait or run continue: cancel them first. Batches that have not ended are cancelled, their results are not kept,
    and they are removed once they have ended. Call again while `more` is true. The ledger keeps the name of a user with a quota
    of their own.
    """
    return answer(await operator.erase(user, actor))


@router.get("/api/admin/settings", **described("admin.settings.list", "List settings", OBJECT))
async def settings(
    operator: OperatorDep, name: Filter = "", changed: Annotated[bool, Query()] = False
) -> Response:
    """Return every setting of this replica: its value, default and source, and the time and author of its change.

    `name` is a part of their names, in any case. With `changed`, only those that differ from their defaults or were changed at
    run time. Secrets are `(set)` or null; URLs are without user, password and query.
    """
    return answer(await operator.settings.read(name, changed=changed))


ROUTERS = ((router, Access.ADMIN),)
