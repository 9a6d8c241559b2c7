"""Generates the reference of settings."""

import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fairlane.gateway.settings.model import Settings
from fairlane.gateway.settings.parts import Rates, part_of
from fairlane.gateway.settings.sources import NESTED, SEED_NAMES, SINGLE, env_name
from fairlane.gateway.settings.units import Amount, external_name, text_of

_SECTIONS = {
    "host": "Addresses and data",
    "task_timeout_ms": "Time limits",
    "max_queue_length": "Bounds",
    "task_result_ttl_ms": "Results and records",
    "structured_output": "Answers",
    "log_format": "Logs, traces and browsers",
}
"""The titles of sections, by their first setting."""
_INTRODUCTION = """\
Names are those of `fairlane.yaml`; a dot stands for a level of it. A variable sets the same value: `FAIRLANE_TASK_TIMEOUT=90s`.

- **Durations** are a whole number and a unit: `500ms`, `30s`, `5m`, `12h`, `7d`. A number without a unit is an error, except 0.
- **Sizes** have the units `B`, `KiB`, `MiB` and `GiB`; a number without a unit is bytes.
- **Variables without the prefix** `FAIRLANE_` take a plain number in the unit of their name: `TASK_TIMEOUT_MS=90000`,
  `STREAM_TTL_SECONDS=300`. An invalid value there is ignored with a warning."""
_NOT_SET = re.compile(r"Not set(?:, or 0)?: (.+?)\.(?=\s|$)")
"""The sentence of a description with the default."""

_MANY: dict[Any, str] = {dict: ".<name>", list: "[]"}

_BEYOND_ANY_USE = 10_000_000
"""Ranges up to this and beyond only keep absurd values out, and are not worth showing."""


def settings_table() -> str:
    """Return the reference of all settings as Markdown: a section per group, with name, variables, default and meaning."""
    lines = ["# All settings", "", _INTRODUCTION]
    for name, field in Settings.model_fields.items():
        if name == "tuning":
            continue
        if (model := part_of(field)) is not None:
            many = _MANY.get(get_origin(field.annotation), "")
            lines += _table_head(f"`{name}`", field.description)
            lines += [
                _row(f"{name}{many}.{part}", _nested_env(name, part), entry) for part, entry in _fields(model)
            ]
        else:
            if name in _SECTIONS:
                lines += _table_head(_SECTIONS[name])
            seeds = (variable for variable, setting in SEED_NAMES.items() if setting == name)
            variables = ", ".join(f"`{variable}`" for variable in (env_name(name), *seeds))
            lines.append(_row(external_name(name), variables, field))
    return "\n".join(lines) + "\n"


def _table_head(title: str, text: str | None = None) -> list[str]:
    return [
        *("", f"## {title}", "", *([" ".join(text.split()), ""] if text else [])),
        *("| setting | environment | default | what it does |", "|---|---|---|---|"),
    ]


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Return the fields of a group, and of each group within it, once."""
    fields: dict[str, FieldInfo] = {}
    shown: set[type[BaseModel]] = set()
    for name, field in model.model_fields.items():
        part = part_of(field)
        if part in (None, Rates) or part in shown or issubclass(model, part):
            fields[name] = field
        else:
            shown.add(part)
            fields |= {f"{name}.{inner}": entry for inner, entry in part.model_fields.items()}
    return [(external_name(name), field) for name, field in fields.items()]


def _nested_env(group: str, part: str) -> str:
    if group in SINGLE:
        return f"`{env_name(group)}__{part.upper()}`"
    if group in NESTED:
        return f"`{env_name(group)}__<NAME>__{part.upper()}`"
    return "-"


def _row(name: str, variables: str, field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    default = _default(field)
    if default == "not set" and (found := _NOT_SET.search(text)):
        default, text = found[1], text[: found.start()] + text[found.end() :]
    cells = (f"`{name}`", variables, default, " ".join(text.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined or value in (None, "") or isinstance(value, BaseModel):
        return "not set"
    annotated = [*field.metadata, *(part for one in get_args(field.annotation) for part in get_args(one))]
    if amount := next((entry for entry in annotated if isinstance(entry, Amount)), None):
        limits = f" ({amount.range})" if amount.most < _BEYOND_ANY_USE else ""
        return f"`{text_of(amount.unit, value)}`{limits}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | dict):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, int):
        ends = {
            side: getattr(one, side) for one in field.metadata for side in ("ge", "le") if hasattr(one, side)
        }
        own = len(ends) == 2 and ends["le"] < _BEYOND_ANY_USE
        return f"{value} ({ends['ge']} to {ends['le']})" if own else str(value)
    return (
        f"{value:g}" if isinstance(value, float) else f"`{value}`" if isinstance(value, str) else str(value)
    )
