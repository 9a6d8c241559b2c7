"""Shows, adds, changes and removes endpoints at run time."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, ValidationError, create_model

from fairlane.gateway.admin.bodies import (
    Note,
    StrictBody,
    invalid_fields,
    optional,
    read_body,
    validation_error,
)
from fairlane.gateway.admin.rows import line_row
from fairlane.gateway.admin.settings_view import SettingsLayer, SourcedValue
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.endpoints.settings import MAX_ENDPOINTS, EndpointSettings
from fairlane.gateway.endpoints.store import EndpointMonitor, EndpointStore, StoredEndpoint
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.features import unmet
from fairlane.gateway.settings import unusable_endpoint
from fairlane.gateway.settings.flatten import SET
from fairlane.gateway.settings.parts import Identifier
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import Model, StoreInspector
from fairlane.queues.keys import ENDPOINT
from fairlane.queues.overrides import Actor

_BESIDE = ("name", "note")
"""Members of a body that are not settings."""
_DATABASE, _CONFIGURATION = "database", "configuration"
_MERGED = "set_headers"
"""A change has only the headers that change; null removes one."""


def _optional() -> dict[str, Any]:
    """Return the settings of an endpoint as members of a body; null is the default."""
    fields = optional(EndpointSettings, EndpointSettings.model_fields)
    values = "headers that each request gets; null removes one. No call returns them"
    fields[_MERGED] = (dict[str, str | None] | None, Field(None, description=values))
    return {**fields, "note": (Note | None, Field(None, description="what operators want to remember"))}


EndpointUpdate = create_model("EndpointUpdate", __base__=StrictBody, **_optional())
"""Changes of an endpoint."""
NewEndpoint = create_model(
    "NewEndpoint",
    __base__=StrictBody,
    **{
        **_optional(),
        "name": (Identifier, Field(description="its name; its model is `http:` and this")),
        "url": (str, Field(description=EndpointSettings.model_fields["url"].description)),
    },
)


@dataclass(eq=False)
class EndpointAdmin:
    """Use cases. All raise ApiError and DatabaseUnavailable: then it is unknown whether a change was made.

    If a change cannot be written to the audit log, it is made all the same, and the `notes` of the answer report it.
    """

    _store: EndpointStore
    _monitor: EndpointMonitor
    """Applies a change here immediately."""
    _current: ActiveConfig
    _audit: AuditRecord
    _inspector: StoreInspector

    # ---- reading ----------

    async def page(self) -> dict[str, Any]:
        """Return all endpoints by name, each with its line. While the database is unavailable, these are the ones that this
        replica has read, and `databaseError` has the reason."""
        away = None
        try:
            await self._monitor.read()
        except DatabaseUnavailable as error:
            away = str(error)
        lines = await self._lines()
        rows = [self._row(name, lines) for name in sorted(self._names())]
        return {"now": now_ms(), "endpoints": rows, "databaseError": away}

    async def layer(self) -> SettingsLayer:
        """Return the added endpoints, as settings that were changed at run time."""
        found: dict[str, SourcedValue] = {}
        for name, stored in sorted(self._monitor.known.endpoints.items()):
            if name not in self._current.configured_endpoints:
                for field, value in shown(stored.values).items():
                    found[f"endpoints.{name}.{field}"] = SourcedValue(
                        value, "changed", "fairlane endpoint list", stored.changed_ms, stored.who
                    )
        return found

    def _names(self) -> set[str]:
        return {*self._current.configured_endpoints, *self._monitor.known.endpoints}

    async def _lines(self) -> dict[str, Model]:
        """Return the queues of all endpoints' models; none while Redis is unavailable."""
        with contextlib.suppress(StoreError):
            return {model.model: model for model in (await self._inspector.recent()).models}
        return {}

    def _row(
        self, name: str, lines: Mapping[str, Model], latest: StoredEndpoint | None = None
    ) -> dict[str, Any]:
        """Return the row of an endpoint. `latest`: as it was just written, if this replica has not read it yet."""
        configured = self._current.configured_endpoints.get(name)
        stored = latest or self._monitor.known.endpoints.get(name)
        endpoint = self._current.endpoints.named(name)
        row: dict[str, Any] = {"name": name, "model": ENDPOINT + name}
        if configured is not None:
            times = dict.fromkeys(("createdAt", "changedAt", "changedBy"))
            row |= {"source": _CONFIGURATION, "settings": _dumped(configured), "note": "", **times}
        else:
            assert stored is not None
            row |= {
                "source": _DATABASE,
                "settings": _dumped(stored.settings),
                "note": stored.note,
                "createdAt": stored.created_ms,
                "changedAt": stored.changed_ms,
                "changedBy": stored.who or None,
            }
        line = lines.get(ENDPOINT + name)
        return row | {"line": None if endpoint is None else line_row(endpoint, line)}

    # ---- changes ----------

    async def create(self, fields: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
        """Create an endpoint. It applies here immediately, everywhere within about a second."""
        name = fields.get("name")
        read_body(NewEndpoint, fields, secret=True)
        assert isinstance(name, str)
        if name in self._current.configured_endpoints:
            raise _configured(name)
        async with self._store.changing() as (known, at_ms):
            if name in known:
                raise ApiError(
                    409, "ENDPOINT_EXISTS", f"There is an endpoint {name!r}: change it, or take another name"
                )
            if len(known.keys() | self._current.configured_endpoints.keys()) >= MAX_ENDPOINTS:
                raise ApiError(
                    409, "TOO_MANY_ENDPOINTS", f"There are {MAX_ENDPOINTS} endpoints: remove one first"
                )
            note = fields.get("note") or ""
            latest = StoredEndpoint(name, _merged({}, fields), note, at_ms, at_ms, actor.name)
            self._check(latest, known)
            known[name] = latest
        return await self._done(latest, actor, "create", {}, shown(latest.values))

    async def change(self, name: str, fields: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
        """Change the given settings, all or nothing; null restores a default, and removes a set header."""
        read_body(EndpointUpdate, fields, secret=True)
        if not fields:
            raise bad_request("say what becomes otherwise")
        async with self._store.changing() as (known, at_ms):
            stored = self._stored(known, name)
            note = (fields["note"] or "") if "note" in fields else stored.note
            values = _merged(stored.values, fields)
            latest = replace(stored, values=values, note=note, changed_ms=at_ms, who=actor.name)
            self._check(latest, known)
            known[name] = latest
        before, after = shown(stored.values), shown(values)
        names = [one for one in {**before, **after} if before.get(one) != after.get(one)]
        names += [_MERGED] if fields.get(_MERGED) and _MERGED not in names else []
        split = ({one: row.get(one) for one in names} for row in (before, after))
        return await self._done(latest, actor, "update", *split)

    async def remove(self, name: str, actor: Actor) -> dict[str, Any]:
        """Delete an endpoint: no new requests are accepted, and waiting ones do not start."""
        async with self._store.changing() as (known, _):
            stored = self._stored(known, name)
            del known[name]
        await self._hold()
        notes: list[str] = []
        waiting = 0
        with contextlib.suppress(StoreError):
            lines = (await self._inspector.snapshot()).models
            waiting = sum(line.waiting for line in lines if line.model == ENDPOINT + name)
        if waiting:
            notes.append(
                f"{waiting} tasks wait for it, until their time is over or it is there again: "
                f"`fairlane task cancel --model {ENDPOINT}{name}` ends them"
            )
        await self._audit.note(actor, "delete", f"endpoint {name}", shown(stored.values), {}, notes)
        return {"name": name, "waiting": waiting, "notes": notes}

    def _stored(self, known: Mapping[str, StoredEndpoint], name: str) -> StoredEndpoint:
        """Return the endpoint of the database that a call names. Raise ApiError (404, 409)."""
        if name in self._current.configured_endpoints:
            raise _configured(name)
        if name not in known:
            raise _no_endpoint(name)
        return known[name]

    def _check(self, latest: StoredEndpoint, known: Mapping[str, StoredEndpoint]) -> None:
        """Raise ApiError(400) if settings are invalid, alone or together with other endpoints."""
        try:
            settings = latest.settings
        except ValidationError as error:
            raise validation_error(error, EndpointSettings, secret=True) from None
        others = {one.name: one.settings for one in known.values()}
        others |= self._current.configured_endpoints
        found = unusable_endpoint(latest.name, settings, others, self._current.settings.tiers)
        wrong = {field: sentence for sentence, field in found}
        wrong |= unmet({"windows": settings.windows}, "endpoints.*", self._current.settings.disabled_features)
        if wrong:
            raise invalid_fields(wrong)

    async def _done(
        self,
        latest: StoredEndpoint,
        actor: Actor,
        action: str,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
    ) -> dict[str, Any]:
        await self._hold()
        notes: list[str] = []
        await self._audit.note(actor, action, f"endpoint {latest.name}", before, after, notes)
        return {**self._row(latest.name, await self._lines(), latest), "notes": notes}

    async def _hold(self) -> None:
        """Apply the written change here immediately."""
        with contextlib.suppress(DatabaseUnavailable):  # it is made, and the next look finds it
            await self._monitor.read()


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without the values of set headers."""
    return {
        name: dict.fromkeys(value, SET) if name == _MERGED and isinstance(value, Mapping) else value
        for name, value in values.items()
    }


def _dumped(settings: EndpointSettings) -> dict[str, Any]:
    return shown(settings.model_dump(mode="json"))


def _merged(values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in fields.items() if name not in _BESIDE}
    if isinstance(given.get(_MERGED), Mapping):
        before = {name.lower(): value for name, value in values.get(_MERGED, {}).items()}
        now = {name.lower(): value for name, value in given[_MERGED].items()}
        given[_MERGED] = {name: value for name, value in {**before, **now}.items() if value is not None}
    return {name: value for name, value in {**values, **given}.items() if value is not None}


def _configured(name: str) -> ApiError:
    sentence = (
        f"The configuration says what the endpoint {name!r} is: change it there, and send SIGHUP to the gateways. "
        f"For an immediate and temporary change: `fairlane model update {ENDPOINT}{name} concurrency=1`, windows=, paused=true"
    )
    return ApiError(409, "ENDPOINT_CONFIGURED", sentence)


def _no_endpoint(name: str) -> ApiError:
    return ApiError(
        404, "ENDPOINT_NOT_FOUND", f"There is no endpoint {name[:64]!r}; `fairlane endpoint list` lists them"
    )
