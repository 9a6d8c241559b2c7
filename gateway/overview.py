"""Rows of the operator's view, made from what Redis keeps of queues and models. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlane.gateway.limits import in_force
from fairlane.gateway.settings import QueueSettings
from fairlane.queues.rules import Kind, Value, decode, settings_of

Fields = Mapping[str, str]
"""A hash of Redis."""

MOST_MODELS = 500
"""Models that are looked at, the most recently used first."""


def fields_of(flat: Sequence[bytes]) -> dict[str, str]:
    """The reply to HGETALL."""
    return {
        name.decode(): value.decode("utf-8", "replace")
        for name, value in zip(flat[::2], flat[1::2], strict=True)
    }


def number(fields: Fields, field: str) -> float:
    """A numeric field; 0 when absent."""
    return float(fields.get(field) or 0)


def held(kind: Kind, fields: Fields) -> dict[str, Value]:
    """The settings that a queue's or model's hash holds."""
    return in_force(kind, {name: decode(kind, name, fields.get(name)) for name in settings_of(kind)})


def overrides_of(changed: Fields) -> dict[tuple[Kind, str], dict[str, Value]]:
    """The changes made while running, by queue and model. `changed` as in keys.KEYS, overrides."""
    found: dict[tuple[Kind, str], dict[str, Value]] = {}
    for field, text in changed.items():
        letter, _, rest = field.partition(":")
        name, _, setting = rest.rpartition(":")
        kind: Kind = "queue" if letter == "q" else "model"
        if setting in settings_of(kind):
            found.setdefault((kind, name), {})[setting] = decode(kind, setting, text)
    return found


def queue_row(
    name: str, queue: QueueSettings, fields: Fields, overrides: Mapping[str, Value]
) -> dict[str, Any]:
    """A queue without what must be counted elsewhere. `fields` as in keys.QUEUE."""
    settings = held("queue", fields)
    return {
        "queue": name,
        "tier": queue.tier,
        "mode": queue.mode,
        "weight": settings["weight"],
        "waiting": int(number(fields, "n")),
        "maxLength": settings["max_length"],
        "maxWaitMs": settings["max_wait_ms"],
        "maxRunning": settings["max_running"],
        "reserved": settings["reserved"],
        "lendable": settings["lendable"],
        "borrow": settings["borrow"],
        "admission": settings["admission"],
        "paused": settings["paused"],
        "overrides": dict(overrides),
    }


def model_row(
    name: str, fields: Fields, running: int, now_ms: float, overrides: Mapping[str, Value]
) -> dict[str, Any]:
    """A model without its workers. `fields` as in keys.MODEL."""
    settings = held("model", fields)
    held_until = number(fields, "held")
    return {
        "model": name,
        "running": running,
        "limit": settings["concurrency"],
        "waiting": sum(waiting_by_queue(fields).values()),
        "cost": settings["cost"],
        "requestsPerMinute": settings["requests_per_minute"],
        "tokensPerMinute": settings["tokens_per_minute"],
        "maxRunningPerUser": settings["max_running_per_user"],
        "maxWaitingPerUser": settings["max_waiting_per_user"],
        "paused": settings["paused"],
        "heldUntil": math.ceil(held_until) if held_until > now_ms else None,
        "nextStartAt": _next_start(settings, fields, now_ms),
        "meanRunMs": int(number(fields, "ms")) or None,
        "overrides": dict(overrides),
    }


def _next_start(settings: Mapping[str, Value], fields: Fields, now_ms: float) -> int | None:
    """The instant until which a pace lets no task begin; None when one may begin now."""
    instants = [
        number(fields, field) / 1000
        for field, pace in (("tat", "requests_per_minute"), ("ttat", "tokens_per_minute"))
        if settings[pace]
    ]
    latest = max(instants, default=0.0)
    return math.ceil(latest) if latest > now_ms else None


def waiting_by_queue(fields: Fields) -> dict[str, int]:
    """How many tasks of a model wait in each queue."""
    return {name[2:]: int(float(count)) for name, count in fields.items() if name.startswith("n:")}


def charged_by_queue(models: Iterable[Fields], *, tokens_only: bool = False) -> dict[str, float]:
    """The cost that each queue was charged so far, over models; of those that count tokens only, where wanted."""
    total: dict[str, float] = {}
    for fields in models:
        if tokens_only and fields.get("cost", "tokens") != "tokens":
            continue
        for name, thousandths in fields.items():
            if name.startswith("c:"):
                total[name[2:]] = total.get(name[2:], 0.0) + float(thousandths) / 1000
    return total
