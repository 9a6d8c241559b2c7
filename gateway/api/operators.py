"""The operators' calls: what they see, search, change, cancel and drain."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi import Request as Framed
from pydantic import BeforeValidator

from fairlane.gateway.access import Entrance
from fairlane.gateway.api import models
from fairlane.gateway.api.framing import KEY, TheCaller, TheOperator, TheRequest, answer, refusals
from fairlane.gateway.bodies import parse_values
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http import SSE_HEADERS, Receive, Request, Scope, Send
from fairlane.gateway.operator.audit import NOBODY
from fairlane.gateway.operator.operator import Operator
from fairlane.gateway.operator.search import FILTERS, describe
from fairlane.gateway.operator.settings import check_name
from fairlane.gateway.tasks.poll import now_ms
from fairlane.queues.ids import could_be_ours
from fairlane.queues.rules import Kind
from fairlane.queues.tasks import State

MAX_BODY_BYTES = 16 * 1024
MAX_VALUE = 256

router = APIRouter(
    tags=["operators"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 429, 503)
)


def _count(text: Any) -> Any:
    """A number as people write it: digits alone. An empty one is none."""
    if isinstance(text, str) and not (text.isascii() and text.isdigit() and len(text) <= 4):
        raise ValueError("must be a number")
    return text


Count = BeforeValidator(_count)
Filter = Annotated[str, Query(max_length=MAX_VALUE)]


@router.get("/api/admin/state", response_model=models.OperatorState)
async def state(operator: TheOperator, tasks: Annotated[int, Query(ge=0, le=500), Count] = 50) -> Response:
    """Queues, models, workers, counts, replicas, and the newest tasks."""
    return answer(await operator.state.read(tasks))


class Pictures(Response):
    """The feed as an answer. A watcher who leaves is noticed with the next picture, at most a second later."""

    def __init__(self, operator: Operator, entrance: Entrance, request: Request) -> None:
        super().__init__()
        self._operator = operator
        self._entrance = entrance
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        current, request = self._operator.current, self._request
        callers = current.callers
        leaving = request.leaving(lambda: None)
        pictures = self._operator.live.watch()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
            async for picture in pictures:
                if current.callers is not callers:  # the keys were read again
                    callers = current.callers
                    if not self._entrance.still_viewer(request):
                        break
                if leaving.gone:
                    return
                await send({"type": "http.response.body", "body": picture, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            leaving.close()
            await pictures.aclose()


@router.get(
    "/api/admin/feed",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
    response_class=Pictures,
    status_code=200,
)
async def feed(operator: TheOperator, framed: Framed, request: TheRequest) -> Response:
    """Server-sent events: once a second an event `state` with what GET /api/admin/state says without its tasks, and more.

    `store`: what this replica sees of Redis, as of now. `asOf`: of when the rest is, which is kept while Redis is away; null when
    nothing is known yet. `gateway`: the replica that answers. `audit`: the newest entry of the record.
    """
    return Pictures(operator, framed.app.gateway.entrance, request)


@router.get("/api/admin/history", response_model=models.History)
async def history(operator: TheOperator) -> Response:
    """The last hour of all replicas in buckets of 10 s, and as a whole (`total`).

    Columns with one value per bucket that began `at`: accepted, completed, failed, cancelled, refused; waiting (at its end);
    and waitMs (to the first grant), firstOutputMs and totalMs (from submission), each with p50, p95, p99 (null: nothing ended),
    within 2.5 %. `models`: what each did in the last minute.
    """
    return answer(await operator.history.read())


@router.get("/api/admin/users", response_model=models.TopUsers)
async def users(operator: TheOperator, limit: Annotated[int, Query(ge=1, le=200), Count] = 10) -> Response:
    """Users with the most waiting tasks; of equal ones those with the most running tasks, then with the most tokens.

    `tokens`: input and output of tasks that ended in the last ten minutes, and `share`: of all users'. `model`: for which most of
    the user's tasks wait. `number`: of users who have tasks or tokens. With more than 10,000 users in line, or 1,000 running
    tasks of a model, not all are looked at (`complete`).
    """
    return answer(await operator.top_users(limit))


@router.get("/api/admin/tasks", response_model=models.FoundTasks)
async def find_tasks(
    operator: TheOperator,
    state: Annotated[str, Query(json_schema_extra={"enum": [*State, ""]})] = "",
    text: Filter = "",
    user: Filter = "",
    queue: Filter = "",
    model: Filter = "",
    worker: Filter = "",
    code: Filter = "",
    after: str = "",
    limit: Annotated[int, Query(ge=1, le=200), Count] = 50,
) -> Response:
    """Tasks that match, newest first: with `state=executing` every one that runs; with `failed`, `cancelled` or a `code` the last
    10,000 of a day that failed or were cancelled, with the `error`'s sentence; else among the last 10,000 that were submitted.
    `text` is a part of the id, the user or the sentence, in small or large letters; all else must be equal.

    `next` is the `after` that goes on, null at the end.
    """
    if state and state not in set(State):
        raise bad_request(f"state must be one of {', '.join(State)}", "state")
    if after and not could_be_ours(after, now_ms()):
        raise bad_request("after must be the id of a task", "after")
    given = {"state": state, "user": user, "queue": queue, "model": model, "worker": worker, "code": code}
    wanted = {FILTERS[name]: value for name, value in given.items() if value}
    if text:
        wanted["text"] = text.lower()
    rows, more = await operator.search(wanted, after, limit)
    return answer({"now": now_ms(), "tasks": rows, "next": more})


@router.post("/api/admin/tasks/cancel", response_model=models.AllCancelled)
async def cancel_all(
    operator: TheOperator,
    caller: TheCaller,
    state: Annotated[str, Query(json_schema_extra={"enum": [State.QUEUED, State.EXECUTING, ""]})] = "",
    user: Filter = "",
    queue: Filter = "",
    model: Filter = "",
    worker: Filter = "",
    limit: Annotated[int, Query(ge=1, le=1000), Count] = 1000,
) -> Response:
    """Ends tasks that wait or run and match, at most `limit` of those among the last 10,000 that were submitted.

    One of user, queue, model and worker must be given. `more`: call again for the rest. Written to the audit record as one entry.
    """
    if state not in ("", State.QUEUED, State.EXECUTING):
        raise bad_request(f"state must be {State.QUEUED} or {State.EXECUTING}", "state")
    given = {"user": user, "queue": queue, "model": model, "worker": worker}
    wanted = {FILTERS[name]: value for name, value in given.items() if value}
    if not wanted:
        raise bad_request("one of user, queue, model and worker must be given", "user")
    if state:
        wanted["st"] = state
    cancelled, more = await operator.cancel_all(wanted, limit, caller.key_id or NOBODY)
    return answer({"cancelled": len(cancelled), "more": more})


@router.get("/api/admin/tasks/{task_id}", response_model=models.TaskDetail, responses=refusals(404))
async def task(operator: TheOperator, task_id: str) -> Response:
    """Everything of a task but its payload and output. `streamUrl` is a link to its events, null when they are no longer kept.

    A task that failed or was cancelled is known for a day, without its metadata.
    """
    record, kept = await operator.known(task_id)
    return answer(describe(task_id, record) | {"streamUrl": operator.links.url(task_id) if kept else None})


@router.post("/api/admin/tasks/{task_id}/cancel", response_model=models.Cancelled, responses=refusals(404))
async def cancel(operator: TheOperator, caller: TheCaller, task_id: str) -> Response:
    """Ends a task, whoever's it is; also fine when it has ended. Written to the audit record."""
    record = await operator.poll.record(task_id)
    state = await operator.cancel.others(task_id, record, caller.key_id or NOBODY)
    return answer({"taskId": task_id, "status": state}, {"x-task-id": task_id})


