"""What the archive has of a task, with its content: for admins."""

import msgspec
from fastapi import APIRouter, Depends, Response

from fairlane.gateway.api.framing import KEY, TheCaller, TheOperator, answer, refusals
from fairlane.gateway.api.models.archive import ArchivedTask
from fairlane.gateway.errors import ApiError

router = APIRouter(
    tags=["operators"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 404, 429, 503)
)


@router.get("/api/admin/archive/{task_id}", response_model=ArchivedTask)
async def archived(operator: TheOperator, caller: TheCaller, task_id: str) -> Response:
    """How an async task ended that is archived, whoever's it is: what a poll is answered, and the request where it is kept.

    Wants an admin's key: this is content. 404 also where it is still to be archived (within seconds of its end).
    """
    if not caller.admin:
        raise ApiError(403, "FORBIDDEN", "This call needs a key with admin: true")
    found = await operator.poll.archived(task_id, with_request=True)
    shown = {
        "taskId": task_id,
        "key": found.key_id,
        "user": found.user,
        "status": found.state,
        "endedAt": found.ended_ms,
        "answer": msgspec.Raw(found.answer),
        "request": None if found.request is None else msgspec.Raw(found.request),
    }
    return answer(shown)
