"""The operators' calls for overrides."""

from typing import Annotated, Any, Literal

from fastapi import Response
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, ConfigDict, create_model

from fairlane.gateway.access import Access
from fairlane.gateway.admin.bodies import optional
from fairlane.gateway.admin.changes import ENTRY, PAUSED, changeable, check_name
from fairlane.gateway.api.dependencies import ActorDep, BodyDep, answer, described, keyed_router, part
from fairlane.gateway.api.schemas import Ms, Schema, fields, json, rows, says
from fairlane.gateway.breakers.breakers import BreakerChange, force
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.errors import bad_request
from fairlane.gateway.overrides.admin import NewOverride, OverrideAdmin, OverrideUpdate
from fairlane.queues.rules import Kind as Configured
from fairlane.queues.scheduler import Scheduler


class OverrideShown(Schema, kw_only=True):
    """Values on top of the configuration."""

    id: str
    target: Literal["queue", "model", "route"]
    name: str
    values: dict[str, Any]
    percent: Annotated[int, says("share of the tasks")]
    until: Annotated[Ms | None, says("when it ends; null: when an operator rolls it back")]
    status: Literal["active", "promoted"]
    problem: Annotated[str | None, says("why the replica that answers does not apply it")]
    created_by: Annotated[str, says("the id of the operator's key")]
    created_at: Ms


class OverrideCreated(OverrideShown, kw_only=True):
    warnings: list[str]


SettingValue = float | int | bool | str | None
"""A setting of a queue or a model."""


class SettingInfo(Schema, kw_only=True):
    help: str
    type: Literal["integer", "number", "string"]
    minimum: float | int | None
    maximum: float | int | None
    choices: list[str] | None


class SettingsChanged(Schema, kw_only=True):
    """The settings of a queue or a model."""

    queue: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    values: Annotated[dict[str, SettingValue], says("the effective ones")]
    overrides: Annotated[dict[str, SettingValue], says("those that differ from the configuration")]
    changed: dict[str, dict[str, SettingValue]]
    settings: Annotated[dict[str, SettingInfo], says("the settings that can be changed")]


def _change(kind: Configured) -> type[BaseModel]:
    members = optional(ENTRY[kind], changeable(kind)) | {PAUSED: (bool | None, None)}
    return create_model(f"{kind.title()}Change", __config__=ConfigDict(extra="forbid"), **members)


CurrentDep = Annotated[ActiveConfig, part(ActiveConfig)]
OverridesDep = Annotated[OverrideAdmin, part(OverrideAdmin)]
router = keyed_router("operators")


@router.get(
    "/api/admin/overrides",
    **described("admin.overrides.list", "List overrides", fields(overrides=rows(OverrideShown))),
)
async def overrides(admin: OverridesDep) -> Response:
    """The overrides that hold, the latest first. The audit log has those that ended.

    `status`: `active`, or `promoted`: permanent, as are those of PATCH. Of two that set the same value the latest wins.
    """
    return answer(await admin.page())


@router.post(
    "/api/admin/overrides",
    **described(
        "admin.overrides.create",
        "Create an override",
        OverrideCreated,
        body=NewOverride,
        status=201,
        responses={200: {"content": json(OverrideCreated)}},
    ),
)
async def create(admin: OverridesDep, actor: ActorDep, body: BodyDep, check: bool = False) -> Response:
    """Sets values on top of the configuration of a queue, a model or a route, on every replica within about a second.

    An override of a route may hold for a `percent` of its tasks. With `check` nothing is created, and the answer is what would
    be. `warnings`: what is allowed and may not have the intended effect.
    """
    created = await admin.create(body, actor, check=check)
    return answer(created, status=200 if check else 201)


@router.patch(
    "/api/admin/overrides/{override_id}",
    **described("admin.overrides.update", "Update an override", OverrideShown, body=OverrideUpdate),
)
async def update(admin: OverridesDep, actor: ActorDep, body: BodyDep, override_id: str) -> Response:
    """Change the percentage, the end or the status of an override. Tasks of a smaller percentage stay in a larger one.

    `status`: `promoted` makes it permanent, for all tasks: the baseline of later overrides; it can still be rolled back.
    `rolled_back` removes it: the values below it take effect again, and tasks that were submitted under it keep theirs.
    """
    return answer(await admin.update(override_id, body, actor))


@router.patch(
    "/api/admin/queues/{name}",
    **described("admin.queues.update", "Update a queue", SettingsChanged, body=_change("queue")),
)
async def change_queue(
    current: CurrentDep, admin: OverridesDep, actor: ActorDep, body: BodyDep, name: str, check: bool = False
) -> Response:
    """Override settings of a queue at run time, on every replica; null restores the configured value.

    With `check` nothing is changed; the answer is the rejection, or the values in effect.
    """
    check_name(current.settings, "queue", name)
    return answer(await admin.patch("queue", name, body, actor, check=check))


@router.patch(
    "/api/admin/models/{name:path}",
    **described(
        "admin.models.update", "Update a model", SettingsChanged, body=_change("model") | BreakerChange
    ),
)
async def change_model(
    current: CurrentDep,
    admin: OverridesDep,
    scheduler: Annotated[Scheduler, part(Scheduler)],
    actor: ActorDep,
    body: BodyDep,
    name: str,
    check: bool = False,
) -> Response:
    """Override settings of a model at run time, or set the circuit breaker of one of its upstreams, on every replica; null
    restores the configured value.

    With `check` nothing is changed; the answer is the rejection, or the values in effect.
    """
    check_name(current.settings, "model", name)
    if "breaker" not in body and "upstream" not in body:
        return answer(await admin.patch("model", name, body, actor, check=check))
    if not current.settings.has("breakers"):
        raise bad_request("This gateway has breakers disabled", "breaker")
    changed = await force(scheduler, name, body, actor)
    return answer(await admin.patch("model", name, {}, actor, check=True) | {"changed": changed})


ROUTERS = ((router, Access.ADMIN),)
