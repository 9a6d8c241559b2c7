"""What the archive has of a task, with its content: for admins."""

import msgspec
from fastapi import Response

from fairlane.gateway.api.answers import ArchivedTask
from fairlane.gateway.api.framing import TheCaller, TheOperator, answer, described, keyed_router
from fairlane.gateway.errors import ApiError

router = keyed_router("operators")


@router.get(
    "/api/admin/archive/{task_id}",
    **described("admin.archive.get", "Get the stored result of a task", ArchivedTask),
)
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
