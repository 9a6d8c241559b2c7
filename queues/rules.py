"""What can be set for queues and models, in the configuration and while running: names and kinds.

Whether a value makes sense is for the gateway's settings to say; here it is only carried.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fairlane.queues.versions import Configuration

Kind = Literal["queue", "model"]
Value = str | int | float | bool | None
"""None = not set."""

QUEUE_SETTINGS: Mapping[str, type[str] | type[int] | type[float] | type[bool]] = {
    "weight": float,
    "max_length": int,
    "max_wait_ms": int,
    "max_running": int,
    "reserved": int,
    "admission": str,
    "paused": bool,
}
MODEL_SETTINGS: Mapping[str, type[str] | type[int] | type[float] | type[bool]] = {
    "concurrency": int,
    "cost": str,
    "requests_per_minute": int,
    "tokens_per_minute": int,
    "windows": str,
    "max_running_per_user": int,
    "max_waiting_per_user": int,
    "breaker_failures": int,
    "breaker_open_ms": int,
    "paused": bool,
}


@dataclass(frozen=True, slots=True)
class EffectiveSettings:
    """What holds for a queue or model, and which of it was set while running."""

    values: dict[str, Value]
    overrides: dict[str, Value]


Overridden = Mapping[tuple[str, str], frozenset[str]]
"""The settings that overrides set, by kind and name of a queue or model."""


def overridden(overrides: Iterable[Mapping[str, Any]]) -> Overridden:
    """Return which settings these overrides set."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for override in overrides:
        place = override["target"], override["name"]
        found[place] = found.get(place, frozenset()) | set(override["settings"])
    return found


def effective(kind: Kind, name: str, held: Mapping[str, Value], changed: Overridden) -> EffectiveSettings:
    """Return what holds for a queue or model: `held` is in its hash."""
    values = {setting: value for setting, value in held.items() if setting in settings_of(kind)}
    return EffectiveSettings(values, {n: values[n] for n in changed.get((kind, name), ()) if n in values})


@dataclass(frozen=True, slots=True)
class ConfiguredSettings:
    """All that the configuration in effect says of queues and models, if there is one."""

    effective: Configuration | None
    configured: dict[tuple[Kind, str, str], Value]
    """By kind, name and setting."""


def read_configured(
    effective: Configuration | None, configured: Mapping[str, Mapping[str, Value]]
) -> ConfiguredSettings:
    """Return what the hash `configured` holds."""
    said: dict[tuple[Kind, str, str], Value] = {}
    for place, values in configured.items():
        kind: Kind = "queue" if place[0] == "q" else "model"
        said |= {(kind, place[2:], setting): value for setting, value in values.items()}
    return ConfiguredSettings(effective, said)


@dataclass(frozen=True, slots=True)
class Change:
    """What a change made of the settings that it named. `audit_id` is its entry in the audit record."""

    before: dict[str, Value]
    after: dict[str, Value]
    audit_id: str


def settings_of(kind: Kind) -> Mapping[str, type[str] | type[int] | type[float] | type[bool]]:
    """The settings of a kind, with their types."""
    return QUEUE_SETTINGS if kind == "queue" else MODEL_SETTINGS
