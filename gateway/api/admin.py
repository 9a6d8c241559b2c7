"""What an operator sees: queues, models, workers, counts and the most recent tasks, of all replicas together."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http import JSON, Request
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import TERMINAL, State

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

MOST_MODELS = 500
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
        raise gateway.store_unavailable() from None
    await request.respond(200, msgspec.json.encode(answer), [JSON, (b"cache-control", b"no-store")])


async def read_state(gateway: "Gateway", tasks: int) -> dict[str, Any]:
    """The answer of GET /api/admin/state. Raises StoreError."""
    command, keys = gateway.link.command, gateway.keys
    time_reply, models, replicas, pool, recent = await asyncio.gather(
        command("TIME"),
        command("ZREVRANGE", keys("models"), 0, MOST_MODELS - 1),
        command("ZRANGE", keys("replicas"), 0, -1, "WITHSCORES"),
        command("HGETALL", keys("pool")),
        command("ZREVRANGE", keys("recent"), 0, tasks - 1) if tasks else _nothing(),
    )
    now = int(time_reply[0]) * 1000 + int(time_reply[1]) // 1000
    alive = [name.decode() for name, expiry in _pairs(replicas) if float(expiry) > now]
    totals = _dict(pool)
    model_rows, queue_rows, workers, task_rows = await asyncio.gather(
        _models(gateway, [name.decode() for name in models]),
        _queues(gateway),
        _workers(gateway, alive),
        _tasks(gateway, [task.decode() for task in recent]),
    )
    offered: dict[str, list[int]] = {}
    for worker in workers:
        for model in worker["models"]:
            entry = offered.setdefault(model, [0, 0])
            entry[0] += 1
            entry[1] += worker["slots"]
    for row in model_rows:
        count, slots = offered.get(row["model"], [0, 0])
        any_count, any_slots = offered.get("*", [0, 0])
        row["workers"], row["slots"] = count + any_count, slots + any_slots
    running: dict[str, int] = {}
    for row in model_rows:
        for queue, number in row.pop("byQueue").items():
            running[queue] = running.get(queue, 0) + number
    for row in queue_rows:
        row["running"] = running.get(row["queue"], 0)
    return {
        "now": now,
        "queues": queue_rows,
        "models": model_rows,
        "workers": workers,
        "counts": {
            "queued": sum(row["waiting"] for row in queue_rows),
            "executing": sum(row["running"] for row in model_rows),
            **{
                ended.value: int(totals.get(ended.value, 0))
                for ended in (State.COMPLETED, State.FAILED, State.CANCELLED)
            },
            "queuedBytes": int(totals.get("bytes", 0)),
        },
        "tasks": task_rows,
        "replicas": [
            {"replica": name.decode(), "ageMs": max(int(15_000 - (float(expiry) - now)), 0)}
            for name, expiry in _pairs(replicas)
            if float(expiry) > now
        ],
    }


async def _models(gateway: "Gateway", names: list[str]) -> list[dict[str, Any]]:
    command, keys = gateway.link.command, gateway.keys
    queues = list(gateway.settings.queues)
    pending = [
        (
            name,
            command("HGETALL", keys("model", model=name)),
            command("ZRANGE", keys("slots", model=name), 0, -1),
        )
        for name in sorted({*names, *gateway.settings.models})
    ]
    rows = []
    for name, model_reply, slots_reply in pending:
        fields, held = _dict(await model_reply), await slots_reply
        by_queue: dict[str, int] = {}
        for reply in [command("HGET", keys("task", id=task.decode()), "q") for task in held[:1000]]:
            queue = await reply
            if queue:
                by_queue[queue.decode()] = by_queue.get(queue.decode(), 0) + 1
        rows.append(
            {
                "model": name,
                "running": len(held),
                "limit": int(float(fields.get("concurrency", 0))) or None,
                "waiting": sum(int(fields.get(f"n:{queue}", 0)) for queue in queues),
                "cost": fields.get("cost", gateway.settings.model(name).cost),
                "meanRunMs": int(float(fields.get("ms", 0))) or None,
                "byQueue": by_queue,
            }
        )
    return rows


async def _queues(gateway: "Gateway") -> list[dict[str, Any]]:
    settings = gateway.settings
    replies = [
        (name, gateway.link.command("HMGET", gateway.keys("queue", queue=name), "n", "weight"))
        for name in settings.queues
    ]
    rows = []
    for name, reply in replies:
        waiting, weight = await reply
        queue = settings.queues[name]
        rows.append(
            {
                "queue": name,
                "tier": queue.tier,
                "mode": queue.mode,
                "weight": float(weight or queue.weight),
                "waiting": int(waiting or 0),
                "maxLength": settings.queue_max_length(name),
                "maxWaitMs": settings.queue_max_wait_ms(name),
            }
        )
    return rows


async def read_workers(gateway: "Gateway") -> list[dict[str, Any]]:
    """The workers connected to any replica. Raises StoreError."""
    names = await gateway.link.command("ZRANGE", gateway.keys("replicas"), 0, -1)
    return await _workers(gateway, [name.decode() for name in names])


async def _workers(gateway: "Gateway", replicas: list[str]) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = []
    replies = [
        gateway.link.command("GET", gateway.keys("presence", replica=name))
        for name in replicas
        if name != gateway.replica
    ]
    for reply in replies:
        raw = await reply
        workers.extend(msgspec.json.decode(raw) if raw else [])
    return [*gateway.dispatcher.presence(), *workers]


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
        "model": fields.get("m"),
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


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    items = iter(flat)
    return list(zip(items, items, strict=True))


def _dict(flat: list[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _pairs(flat)}


async def _nothing() -> list[bytes]:
    return []
