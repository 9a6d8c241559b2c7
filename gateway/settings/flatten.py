"""A configuration as single settings, each with its name, value and default. Pure."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from fairlane.gateway.chains.settings import ChainSettings
from fairlane.gateway.settings.model import DEFAULT_QUEUES, Settings, hide_password
from fairlane.gateway.settings.parts import QueueSettings, part_of
from fairlane.gateway.settings.provenance import Loc
from fairlane.gateway.settings.routing import TemplateSettings
from fairlane.gateway.settings.units import external_name

SECRETS = frozenset({"stream_token_secret", "sha256", "signing_key"})
"""Settings that are only shown as set."""
URLS = frozenset({"redis_url", "database_url", "otlp_endpoint"})
"""Settings that are shown without user, password and query."""
SET = "(set)"
"""Shown instead of the value of a secret."""


class Leaf(NamedTuple):
    """One setting. `value` and `default` are JSON, without secrets."""

    loc: Loc
    name: str
    """`queues.paid_stream.weight`; an entry of a list goes by its id, one without an id by its number."""
    value: Any
    default: Any


def flatten(settings: Settings) -> Iterator[Leaf]:
    """Yield all settings, in the order of their reference. A template or chain is one setting, shown without its texts."""
    return _within(settings, settings.model_dump(mode="json"), defaults(Settings), (), "")


def _within(
    group: BaseModel, dumped: Mapping[str, Any], usual: Mapping[str, Any], loc: Loc, prefix: str
) -> Iterator[Leaf]:
    for name, field in type(group).model_fields.items():
        written = external_name(name)
        place, label, value, shown = (*loc, name), prefix + written, getattr(group, name), dumped[written]
        if name == "id":  # it is in the label
            continue
        if part_of(field) is None or value is None:
            yield Leaf(place, label, *_without_secrets(name, shown, usual.get(written)))
        elif isinstance(value, dict):
            for key, entry in value.items():
                yield from _entry(entry, shown[key], (*place, key), f"{label}.{key}")
        elif isinstance(value, list):
            for at, entry in enumerate(value):
                yield from _entry(entry, shown[at], (*place, at), _label(label, at, entry))
        elif isinstance(value, BaseModel):
            yield from _within(value, shown, usual.get(written) or defaults(type(value)), place, f"{label}.")


def _entry(entry: BaseModel, dumped: Mapping[str, Any], loc: Loc, label: str) -> Iterator[Leaf]:
    if isinstance(entry, TemplateSettings):
        made = entry.compiled(str(loc[-1]))
        locales = f", locales {' '.join(made.locales)}" if made.locales else ""
        variables = " ".join(made.all_variables) or "none"
        yield Leaf(loc, label, f"version {made.version}{locales}, variables {variables}", None)
    elif isinstance(entry, ChainSettings):
        yield Leaf(loc, label, f"stages {' '.join(stage.name for stage in entry.stages)}", None)
    else:
        known = DEFAULT_QUEUES.get(str(loc[-1])) if isinstance(entry, QueueSettings) else None
        usual = known.model_dump(mode="json") if known else defaults(type(entry))
        yield from _within(entry, dumped, usual, loc, f"{label}.")


def _label(name: str, at: int, entry: Any) -> str:
    return f"{name}.{entry.id}" if hasattr(entry, "id") else f"{name}[{at}]"


def _without_secrets(name: str, value: Any, default: Any) -> tuple[Any, Any]:
    if name in SECRETS:
        return SET if value else None, None
    if name == "set_headers":
        return dict.fromkeys(value, SET), default
    return hide_password(value) if name in URLS and value else value, default


@functools.cache
def defaults(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the defaults of a group; required settings have none."""
    return model.model_construct().model_dump(mode="json", warnings=False)
