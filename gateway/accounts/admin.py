"""Shows, creates, changes, rotates and revokes keys and worker tokens at run time."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, ValidationError, create_model
from pydantic.alias_generators import to_camel

from fairlane.gateway.accounts.callers import Caller, Kind
from fairlane.gateway.accounts.key_cache import ApiKeyCache
from fairlane.gateway.accounts.keystore import ENTRY, NAMED, Change, KeyStore, StoredKey, read_entry
from fairlane.gateway.accounts.secrets import FIRST_ID, first_file, new_secret
from fairlane.gateway.accounts.signed_tokens import signing_key
from fairlane.gateway.admin.bodies import (
    Note,
    StrictBody,
    invalid_fields,
    optional,
    read_body,
    validation_error,
)
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.cancel import KeyTasks
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError, Unauthorized, bad_request
from fairlane.gateway.features import unmet
from fairlane.gateway.settings import CallerKey, WorkerKey, part_of, unusable_key
from fairlane.gateway.settings.parts import Identifier
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.limits import RATES, pack, read_allowance
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler

MAX_KEYS = 100_000
"""With expired and revoked ones: each process holds all in memory."""
MAX_SECRETS = 10
"""Valid secrets of a key. As many expired ones are kept for a day, for the streams that they began."""
DAY_MS = 86_400_000
YEAR_MS = 366 * DAY_MS
END_S = 5.0
"""How long a call waits for the tasks of a key to be cancelled; the rest continues in the background."""

PARTS = {name: part for name, field in CallerKey.model_fields.items() if (part := part_of(field))}
"""Settings with parts; an update contains only the parts that change."""

Expires = Annotated[int, Field(ge=1, le=253_402_300_799_999, description="ms since 1970; null: never")]
_DATABASE, _CONFIGURATION = "database", "configuration"


def _settings_of(kind: Kind) -> list[str]:
    return [name for name in ENTRY[kind].model_fields if name not in NAMED]


def _optional() -> dict[str, Any]:
    """Return the members of a body that describe a key."""
    values = optional(CallerKey, _settings_of("caller"))
    return {**values, "note": (Note | None, None), "expires": (Expires | None, None)}


KeyChange = create_model("KeyChange", __base__=StrictBody, **_optional())
"""Changes of a key. A worker token has only `models`, `note` and `expires`."""
NewKey = create_model(
    "NewKey",
    __base__=StrictBody,
    id=(
        Identifier | None,
        Field(None, description="its name, and that of its user; a random one if none is given"),
    ),
    kind=(Kind | None, Field(None, description="`caller` if not given; `worker`: a token for workers")),
    **_optional(),
)


class Rotation(StrictBody):
    """A rotation of a key's secret."""

    keepMs: Annotated[int, Field(ge=0, le=YEAR_MS)] | None = Field(  # noqa: N815 - as in the body
        None,
        description="how long the secrets that it has now stay valid: a day if not given, 0: not any more",
    )


class Revocation(StrictBody):
    """A revocation of a key."""

    now: bool | None = Field(
        None, description="also end what is under way: open calls, and all of its tasks that wait or run"
    )


def _signs(settings: Mapping[str, Any], secret: str) -> str | None:
    """Return the signing key of a new secret; None if its key cannot sign."""
    return signing_key(secret) if settings.get("signing") else None


def _conflict(code: str, sentence: str) -> ApiError:
    return ApiError(409, code, sentence)


