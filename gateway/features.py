"""The optional features of a gateway, in one list. Settings, routes, components and the Lua library leave out those that
`disabled_features` names.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from fairlane.queues.store.scripts import FEATURES as MODULES

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature, by the parts that only it needs."""

    name: str
    lua: Sequence[str] = ()
    """Its modules in `queues/lua/features`."""
    paths: Sequence[str] = ()
    """The beginnings of the paths of its calls, whole segments."""
    settings: Sequence[str] = ()
    """The settings that have no effect without it; `*` stands for any entry."""
    requires: Sequence[str] = ()
    """The features that it cannot work without; they are above it in the list."""
    routes: Sequence[str] = ()
    """Its modules in `gateway/` with routes, and the structs of their bodies: `ROUTES` of raw calls, `ROUTERS` of FastAPI's."""
    attaches: bool = False
    """Whether `gateway/NAME/feature.py` has a function `attach`, from a gateway to `Attached`."""


_RULES = tuple(
    f"routes.*.{rule}" for rule in ("", "tiers.*.", "vision.", "vision.tiers.*.")
)  # the places of a route's values

FEATURES = (
    Feature("idempotency", lua=["idempotency"], settings=[f"{rule}same_task_ms" for rule in _RULES]),
    Feature(
        "overrides",
        lua=["overrides"],
        paths=["/api/admin/overrides", "/api/admin/models", "/api/admin/queues"],
        routes=["overrides.routes"],
        attaches=True,
    ),
    Feature(
        "breakers", lua=["upstreams"], settings=["models.*.breaker_failures", "models.*.breaker_open_ms"]
    ),
    Feature(
        "pacing",
        lua=["pacing"],
        settings=[
            *("models.*.requests_per_minute", "models.*.tokens_per_minute", "models.*.windows"),
            "endpoints.*.windows",
        ],
    ),
    Feature(
        "limits",
        lua=["limits", "running"],
        settings=[
            *("keys.*.limits", "keys.*.user_limits"),
            *("models.*.max_running_per_user", "models.*.max_waiting_per_user"),
        ],
    ),
    Feature(
        "credits",
        lua=["credits"],
        paths=["/api/admin/balances"],
        settings=["keys.*.quota", "prices", *(f"{rule}price" for rule in _RULES)],
        requires=["limits"],
        routes=["credits.routes"],
        attaches=True,
    ),
    Feature("signed_tokens", lua=["tokens"], settings=["keys.*.signing"]),
    Feature(
        "fallbacks",
        lua=["fallback"],
        settings=["models.*.fallbacks", *(f"{rule}fallbacks" for rule in _RULES)],
    ),
    Feature("adaptive", lua=["adaptive"], settings=["models.*.concurrency.auto"]),
    Feature("archive", lua=["archive"], settings=["archive"], attaches=True),
    Feature("chains", lua=["chains"], settings=["chains"], requires=["limits", "credits"], attaches=True),
    Feature(
        "endpoints",
        paths=["/api/submitTask", "/api/queryTask", "/api/cancelTask", "/api/admin/endpoints"],
        settings=["endpoints"],
        requires=["archive"],
        routes=["endpoints.routes", "endpoints.queue_routes"],
        attaches=True,
    ),
    Feature(
        "permits",
        lua=["permits"],
        paths=["/api/permit"],
        requires=["endpoints"],
        routes=["permits.routes"],
        attaches=True,
    ),
    Feature(
        "responses", paths=["/v1/responses"], requires=["archive"], routes=["responses.routes"], attaches=True
    ),
    Feature("messages", paths=["/v1/messages"], routes=["messages.routes"]),
    Feature("media", paths=["/v1/audio", "/v1/images", "/v1/moderations"], routes=["media.routes"]),
    Feature("files", paths=["/v1/files"], routes=["files.routes"], attaches=True),
    Feature(
        "batches",
        paths=["/v1/batches", "/api/admin/batches"],
        requires=["files"],
        routes=["batches.routes"],
        attaches=True,
    ),
    Feature(
        "webhooks", paths=["/api/webhooks", "/api/admin/webhooks"], routes=["webhooks.routes"], attaches=True
    ),
)
"""Every feature. The order of Lua hooks is that of `queues/store/scripts.py`."""

BY_NAME: Mapping[str, Feature] = {feature.name: feature for feature in FEATURES}


def known_feature(name: str) -> None:
    """Raise ValueError, with the valid names, if no feature has this name."""
    if name not in BY_NAME:
        raise ValueError(f"should be the name of a feature: {', '.join(BY_NAME)}")


def lua_modules(disabled: Collection[str]) -> tuple[str, ...]:
    """Return the Lua modules of the other features, in the order of their hooks."""
    left_out = {module for name in disabled for module in BY_NAME[name].lua}
    return tuple(module for module in MODULES if module not in left_out)


def route_modules(disabled: Collection[str]) -> list[ModuleType]:
    """Return the modules with the routes of the other features."""
    return [
        import_module(f"fairlane.gateway.{module}")
        for feature in FEATURES
        if feature.name not in disabled
        for module in feature.routes
    ]


def feature_of_path(path: str, names: Collection[str]) -> str:
    """Return the one of these features that has a call at `path`; '' if none has."""
    for name in names:
        if f"{path}/".startswith(tuple(f"{begin}/" for begin in BY_NAME[name].paths)):
            return name
    return ""


def unmet(part: Mapping[str, Any], place: str, disabled: Collection[str]) -> dict[str, str]:
    """Return an error for each value of `part` that needs a disabled feature, by its name. `place`: `models.*`, `keys.*`, …"""
    return {
        name: f"{name} needs the feature {feature}, which is disabled"
        for feature in disabled
        for name in part
        if part[name] and f"{place}.{name}" in BY_NAME[feature].settings
    }


def needed_by_settings(settings: Any, disabled: Sequence[str]) -> Iterator[tuple[list[Place], str]]:
    """Yield the settings that need a disabled feature, and the features that require one, each with an error."""
    for name in disabled:
        for other in FEATURES:
            if name in other.requires and other.name not in disabled:
                yield (
                    [("disabled_features",)],
                    f"{other.name} requires {name}: disable {other.name}, too, or enable {name}",
                )
        for pattern in BY_NAME[name].settings:
            for place in places_set(settings, pattern.split(".")):
                yield [place], f"{place[-1]} needs the feature {name}, which disabled_features switches off"


def places_set(part: Any, pattern: Sequence[str]) -> Iterator[Place]:
    """Yield the places of settings that fit a pattern and differ from their defaults."""
    name, *rest = pattern
    if part is None or isinstance(part, int):  # a number instead of a group
        return
    if name == "*":
        for key, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from ((key, *place) for place in places_set(value, rest))
        return
    value, field = getattr(part, name), type(part).model_fields[name]
    if rest:
        yield from ((name, *place) for place in places_set(value, rest))
    elif value and value != field.get_default(call_default_factory=True):
        yield (name,)
