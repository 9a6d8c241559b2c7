"""Changes of settings as objects: made now or for later, for all tasks or for a share of them, compared, kept and taken back."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NoReturn

import structlog
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from fairlane.gateway.current import Current
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.operator.bodies import read_body
from fairlane.gateway.operator.settings import PAUSED, changeable, check_name, read_change
from fairlane.gateway.records.comparison import Comparisons
from fairlane.gateway.routing.rollouts import MODEL_FIELDS, ROUTE_FIELDS, Unfit, changed
from fairlane.gateway.settings import Settings, notes, suggestion
from fairlane.queues.actor import Actor
from fairlane.queues.changes import (
    LIVE,
    WHOLE,
    ChangeStore,
    Hindered,
    Known,
    PlannedChange,
    Target,
    new_change_id,
)
from fairlane.queues.errors import StoreError
from fairlane.queues.rules import Kind
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

_PLAIN = r"^[^\x00-\x1f\x7f]*$"
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=_PLAIN)]
Share = Annotated[int, Field(ge=1, le=WHOLE)]
Instant = Annotated[int, Field(ge=1, le=253_402_300_799_999)]


class NewChange(BaseModel):
    """A change of settings. Exactly one of `route`, `model` and `queue` says of what."""

    model_config = ConfigDict(extra="forbid", strict=True)

    route: Name | None = Field(None, description="the route that is changed")
    model: Name | None = Field(None, description="the model that is changed; it need not be configured")
    queue: Name | None = Field(None, description="the queue that is changed")
    tier: Name | None = Field(
        None, description="of a route: for tasks of this tier alone; if not given for all"
    )
    vision: bool | None = Field(None, description="of a route: for requests with images alone")
    set: Annotated[dict[str, JsonValue], Field(min_length=1, max_length=32)] = Field(
        description="what is set, by the names of the configuration. Of a route: "
        + ", ".join(ROUTE_FIELDS)
        + ". Of a model: "
        + ", ".join(MODEL_FIELDS)
        + "; or what PATCH /api/admin/models takes. Of a queue: what PATCH /api/admin/queues takes. null: as if it were not set"
    )
    rollout: Share | None = Field(
        None,
        description="percent of the tasks for which it holds, for what is decided for each task; all if not given",
    )
    by: Literal["task", "user"] | None = Field(
        None, description="of what the share is one: of tasks (if not given), or of users"
    )
    at: Instant | None = Field(
        None, description="when it begins, ms since 1970; now, if not given or in the past"
    )
    until: Instant | None = Field(
        None, description="when it ends by itself; not before it is taken back, if not given"
    )
    note: Annotated[str, Field(max_length=500, pattern=_PLAIN)] | None = None


class ChangeUpdate(BaseModel):
    """What becomes otherwise of a change."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rollout: Share | None = Field(
        None, description="percent of the tasks. Who is among fewer is among more, too"
    )
    until: Instant | None = Field(
        None, description="when it ends by itself; null: not before it is taken back"
    )


