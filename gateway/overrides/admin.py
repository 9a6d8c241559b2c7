"""Overrides: operators list, create, update, promote and roll them back; PATCH of a queue or model is one that is permanent."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NoReturn

import structlog
from pydantic import Field, JsonValue

from fairlane.gateway.admin.bodies import StrictBody, invalid_fields, read_body
from fairlane.gateway.admin.changes import check_name, described, effective_values, no_queue, read_change
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.overrides.monitor import OverrideMonitor
from fairlane.gateway.overrides.overlay import ROUTE_SETTINGS, InvalidOverride, overridden
from fairlane.gateway.settings import external, external_name, external_value, notes
from fairlane.gateway.settings.parts import MODEL_SETTINGS
from fairlane.queues.errors import StoreError
from fairlane.queues.overrides import ALL, Actor, Override, OverrideStore, Rejected, Target, new_override_id
from fairlane.queues.rules import Kind
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Percent = Annotated[int, Field(ge=1, le=ALL)]
Instant = Annotated[int, Field(ge=1, le=253_402_300_799_999)]


class NewOverride(StrictBody):
    """Values on top of the configuration of a queue, a model or a route."""

    target: Target
    name: Name = Field(description="of the queue, model or route; a model need not be configured")
    values: Annotated[dict[str, JsonValue], Field(min_length=1, max_length=32)] = Field(
        description="by the dotted names of the configuration, such as `tiers.paid.model`. Of a route: "
        + ", ".join(ROUTE_SETTINGS)
        + ", also of its tiers and vision. Of a model: "
        + ", ".join(MODEL_SETTINGS)
        + ", and what PATCH /api/admin/models takes. Of a queue: what PATCH /api/admin/queues takes"
    )
    percent: Percent | None = Field(None, description="of a route: the share of its tasks; all by default")
    until: Instant | None = Field(
        None, description="when it ends, ms since 1970; by default an operator rolls it back"
    )


class OverrideUpdate(StrictBody):
    """Another percentage, end or status of an override."""

    percent: Percent | None = Field(None, description="tasks of a smaller share stay in a larger one")
    until: Instant | None = Field(None, description="when it ends; null: an operator rolls it back")
    status: Literal["promoted", "rolled_back"] | None = Field(
        None,
        description="`promoted`: permanent, for all tasks; `rolled_back`: removed. Alone, without other members",
    )


@dataclass(eq=False)
class OverrideAdmin:
    """Use cases. All raise StoreError, and ApiError for invalid requests."""

    _store: OverrideStore
    _monitor: OverrideMonitor
    _current: ActiveConfig
    _scheduler: Scheduler

    async def page(self) -> dict[str, Any]:
        """Return all overrides, the latest first."""
        known = await self._monitor.read()
        shown = [self._shown(override) for override in reversed(known.overrides)]
        return {"now": known.now_ms, "overrides": shown, "next": None}

    async def create(self, fields: Mapping[str, Any], actor: Actor, *, check: bool = False) -> dict[str, Any]:
        """Create an override. It holds here immediately, on every replica within about a second. `check`: only report whether it
        can be created."""
        body = read_body(NewOverride, fields)
        override = Override(
            body.target,
            body.name,
            dict(body.values),
            percent=body.percent or ALL,
            until_ms=body.until or 0,
            id=new_override_id(),
        )
        override, warnings = await self._check(override)
        created = await self._store.create(override, actor, check=check)
        if isinstance(created, Rejected):
            _reject(created, override)
        if not check:
            await self._changed("override created", created, actor, values=external(created.values))
        return {**self._shown(created), "warnings": warnings}

    async def update(self, override_id: str, fields: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
        """Change the percentage, the end or the status of an override, and return it."""
        body = read_body(OverrideUpdate, fields)
        until_ms = (body.until or 0) if "until" in body.model_fields_set else None
        if (body.percent is None and until_ms is None) == (body.status is None):
            raise bad_request("set percent, until or both; or status")
        override = await self._find(override_id)
        if body.status == "promoted":
            promoted = await self._store.promote(override_id, actor)
            return await self._updated("override promoted", override, promoted, actor)
        if body.status == "rolled_back":
            removed = await self._store.roll_back(override_id, actor)
            return await self._updated("override rolled back", override, removed, actor)
        if body.percent is not None:
            _check_percent(override, body.percent)
        updated = await self._store.update(override_id, actor, percent=body.percent, until_ms=until_ms)
        return await self._updated("override updated", override, updated, actor)

    async def patch(
        self, kind: Kind, name: str, fields: Mapping[str, Any], actor: Actor, *, check: bool = False
    ) -> dict[str, Any]:
        """Set settings of a queue or model permanently, all or none; return the values. null restores the configured one. They
        hold from the next decision on, on every replica. `check`: only report whether they can be set.

        `check_name` has accepted the name. If the reply of the store is lost, the same call again is safe.
        """
        settings, scheduler = self._current.settings, self._scheduler
        values = read_change(settings, kind, name, fields)
        changed: dict[str, dict[str, Any]] = {}
        if values and not check:
            try:
                change = await self._store.set_settings(kind, name, values, actor)
            except OverflowError:
                raise _too_many() from None
            if change is None:
                raise no_queue(settings, name)
            before, after = effective_values(kind, change.before), effective_values(kind, change.after)
            changed = {
                external_name(field): {
                    when: external_value(field, values[field])
                    for when, values in (("before", before), ("after", after))
                }
                for field in values
            }
            facts = {"target": f"{kind} {name}", "changed": changed}
            log.info("setting changed", actor=actor.name, address=actor.address, **facts)
        settled = await scheduler.effective(kind, name)
        return {
            kind: name,
            "values": external(effective_values(kind, settled.values)),
            "overrides": external(settled.overrides),
            "changed": changed,
            "settings": described(kind),
        }

    async def _updated(
        self, event: str, before: Override, after: Override | Rejected, actor: Actor
    ) -> dict[str, Any]:
        if isinstance(after, Rejected):
            _reject(after, before)
        await self._changed(event, after, actor, percent=after.percent, until=after.until_ms or None)
        return self._shown(after)

    async def _changed(self, event: str, override: Override, actor: Actor, **facts: Any) -> None:
        """Log what was done, and apply it here."""
        log.info(
            event,
            actor=actor.name,
            address=actor.address,
            override=override.id,
            target=f"{override.target} {override.name}",
            **facts,
        )
        with contextlib.suppress(StoreError):  # the next sweep returns the version
            await self._monitor.read()

    async def _find(self, override_id: str) -> Override:
        for override in (await self._monitor.read()).overrides:
            if override.id == override_id:
                return override
        raise _not_found(override_id)

    async def _check(self, override: Override) -> tuple[Override, list[str]]:
        """Return an override with its values as the store takes them, and warnings. Raise ApiError(400, 404) if the configuration
        would not accept the values."""
        _check_percent(override, override.percent)
        settings, kind = self._current.settings, override.target
        if kind != "route":
            check_name(settings, kind, override.name)
            known = () if kind == "queue" else MODEL_SETTINGS
            scheduled = {name: value for name, value in override.values.items() if name not in known}
            if empty := [name for name, value in scheduled.items() if value is None]:
                raise bad_request(
                    f"{empty[0][:64]} must have a value: to restore what is configured, roll back", empty[0]
                )
            if scheduled:
                read = read_change(settings, kind, override.name, scheduled)
                kept = {name: value for name, value in override.values.items() if name in known}
                override = replace(override, values={**kept, **read})
        try:
            after = overridden(settings, override)
        except InvalidOverride as error:
            raise invalid_fields({name or "values": sentence for name, sentence in error.problems}) from None
        before = set(notes(settings))
        return override, [note for note in notes(after) if note not in before]

    def _shown(self, override: Override) -> dict[str, Any]:
        return {
            "id": override.id,
            "target": override.target,
            "name": override.name,
            "values": external(override.values),
            "percent": override.percent,
            "until": override.until_ms or None,
            "status": override.status,
            "problem": self._current.overlay.invalid.get(override.id),
            "createdBy": override.created_by,
            "createdAt": override.created_ms,
        }


def _check_percent(override: Override, percent: int) -> None:
    if override.target != "route" and percent < ALL:
        raise bad_request(
            f"values of a {override.target} hold for all of its tasks: only an override of a route has a percent",
            "percent",
        )


def _reject(rejected: Rejected, override: Override) -> NoReturn:
    """Raise the ApiError of a reason."""
    match rejected.reason:
        case "conflict":
            raise ApiError(
                409,
                "OVERRIDE_CONFLICT",
                f"The override {rejected.other} already holds for a share of the tasks of the route {override.name}: promote it "
                "or roll it back first",
            )
        case "full":
            raise _too_many()
        case "past":
            raise bad_request("until must be in the future", "until")
        case "promoted":
            raise ApiError(
                409,
                "OVERRIDE_PROMOTED",
                f"The override {override.id} is permanent, for all tasks: roll it back and create another one",
            )
        case _:
            raise _not_found(override.id)


def _too_many() -> ApiError:
    return ApiError(409, "TOO_MANY_OVERRIDES", "There are too many overrides: roll back some first")


def _not_found(override_id: str) -> ApiError:
    return ApiError(
        404,
        "OVERRIDE_NOT_FOUND",
        f"There is no override {override_id[:64]!r}; `fairlane override list` shows all of them",
    )
