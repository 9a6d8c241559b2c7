"""The operators' calls for endpoints: external HTTP interfaces behind a queue."""

from typing import Annotated, Any, Literal

from fastapi import Response

from fairlane.gateway.access import Access
from fairlane.gateway.api.dependencies import ActorDep, BodyDep, answer, described, keyed_router, part
from fairlane.gateway.api.schemas import INTEGER, NULLABLE, STRING, Ms, Schema, fields, rows, says
from fairlane.gateway.endpoints.admin import EndpointAdmin, EndpointUpdate, NewEndpoint


class EndpointLine(Schema, kw_only=True):
    """The queue of an endpoint."""

    waiting: int
    running: int
    workers: Annotated[int, says("that serve it")]
    limit: Annotated[int | None, says("the effective concurrency")]
    windows: Annotated[str | None, says("the effective ones")]
    reason: str | None
    slots: Annotated[int, says("C: concurrent requests")]
    mean_ms: Annotated[float | None, says("T: the duration of a request")]
    measured: Annotated[bool, says("T is measured, not configured (`mean`)")]
    per_second: Annotated[float | None, says("Q = C / T, or the rate of its narrowest window")]
    paused: bool


class EndpointShown(Schema, kw_only=True):
    """An endpoint."""

    name: str
    model: Annotated[str, says("its name for the scheduler")]
    source: Literal["configuration", "database"]
    settings: dict[str, Any]
    note: str
    created_at: Ms | None
    changed_at: Ms | None
    changed_by: Annotated[str | None, says("the id of the operator's key")]
    line: EndpointLine | None


class EndpointDone(EndpointShown, kw_only=True):
    notes: list[str]


EndpointsDep = Annotated[EndpointAdmin, part(EndpointAdmin)]
router = keyed_router("operators")


@router.get(
    "/api/admin/endpoints",
    **described(
        "admin.endpoints.list",
        "List endpoints",
        fields(now=INTEGER, endpoints=rows(EndpointShown), databaseError=NULLABLE),
    ),
)
async def endpoints(admin: EndpointsDep) -> Response:
    """Return the endpoints of the configuration and those added at run time, by name, each with the state of its queue (`line`).

    Configured headers appear by name only. `meanMs` is T, measured once a request ran; `perSecond` is Q = C / T, or the rate of
    the narrowest window if that is less.
    """
    return answer(await admin.page())


@router.post(
    "/api/admin/endpoints",
    **described("admin.endpoints.create", "Create an endpoint", EndpointDone, body=NewEndpoint, status=201),
)
async def create(admin: EndpointsDep, actor: ActorDep, body: BodyDep) -> Response:
    """Create an endpoint in the SQL database. It takes effect on all replicas within about a second."""
    return answer(await admin.create(body, actor), status=201)


@router.patch(
    "/api/admin/endpoints/{name}",
    **described("admin.endpoints.update", "Update an endpoint", EndpointDone, body=EndpointUpdate),
)
async def change(admin: EndpointsDep, actor: ActorDep, body: BodyDep, name: str) -> Response:
    """Change the given members of an endpoint that was added at run time, also for waiting tasks; null restores a default."""
    return answer(await admin.change(name, body, actor))


@router.delete(
    "/api/admin/endpoints/{name}",
    **described("admin.endpoints.delete", "Delete an endpoint", fields(name=STRING, waiting=INTEGER)),
)
async def remove(admin: EndpointsDep, actor: ActorDep, name: str) -> Response:
    """Delete an endpoint that was added at run time. Running requests continue; `waiting` tasks for it do not start."""
    return answer(await admin.remove(name, actor))


ROUTERS = ((router, Access.ADMIN),)