@router.post("/api/admin/workers/{worker_id}/drain", response_model=models.Drained, responses=refusals(404))
async def drain(operator: TheOperator, caller: TheCaller, worker_id: str) -> Response:
    """No more tasks for this worker; what it runs goes on.

    A version 2 worker is told, and goes when it is done. Answers once the worker's replica has said that the worker drains. A
    second call makes no difference and is not written down again.
    """
    worker = await operator.drain(worker_id, caller.key_id or NOBODY)
    answered = {"workerId": worker_id, "name": worker["name"], "replica": worker["replica"], "draining": True}
    return answer(answered)


CHANGE = refusals(404, 408, 413, 415)


@router.patch(
    "/api/admin/queues/{name}",
    response_model=models.QueueChanged,
    responses=CHANGE,
    openapi_extra=models.body_of(models.QueueChange),
)
async def change_queue(operator: TheOperator, caller: TheCaller, request: TheRequest, name: str) -> Response:
    """Changes settings of a queue while the gateways run; null takes a change back."""
    return await _change(operator, caller.key_id or NOBODY, request, "queue", name)


@router.patch(
    "/api/admin/models/{name:path}",
    response_model=models.ModelChanged,
    responses=CHANGE,
    openapi_extra=models.body_of(models.ModelChange),
)
async def change_model(operator: TheOperator, caller: TheCaller, request: TheRequest, name: str) -> Response:
    """Changes settings of a model while the gateways run; null takes a change back."""
    return await _change(operator, caller.key_id or NOBODY, request, "model", name)


async def _change(operator: Operator, who: str, request: Request, kind: Kind, name: str) -> Response:
    check_name(operator.current.settings, kind, name)
    fields = parse_values(await request.json_body(MAX_BODY_BYTES, operator.bodies.arriving))
    return answer(await operator.change(kind, name, fields, who))


@router.get("/api/admin/audit", response_model=models.Audit)
async def audit(
    operator: TheOperator,
    after: Annotated[str, Query(pattern=r"^[1-9][0-9]{0,15}-[0-9]{1,15}$")] = "",
    limit: Annotated[int, Query(ge=1, le=1000), Count] = 100,
) -> Response:
    """Who changed or did what, newest first; `next` is the `after` that goes on."""
    return answer(await operator.audit.read(after or None, limit))
