"""What can be set for queues and models, in the configuration and while running: names, kinds, and their form in Redis.

Whether a value makes sense is for the gateway's settings to say; here it is only carried.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class ConfiguredSettings:
    """All that the configuration in effect says of queues and models, if there is one."""

    effective: Configuration | None
    configured: dict[tuple[Kind, str, str], Value]
    """By kind, name and setting."""


def read_field(field: str) -> tuple[Kind, str, str] | None:
    """Kind, name and setting of a field of `configured`; None for one that another release knows."""
    letter, _, rest = field.partition(":")
    name, _, setting = rest.rpartition(":")
    kind: Kind = "queue" if letter == "q" else "model"
    return (kind, name, setting) if setting in settings_of(kind) else None


def read_configured(effective: Configuration | None, configured: Mapping[str, str]) -> ConfiguredSettings:
    """What the hash `configured` holds."""
    said = {
        place: decode(place[0], place[2], text)
        for field, text in configured.items()
        if (place := read_field(field))
    }
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


def encode(kind: Kind, name: str, value: Value) -> str:
    """A value as Redis keeps it; '' = not set. KeyError for an unknown setting."""
    wanted = settings_of(kind)[name]
    if value is None:
        return ""
    return ("1" if value else "0") if wanted is bool else str(value)


def decode(kind: Kind, name: str, text: str | None) -> Value:
    """The value that Redis keeps as `text`."""
    if not text:
        return None
    wanted = settings_of(kind)[name]
    if wanted is bool:
        return text == "1"
    return wanted(text)


def fields_of(kind: Kind, name: str, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """The settings that are set, as (field, text): for `configure`."""
    for setting, value in values.items():
        if value is not None:
            yield f"{kind[0]}:{name}:{setting}", encode(kind, setting, value)