@dataclass(eq=False)
class KeyAdmin:
    """Use cases. All raise ApiError and DatabaseUnavailable: then it is unknown whether a change was made.

    If a change cannot be written to the audit log, it is made all the same, and the `notes` of the answer report it: a secret
    that is shown once must not be lost.
    """

    _store: KeyStore
    _key_cache: ApiKeyCache
    """Applies a change here immediately, and has the keys while the database is unavailable."""
    _current: ActiveConfig
    _audit: AuditRecord
    _tasks: KeyTasks
    _scheduler: Scheduler

    # ---- reading ----------

    async def page(self, after: str, limit: int, kind: Kind | None, text: str) -> dict[str, Any]:
        """Return about `limit` keys of the configuration and the database after the id `after`, by id, and the next `after`.

        While the database is unavailable, these are the keys that this replica has read, and `databaseError` has the reason."""
        now, away = now_ms(), None
        rows = [
            self._configured(of, entry)
            for of, entry in self._entries()
            if entry.id > after and kind in (None, of) and text in entry.id.lower()
        ]
        try:
            stored = await self._store.page(after, limit + 1, kind, text)
        except DatabaseUnavailable as error:
            away = str(error)
            stored = [
                key
                for key in map(_without_use, self._key_cache.keys.values())
                if key.id > after
                and kind in (None, key.kind)
                and (text in key.id.lower() or text in key.note.lower())
            ]
        rows += [self._shown(key, now) for key in stored]
        rows.sort(key=lambda row: (row["id"], row["kind"], row["source"]))
        end = limit
        while end < len(rows) and rows[end]["id"] == rows[end - 1]["id"]:
            end += 1  # keys of one id are on one page
        more = rows[end - 1]["id"] if end < len(rows) else None
        return {"now": now, "keys": rows[:end], "next": more, "databaseError": away}

    async def show(self, key_id: str, kind: Kind | None, user: str = "") -> dict[str, Any]:
        """Return a key, and the rest of its limits and of those of one of its users. Of several keys with its id, choose the
        valid one, and a caller's key first. While the database is unavailable, the key is as this replica has read it, and
        `databaseError` has the reason."""
        row, away = await self._find(key_id, kind)
        settings = row["settings"]
        if user and not settings.get("delegating"):
            raise bad_request(f"{key_id} is no delegating key, so it has no users", "user")
        limited = self._current.settings.has("limits")
        of_key = pack((limited and settings.get("limits")) or {})
        of_user = pack((limited and user and settings.get("user_limits")) or {})
        try:
            subject = f"{key_id}/{user}" if user else key_id
            left = await limit_fields(self._scheduler, subject, of_key, of_user)
        except StoreError:  # the key is shown all the same
            left = {"limits": None, "userLimits": None}
        return {**row, **left, "databaseError": away}

    async def _find(self, key_id: str, kind: Kind | None) -> tuple[dict[str, Any], str | None]:
        """Return the key, and why the database is unavailable (None: it is not)."""
        away = None
        try:
            key = await self._store.get(key_id)
        except DatabaseUnavailable as error:
            away = str(error)
            known = self._key_cache.keys.get(key_id)
            key = known and _without_use(known)
        rows = [self._configured(of, entry) for of, entry in self._entries() if entry.id == key_id]
        if key is not None:
            rows.append(self._shown(key, now_ms()))
        for row in sorted(rows, key=lambda row: (row["kind"], row["source"])):
            if kind in (None, row["kind"]):
                return row, away
        raise no_key(key_id)

    def _entries(self) -> list[tuple[Kind, CallerKey | WorkerKey]]:
        settings = self._current.settings
        return [*(("caller", key) for key in settings.keys), *(("worker", key) for key in settings.workers)]

    def _shown(self, key: StoredKey, now: int) -> dict[str, Any]:
        state: str = key.state(now, self._current.settings)
        if state == "valid" and any((of, entry.id) == (key.kind, key.id) for of, entry in self._entries()):
            state = "replaced"
        return {
            "id": key.id,
            "kind": key.kind,
            "source": _DATABASE,
            "status": state,
            "settings": dict(key.settings)
            if key.entry is None
            else key.entry.model_dump(mode="json", exclude=set(NAMED)),
            "note": key.note,
            "createdAt": key.created_ms,
            "expires": key.expires_ms,
            "revokedAt": key.revoked_ms,
            "lastUsedAt": key.last_used_ms,
            "secrets": [
                {
                    "createdAt": secret.created_ms,
                    "validUntil": secret.until_ms,
                    "signs": secret.signing_key is not None,
                }
                for secret in key.secrets
                if key.revoked_ms is None and (secret.until_ms is None or secret.until_ms > now)
            ],
        }

    def _configured(self, kind: Kind, entry: CallerKey | WorkerKey) -> dict[str, Any]:
        times = dict.fromkeys(("createdAt", "expires", "revokedAt", "lastUsedAt"))
        about = {"id": entry.id, "kind": kind, "source": _CONFIGURATION, "status": "valid"}
        return {
            **about,
            "settings": entry.model_dump(mode="json", exclude=set(NAMED)),
            "note": "",
            **times,
            "secrets": [],
        }

    # ---- changes ----------

    async def create(self, fields: Mapping[str, Any], caller: Caller, actor: Actor) -> dict[str, Any]:
        """Create a key, and return its secret, this once. The first key of an open gateway closes it and must be an admin's."""
        wanted = read_body(NewKey, fields)
        kind: Kind = getattr(wanted, "kind", None) or "caller"
        key_id = (
            getattr(wanted, "id", None) or f"{'worker' if kind == 'worker' else 'key'}-{secrets.token_hex(3)}"
        )
        settings, note, expires = self._merge(kind, key_id, {}, fields)
        if any(entry.id == key_id for _, entry in self._entries()):
            raise _conflict("KEY_EXISTS", f"The configuration has a key {key_id!r}; take another id")
        secret, sha256 = new_secret("worker" if kind == "worker" else "key", key_id)
        async with self._changing(caller) as change:
            if await change.get(key_id) is not None:
                raise _conflict("KEY_EXISTS", f"There is or was a key {key_id!r}; take another id")
            number = await change.count()
            if number >= MAX_KEYS:
                raise _conflict("TOO_MANY_KEYS", f"There are {MAX_KEYS} keys, and none is ever removed")
            closes = not number and self._current.callers.open
            if closes and not (kind == "caller" and _would_be_admins(key_id, settings)):
                raise _conflict(
                    "FIRST_KEY_NOT_ADMIN",
                    "The first key of an open gateway must have the scope admin, so that it can create the next ones",
                )
            if closes and expires is not None:
                raise _conflict(
                    "LAST_ADMIN_KEY",
                    "The first key of an open gateway must not expire: it is the only admin's",
                )
            await change.add(key_id, kind, settings, note, expires, now_ms())
            await change.add_secret(key_id, sha256, now_ms(), _signs(settings, secret))
        notes = []
        if closes:
            notes.append("The gateway was open and wants keys from now on")
            if not self._current.settings.workers:
                notes[0] += (
                    ". Workers need tokens, too, and those that were connected are cut off: create a token (kind worker), "
                    "and start them with it"
                )
        row = await self._done(key_id)
        await self._audit.note(actor, "create", f"key {key_id}", {}, _audited(row), notes)
        return {**row, "secret": secret, "notes": notes}

    async def change(
        self, key_id: str, fields: Mapping[str, Any], caller: Caller, actor: Actor
    ) -> dict[str, Any]:
        """Change settings, single limits, note or expiry, all or nothing; null restores a default."""
        read_body(KeyChange, fields)
        async with self._changing(caller) as change:
            key = await self._living(change, key_id)
            before = self._shown(key, now_ms())
            settings, note, expires = self._merge(key.kind, key.id, key.settings, fields, key)
            if key.admin and not _would_be_admins(key.id, settings):
                await self._keep_an_admin(change, key)
            elif key.admin and expires is not None and (key.expires_ms is None or expires < key.expires_ms):
                await self._keep_an_admin(change, key, expires)
            await change.set(key_id, settings=settings, note=note, expires=expires)
            if key.settings.get("signing") and not settings.get("signing"):
                await change.forget_signing(key_id)
        notes: list[str] = []
        if settings.get("signing") and not key.settings.get("signing"):
            notes.append(
                "The key signs with its next secret, as of the one that it has only a hash is kept: rotate it"
            )
        row = await self._done(key_id)
        was, now = _audited(before), _audited(row)
        changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if changed:
            old, new = ({name: values.get(name) for name in changed} for values in (was, now))
            await self._audit.note(actor, "update", f"key {key_id}", old, new, notes)
        return {**row, "notes": notes}

    async def rotate(
        self, key_id: str, fields: Mapping[str, Any], caller: Caller, actor: Actor
    ) -> dict[str, Any]:
        """Create another secret, returned this once. Earlier ones stay valid for a time."""
        keep_ms = read_body(Rotation, fields).keepMs
        keep_ms = DAY_MS if keep_ms is None else keep_ms
        async with self._changing(caller) as change:
            key = await self._living(change, key_id)
            now = now_ms()
            secret, sha256 = new_secret("worker" if key.kind == "worker" else "key", key_id)
            if keep_ms and len(self._shown(key, now)["secrets"]) >= MAX_SECRETS:
                sentence = f"The key has {MAX_SECRETS} valid secrets; with keepMs 0 they end now"
                raise _conflict("TOO_MANY_SECRETS", sentence)
            await change.end_secrets(key_id, now + keep_ms)
            ended = [
                secret.sha256
                for secret in key.secrets
                if not keep_ms or (secret.until_ms is not None and secret.until_ms <= now)
            ]
            await change.forget_secrets(key_id, now - DAY_MS, ended[:-MAX_SECRETS])
            await change.add_secret(key_id, sha256, now, _signs(key.settings, secret))
            await change.set(key_id)
        notes: list[str] = []
        row = await self._done(key_id)
        await self._audit.note(actor, "rotate", f"key {key_id}", {}, {"keepMs": keep_ms}, notes)
        return {**row, "secret": secret, "notes": notes}

    async def revoke(
        self, key_id: str, fields: Mapping[str, Any], caller: Caller, actor: Actor
    ) -> dict[str, Any]:
        """Revoke a key permanently. Its calls and tasks continue to their end; with `now` they end immediately. A worker's
        connections end in both cases. A second call changes nothing, except that it may add `now`."""
        immediately = bool(read_body(Revocation, fields).now)
        async with self._changing(caller) as change:
            key = await self._stored(change, key_id)
            revokes, cuts = key.revoked_ms is None, immediately and key.cut_ms is None
            if revokes and key_id == caller.key_id:
                raise _conflict(
                    "KEY_IN_USE", "This call was made with this key: revoke it with another admin's"
                )
            if revokes and key.admin:
                await self._keep_an_admin(change, key)
            now = now_ms()
            if revokes or cuts:
                await change.set(key_id, revoked=key.revoked_ms or now, cut=now if cuts else key.cut_ms)
        notes: list[str] = []
        row = await self._done(key_id)
        row["cancelled"] = 0
        if immediately and key.kind == "caller":
            row["cancelled"] = await self._end_tasks(key_id, notes)
        if revokes or cuts:
            after = {"status": "revoked", "now": immediately, "cancelled": row["cancelled"]}
            await self._audit.note(
                actor, "revoke", f"key {key_id}", {"status": "valid" if revokes else "revoked"}, after, notes
            )
        return {**row, "notes": notes}

    @contextlib.asynccontextmanager
    async def _changing(self, caller: Caller) -> AsyncIterator[Change]:
        """Begin a change after a check in the database that the caller's key is still an admin's. Raise Unauthorized."""
        async with self._store.changing() as change:
            if caller.open:
                if await change.count():
                    raise Unauthorized
            elif all(entry.id != caller.key_id for entry in self._current.settings.keys):
                key, now = await change.get(caller.key_id), now_ms()
                if (
                    key is None
                    or not key.admin
                    or not any(
                        isinstance(credential.principal, Caller)
                        and credential.principal.secret_id == caller.secret_id
                        and (credential.until_ms is None or now < credential.until_ms)
                        for credential in key.credentials
                    )
                ):
                    raise Unauthorized
            yield change

    async def _stored(self, change: Change, key_id: str) -> StoredKey:
        """Return the key of the database that a call names. Raise ApiError (404, 409)."""
        key = await change.get(key_id)
        for kind, entry in self._entries():
            if entry.id == key_id and (key is None or kind == key.kind):
                raise _conflict("KEY_CONFIGURED", self._where(kind, key_id))
        if key is None:
            raise no_key(key_id)
        return key

    def _where(self, kind: Kind, key_id: str) -> str:
        """Return where a key that is not in the database can be changed."""
        path = first_file(self._current.settings.data_dir, "worker" if kind == "worker" else "key")
        if key_id == FIRST_ID and path.exists():
            return f"The first start made {key_id!r}: once there are others, delete {path} and send SIGHUP to the gateway"
        return f"The configuration says what the key {key_id!r} is: change it there, and send SIGHUP to the gateways"

    async def _living(self, change: Change, key_id: str) -> StoredKey:
        """Return the same, if it can be changed. Raise ApiError (404, 409)."""
        key = await self._stored(change, key_id)
        if key.revoked_ms is not None:
            raise _conflict("KEY_REVOKED", f"The key {key_id!r} is revoked permanently; create another one")
        if key.entry is None:
            raise _conflict("KEY_UNREADABLE", f"A newer Fairlane wrote the key {key_id!r}: change it there")
        return key

    async def _keep_an_admin(self, change: Change, but: StoredKey, until_ms: int = 0) -> None:
        """Raise ApiError(409) unless another admin key is valid, for longer than until `until_ms`."""
        if any(entry.admin for entry in self._current.settings.keys):
            return
        now, settings = now_ms(), self._current.settings
        others = [
            key for key in await change.admins() if key.id != but.id and key.state(now, settings) == "valid"
        ]
        if not any(key.expires_ms is None or key.expires_ms > until_ms for key in others):
            raise _conflict(
                "LAST_ADMIN_KEY",
                f"{but.id!r} is the last valid key of an admin: create another one first, or no key could manage keys any more",
            )

    def _merge(
        self,
        kind: Kind,
        key_id: str,
        settings: Mapping[str, Any],
        fields: Mapping[str, Any],
        key: StoredKey | None = None,
    ) -> tuple[dict[str, Any], str, int | None]:
        """Return settings, note and expiry with the changes of a body. Raise ApiError(400)."""
        known = _settings_of(kind)
        given = {name: fields[name] for name in fields if name not in ("id", "kind", "note", "expires")}
        for name in PARTS.keys() & given.keys():
            if isinstance(given[name], Mapping):
                members = {**settings.get(name, {}), **given[name]}
                given[name] = {member: value for member, value in members.items() if value is not None}
        if strange := [name for name in given if name not in known]:
            raise invalid_fields({name: f"{name} is no setting of a worker token" for name in strange})
        merged = {name: value for name, value in {**settings, **given}.items() if value is not None}
        try:
            entry = read_entry(kind, key_id, merged)
        except ValidationError as error:
            raise validation_error(error, ENTRY[kind]) from None
        of_gateway = self._current.settings
        unusable = unusable_key(entry, of_gateway.tiers, of_gateway.pools) | unmet(
            merged, "keys.*", of_gateway.disabled_features
        )
        if unusable:
            raise invalid_fields(unusable)
        expires = fields.get("expires", key.expires_ms if key else None)
        if fields.get("expires") is not None and expires <= now_ms():
            raise invalid_fields({"expires": "expires lies in the past; revoke ends a key immediately"})
        note = fields.get("note", key.note if key else "") or ""
        return merged, note, expires

    async def _done(self, key_id: str) -> dict[str, Any]:
        """Apply a change here immediately. Return the key as it is now."""
        with contextlib.suppress(DatabaseUnavailable):  # it is made, and the next look finds it
            await self._key_cache.read()
        key = await self._store.get(key_id)
        assert key is not None  # none is ever removed
        return self._shown(key, now_ms())

    async def _end_tasks(self, key_id: str, notes: list[str]) -> int:
        """Cancel the tasks of a key; return their number. Each replica checks again a little later (`KeyTasks.end_soon`)."""
        try:
            async with asyncio.timeout(END_S):
                return await self._tasks.end([key_id])
        except TimeoutError:
            notes.append("There are many tasks: the rest is being cancelled")
        except StoreError as error:
            notes.append(f"Tasks are cancelled once Redis answers again ({error})")
        return 0


