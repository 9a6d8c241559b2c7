"""Shows settings, with secrets hidden, and generates their reference."""

import re
from collections.abc import Iterable
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fairlane.gateway.settings.chains import ChainSettings
from fairlane.gateway.settings.model import Settings, hide_password
from fairlane.gateway.settings.parts import Rates, part_of
from fairlane.gateway.settings.routing import TemplateSettings
from fairlane.gateway.settings.sources import NESTED, SEED_NAMES, SINGLE, env_name
from fairlane.gateway.settings.units import Amount, external_name, text_of

URLS = ("redis_url", "database_url", "otlp_endpoint")
"""Settings that are shown without user, password and query."""

_SECTIONS = {
    "Addresses and data": ("host", "port", "redis_url", "database_url", "data_dir", "processes"),
    "Time limits": (
        *(
            "task_timeout_ms",
            "min_task_timeout_ms",
            "max_task_timeout_ms",
            "worker_timeout_ms",
            "max_queue_wait_ms",
        ),
        *("no_worker_grace_ms", "drain_ms", "lease_ms"),
    ),
    "Bounds": (
        *("max_queue_length", "max_queued_bytes", "max_retained_bytes", "max_body_bytes", "max_output_bytes"),
        *("max_connections_per_address", "max_calls_per_caller", "http_worker_slots"),
    ),
    "Results and records": (
        *("task_result_ttl_ms", "idempotency_ttl_ms", "archive", "archive_ttl_ms", "usage_retention_days"),
        *("audit_retention_days", "budget_timezone"),
    ),
    "Answers": (
        *("structured_output", "hosted_tools", "stream_flush_interval_ms", "stream_flush_size"),
        *("stream_token_secret", "llm_debug", "environment"),
    ),
    "Logs, traces and browsers": (
        "log_format",
        "log_level",
        "otlp_endpoint",
        "cors_origins",
        "allowed_hosts",
    ),
    "Groups": (
        *("models", "queues", "routes", "templates", "chains", "prices", "keys", "workers", "upstreams"),
        *("endpoints", "responses", "webhooks", "files", "batches"),
    ),
}
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


def without_secrets(settings: Settings) -> dict[str, Any]:
    """Return settings as JSON, by the names of the file, without secrets."""
    shown = settings.model_dump(
        mode="json", exclude={kind: {"__all__": {"sha256", "signing_key"}} for kind in ("keys", "workers")}
    )
    return shown | {name: shown[name] and hide_password(shown[name]) for name in URLS}


def template_text(name: str, template: TemplateSettings) -> str:
    """Return a summary of a template, without its texts: they are long."""
    made = template.compiled(name)
    locales = f", locales {' '.join(made.locales)}" if made.locales else ""
    return f"version {made.version}{locales}, variables {' '.join(made.all_variables) or 'none'}"


def chain_text(chain: ChainSettings) -> str:
    """Return a summary of a chain: its stages."""
    return f"stages {' '.join(stage.name for stage in chain.stages)}"


def settings_table() -> str:
    """Return the reference of all settings as Markdown: a section per group, with name, variables, default and meaning."""
    seeds: dict[str, list[str]] = {}
    for seed in SEED_NAMES:
        seeds.setdefault(seed.setting, []).append(f"`{seed.variable}`")
    lines = ["# All settings", "", _INTRODUCTION]
    for title, names in _SECTIONS.items():
        rows: list[tuple[str, str, str, str]] = []
        for name in names:
            field = Settings.model_fields[name]
            if (model := part_of(field)) is not None:
                lines += _heading(f"`{name}`", field.description)
                many = _MANY.get(get_origin(field.annotation), "")
                lines += _table(
                    _row(f"{name}{many}.{part}", _nested_env(name, part), entry)
                    for part, entry in _fields(model)
                )
            else:
                variables = ", ".join([f"`{env_name(name)}`", *seeds.get(name, [])])
                rows.append(_row(external_name(name), variables, field))
        if rows:
            lines += [*_heading(title, None), *_table(rows)]
    return "\n".join(lines) + "\n"


def _heading(title: str, text: str | None) -> list[str]:
    return ["", f"## {title}", "", *([" ".join(text.split()), ""] if text else [])]


def _table(rows: Iterable[tuple[str, str, str, str]]) -> list[str]:
    lines = ["| setting | environment | default | what it does |", "|---|---|---|---|"]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


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


def _row(name: str, variables: str, field: FieldInfo) -> tuple[str, str, str, str]:
    text = " ".join((field.description or "").split())
    default = _default(field)
    if default == "not set" and (found := _NOT_SET.search(text)):
        default, text = found[1], text[: found.start()] + text[found.end() :]
    return f"`{name}`", variables, default, " ".join(text.split())


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
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}{_limits(field)}"
    return f"`{value}`" if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value == {} else str(value)


def _limits(field: FieldInfo) -> str:
    """` (0 to 250)`; ranges that only keep absurd values out are not worth showing."""
    bounds: dict[str, Any] = {}
    for constraint in field.metadata:
        for side in ("ge", "le"):
            if hasattr(constraint, side):
                bounds[side] = getattr(constraint, side)
    own = bounds.keys() == {"ge", "le"} and bounds["le"] < _BEYOND_ANY_USE
    return f" ({bounds['ge']} to {bounds['le']})" if own else ""
