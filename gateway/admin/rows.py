"""Rows of the operator's view, made from a survey of the store and from tasks' records. Pure."""

from collections.abc import Mapping
from typing import Any

from msgspec import json, to_builtins
from pydantic.alias_generators import to_camel

from fairlane.gateway.admin.changes import effective_values
from fairlane.gateway.endpoints.endpoints import Endpoint, per_second
from fairlane.gateway.settings import QueueSettings, external
from fairlane.queues.chains import read_stage
from fairlane.queues.failures import category_of
from fairlane.queues.inspect.inspector import Model, Queue, ReplicaInfo
from fairlane.queues.rules import Kind
from fairlane.queues.tasks import TERMINAL, asked_model
from fairlane.queues.versions import Configuration
from fairlane.workers.server.hooks.congestion import ModelLimits

MAX_MODELS = 8
"""Models of a worker that its row names."""


def _row(kind: Kind, found: Queue | Model) -> dict[str, Any]:
    """Return a queue or model with its effective settings."""
    row = to_builtins(found)
    del row["settings"]
    settings = effective_values(kind, found.settings.values)
    shown = {to_camel(name): value for name, value in settings.items()}
    return {**shown, **row, "overrides": external(found.settings.overrides)}


def queue_row(configured: QueueSettings, queue: Queue) -> dict[str, Any]:
    """Return a queue as operators see it."""
    return _row("queue", queue) | {"tier": configured.tier, "mode": configured.mode}


def host_row(where: ReplicaInfo | None) -> dict[str, Any]:
    """Return what a replica reports about itself: nulls until it has reported."""
    shown = dict.fromkeys(ReplicaInfo.__struct_encode_fields__) if where is None else to_builtins(where)
    del shown["settingsHash"]
    return shown


def configuration_row(own: Configuration | None, effective: Configuration | None) -> dict[str, Any] | None:
    """Return a replica's configuration of queues and models; only the newest one is in effect. None if it is unknown."""
    if own is None or effective is None:
        return None
    return {"hash": own.hash, "modifiedAt": own.modified_ms, "effective": own.hash == effective.hash}


def limits_row(limits: ModelLimits) -> dict[str, Any]:
    """Return a model's time limits for output, as this replica applies them now, and the reason."""
    first, silence, reason, wait = limits.first_output_ms, limits.silence_ms, limits.reason, limits.wait_ms
    return {"firstOutputMs": first, "silenceMs": silence, "reason": reason, "waitMs": wait}


def line_row(endpoint: Endpoint, line: Model | None) -> dict[str, Any]:
    """Return the line of an endpoint with its effective values. `meanMs`: T, measured or guessed; `perSecond`: Q = C / T,
    or the rate of its narrowest limit. C is its concurrency; without one, the workers' slots."""
    measured = line.mean_run_ms if line else None
    mean_ms = measured or endpoint.mean_ms or None
    limit, windows = endpoint.concurrency or None, endpoint.windows
    if line:
        limit, windows = line.limit, str(effective_values("model", line.settings.values)["windows"] or "")
    slots = limit or (line.slots if line else 0)
    rate = per_second(slots, mean_ms, windows)
    return {
        "waiting": line.waiting if line else 0,
        "running": line.running if line else 0,
        "workers": line.workers if line else 0,
        "limit": limit,
        "windows": windows or None,
        "reason": _why(line) if line else None,
        "slots": slots,
        "meanMs": mean_ms,
        "measured": measured is not None,
        "perSecond": None if rate is None else round(rate, 3),
        "paused": line.paused if line else False,
    }


def _why(line: Model) -> str | None:
    """Return why no request of an endpoint can start now; None if one can."""
    if line.paused:
        return "paused"
    if line.unserved or (not line.workers and not line.running):
        return "no_worker"
    if line.upstreams and all(upstream.breaker == "open" for upstream in line.upstreams):
        return "breaker_open"
    if line.cooldown_until:
        return "cooldown"
    if line.next_start_at:
        return "throttled"
    return next((blocked.value for blocked in line.blocked.values()), None)


