"""A configuration as single settings, each with its name, value and default. Pure."""

import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, get_origin

from pydantic import BaseModel

from fairlane.gateway.settings.docs import URLS, chain_text, template_text
from fairlane.gateway.settings.model import DEFAULT_QUEUES, Settings, hide_password
from fairlane.gateway.settings.parts import QueueSettings, part_of
from fairlane.gateway.settings.provenance import Loc
from fairlane.gateway.settings.units import external_name

SECRETS = frozenset({"stream_token_secret", "sha256", "signing_key"})
"""Settings that are only shown as set."""
SET = "(set)"
"""Shown instead of the value of a secret."""


class Leaf(NamedTuple):
    """One setting. `value` and `default` are JSON, without secrets."""

    loc: Loc
    name: str
    """`queues.paid_stream.weight`; an entry of a list goes by its id, one without an id by its number."""
    value: Any
    default: Any


def flatten(settings: Settings, only: Collection[str] = Settings.model_fields) -> Iterator[Leaf]:
    """Yield all settings, in the order of their reference, or those of the top-level ones in `only`. A template or chain is one
    setting, shown without its texts."""
    dumped, usual = settings.model_dump(mode="json", include=set(only)), defaults(Settings)
    for name, label, part, by_name in _shape(Settings):
        if label not in dumped:
            continue
        value = dumped[label]
        if name == "templates":
            for key, entry in settings.templates.items():
                yield Leaf((name, key), f"{name}.{key}", template_text(key, entry), None)
        elif name == "chains":
            for key, chain in settings.chains.items():
                yield Leaf((name, key), f"{name}.{key}", chain_text(chain), None)
        elif part is None:
            yield _leaf((name,), label, value, usual.get(label))
        elif isinstance(value, dict) and not by_name:
            yield from _within(part, value, defaults(part), (name,), label)
        elif isinstance(value, dict):
            for key, entry in value.items():
                usual = defaults(part)
                if part is QueueSettings and key in DEFAULT_QUEUES:
                    usual = DEFAULT_QUEUES[key].model_dump(mode="json")
                yield from _within(part, entry, usual, (name, key), f"{name}.{key}")
        else:
            for at, entry in enumerate(value):
                called = f"{name}.{entry['id']}" if "id" in entry else f"{name}[{at}]"
                yield from _within(part, entry, defaults(part), (name, at), called)


def _within(
    model: type[BaseModel], dumped: Mapping[str, Any], usual: Mapping[str, Any], loc: Loc, label: str
) -> Iterator[Leaf]:
    for name, written, part, by_name in _shape(model):
        if name == "id":  # it is in the label
            continue
        value, place, called = dumped[written], (*loc, name), f"{label}.{written}"
        if part is None or value is None:
            yield _leaf(place, called, value, usual.get(written))
        elif by_name:
            for key, entry in value.items():
                yield from _within(part, entry, defaults(part), (*place, key), f"{called}.{key}")
        else:
            yield from _within(part, value, usual.get(written) or defaults(part), place, called)


def _leaf(loc: Loc, name: str, value: Any, default: Any) -> Leaf:
    if loc[-1] in SECRETS:
        return Leaf(loc, name, SET if value else None, None)
    if loc[-1] == "set_headers" and value:
        value = dict.fromkeys(value, SET)
    if loc[-1] in URLS and value:
        value = hide_password(value)
    return Leaf(loc, name, value, default)


@functools.cache
def _shape(model: type[BaseModel]) -> list[tuple[str, str, type[BaseModel] | None, bool]]:
    """Return the fields of a group: name in code, name in files, the group that it holds, if any, and whether it holds many."""
    return [
        (name, external_name(name), part_of(field), get_origin(field.annotation) is dict)
        for name, field in model.model_fields.items()
    ]


@functools.cache
def defaults(model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the defaults of a group; required settings have none."""
    return model.model_construct().model_dump(mode="json", warnings=False)