class ChangeAdmin:
    """Use cases. All raise StoreError, and ApiError for what makes no sense."""

    def __init__(
        self,
        store: ChangeStore,
        known: Callable[[], Awaitable[Known]],
        current: Current,
        scheduler: Scheduler,
        comparisons: Comparisons,
        catch_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`known`: `ChangesWatch.read`. `catch_up`: `Outbox.catch_up`."""
        self._store = store
        self._known = known
        self._current = current
        self._scheduler = scheduler
        self._comparisons = comparisons
        self._catch_up = catch_up

    async def page(self) -> dict[str, Any]:
        """All changes that are known, the newest first."""
        known = await self._known()
        return {
            "now": known.now_ms,
            "changes": [self._told(change) for change in known.changes],
            "next": None,
        }

    async def show(self, change_id: str, who: str) -> dict[str, Any]:
        """One change, and what became of the tasks on its two sides, unless the database is away: who wants to take a change back
        then must see it. `who` asks: the id of a key."""
        known, change = await self._find(change_id)
        comparison, away = None, None
        if not change.whole:
            if change.active:
                await self._catch_up()
            try:
                comparison = await self._comparisons.of(change_id, who)
            except DatabaseUnavailable as error:
                away = str(error)
        return {"now": known, **self._told(change), "comparison": comparison, "databaseAway": away}

    async def create(self, fields: Mapping[str, Any], actor: Actor, *, check: bool = False) -> dict[str, Any]:
        """Make a change. It holds as a whole or not at all: here at once, on every replica within about a second. `check`: it is
        not made, only refused if it would be."""
        change = await self._read(read_body(NewChange, fields))
        warnings = self._warnings(change)
        made = await self._store.plan(change, actor, check=check)
        if isinstance(made, Hindered):
            await self._refuse(made, change)
        if not check:
            log.info("change made", **actor._asdict(), change=made.id, of=_of(made), set=dict(made.fields))
            await self._hold()
        return {**self._told(made), "warnings": warnings}

    async def alter(self, change_id: str, fields: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
        """Give a change another share of the tasks, or another end."""
        wanted = read_body(ChangeUpdate, fields)
        until_ms = (wanted.until or 0) if "until" in wanted.model_fields_set else None
        if wanted.rollout is None and until_ms is None:
            raise bad_request("say what becomes otherwise: rollout, until, or both")
        _, change = await self._find(change_id)
        if change.whole and wanted.rollout is not None:
            raise _no_share(change)
        return await self._alter(change, actor, wanted.rollout, until_ms)

    async def keep(self, change_id: str, actor: Actor) -> dict[str, Any]:
        """Let a change hold for all tasks, without an end."""
        _, change = await self._find(change_id)
        return await self._alter(change, actor, None if change.whole else WHOLE, 0)

    async def take_back(self, change_id: str, actor: Actor) -> dict[str, Any]:
        """End a change, whatever it was to be: what holds without it holds again. A second call makes no difference."""
        _, change = await self._find(change_id)
        return await self._altered(change, await self._store.take_back(change_id, actor), actor)

    async def _alter(
        self, change: PlannedChange, actor: Actor, rollout: int | None, until_ms: int | None
    ) -> dict[str, Any]:
        altered = await self._store.alter(change.id, actor, rollout=rollout, until_ms=until_ms)
        return await self._altered(change, altered, actor)

    async def _altered(
        self, before: PlannedChange, altered: PlannedChange | Hindered, actor: Actor
    ) -> dict[str, Any]:
        if isinstance(altered, Hindered):
            await self._refuse(altered, before)
        log.info(
            "change altered",
            **actor._asdict(),
            change=altered.id,
            state=altered.phase,
            rollout=altered.rollout,
            until=altered.until_ms or None,
        )
        await self._hold()
        return self._told(altered)

    async def _hold(self) -> None:
        """Let what was written hold here at once."""
        with contextlib.suppress(StoreError):  # the next sweep tells
            await self._known()

    async def _find(self, change_id: str) -> tuple[int, PlannedChange]:
        known = await self._known()
        for change in known.changes:
            if change.id == change_id:
                return known.now_ms, change
        raise _not_found(change_id)

    async def _read(self, asked: NewChange) -> PlannedChange:
        """The change that a body asks for. Raises ApiError(400, 404) with all that is wrong."""
        named: dict[Target, str | None] = {"route": asked.route, "model": asked.model, "queue": asked.queue}
        targets = [(kind, name) for kind, name in named.items() if name is not None]
        if len(targets) != 1:
            raise bad_request("say what is changed: exactly one of route, model and queue")
        (kind, name), settings = targets[0], self._current.settings
        change = PlannedChange(
            kind,
            name,
            dict(asked.set),
            tier=asked.tier or "",
            vision=bool(asked.vision),
            by_user=asked.by == "user",
            rollout=asked.rollout or WHOLE,
            note=asked.note or "",
            id=new_change_id(),
            at_ms=asked.at or 0,
            until_ms=asked.until or 0,
        )
        if kind != "route" and (asked.tier is not None or asked.vision is not None):
            raise bad_request("tier and vision are said of a route's tasks: leave them out", "tier")
        of_each = ROUTE_FIELDS if kind == "route" else MODEL_FIELDS if kind == "model" else ()
        if kind == "route" or not set(asked.set).isdisjoint(of_each):
            _check_names(kind, asked.set, of_each)
            if kind == "model":
                check_name(settings, "model", name)
            try:
                changed(settings, change)
            except Unfit as error:
                raise _unfit(error) from None
            return change
        scheduled: Kind = "queue" if kind == "queue" else "model"
        check_name(settings, scheduled, name)
        overrides = (await self._scheduler.effective(scheduled, name)).overrides
        values = read_change(settings, scheduled, name, asked.set, overrides)
        whole = replace(change, fields=values, whole=True, by_user=False, rollout=WHOLE)
        if asked.rollout is not None or asked.by is not None:
            raise _no_share(whole)
        return whole

    def _warnings(self, change: PlannedChange) -> list[str]:
        """What is allowed and may not do what was meant."""
        if change.whole:
            return []
        settings = self._current.settings
        before, after = set(notes(settings)), changed(settings, change)
        found = [note for note in notes(after) if note not in before]
        found += self._own_fallbacks(change, after)
        if change.kind == "model" and change.name not in settings.models:
            found.append(
                f"the model {change.name} is not configured: a worker has to offer it by this very name"
            )
        return found

    def _own_fallbacks(self, change: PlannedChange, after: Settings) -> list[str]:
        """Where a change moves a route to a model which is its only fallback: when that fails, nothing takes over any more."""
        if change.kind != "route" or "model" not in change.fields:
            return []
        rules = self._current.plans.varied(after, (change.name,)).routes.named[change.name].rules()
        alone = {rule.model for _, _, rule in rules if rule.fallbacks and set(rule.fallbacks) == {rule.model}}
        return [
            f"tasks of {change.name} on {model} have no other model to go on to: it is their only fallback. Say fallbacks, too"
            for model in sorted(alone & {change.fields["model"]})
        ]

    async def _refuse(self, hindered: Hindered, change: PlannedChange) -> NoReturn:
        """Raise the ApiError that says why."""
        match hindered.why:
            case "busy":
                what = "the same settings" if change.whole else "the tasks"
                raise ApiError(
                    409,
                    "CHANGE_CONFLICT",
                    f"The change {hindered.by} of {what} of {_of(change)} holds at that time: take it back first, let it end "
                    "before this one begins, or, if it is to stay, write it into the configuration and then take it back",
                )
            case "many":
                sentence = f"{hindered.by} changes wait or hold, and no more may: take back some"
                raise ApiError(409, "TOO_MANY_CHANGES", sentence)
            case "past":
                now = datetime.fromtimestamp(int(hindered.by) / 1000, UTC).isoformat(timespec="seconds")
                sentence = f"until must be later than now ({now}, by Redis's clock) and than the beginning"
                raise bad_request(sentence, "until")
            case "over":
                how = "has been taken back" if hindered.by == "taken_back" else "has ended"
                raise ApiError(409, "CHANGE_OVER", f"The change {change.id} {how}: make it anew")
            case _:
                raise _not_found(change.id)

    def _told(self, change: PlannedChange) -> dict[str, Any]:
        of_each = not change.whole
        return {
            "id": change.id,
            "kind": change.kind,
            "name": change.name,
            "tier": change.tier or None,
            "vision": change.vision,
            "set": dict(change.fields),
            "perTask": of_each,
            "rollout": change.rollout if of_each else None,
            "by": ("user" if change.by_user else "task") if of_each else None,
            "state": change.phase,
            "problem": self._current.unfit.get(change.id) if change.phase in LIVE else None,
            "note": change.note,
            "who": change.who,
            "madeAt": change.made_ms,
            "at": change.at_ms,
            "until": change.until_ms or None,
            "beganAt": change.began_ms or None,
            "endedAt": change.ended_ms or None,
        }


def _of(change: PlannedChange) -> str:
    return f"{change.kind} {change.name}"


def _check_names(kind: Target, fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    problems: dict[str, str] = {}
    whole = [*changeable("model"), PAUSED] if kind == "model" else []
    for name in fields:
        if name in whole:
            problems[name] = (
                f"{name} holds for the model as a whole, and others here for each task: make two changes"
            )
        elif name not in known:
            hint = suggestion(name, known) or f"; there are {', '.join(known)}"
            problems[name[:64]] = (
                f"{name[:64]!r} is nothing of a {kind} that can be changed while running{hint}"
            )
    if problems:
        refusal = bad_request("; ".join(problems.values()), "set")
        refusal.fields = problems
        raise refusal


def _no_share(change: PlannedChange) -> ApiError:
    sentence = (
        f"{', '.join(sorted(change.fields))} holds for the {change.kind} as a whole, and a share of its tasks has no meaning: "
        "leave rollout and by out"
    )
    return bad_request(sentence, "rollout")


def _unfit(error: Unfit) -> ApiError:
    refusal = bad_request(str(error), error.problems[0][0] or None if len(error.problems) == 1 else None)
    refusal.fields = {field or "set": sentence for field, sentence in error.problems}
    return refusal


def _not_found(change_id: str) -> ApiError:
    return ApiError(
        404,
        "CHANGE_NOT_FOUND",
        f"There is no change {change_id[:64]!r}; `fairlane changes` lists those that are known",
    )