def endpoint_row(endpoint: Endpoint, line: Model) -> dict[str, Any]:
    """Return the additional fields of an endpoint's model."""
    about = line_row(endpoint, line)
    shown = {name: about[name] for name in ("meanMs", "measured", "perSecond")}
    return {"url": endpoint.pattern.text, "windows": about["windows"], **shown}


def model_row(
    model: Model, limits: ModelLimits | None = None, endpoint: Endpoint | None = None
) -> dict[str, Any]:
    """Return a model as operators see it. `limits`: of its silence, if it has any; `endpoint`: whose model it is, if one's."""
    row = _row("model", model)
    del row["concurrency"]
    return row | {
        "limit": model.limit,
        "unserved": model.unserved,
        "outputLimits": limits and limits_row(limits),
        "endpoint": endpoint and endpoint_row(endpoint, model),
    }


def task_row(task_id: str, fields: dict[str, str]) -> dict[str, Any]:
    """Return a task as lists show it, with the times of each attempt."""

    def number(field: str) -> int | None:
        return int(float(fields[field])) if fields.get(field) else None

    model = asked_model(fields) or None
    moves = listed(fields, "fallback_history")

    def model_at(instant: int | None) -> str | None:
        """The model that it asked for then."""
        return next((move["model"] for move in moves if instant is not None and move["at"] > instant), model)

    attempts = [
        {
            "workerId": attempt["worker"],
            "model": model_at(attempt["granted_at"]),
            "grantedAt": attempt["granted_at"],
            "endedAt": attempt["ended_at"],
            "outcome": attempt["why"],
        }
        for attempt in listed(fields, "history")
    ]
    if attempts and attempts[-1]["grantedAt"] == number(
        "granted_at"
    ):  # it is in the history, and there was no other
        attempts[-1]["firstOutputAt"] = number("first_output_at")
    elif fields.get("granted_at"):
        attempts.append(
            {
                "workerId": fields.get("worker", ""),
                "model": model_at(number("granted_at")),
                "grantedAt": number("granted_at"),
                "firstOutputAt": number("first_output_at"),
                "endedAt": number("ended_at"),
                "outcome": fields["state"] if fields["state"] in TERMINAL else None,
            }
        )
    return {
        "taskId": task_id,
        "status": fields["state"],
        "model": model,
        "requestedModel": fields.get("route") or None,
        "moves": [{"model": move["model"], "at": move["at"], "reason": move["why"]} for move in moves],
        "repaired": "redone" in fields,
        **_of_chain(fields),
        "queue": fields.get("queue"),
        "user": fields.get("user"),
        "key": fields.get("key_id") or None,
        "type": fields.get("type"),
        "code": fields.get("code") or None,
        "category": category_of(fields.get("code", "")) or None,
        "requestId": fields.get("request_id") or None,
        "enqueuedAt": number("enqueued_at"),
        "startedAt": number("granted_at"),
        "firstOutputAt": number("first_output_at"),
        "endedAt": number("ended_at"),
        "attempt": number("attempt"),
        "attempts": attempts,
    }


def listed(fields: Mapping[str, str], name: str) -> list[Any]:
    """Return a field of a task's record that is a list."""
    found: list[Any] = json.decode(fields.get(name, "[]"))
    return found


def _of_chain(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the stage of a chain that a task is in and since when, or the part of a stage that it is, and the chain's id."""
    if not fields.get("stage"):
        return dict.fromkeys(("stage", "stageIndex", "part", "chain", "stageAt"))
    (index, name), part = read_stage(fields["stage"])
    since = fields.get("stage_entered_at") or fields.get("enqueued_at")
    about = {
        "stage": name,
        "stageIndex": index,
        "part": part if part >= 0 else None,
        "chain": fields.get("chain"),
    }
    return about | {"stageAt": int(float(since)) if since else None}


def worker_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A worker with its first models: thousands of workers may offer 256 long names each."""
    shown = row["models"][:MAX_MODELS]
    info = {name: about for name, about in row.get("modelInfo", {}).items() if name in shown}
    return {**row, "models": shown, "moreModels": len(row["models"]) - len(shown), "modelInfo": info}
