"""The operators' calls for changes of settings: rolled out to a share of tasks, scheduled, compared, taken back."""

from fastapi import Response

from fairlane.gateway.api.answers import ChangeDetail, ChangeMade, ChangeShown
from fairlane.gateway.api.framing import (
    TheActor,
    TheBody,
    TheCaller,
    TheOperator,
    answer,
    described,
    keyed_router,
)
from fairlane.gateway.api.schemas import fields, json, rows
from fairlane.gateway.operator.changing import ChangeUpdate, NewChange

router = keyed_router("operators")


@router.get(
    "/api/admin/changes",
    **described("admin.changes.list", "List overrides", fields(changes=rows(ChangeShown))),
)
async def changes(operator: TheOperator) -> Response:
    """The changes of settings that wait or hold, and the last that did, the newest first; 200 are kept.

    `state`: `scheduled`, `active`, `ended` by its time, or `taken_back`. `perTask`: it is decided for each task, so it may hold
    for a share. `problem`: it does not fit the configuration any more, and holds for nobody.
    """
    return answer(await operator.changes.page())


@router.get(
    "/api/admin/changes/{change_id}", **described("admin.changes.get", "Get an override", ChangeDetail)
)
async def show(operator: TheOperator, caller: TheCaller, change_id: str) -> Response:
    """One change, with what became of the tasks on its two sides: those that have ended, over its whole life.

    Times are of the last 5,000 of each side: of the wait until the last grant; of the first output and the duration from the
    submission on, the latter of tasks that completed. `moved`: tasks that went on to another model. `enough`: both sides have 30
    tasks and more. Of a change that is not decided for each task there is no comparison.
    """
    return answer(await operator.changes.show(change_id, caller.key_id))


@router.post(
    "/api/admin/changes",
    **described(
        "admin.changes.create",
        "Create an override",
        ChangeMade,
        body=NewChange,
        status=201,
        responses={200: {"content": json(ChangeMade)}},
    ),
)
async def create(operator: TheOperator, actor: TheActor, body: TheBody, check: bool = False) -> Response:
    """Changes settings now or from a time on, until a time or until it is taken back; on every replica within about a second.

    What is decided for each task (of routes, and `fallbacks`, `fallback_after_ms`, `first_output_ms` and `silence_ms` of models)
    may hold for a share of them: `rollout`. A route or model has one such change at a time. With `check` nothing is changed, only
    refused if it would be. `warnings`: what is allowed and may not do what was meant.
    """
    made = await operator.changes.create(await body.fields(), actor, check=check)
    return answer(made, status=200 if check else 201)


@router.patch(
    "/api/admin/changes/{change_id}",
    **described("admin.changes.update", "Update an override", ChangeShown, body=ChangeUpdate),
)
async def alter(operator: TheOperator, actor: TheActor, body: TheBody, change_id: str) -> Response:
    """Gives a change another share of the tasks, or another end. Who was among fewer is among more, too."""
    return answer(await operator.changes.alter(change_id, await body.fields(), actor))


@router.post(
    "/api/admin/changes/{change_id}/keep",
    **described("admin.changes.promote", "Promote an override to all tasks", ChangeShown),
)
async def keep(operator: TheOperator, actor: TheActor, change_id: str) -> Response:
    """Lets a change hold for all tasks, without an end, until it is taken back."""
    return answer(await operator.changes.keep(change_id, actor))


@router.post(
    "/api/admin/changes/{change_id}/take-back",
    **described("admin.changes.roll_back", "Roll back an override", ChangeShown),
)
async def take_back(operator: TheOperator, actor: TheActor, change_id: str) -> Response:
    """Ends a change, or lets it not begin: what holds without it holds again. A second call makes no difference.

    Tasks that were submitted under it keep what was decided for them then.
    """
    return answer(await operator.changes.take_back(change_id, actor))
