"""Which responses are kept: the operators' call."""

from typing import Annotated, Literal

from fastapi import Query, Response

from fairlane.gateway.api.framing import TheOperator, answer, keyed_router
from fairlane.gateway.api.models.responses import KeptResponsePage
from fairlane.gateway.api.queries import Count, Filter, Plain
from fairlane.gateway.responses.store import Wanted

router = keyed_router("operators", exact=True, reports=True)
Ended = Literal["", "unfinished", "completed", "incomplete", "failed", "cancelled"]


@router.get("/api/admin/responses", response_model=KeptResponsePage)
async def responses(
    operator: TheOperator,
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
    wanted = Wanted(user, key, status, None if not background else background == "true")
    return answer(await operator.responses.read(wanted, after, limit))
