"""The operators' calls for keys and worker tokens."""

import re
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.admin import KeyAdmin, KeyChange, NewKey, Revocation, Rotation, no_key
from fairlane.gateway.accounts.callers import MAX_USER_CHARS, Kind
from fairlane.gateway.accounts.me import LimitsLeft
from fairlane.gateway.api.dependencies import (
    ActorDep,
    BodyDep,
    CallerDep,
    answer,
    described,
    keyed_router,
    part,
)
from fairlane.gateway.api.schemas import INTEGER, NULLABLE, Ms, Schema, listed, says
from fairlane.gateway.usage.queries import PLAIN


class KeySecret(Schema, kw_only=True):
    """A valid secret, without the secret itself."""

    created_at: Ms
    valid_until: Annotated[Ms | None, says("null: as long as the key")]
    signs: Annotated[bool, says("it can sign tokens: the key had `signing` when the secret was created")]


class KeyShown(Schema, kw_only=True):
    id: str
    kind: Literal["caller", "worker"]
    source: Literal["configuration", "database"]
    status: Literal["valid", "expired", "revoked", "replaced", "unusable"]
    settings: Annotated[dict[str, Any], says("as in an entry of the configuration")]
    note: str
    created_at: Ms | None
    expires: Ms | None
    revoked_at: Ms | None
    last_used_at: Ms | None
    secrets: Annotated[list[KeySecret], says("the valid ones of a key in the database")]


class KeyDetail(KeyShown, kw_only=True):
    limits: LimitsLeft | None
    user_limits: Annotated[LimitsLeft | None, says("of the `user` in the query")]
    database_error: str | None


class KeyChanged(KeyShown, kw_only=True):
    notes: Annotated[list[str], says("hints for the operator")]


class KeyCreated(KeyChanged, kw_only=True):
    secret: Annotated[str, says("shown only once")]


class KeyRevoked(KeyChanged, kw_only=True):
    cancelled: Annotated[int, says("tasks that this call cancelled")]


ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
OneOf = Annotated[Kind | None, Query(description="`caller` or `worker`")]

KeysDep = Annotated[KeyAdmin, part(KeyAdmin)]
router = keyed_router("operators")


@router.get(
    "/api/admin/keys",
    **described(
        "admin.keys.list", "List keys", listed("keys", KeyShown, now=INTEGER, databaseError=NULLABLE)
    ),
)
async def list_keys(
    admin: KeysDep,
    kind: OneOf = None,
    text: Annotated[str, Query(max_length=256, pattern=PLAIN)] = "",
    after: Annotated[str, Query(pattern=r"^[A-Za-z0-9._-]{0,64}$")] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> Response:
    """Return keys of callers and tokens of workers, by id: those of the configuration (`source`), which can be changed only
    there, and those of the database. `text` is a part of the id or the note. Secrets and their hashes are never shown.

    `status`: `valid`, `expired`, `revoked`; `replaced`: the configuration has one of the same id, which takes precedence;
    `unusable`: no queue has its tier, or its settings are invalid. `lastUsedAt` is written once a minute. `next` is the `after`
    of the next page, null at the end.
    """
    return answer(await admin.page(after, limit, kind, text.lower()))


@router.get("/api/admin/keys/{key_id}", **described("admin.keys.get", "Get a key", KeyDetail))
async def show_key(
    admin: KeysDep,
    key_id: str,
    kind: OneOf = None,
    user: Annotated[
        str,
        Query(
            max_length=MAX_USER_CHARS,
            pattern=PLAIN,
            description="one of the users of a delegating key, by the name that its requests give",
        ),
    ] = "",
) -> Response:
    """Return a key, with what is left of its limits over all its users, and of those of `user`. If the configuration has a key
    and a token of this id, `kind` selects one."""
    return answer(await admin.show(_checked(key_id), kind, user))


@router.post(
    "/api/admin/keys", **described("admin.keys.create", "Create a key", KeyCreated, body=NewKey, status=201)
)
async def create_key(admin: KeysDep, caller: CallerDep, actor: ActorDep, body: BodyDep) -> Response:
    """Create a key, or a token for workers. It is valid on all replicas within a second. Its `secret` is shown only once.

    The first key must be an admin's, and ends no-auth mode: from then on callers and workers need keys, and workers without a
    token are disconnected (`notes`). If the answer is lost, so is the secret: rotate the key.
    """
    return answer(await admin.create(body, caller, actor), status=201)


@router.patch(
    "/api/admin/keys/{key_id}", **described("admin.keys.update", "Update a key", KeyChanged, body=KeyChange)
)
async def change_key(
    admin: KeysDep, caller: CallerDep, actor: ActorDep, body: BodyDep, key_id: str
) -> Response:
    """Change a key in the database, on all replicas within a second; null restores a default.

    Only the given members of `limits` and `user_limits` change; null removes one limit, or all of them.
    """
    return answer(await admin.change(_checked(key_id), body, caller, actor))


@router.post(
    "/api/admin/keys/{key_id}/rotate",
    **described("admin.keys.rotate", "Replace the secret of a key", KeyCreated, body=Rotation),
)
async def rotate_key(
    admin: KeysDep, caller: CallerDep, actor: ActorDep, body: BodyDep, key_id: str
) -> Response:
    """Give a key another `secret`, which is shown only once. Earlier ones stay valid for `keepMs`, by default a day; then workers
    that connected with them are disconnected."""
    return answer(await admin.rotate(_checked(key_id), body, caller, actor))


@router.post(
    "/api/admin/keys/{key_id}/revoke",
    **described("admin.keys.revoke", "Revoke a key", KeyRevoked, body=Revocation),
)
async def revoke_key(
    admin: KeysDep, caller: CallerDep, actor: ActorDep, body: BodyDep, key_id: str
) -> Response:
    """Revoke a key permanently: new calls get 401, workers' connections end (4401). Open calls and running tasks continue; with
    `now` they are ended and `cancelled`.

    The last valid key of an admin and the key of this call cannot be revoked. Revoked keys remain listed, and ids are never
    reused.
    """
    return answer(await admin.revoke(_checked(key_id), body, caller, actor))


def _checked(key_id: str) -> str:
    """Return an id if a key can have it. Raise ApiError(404)."""
    if not ID.fullmatch(key_id):
        raise no_key(key_id)
    return key_id


ROUTERS = ((router, Access.ADMIN),)
