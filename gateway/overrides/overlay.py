"""What overrides make of the settings that replicas apply, and which tasks a share of them concerns. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from fairlane.gateway.features import needed_by_settings, unmet
from fairlane.gateway.routing.plans import Plans
from fairlane.gateway.settings import ModelSettings, RouteSettings, Settings, suggestion, unusable_routes
from fairlane.gateway.settings.parts import MODEL_SETTINGS
from fairlane.queues.overrides import ALL, Override

ROUTE_SETTINGS = ("model", "mode", "stream", "template", "fallbacks", "timeout", "max_output_tokens")
"""What can be overridden of a route's rule. Only the configuration sets its price and `same_task`."""

Part = TypeVar("Part", bound=BaseModel)


class InvalidOverride(Exception):
    """An override that does not fit the settings: the problems, by setting ('' = none in particular)."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(sentence for _, sentence in problems))
        self.problems = problems


def in_percent(override_id: str, subject: str, percent: int) -> bool:
    """Return whether a subject is among this percentage of an override: a hash decides, so the answer is the same on every
    replica, and a subject among ten percent is among fifty."""
    digest = hashlib.blake2b(f"{override_id}\n{subject}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) * ALL < percent << 64


def overridden(settings: Settings, override: Override) -> Settings:
    """Return the settings with an override's values on top, as far as replicas apply them. Raise InvalidOverride for values that
    the configuration would not accept either."""
    name, disabled = override.name, settings.disabled_features
    if override.target == "model" and (wrong := unmet(override.values, "models.*", disabled)):
        raise InvalidOverride([*wrong.items()])
    if override.target == "route":
        route = settings.routes.get(name)
        if route is None:
            names = ", ".join(sorted(settings.routes)[:10]) or "none"
            raise InvalidOverride([("name", f"there is no route {name[:64]!r}; there are: {names}")])
        changed_route = _valid(RouteSettings, _changed(route, override.values, settings.tiers))
        after = settings.model_copy(update={"routes": {**settings.routes, name: changed_route}})
    else:
        changed = {field: override.values[field] for field in MODEL_SETTINGS if field in override.values}
        if override.target == "queue" or not changed:
            return settings
        if "fallbacks" in changed:
            changed["fallbacks"] = changed["fallbacks"] or []
        model = _valid(ModelSettings, settings.model(name).model_dump(mode="json") | changed)
        after = settings.model_copy(update={"models": {**settings.models, name: model}})
    if needed := [sentence for _, sentence in needed_by_settings(after, disabled)]:
        raise InvalidOverride([("", sentence) for sentence in needed])
    before = set(unusable_routes(settings))
    if new := [sentence for sentence in unusable_routes(after) if sentence not in before]:
        raise InvalidOverride([("", sentence) for sentence in new])
    return after


def _changed(route: RouteSettings, values: Mapping[str, Any], tiers: Collection[str]) -> dict[str, Any]:
    """Return a route's entry of the configuration with these values on top, by their dotted names."""
    entry = route.model_dump(mode="json", exclude_unset=True)
    problems = []
    for name, value in values.items():
        place, field = entry, name
        if field.startswith("vision."):
            place, field = _part(place, "vision"), field.removeprefix("vision.")
        if field.startswith("tiers."):
            tier, _, field = field.removeprefix("tiers.").rpartition(".")
            if tier not in tiers:
                known = ", ".join(sorted(tiers))
                problems.append((name[:64], f"no queue has the tier {tier[:64]!r}; there are {known}"))
            place = _part(_part(place, "tiers"), tier)
        if field not in ROUTE_SETTINGS:
            hint = suggestion(field, ROUTE_SETTINGS) or f"; there are {', '.join(ROUTE_SETTINGS)}"
            problems.append((name[:64], f"{name[:64]!r} of a route cannot be overridden{hint}"))
        place[field] = value
    if problems:
        raise InvalidOverride(problems)
    return entry


def _part(entry: dict[str, Any], name: str) -> dict[str, Any]:
    part: dict[str, Any] = entry.get(name) or {}
    entry[name] = part
    return part


def _valid(part: type[Part], changed: Mapping[str, Any]) -> Part:
    try:
        return part.model_validate_json(msgspec.json.encode(changed), strict=True)
    except ValidationError as error:
        raise InvalidOverride([_problem(detail) for detail in error.errors(include_url=False)]) from None


def _problem(detail: Mapping[str, Any]) -> tuple[str, str]:
    name = ".".join(map(str, detail["loc"]))
    message = str(detail["msg"]).removeprefix("Input ").removeprefix("Value error, ")
    return name, f"{name} {message}; got {repr(detail['input'])[:80]}"


class Share(NamedTuple):
    """An override of a share of a route's tasks, and the plans of these tasks."""

    override: Override
    plans: Plans


class Overlay(NamedTuple):
    """The settings with the overrides that hold now on top."""

    settings: Settings
    plans: Plans
    """Of all tasks except those of a share."""
    shares: Mapping[str, Share]
    """By the name of the route."""
    invalid: Mapping[str, str]
    """Overrides that do not fit the settings and are not applied, by id, with the reason."""

    def plans_of(self, name: str, subject: str) -> Plans:
        """Return the plans of a task that names a route or model. `subject` distinguishes it from others: its idempotency key or
        its id; '': no task, so no share concerns it."""
        share = self.shares.get(name)
        if share is None or not subject:
            return self.plans
        inside = in_percent(share.override.id, subject, share.override.percent)
        return share.plans if inside else self.plans


def overlay(settings: Settings, plans: Plans, overrides: Iterable[Override]) -> Overlay:
    """Lay overrides over settings and their plans; a later one wins, and those of a share of the tasks lie on top. Made once per
    change of an override: a task only looks up its plans."""
    base, shared, invalid = settings, list[tuple[Override, Settings]](), dict[str, str]()
    for override in sorted(overrides, key=lambda one: one.percent < ALL):
        try:
            after = overridden(base, override)
        except InvalidOverride as error:
            invalid[override.id] = str(error)
            continue
        if override.percent < ALL:
            shared.append((override, after))
        else:
            base = after
    if base is not settings:
        plans = plans.varied(base)
    shares = {one.name: Share(one, plans.varied(after, (one.name,))) for one, after in shared}
    return Overlay(base, plans, shares, invalid)
