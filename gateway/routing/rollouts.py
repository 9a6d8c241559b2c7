"""Changes of what is decided for each task: what they make of the settings, and which tasks they concern. Pure.

A route or a model has one such change at a time. A task takes part in one: that of the route (or model) which it names, else
that of the model which its route comes to. It is on the new side or on the old one, by a hash: the same wherever and however
often it is asked, for each change anew, and who is among ten percent is among fifty.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.routing.plans import Plan, Plans
from fairlane.gateway.settings import (
    ModelSettings,
    RouteRule,
    RouteSettings,
    RouteVariant,
    Settings,
    unusable_routes,
)
from fairlane.queues.changes import WHOLE, PlannedChange

Side = Literal["new", "old"]

ROUTE_FIELDS = (
    *("model", "mode", "stream", "template", "fallbacks", "fallback_after_ms"),
    *("timeout_ms", "max_wait_ms", "max_run_ms", "max_output_tokens", "repair"),
)
"""What of a route's rule can be changed. What it costs, and what counts as the same task, the configuration alone says."""
MODEL_FIELDS = ("fallbacks", "fallback_after_ms", "first_output_ms", "silence_ms")
"""What of a model is decided for each task."""
LIMITS = frozenset({"first_output_ms", "silence_ms"})
"""Those that the replica of the worker goes by."""


Part = TypeVar("Part", bound=BaseModel)


