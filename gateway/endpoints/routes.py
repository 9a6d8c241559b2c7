"""The operators' calls for endpoints: external HTTP interfaces behind a queue."""

from fastapi import Response

from fairlane.gateway.api.dependencies import ActorDep, BodyDep, OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import EndpointDone, EndpointShown
from fairlane.gateway.api.schemas import INTEGER, NULLABLE, STRING, fields, rows
from fairlane.gateway.endpoints.admin import EndpointUpdate, NewEndpoint

router = keyed_router("operators")


@router.get(
    "/api/admin/endpoints",
    **described(
        "admin.endpoints.list",
        "List endpoints",
        fields(now=INTEGER, endpoints=rows(EndpointShown), databaseError=NULLABLE),
    ),
)
async def endpoints(operator: OperatorDep) -> Response:
    """Return the endpoints of the configuration and those added at run time, by name, each with the state of its queue (`line`).

    Configured headers appear by name only. `meanMs` is T, measured once a request ran; `perSecond` is Q = C / T, or the rate of
    the narrowest window if that is less.
    """
    return answer(await operator.endpoints.page())


@router.post(
    "/api/admin/endpoints",
    **described("admin.endpoints.create", "Create an endpoint", EndpointDone, body=NewEndpoint, status=201),
)
async def create(operator: OperatorDep, actor: ActorDep, body: BodyDep) -> Response:
    """Create an endpoint in the SQL database. It takes effect on all replicas within about a second."""
    return answer(await operator.endpoints.create(body, actor), status=201)


@router.patch(
    "/api/admin/endpoints/{name}",
    **described("admin.endpoints.update", "Update an endpoint", EndpointDone, body=EndpointUpdate),
)
async def change(operator: OperatorDep, actor: ActorDep, body: BodyDep, name: str) -> Response:
    """Change the given members of an endpoint that was added at run time, also for waiting tasks; null restores a default."""
    return answer(await operator.endpoints.change(name, body, actor))


@router.delete(
    "/api/admin/endpoints/{name}",
    **described("admin.endpoints.delete", "Delete an endpoint", fields(name=STRING, waiting=INTEGER)),
)
async def remove(operator: OperatorDep, actor: ActorDep, name: str) -> Response:
    """Delete an endpoint that was added at run time. Running requests continue; `waiting` tasks for it do not start."""
    return answer(await operator.endpoints.remove(name, actor))
