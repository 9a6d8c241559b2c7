"""Usage reports and records: the operators' calls, and a caller's own."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import Query, Response
from msgspec import UNSET, UnsetType, field

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.dependencies import CallerDep, RequestDep, answer, described, keyed_router, part
from fairlane.gateway.api.schemas import INTEGER, Ms, Schema, listed, says
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http.request import Request
from fairlane.gateway.usage.queries import (
    CSV,
    PLAIN,
    Filter,
    FiltersDep,
    Form,
    Since,
    Until,
    as_csv,
    between,
    given,
    wants_csv,
)
from fairlane.gateway.usage.reports import (
    DIMENSIONS,
    MEASURED,
    TASK_COLUMNS,
    UsageReports,
    Wanted,
    columns_by,
    period,
    read_by,
)
from fairlane.queues.clock import now_ms
from fairlane.queues.tasks import State


class Used(Schema, kw_only=True):
    """Sums over tasks. Unknown tokens count as 0."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    cached_tokens: Annotated[int, says("part of the input, if workers report it")]
    reasoning_tokens: Annotated[int, says("part of the output, if workers report it")]
    estimated: Annotated[int, says("tasks whose tokens are, at least in part, the gateway's estimate")]
    waited_ms: Annotated[Ms, says("each until its last start, or its end without a start")]
    ran_ms: Annotated[Ms, says("each from its last start to its end")]
    cost: Annotated[float, says("credits, by the prices at submission")]


class UsedBy(Used, kw_only=True):
    """One row: the members of `by`, and their sums."""

    model: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    category: Annotated[str | UnsetType, says("with `code`: its category")] = UNSET
    route: str | UnsetType = UNSET
    day: Annotated[str | UnsetType, says("2026-11-23")] = UNSET
    hour: Annotated[str | UnsetType, says("2026-11-23T16:00Z")] = UNSET


class UsageReport(Schema, kw_only=True):
    now: Ms
    from_: Ms = field(name="from")
    to: Ms
    by: list[str]
    rows: list[UsedBy]
    total: Used
    more: bool


class UsedTask(Schema, kw_only=True):
    """The usage record of a task. An unknown value is null, a missing text empty."""

    task_id: str
    ended_at: Ms
    enqueued_at: Ms
    granted_at: Annotated[Ms | None, says("its last start; null: none")]
    first_output_at: Ms | None
    status: State
    code: Annotated[str, says("failure code, also CANCELLED; empty if it completed")]
    category: Annotated[str, says("of its code")]
    key: str
    user: str
    tier: str
    queue: str
    type: str
    model: Annotated[str, says("the requested one")]
    scheduled_as: Annotated[str, says("the model of its queue: its own, or *")]
    worker_id: str
    attempts: int
    tries: int
    request_id: str
    trace_id: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    estimated: Annotated[bool, says("input or output is the gateway's estimate")]
    cost: float | None
    price: str
    route: Annotated[str, says("the name in the request, if more than one model may run it")]
    template: Annotated[str, says("the template of its payload")]
    template_version: str
    stage: Annotated[str, says("of a chain, which has a row for each stage and each part of one")]
    stage_index: Annotated[int | None, says("from 0; null: not a chain")]
    part: Annotated[int | None, says("from 0; null: the stage had a single one")]


router = keyed_router("operators")
own = keyed_router("account")

UsageDep = Annotated[UsageReports, part(UsageReports)]
MAX_ROWS = 10_000
MAX_OWN_ROWS = 1000
MAX_TASKS = 1000
By = Annotated[str, Query(description=f"One to three of {', '.join(DIMENSIONS)}, with commas between.")]


@router.get("/api/admin/usage", **described("admin.usage.get", "Get usage", UsageReport, content=CSV))
async def usage(
    usage: UsageDep,
    caller: CallerDep,
    request: RequestDep,
    filters: FiltersDep,
    by: By = "model",
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 1000,
    form: Form = "",
) -> Response:
    """Return the usage of tasks that ended between two days (by hour: hours), by default in the last 30 days, or 48 hours. Hours
    are kept for three days; users and routes have days only. By route, only tasks whose request named one are counted.

    Days and hours are in UTC. Rows are ordered by tokens, or by time; `total` includes rows beyond the limit (`more`). CSV with
    `format=csv` or `Accept: text/csv`.
    """
    return await _sums(usage, caller, request, read_by(by), (since, until), filters, limit, form)


