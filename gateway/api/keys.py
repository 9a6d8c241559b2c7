"""The operators' calls for keys and worker tokens."""

import re
from typing import Annotated

from fastapi import Query, Response

from fairlane.gateway.accounts.callers import MAX_USER_CHARS, Kind
from fairlane.gateway.api.dependencies import (
    ActorDep,
    BodyDep,
    CallerDep,
    OperatorDep,
    answer,
    described,
    keyed_router,
)
from fairlane.gateway.api.operator_schemas import KeyChanged, KeyCreated, KeyDetail, KeyRevoked, KeyShown
from fairlane.gateway.api.queries import Count
from fairlane.gateway.api.schemas import INTEGER, NULLABLE, listed
from fairlane.gateway.operator.keys import KeyChange, NewKey, Revocation, Rotation, no_key

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
OneOf = Annotated[Kind | None, Query(description="`caller` or `worker`")]

router = keyed_router("operators")


@router.get(
    "/api/admin/keys",
    **described(
        "admin.keys.list", "List keys", listed("keys", KeyShown, now=INTEGER, databaseError=NULLABLE)
    ),
)
async def list_keys(
    operator: OperatorDep,
    kind: OneOf = None,
    text: Annotated[str, Query(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")] = "",
    after: Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = "",
    limit: Annotated[int, Query(ge=1, le=500), Count] = 100,
) -> Response:
    """Keys of callers and tokens of workers, by id: those of the configuration (`source`), which can only be changed there, and
    those of the database. `text` is a part of the id or the note. Never a secret, nor its hash.

    `status`: `valid`, `expired`, `revoked`; `replaced`: the configuration has one of the same id, which holds; `unusable`: no
    queue has its tier, or a newer release wrote it. `lastUsed` is written once a minute. `next` is the `after` that goes on,
    null at the end.
    """
    return answer(await operator.keys.page(after, limit, kind, text.lower()))


@router.get("/api/admin/keys/{key_id}", **described("admin.keys.get", "Get a key", KeyDetail))
async def show_key(
    operator: OperatorDep,
    key_id: str,
    kind: OneOf = None,
    user: Annotated[
        str,
        Query(
            max_length=MAX_USER_CHARS,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="one of the users of a delegating key, by the name that its requests give",
        ),
    ] = "",
) -> Response:
    """One key, with what is left of its limits, over all its users, and of those of `user`. Where the configuration has a key and
    a token of the id, `kind` says which."""
    return answer(await operator.keys.show(_checked(key_id), kind, user))


@router.post(
    "/api/admin/keys", **described("admin.keys.create", "Create a key", KeyCreated, body=NewKey, status=201)
)
async def create_key(operator: OperatorDep, caller: CallerDep, actor: ActorDep, body: BodyDep) -> Response:
    """Makes a key, or a token for workers, that holds on all replicas within a second. Its `secret` is told this once.

    The first key of an open gateway must be an admin's, and closes it: from then on callers and workers need keys, and workers
    that showed none are cut off (`notes`). If the answer is lost, so is the secret: rotate the key.
    """
    return answer(await operator.keys.create(await body.fields(), caller, actor), status=201)


@router.patch(
    "/api/admin/keys/{key_id}", **described("admin.keys.update", "Update a key", KeyChanged, body=KeyChange)
)
async def change_key(
    operator: OperatorDep, caller: CallerDep, actor: ActorDep, body: BodyDep, key_id: str
) -> Response:
    """Changes a key of the database, on all replicas within a second; null takes a value back to its default.

    Of `limits` and `user_limits` only the members that are given change, and null takes one away; null instead of them all.
    """
    return answer(await operator.keys.change(_checked(key_id), await body.fields(), caller, actor))


@router.post(
    "/api/admin/keys/{key_id}/rotate",
    **described("admin.keys.rotate", "Replace the secret of a key", KeyCreated, body=Rotation),
)
async def rotate_key(
    operator: OperatorDep, caller: CallerDep, actor: ActorDep, body: BodyDep, key_id: str
) -> Response:
    """Gives a key another `secret`, which is told this once. The ones before stay valid for `keepMs`, a day if it is not given;
    workers that are connected by them are cut off then."""
    return answer(await operator.keys.rotate(_checked(key_id), await body.fields(), caller, actor))


@router.post(
    "/api/admin/keys/{key_id}/revoke",
    **described("admin.keys.revoke", "Revoke a key", KeyRevoked, body=Revocation),
)
async def revoke_key(
    operator: OperatorDep, caller: CallerDep, actor: ActorDep, body: BodyDep, key_id: str
) -> Response:
    """Ends a key for good: new calls get 401, workers' connections end (4401). Calls and tasks under way go on to their end,
    unless `now` is true: then they are ended and `cancelled`.

    Refused: the last valid key of an admin, and the key of this very call. Revoked keys stay known; an id is never used twice.
    """
    return answer(await operator.keys.revoke(_checked(key_id), await body.fields(), caller, actor))


def _checked(key_id: str) -> str:
    """An id that a key may have. Raises ApiError(404)."""
    if not ID.fullmatch(key_id):
        raise no_key(key_id)
    return key_id