class Unfit(Exception):
    """A change that does not fit the settings: what is wrong, by field ('' = none)."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(sentence for _, sentence in problems))
        self.problems = problems


def in_share(change_id: str, subject: str, percent: int) -> bool:
    """Whether a subject, a task or a user, is among so many percent of a change."""
    digest = hashlib.blake2b(f"{change_id}\n{subject}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) * WHOLE < percent << 64


def changed(settings: Settings, change: PlannedChange) -> Settings:
    """The settings with a change of single tasks on top. Raises Unfit for what the configuration would not take, either."""
    if change.kind == "model":
        model = settings.model(change.name)
        said = {
            name: [] if value is None and name == "fallbacks" else value
            for name, value in change.fields.items()
        }
        model = _valid(ModelSettings, model.model_dump() | said)
        after = settings.model_copy(update={"models": {**settings.models, change.name: model}})
    else:
        route = settings.routes.get(change.name)
        if route is None:
            names = ", ".join(sorted(settings.routes)[:10]) or "none"
            raise Unfit([("route", f"there is no route {change.name[:64]!r}; there are: {names}")])
        route = _on_route(route, change, settings.tiers)
        after = settings.model_copy(update={"routes": {**settings.routes, change.name: route}})
    before = set(unusable_routes(_alone(settings, change)))
    if wrong := [
        ("", sentence) for sentence in unusable_routes(_alone(after, change)) if sentence not in before
    ]:
        raise Unfit(wrong)
    return after


def _alone(settings: Settings, change: PlannedChange) -> Settings:
    """The settings with no other route and model than the one that a change is of: of thousands the others are as they were, and
    none is looked at beside another one."""
    models, routes = {}, {}
    if change.kind == "model":
        models = {name: model for name in (change.name,) if (model := settings.models.get(name))}
    else:
        routes = {change.name: settings.routes[change.name]}
    return settings.model_copy(update={"models": models, "routes": routes})


def _on_route(route: RouteSettings, change: PlannedChange, tiers: Collection[str]) -> RouteSettings:
    """A route with a change on top of what it says: of all tiers, also where one of them says otherwise, or of one. What it says
    of requests with images stays, where the change is not of these."""
    if change.tier and change.tier not in tiers:
        known = ", ".join(sorted(tiers))
        raise Unfit([("tier", f"no queue has the tier {change.tier[:64]!r}; there are {known}")])
    checked = _valid(RouteRule, change.fields)
    fields = {name: getattr(checked, name) for name in change.fields}
    variant = (route.vision or RouteVariant()) if change.vision else route
    by_tier = dict(variant.tiers)
    said: dict[str, Any] = {"tiers": by_tier}
    if change.tier:
        by_tier[change.tier] = by_tier.get(change.tier, RouteRule()).model_copy(update=fields)
    else:
        said |= fields
        for tier, rule in by_tier.items():
            own = {name: value for name, value in fields.items() if getattr(rule, name) is not None}
            by_tier[tier] = rule.model_copy(update=own)
    if change.vision:
        return route.model_copy(update={"vision": variant.model_copy(update=said)})
    return route.model_copy(update=said)


def _seeing(settings: Settings, change: PlannedChange) -> Settings:
    """The settings, where a change of requests with images tells them from others, too."""
    route = settings.routes[change.name]
    if not change.vision or route.vision is not None:
        return settings
    route = route.model_copy(update={"vision": RouteVariant()})
    return settings.model_copy(update={"routes": {**settings.routes, change.name: route}})


def _valid(part: type[Part], said: Mapping[str, Any]) -> Part:
    try:
        return part.model_validate(said, strict=True)
    except ValidationError as error:
        raise Unfit([_problem(detail) for detail in error.errors(include_url=False)]) from None


def _problem(detail: Mapping[str, Any]) -> tuple[str, str]:
    message = str(detail["msg"]).removeprefix("Input ").removeprefix("Value error, ")
    return str(detail["loc"][0]), f"{detail['loc'][0]} {message}; got {repr(detail['input'])[:80]}"


class Rollout(NamedTuple):
    """An active change, as it concerns the tasks that name one route or model."""

    change: PlannedChange
    old: Plans
    new: Plans
    concerned: Collection[int] | None
    """Rules, by `id`, that hold on one side alone; None: all tasks of the model `change.name`."""

    def side(self, caller: Caller, subject: str, name: str) -> Side:
        """On which side a task is that names `name`. `subject`: what tells it from others; '' = no task, only what may be."""
        change = self.change
        if change.rollout >= WHOLE:
            return "new"
        if not subject:
            return "old"
        if change.by_user or self._is_named_later(caller, name):
            subject = f"user {caller.key_id} {caller.user}"
        return "new" if in_share(change.id, subject, change.rollout) else "old"

    def plan(
        self, caller: Caller, name: str, subject: str, now_ms: float, has_image: Callable[[], bool]
    ) -> Plan:
        """What a request comes to on its side, which the plan names where the change concerns it."""
        side = self.side(caller, subject, name)
        plan = (self.new if side == "new" else self.old).plan(caller, name, now_ms, has_image)
        plan = self._marked(plan, side)
        if plan.otherwise is not None:
            plan = plan._replace(otherwise=self._marked(plan.otherwise, side))
        return plan

    def _marked(self, plan: Plan, side: Side) -> Plan:
        concerns = self.concerned is None or plan.rule is None or id(plan.rule) in self.concerned
        if self.change.kind == "model":
            concerns = concerns and plan.model == self.change.name
        return plan._replace(change=f"{self.change.id} {side}") if concerns else plan

    def _is_named_later(self, caller: Caller, name: str) -> bool:
        """Whether what a task says may name it (`same_task_ms`), so that its id does not tell it from others."""
        route = self.old.routes.find(name)
        return route is not None and route.rule(caller.tier).same_task_ms > 0


class Rollouts:
    """What active changes make of the tasks that come now."""

    def __init__(
        self,
        by_name: Mapping[str, Rollout],
        base: Plans,
        settings: Settings,
        limited: Mapping[tuple[str, str], ModelSettings],
    ) -> None:
        self.by_name = by_name
        self.limited = limited
        """What holds instead for tasks of a model and on a side (`Plan.change`)."""
        self.base = base
        """Of tasks that no change concerns."""
        self.settings = settings
        """With what holds for all tasks of a model on top of what is configured: by these a worker's replica goes."""

    def plans_of(self, caller: Caller, name: str, subject: str) -> Plans:
        """By which plans a task goes that names a route or model."""
        rollout = self.by_name.get(name)
        if rollout is None:
            return self.base
        return rollout.new if rollout.side(caller, subject, name) == "new" else rollout.old

    def plan(
        self, caller: Caller, name: str, subject: str, now_ms: float, has_image: Callable[[], bool]
    ) -> Plan:
        """What a request of this caller for this name comes to now."""
        rollout = self.by_name.get(name)
        if rollout is None:
            return self.base.plan(caller, name, now_ms, has_image)
        return rollout.plan(caller, name, subject, now_ms, has_image)