@router.get(
    "/api/admin/usage/tasks",
    **described(
        "admin.usage.tasks", "List usage records", listed("tasks", UsedTask, now=INTEGER), content=CSV
    ),
)
async def tasks(
    usage: UsageDep,
    caller: CallerDep,
    request: RequestDep,
    filters: FiltersDep,
    since: Since = "",
    until: Until = "",
    task: Filter = "",
    template: Filter = "",
    after: Annotated[str, Query(max_length=100, pattern=PLAIN)] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_TASKS)] = 100,
    form: Form = "",
) -> Response:
    """Return the records, one per task, latest end first, between two times to the millisecond.

    `next` is the `after` of the next page, null at the end (in CSV: the header `x-next`). An unknown value is null.
    """
    wanted = Wanted(*between(since, until), {**given({"task": task, "template": template}), **filters})
    rows, more = await usage.tasks(wanted, after, limit, caller.key_id)
    if wants_csv(request, form):
        return await as_csv(TASK_COLUMNS, rows, "tasks", {"x-next": more} if more else {})
    return answer({"now": now_ms(), "tasks": rows, "next": more})


@own.get("/api/usage", **described("usage.get", "Get your own usage", UsageReport, content=CSV))
async def own_usage(
    usage: UsageDep,
    caller: CallerDep,
    request: RequestDep,
    by: By = "day",
    since: Since = "",
    until: Until = "",
    user: Filter = "",
    model: Filter = "",
    tier: Filter = "",
    route: Filter = "",
    limit: Annotated[int, Query(ge=1, le=MAX_OWN_ROWS)] = 1000,
    form: Form = "",
) -> Response:
    """Return the usage of the caller's own tasks, as GET /api/admin/usage.

    A delegating key sees all its users: `by=user`, or one of them with `user` (the name that the key gives, or that of a row). If
    the request names a user (`X-Fairlane-User`), it sees that one alone.
    """
    filters = {**_whose(caller, user), **given({"model": model, "tier": tier, "route": route})}
    return await _sums(usage, caller, request, read_by(by), (since, until), filters, limit, form)


def _whose(caller: Caller, user: str) -> dict[str, str]:
    """Return the filters for the caller's own tasks. Raise ApiError(400)."""
    if caller.open:
        return {"key": caller.key_id, "user": caller.user}
    if not caller.delegating:
        if user and user != caller.user:
            raise bad_request("this key has no users but itself", "user")
        return {"key": caller.key_id, **given({"user": caller.user if caller.claims else ""})}
    named = caller.user if caller.user != caller.key_id else ""
    if user and not user.startswith(f"{caller.key_id}/") and user != caller.key_id:
        user = f"{caller.key_id}/{user}"
    if named and user and user != named:
        raise bad_request("the request names another user (X-Fairlane-User)", "user")
    return {"key": caller.key_id, **given({"user": named or user})}


async def _sums(
    usage: UsageReports,
    caller: Caller,
    request: Request,
    by: Sequence[str],
    times: tuple[str, str],
    filters: Mapping[str, str],
    limit: int,
    form: str,
) -> Response:
    begin, end = period(by, *times, now_ms())
    report = await usage.sums(by, Wanted(begin, end, filters), limit, caller.key_id)
    if wants_csv(request, form):
        return await as_csv([*columns_by(by), *MEASURED.values()], report.rows, "usage")
    return answer(
        {
            "now": now_ms(),
            "from": begin,
            "to": end,
            "by": by,
            "rows": report.rows,
            "total": report.total,
            "more": report.more,
        }
    )


ROUTERS = ((router, Access.ADMIN), (own, Access.KEY))
