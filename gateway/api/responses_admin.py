"""Which responses are kept: the operators' call."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response

from fairlane.gateway.api.framing import KEY, TheOperator, TheRequest, answer, refusals
from fairlane.gateway.api.models.responses import KeptResponsePage
from fairlane.gateway.api.queries import Count, Filter, Plain
from fairlane.gateway.responses.store import Wanted

router = APIRouter(
    tags=["operators"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 429, 503, reports=True)
)
Ended = Literal["", "unfinished", "completed", "incomplete", "failed", "cancelled"]


@router.get("/api/admin/responses", response_model=KeptResponsePage)
async def responses(
    operator: TheOperator,
    request: TheRequest,
    user: Filter = "",
    key: Filter = "",
    status: Annotated[Ended, Query()] = "",
    background: Annotated[Literal["", "true", "false"], Query()] = "",
    after: Annotated[str, Query(max_length=200), Plain] = "",
    limit: Annotated[int, Query(ge=1, le=200), Count] = 50,
) -> Response:
    """Responses of `/v1/responses` that are kept, without their content, the newest first; `next` is the `after` that goes on.

    `status`: how they ended; `unfinished`: those whose end SQL does not have, which stand as `status` tells.
    """
    request.check_query("user", "key", "status", "background", "after", "limit")
    wanted = Wanted(user, key, status, None if not background else background == "true")
    return answer(await operator.responses.read(wanted, after, limit))
