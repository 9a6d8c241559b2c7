"""Operators' call that erases a user."""

from typing import Annotated

from fastapi import Path, Response

from fairlane.gateway.api.dependencies import ActorDep, OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import Erased
from fairlane.gateway.api.queries import PLAIN

router = keyed_router("operators")
User = Annotated[
    str,
    Path(
        max_length=512,
        pattern=PLAIN,
        description="as records and the task list name it: `key/user` of a delegating key",
    ),
]


@router.delete("/api/admin/users/{user:path}", **described("admin.users.delete", "Erase a user", Erased))
async def erase(operator: OperatorDep, actor: ActorDep, user: User) -> Response:
    """Erase a user for good: remove stored results of their ended tasks, and replace their name and the ids of requests and
    traces in usage records, sums and the audit log, and in records that are not written yet.

    Tasks that wait or run continue: cancel them first. Batches that have not ended are cancelled, their results are not kept,
    and they are removed once they have ended. Call again while `more` is true. The ledger keeps the name of a user with a quota
    of their own.
    """
    return answer(await operator.erase(user, actor))