def rollouts(
    settings: Settings, configured: Plans, changes: Iterable[PlannedChange]
) -> tuple[Rollouts | None, dict[str, str]]:
    """What active changes of single tasks make of a configuration, None: there are none; and those that do not fit it any more,
    by their ids, with what is wrong: they hold for nobody. Made once per change: a task only chooses.

    1. What holds for all tasks of a model is the ground on which the other changes stand.
    2. A route's own change concerns whoever names it.
    3. A model's change concerns who names the model, and the routes that come to it and have no change of their own.
    """
    active = [change for change in changes if change.active and not change.whole]
    if not active:
        return None, {}
    unfit: dict[str, str] = {}
    ground, fit = settings, []
    for change in active:  # 1.
        try:
            after = changed(settings, change)
        except Unfit as error:
            unfit[change.id] = str(error)
            continue
        fit.append(change)
        if change.kind == "model" and change.rollout >= WHOLE:
            models = {**ground.models, change.name: after.models[change.name]}
            ground = ground.model_copy(update={"models": models})
    if not fit:
        return None, unfit
    base = configured if ground is settings else configured.varied(ground)
    by_name: dict[str, Rollout] = {}
    limited: dict[tuple[str, str], ModelSettings] = {}
    for change in fit:  # 2.
        if change.kind == "route":
            only = (change.name,)
            seeing = _seeing(ground, change)
            old = base if seeing is ground else base.varied(seeing, only)
            new = base.varied(changed(ground, change), only)
            by_name[change.name] = Rollout(change, old, new, _differing(old, new, change.name))
    leading = _leading(base)
    for change in fit:  # 3.
        if change.kind == "model":
            names = [change.name, *leading.get(change.name, ())]
            free = [name for name in names if name not in by_name]
            whole = change.rollout >= WHOLE
            after = ground if whole else changed(ground, change)
            new = base if whole else base.varied(after, only=free)
            old = configured if whole else base
            limits = not LIMITS.isdisjoint(change.fields)
            if limits and not whole:  # else it is what holds for all
                limited[change.name, f"{change.id} new"] = after.models[change.name]
            for name in free:
                concerned = None if limits else _differing(old, new, name)
                by_name[name] = Rollout(change, old, new, concerned)
    return Rollouts(by_name, base, ground, limited), unfit


def _leading(plans: Plans) -> dict[str, list[str]]:
    """By model, the routes that come to it, for some tier."""
    found: dict[str, list[str]] = {}
    for name, route in plans.routes.named.items():
        for model in {rule.model for *_, rule in route.rules()}:
            found.setdefault(model, []).append(name)
    return found


def _differing(old: Plans, new: Plans, name: str) -> frozenset[int]:
    """The rules of a name that are others on the other side, by `id`: the plans keep them."""
    before, after = old.routes.find(name), new.routes.find(name)
    if before is None or after is None:
        return frozenset(
            id(rule) for side in (before, after) if side is not None for *_, rule in side.rules()
        )
    were = {(tier, image): rule for tier, image, rule in before.rules()}
    found: set[int] = set()
    for tier, image, rule in after.rules():
        was = were.get((tier, image)) or before.rule(tier)
        if rule != was:
            found |= {id(rule), id(was)}
    return frozenset(found)
