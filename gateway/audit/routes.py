"""The operators' calls for the audit log and rejected calls."""

from typing import Annotated, Any

from fastapi import Query, Response
from msgspec import field

from fairlane.gateway.access import Access
from fairlane.gateway.api.dependencies import CallerDep, OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.schemas import Ms, Schema, listed, says
from fairlane.gateway.usage.queries import Filter, Since, Until, between, given
from fairlane.gateway.usage.reports import Wanted


class AuditEntry(Schema, kw_only=True):
    id: str
    at: Ms
    actor: str
    from_: Annotated[str, says("the client's address; empty: unknown")] = field(name="from")
    action: str
    target: str
    before: dict[str, Any]
    after: dict[str, Any]


class Rejection(Schema, kw_only=True):
    minute: Annotated[Ms, says("its beginning")]
    key: Annotated[str, says("empty: no-auth mode, or a link of a task")]
    code: Annotated[str, says("of the errors")]
    count: int


router = keyed_router("operators")


@router.get(
    "/api/admin/audit",
    **described("admin.audit.list", "List audit log entries", listed("entries", AuditEntry)),
)
async def audit(
    operator: OperatorDep,
    caller: CallerDep,
    actor: Filter = "",
    action: Filter = "",
    target: Filter = "",
    since: Since = "",
    until: Until = "",
    after: Annotated[str, Query(pattern=r"^([0-9]{14,17}-[0-9a-f]{8})?$")] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return the changes and actions of operators, newest first; `next` is the `after` of the next page, null at the end.

    `target`: a whole one, or its kind (`key`, `queue`, `task`). Entries of this replica appear immediately, others within a
    second. While the database is down, new entries wait, and this call is a 503.
    """
    filters = given({"actor": actor, "action": action, "target": target})
    wanted = Wanted(*between(since, until), filters)
    return answer(await operator.audit.read(wanted, after, limit, caller.key_id))


@router.get(
    "/api/admin/rejections",
    **described("admin.rejections.list", "List rejected calls", listed("rejections", Rejection)),
)
async def rejections(
    operator: OperatorDep,
    caller: CallerDep,
    key: Filter = "",
    code: Filter = "",
    since: Since = "",
    until: Until = "",
    after: Annotated[str, Query(max_length=200)] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Return the number of rejected calls (429, 503) by minute, key and error code, newest minute first, after the minute's end.

    A process counts up to 1,000 pairs of key and code a minute; the rest has the key `(other)`.
    """
    wanted = Wanted(*between(since, until), given({"key": key, "code": code}))
    return answer(await operator.audit.rejections(wanted, after, limit, caller.key_id))


ROUTERS = ((router, Access.ADMIN),)
