"""The settings of queues and models that can be changed at run time, and the validation of changes. Pure.

A change overrides the configured value in Redis and is validated like the file: the same names, the same ranges, the same
contradictions. Setting a value to null restores the configured one.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from fairlane.gateway.admin.bodies import invalid_fields, problems_in
from fairlane.gateway.core.spec import check_model_name
from fairlane.gateway.errors import ApiError
from fairlane.gateway.features import unmet
from fairlane.gateway.settings import ModelSettings, QueueSettings, Settings, external_name, suggestion
from fairlane.gateway.settings.parts import MODEL_SETTINGS
from fairlane.queues.keys import ANY_MODEL
from fairlane.queues.rules import Kind, Value, settings_of

Values = dict[str, Value]

PAUSED = "paused"
"""No task of a paused queue or model starts; running tasks continue. Not in the configuration, so that no gateway starts
paused."""

ENTRY: Mapping[Kind, type[BaseModel]] = {"queue": QueueSettings, "model": ModelSettings}


def changeable(kind: Kind) -> list[str]:
    """Return the settings that the scheduler uses and that can be configured; others are read at the start or on SIGHUP."""
    return [name for name in settings_of(kind) if name != PAUSED]


def configured(settings: Settings) -> tuple[dict[str, Values], dict[str, Values]]:
    """Return the configured settings of all queues and listed models, for `Scheduler.configure`. Queues without a maximum length
    or wait have the gateway's."""
    queues = {name: _of(queue, changeable("queue")) for name, queue in settings.queues.items()}
    for name, values in queues.items():
        values["max_length"] = settings.queue_max_length(name)
        values["max_wait_ms"] = settings.queue_max_wait_ms(name)
    models = {name: _of(model, changeable("model")) for name, model in settings.models.items()}
    return queues, models


def effective_values(kind: Kind, stored: Mapping[str, Value]) -> Values:
    """Return all values of a queue or model: the `stored` ones, and defaults."""
    defaults = {name: ENTRY[kind].model_fields[name].default for name in changeable(kind)}
    return {**defaults, PAUSED: False, **{name: value for name, value in stored.items() if value is not None}}


_FIRST_SENTENCE = re.compile(r".*?\.(?=\s|$)", re.DOTALL)


@functools.cache
def described(kind: Kind) -> dict[str, dict[str, Any]]:
    """Return the first sentence of each setting's description, its type, and its bounds (None: there is none)."""
    properties = ENTRY[kind].model_json_schema()["properties"]
    found = {}
    for name in map(external_name, changeable(kind)):
        schema = properties[name]
        form = schema["anyOf"][0] if "anyOf" in schema else schema
        sentence = _FIRST_SENTENCE.match(schema["description"])
        found[name] = {
            "help": " ".join((sentence[0] if sentence else schema["description"]).replace("`", "").split()),
            "type": form["type"],
            "minimum": form.get("minimum"),
            "maximum": form.get("maximum"),
            "choices": form.get("enum"),
        }
    return found


def _of(entry: BaseModel, names: Iterable[str]) -> Values:
    values: Values = {}
    for name in names:
        value = getattr(entry, name)
        values |= getattr(value, "scheduled", {name: value})  # several values, or one
    return values


def check_name(settings: Settings, kind: Kind, name: str) -> None:
    """Raise ApiError if there is no such queue, or the name of a model is invalid."""
    if kind == "model":
        if name != ANY_MODEL:  # the line of all models that are neither served nor configured
            check_model_name(name)
    elif name not in settings.queues:
        raise no_queue(settings, name)


def no_queue(settings: Settings, name: str) -> ApiError:
    known = ", ".join(settings.queues)
    return ApiError(404, "QUEUE_NOT_FOUND", f"There is no queue {name[:64]!r}; there are {known}")


def read_change(settings: Settings, kind: Kind, name: str, fields: Mapping[str, Any]) -> Values:
    """Return the values that a PATCH sets, as the scheduler takes them; None removes an override. Raise ApiError(400)."""
    known = {external_name(name): name for name in changeable(kind)}
    values = dict(fields)
    paused = values.pop(PAUSED, None)
    problems = {field[:64]: _unknown(kind, field) for field in values if field not in known}
    if paused is not None and not isinstance(paused, bool):
        problems[PAUSED] = f"paused should be true or false; got {paused!r:.80}"
    given_fields = {known[field]: value for field, value in values.items() if field in known}
    problems |= unmet(given_fields, f"{kind}s.*", settings.disabled_features)
    for field, value in values.items():
        if isinstance(value, dict) and field in known:
            problems[field] = f"{field} can be a mapping in the configuration only; here it is a number"
    entry = settings.queues[name] if kind == "queue" else settings.model(name)
    given = {field: value for field, value in values.items() if value is not None and field in known}
    valid: BaseModel = entry
    try:
        valid = ENTRY[kind].model_validate_json(
            msgspec.json.encode(entry.model_dump(mode="json") | given), strict=True
        )
    except ValidationError as error:
        problems |= problems_in(error, ENTRY[kind])
    if problems:
        raise invalid_fields(problems)
    read: Values = {
        known[field]: None if value is None else getattr(valid, known[field])
        for field, value in values.items()
    }
    return read | ({PAUSED: paused} if PAUSED in fields else {})


def _unknown(kind: Kind, field: str) -> str:
    if kind == "model" and field in MODEL_SETTINGS:
        return f"{field} is set with `fairlane override create model NAME {field}=VALUE` (POST /api/admin/overrides)"
    if field in map(external_name, ENTRY[kind].model_fields):
        return f"{field} can only be changed in the configuration"
    return f"{field[:64]!r} is no setting of a {kind}" + suggestion(
        field, map(external_name, settings_of(kind))
    )
