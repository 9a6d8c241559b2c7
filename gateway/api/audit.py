"""What operators did, and which calls were refused: the operators' calls that tell it."""

from typing import Annotated

from fastapi import Query, Response

from fairlane.gateway.api.dependencies import CallerDep, OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import AuditEntry, Rejection
from fairlane.gateway.api.queries import Count, Filter, Plain, Since, Until, between
from fairlane.gateway.api.schemas import listed
from fairlane.gateway.records.audit import WantedActs
from fairlane.gateway.records.refusals import WantedRefusals

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
    limit: Annotated[int, Query(ge=1, le=1000), Count] = 100,
) -> Response:
    """Who changed or did what, newest first; `next` is the `after` that goes on, null at the end.

    `target`: a whole one, or its kind (`key`, `queue`, `task`). What this gateway did before is told at once, what others did
    within a second; while the database is away it waits, and this call is 503.
    """
    wanted = WantedActs(*between(since, until), actor, action, target)
    return answer(await operator.audit.read(wanted, after or None, limit, caller.key_id))


@router.get(
    "/api/admin/rejections",
    **described("admin.rejections.list", "List rejected calls", listed("rejections", Rejection)),
)
async def refused(
    operator: OperatorDep,
    caller: CallerDep,
    key: Filter = "",
    code: Filter = "",
    since: Since = "",
    until: Until = "",
    after: Annotated[str, Query(max_length=200), Plain] = "",
    limit: Annotated[int, Query(ge=1, le=1000), Count] = 100,
) -> Response:
    """Calls that were refused (429, 503), by minute, key and error code, the newest minute first; `next` goes on.

    Told when a minute is over. A process tells a thousand keys and codes of a minute apart; others are of the key `(other)`.
    """
    wanted = WantedRefusals(*between(since, until), key, code)
    return answer(await operator.audit.refusals(wanted, after, limit, caller.key_id))
