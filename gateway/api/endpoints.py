"""The operators' calls for endpoints: interfaces of other people that are called in turn."""

from fastapi import APIRouter, Depends, Response

from fairlane.gateway.api.framing import KEY, TheActor, TheBody, TheOperator, TheRequest, answer, refusals
from fairlane.gateway.api.models.base import body_of
from fairlane.gateway.api.models.endpoints import EndpointDone, EndpointList, EndpointRemoved, EndpointShown
from fairlane.gateway.operator.endpoints.admin import EndpointUpdate, NewEndpoint

MAX_BODY_BYTES = 64 * 1024
"""Headers that are set may be long."""

router = APIRouter(
    tags=["operators"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 429, 503)
)
CHANGE = refusals(404, 408, 409, 413, 415)


@router.get("/api/admin/endpoints", response_model=EndpointList)
async def endpoints(operator: TheOperator, request: TheRequest) -> Response:
    """The endpoints of the configuration and those that were added while running, by name, each with its line.

    Of headers that are set only the names are told. `line`: `meanMs` is T, measured once something ran; `perSecond` is Q = C / T,
    or what the narrowest window lets through, whichever is less.
    """
    request.check_query()
    return answer(await operator.endpoints.page())


@router.get("/api/admin/endpoints/{name}", response_model=EndpointShown, responses=refusals(404))
async def show(operator: TheOperator, request: TheRequest, name: str) -> Response:
    """One endpoint, with its line."""
    request.check_query()
    return answer(await operator.endpoints.show(name))


@router.post(
    "/api/admin/endpoints",
    response_model=EndpointDone,
    status_code=201,
    responses=CHANGE,
    openapi_extra=body_of(NewEndpoint),
)
async def create(operator: TheOperator, actor: TheActor, request: TheRequest, body: TheBody) -> Response:
    """Adds an endpoint, on all replicas within about a second. It is kept in the SQL database."""
    request.check_query()
    return answer(await operator.endpoints.create(await body.fields(MAX_BODY_BYTES), actor), status=201)


@router.patch(
    "/api/admin/endpoints/{name}",
    response_model=EndpointDone,
    responses=CHANGE,
    openapi_extra=body_of(EndpointUpdate),
)
async def change(
    operator: TheOperator, actor: TheActor, request: TheRequest, body: TheBody, name: str
) -> Response:
    """Changes what is given of an endpoint that was added; null takes it back to its default. What waits goes by it."""
    request.check_query()
    return answer(await operator.endpoints.change(name, await body.fields(MAX_BODY_BYTES), actor))


@router.delete("/api/admin/endpoints/{name}", response_model=EndpointRemoved, responses=CHANGE)
async def remove(operator: TheOperator, actor: TheActor, request: TheRequest, name: str) -> Response:
    """Removes an endpoint that was added. Requests under way go on; `waiting`: tasks that wait for it, and are not begun."""
    request.check_query()
    return answer(await operator.endpoints.remove(name, actor))
