"""What an operator sees: queues, models, workers, counts and the most recent tasks, of all replicas together."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http import JSON, NO_STORE, Request
from fairlane.gateway.overview import configuration_row, model_row, queue_row
from fairlane.queues.errors import StoreError
from fairlane.queues.survey import Whereabouts
from fairlane.queues.tasks import TERMINAL, State, asked_model

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

MOST_TASKS = 500
DEFAULT_TASKS = 50


async def state(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /api/admin/state?tasks=50."""
    text = request.query("tasks") or str(DEFAULT_TASKS)
    if len(text) > 3 or not text.isascii() or not text.isdigit() or int(text) > MOST_TASKS:
        raise bad_request(f"tasks must be a number from 0 to {MOST_TASKS}", "tasks")
    try:
        answer = await read_state(gateway, int(text))
    except StoreError:
        raise gateway.store_trouble() from None
    await request.respond(200, msgspec.json.encode(answer), [JSON, NO_STORE])


async def read_state(gateway: "Gateway", tasks: int) -> dict[str, Any]:
    """The answer of GET /api/admin/state. Raises StoreError. What it leaves out, `fairlane.queues.survey` says."""
    survey, task_rows = await asyncio.gather(gateway.surveyor.survey(), _recent_tasks(gateway, tasks))
    queues = gateway.settings.queues
    return {
        "now": survey.now_ms,
        "queues": [queue_row(queues[row.queue], row) for row in survey.queues if row.queue in queues],
        "models": [model_row(row) for row in survey.models],
        "workers": survey.workers,
        "counts": {
            "queued": sum(row.waiting for row in survey.queues),
            "executing": sum(row.running for row in survey.models),
            **survey.ended,
            "queuedBytes": survey.queued_bytes,
            "retainedBytes": survey.retained_bytes,
            "droppedEarly": survey.dropped,
        },
        "store": store_row(gateway),
        "tasks": task_rows,
        "replicas": [
            {
                "replica": name,
                "ageMs": max(15_000 - (end - survey.now_ms), 0),
                **host_row(survey.hosts.get(name)),
                "configuration": configuration_row(survey.configurations.get(name), survey.configuration),
            }
            for name, end in survey.replicas.items()
        ],
    }


def host_row(where: Whereabouts | None) -> dict[str, Any]:
    """Where a replica runs: null for one that has not told it yet."""
    if where is None:
        return {"host": None, "pid": None, "version": None, "startedAt": None}
    return {"host": where.host, "pid": where.pid, "version": where.version, "startedAt": where.started_at}


def store_row(gateway: "Gateway") -> dict[str, Any]:
    """What this replica sees of Redis: whether it is there and takes writes, else since when not (ms), and why."""
    refusals = gateway.link.refusals
    since, why = gateway.store.down_since, gateway.link.trouble
    if gateway.link.up:
        since, why = refusals.since, refusals.why
    return {
        "up": gateway.link.up,
        "refuses": gateway.store.refuses,
        "since": None if since is None else int(since * 1000),
        "why": None if since is None else why,
    }


async def read_workers(gateway: "Gateway") -> list[dict[str, Any]]:
    """The workers connected to any replica. Raises StoreError."""
    return await gateway.surveyor.workers()


async def _recent_tasks(gateway: "Gateway", count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    ids = await gateway.link.command("ZREVRANGE", gateway.keys("recent"), 0, count - 1)
    return await _tasks(gateway, [task.decode() for task in ids])


async def _tasks(gateway: "Gateway", ids: list[str]) -> list[dict[str, Any]]:
    replies = [(task, gateway.link.command("HGETALL", gateway.keys("task", id=task))) for task in ids]
    rows = []
    for task, reply in replies:
        fields = _dict(await reply)
        if fields.get("st") in {state.value for state in State}:
            rows.append(task_row(task, fields))
    return rows


def task_row(task_id: str, fields: dict[str, str]) -> dict[str, Any]:
    """A task as lists show it, with the times of each attempt."""

    def number(field: str) -> int | None:
        return int(float(fields[field])) if fields.get(field) else None

    attempts = []
    for entry in filter(None, fields.get("hi", "").split(";")):
        worker, granted, ended, why = entry.split("|", 3)
        attempts.append(
            {"workerId": worker, "grantedAt": int(granted), "endedAt": int(ended), "outcome": why}
        )
    if fields.get("ga"):
        attempts.append(
            {
                "workerId": fields.get("wk", ""),
                "grantedAt": number("ga"),
                "firstOutputAt": number("fo"),
                "endedAt": number("ed"),
                "outcome": fields["st"] if fields["st"] in TERMINAL else None,
            }
        )
    return {
        "taskId": task_id,
        "status": fields["st"],
        "model": asked_model(fields) or None,
        "queue": fields.get("q"),
        "user": fields.get("u"),
        "key": fields.get("k") or None,
        "type": fields.get("ty"),
        "code": fields.get("co") or None,
        "enqueuedAt": number("en"),
        "startedAt": number("ga"),
        "firstOutputAt": number("fo"),
        "endedAt": number("ed"),
        "attempt": number("at"),
        "attempts": attempts,
    }


def _dict(flat: list[bytes]) -> dict[str, str]:
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return {name.decode(): value.decode("utf-8", "replace") for name, value in pairs}
