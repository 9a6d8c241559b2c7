"""Which responses are kept: the operators' call."""

from typing import Annotated, Literal

from fastapi import Query, Response

from fairlane.gateway.api.answers import KeptResponse
from fairlane.gateway.api.framing import TheOperator, answer, described, keyed_router
from fairlane.gateway.api.queries import Count, Filter, Plain
from fairlane.gateway.api.schemas import listed
from fairlane.gateway.responses.store import Wanted

router = keyed_router("operators")
Ended = Literal["", "unfinished", "completed", "incomplete", "failed", "cancelled"]


@router.get(
    "/api/admin/responses",
    **described("admin.responses.list", "List stored responses", listed("responses", KeptResponse)),
)
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