def _without_use(key: StoredKey) -> StoredKey:
    """Return the row of a key whose last use is unknown."""
    return replace(key, last_used_ms=None)


def _would_be_admins(key_id: str, settings: Mapping[str, Any]) -> bool:
    entry = read_entry("caller", key_id, settings)
    return isinstance(entry, CallerKey) and entry.admin


def _audited(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key as the audit log shows it."""
    return {"kind": row["kind"], **row["settings"], "note": row["note"], "expires": row["expires"]}


def no_key(key_id: str) -> ApiError:
    return ApiError(404, "KEY_NOT_FOUND", f"There is no key {key_id[:64]!r}")


async def limit_fields(scheduler: Scheduler, user: str, of_key: str, of_user: str) -> dict[str, Any]:
    """Return each limit of a user and of its key, both packed, as JSON shows it, without using it up. Raise StoreError."""
    shown: dict[str, dict[str, Any]] = {"limits": {}, "userLimits": {}}
    if not of_key and not of_user:
        return shown
    said = await scheduler.call("read_limits", {"user": user, "limits": (of_key, of_user)})
    for one in read_allowance(said["left"]):
        left: dict[str, int] = {"limit": one.limit, "remaining": one.remaining}
        if one.setting in RATES:
            left["resetMs"] = one.reset_ms
        shown["userLimits" if one.of_user else "limits"][to_camel(one.setting)] = left
    return shown
