"""The operators' calls for overrides."""

from fastapi import Response

from fairlane.gateway.api.dependencies import ActorDep, BodyDep, OperatorDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import OverrideCreated, OverrideShown
from fairlane.gateway.api.schemas import fields, json, rows
from fairlane.gateway.overrides.admin import NewOverride, OverrideUpdate

router = keyed_router("operators")


@router.get(
    "/api/admin/overrides",
    **described("admin.overrides.list", "List overrides", fields(overrides=rows(OverrideShown))),
)
async def overrides(operator: OperatorDep) -> Response:
    """The overrides that hold, the latest first. The audit log has those that ended.

    `status`: `active`, or `promoted`: permanent, as are those of PATCH. Of two that set the same value the latest wins.
    """
    return answer(await operator.overrides.page())


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
async def create(operator: OperatorDep, actor: ActorDep, body: BodyDep, check: bool = False) -> Response:
    """Sets values on top of the configuration of a queue, a model or a route, on every replica within about a second.

    An override of a route may hold for a `percent` of its tasks. With `check` nothing is created, and the answer is what would
    be. `warnings`: what is allowed and may not have the intended effect.
    """
    created = await operator.overrides.create(body, actor, check=check)
    return answer(created, status=200 if check else 201)


@router.patch(
    "/api/admin/overrides/{override_id}",
    **described("admin.overrides.update", "Update an override", OverrideShown, body=OverrideUpdate),
)
async def update(operator: OperatorDep, actor: ActorDep, body: BodyDep, override_id: str) -> Response:
    """Change the percentage, the end or the status of an override. Tasks of a smaller percentage stay in a larger one.

    `status`: `promoted` makes it permanent, for all tasks: the baseline of later overrides; it can still be rolled back.
    `rolled_back` removes it: the values below it take effect again, and tasks that were submitted under it keep theirs.
    """
    return answer(await operator.overrides.update(override_id, body, actor))
