"""Generates the reference of settings."""

import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fairlane.gateway.features import FEATURES
from fairlane.gateway.settings.model import Settings
from fairlane.gateway.settings.parts import Rates, part_of
from fairlane.gateway.settings.sources import SEED_NAMES
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
Names are those of `fairlane.yaml`; a dot stands for one level. `fairlane config check` validates the file.

- **Durations** are a whole number and a unit: `500ms`, `30s`, `5m`, `12h`, `7d`. Only 0 needs no unit.
- **Sizes** have the unit `B`, `KiB`, `MiB` or `GiB`; a number without a unit is bytes.
- **Environment variables** set the same values: `FAIRLANE_TASK_TIMEOUT=90s`, `FAIRLANE_FILES__TTL=7d`. For `models`, `queues` and
  `upstreams` they name the entry: `FAIRLANE_QUEUES__FREE_BATCH__WEIGHT=2`. Only the file sets the other groups with names.
- **Variables without the prefix**, in parentheses, take a plain number in the unit of their name: `TASK_TIMEOUT_MS=90000`."""
_FEATURES = """\
`disabled_features: [batches, webhooks]` leaves features out: their scripts, calls and background work do not exist. Stored
data stays. Use the same value on all replicas, and change it while no task waits or runs. A key in the database that needs a
disabled feature is not valid, so that no limit is silently ignored."""
_NOT_SET = re.compile(r"Not set(?:, or 0)?: (.+?)\.(?=\s|$)")
"""The sentence of a description with the default."""

_MANY: dict[Any, str] = {dict: ".<name>", list: "[]"}

_MAX_TEXT = 100
"""Characters of a description's first sentences that the reference shows; the guides have the rest."""

_BEYOND_ANY_USE = 10_000_000
"""Ranges up to this and beyond only keep absurd values out, and are not worth showing."""


def settings_table() -> str:
    """Return the reference of all settings as Markdown: a section per group, with name, default and meaning."""
    lines = ["# Settings", "", _INTRODUCTION]
    for name, field in Settings.model_fields.items():
        if name == "tuning":
            continue
        if (model := part_of(field)) is not None:
            many = _MANY.get(get_origin(field.annotation), "")
            lines += _table_head(f"`{name}`", field.description)
            lines += [_row(f"`{name}{many}.{part}`", entry) for part, entry in _fields(model)]
        else:
            if name in _SECTIONS:
                lines += _table_head(_SECTIONS[name])
            seeds = ", ".join(f"`{variable}`" for variable, setting in SEED_NAMES.items() if setting == name)
            lines.append(_row(f"`{external_name(name)}`" + (f" ({seeds})" if seeds else ""), field))
    return "\n".join([*lines, *_feature_table()]) + "\n"


def _feature_table() -> list[str]:
    """Return the section of what `disabled_features` can name."""
    lines = [
        *("", "## Disabled features", "", _FEATURES, ""),
        *(
            "| feature | disable also | calls that answer 404 | settings that cannot be set |",
            "|---|---|---|---|",
        ),
    ]
    for feature in FEATURES:
        also = [other.name for other in FEATURES if feature.name in other.requires]
        settings = [
            external_name(name) for name in feature.settings if not name.startswith("routes.*.vision")
        ]
        cells = ([feature.name], also, feature.paths, [name for name in settings if ".tiers." not in name])
        lines.append(
            "| " + " | ".join(", ".join(f"`{name}`" for name in cell) or "-" for cell in cells) + " |"
        )
    return lines


def _table_head(title: str, text: str | None = None) -> list[str]:
    return [
        *("", f"## {title}", "", *([" ".join(text.split()), ""] if text else [])),
        *("| setting | default | what it does |", "|---|---|---|"),
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


def _row(name: str, field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    default = _default(field)
    if default == "not set" and (found := _NOT_SET.search(text)):
        default, text = found[1], text[: found.start()] + text[found.end() :]
    cells = (name, default, _beginning(" ".join(text.split())))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _beginning(text: str) -> str:
    """Return the first sentence of a text, and the next ones for which there is room."""
    shown, *rest = re.split(r"(?<=\.) (?=[A-Z0-9`])", text)
    for sentence in rest:
        if len(shown) + 1 + len(sentence) > _MAX_TEXT:
            break
        shown += f" {sentence}"
    return shown


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
