"""What an operator sees: queues, models, workers, counts and the most recent tasks, of all replicas together."""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http import JSON, Request
from fairlane.gateway.overview import (
    MOST_MODELS,
    charged_by_queue,
    fields_of,
    model_row,
    overrides_of,
    queue_row,
    waiting_by_queue,
)
from fairlane.queues.errors import StoreError
from fairlane.queues.rules import Kind
from fairlane.queues.tasks import TERMINAL, State

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

MOST_RUNNING = 2000
MOST_HEADS = 500
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
    """The answer of GET /api/admin/state. Raises StoreError.

    The number of commands is bounded: with more running tasks than MOST_RUNNING, `running` of queues is extrapolated, and with
    more waiting users than MOST_HEADS, `oldestWaitMs` is that of the users whose turn is next.
    """
    command, keys = gateway.link.command, gateway.keys
    time_reply, models, replicas, pool, changed, recent = await asyncio.gather(
        command("TIME"),
        command("ZREVRANGE", keys("models"), 0, MOST_MODELS - 1),
        command("ZRANGE", keys("replicas"), 0, -1, "WITHSCORES"),
        command("HGETALL", keys("pool")),
        command("HGETALL", keys("overrides")),
        command("ZREVRANGE", keys("recent"), 0, tasks - 1) if tasks else _nothing(),
    )
    now = int(time_reply[0]) * 1000 + int(time_reply[1]) // 1000
    alive = [name.decode() for name, expiry in _pairs(replicas) if float(expiry) > now]
    totals, overrides = fields_of(pool), overrides_of(fields_of(changed))
    known = sorted({*(name.decode() for name in models), *gateway.settings.models})
    queue_hashes, model_hashes, slots, workers, task_rows = await asyncio.gather(
        _hashes(gateway, "queue", list(gateway.settings.queues)),
        _hashes(gateway, "model", known),
        _slots(gateway, known),
        _workers(gateway, alive),
        _tasks(gateway, [task.decode() for task in recent]),
    )
    running, oldest = await asyncio.gather(
        _running_by_queue(gateway, slots), _oldest_waits(gateway, model_hashes, now)
    )
    charged = charged_by_queue(model_hashes.values())
    shares = gateway.shares.since(charged)
    tokens = charged_by_queue(model_hashes.values(), tokens_only=True)
    queue_rows = [
        queue_row(name, gateway.settings.queues[name], fields, overrides.get(("queue", name), {}))
        | {
            "running": running.get(name, 0),
            "oldestWaitMs": oldest.get(name),
            "share": shares.get(name, 0.0) if shares else None,
            "tokensCharged": int(tokens.get(name, 0)),
        }
        for name, fields in queue_hashes.items()
    ]
    model_rows = [
        model_row(name, fields, len(slots[name]), now, overrides.get(("model", name), {}))
        for name, fields in model_hashes.items()
    ]
    offered: dict[str, list[int]] = {}
    for worker in workers:
        for model in worker["models"]:
            entry = offered.setdefault(model, [0, 0])
            entry[0] += 1
            entry[1] += worker["slots"]
    any_count, any_slots = offered.get("*", [0, 0])
    for row in model_rows:
        count, number = offered.get(row["model"], [0, 0])
        row["workers"], row["slots"] = count + any_count, number + any_slots
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


async def _hashes(gateway: "Gateway", kind: Kind, names: list[str]) -> dict[str, dict[str, str]]:
    keys = gateway.keys
    replies = [
        (
            name,
            gateway.link.command(
                "HGETALL", keys("queue", queue=name) if kind == "queue" else keys("model", model=name)
            ),
        )
        for name in names
    ]
    return {name: fields_of(await reply) for name, reply in replies}


async def _slots(gateway: "Gateway", models: list[str]) -> dict[str, list[bytes]]:
    """The tasks that hold a slot of each model."""
    replies = [
        (name, gateway.link.command("ZRANGE", gateway.keys("slots", model=name), 0, -1)) for name in models
    ]
    return {name: await reply for name, reply in replies}


async def _running_by_queue(gateway: "Gateway", slots: dict[str, list[bytes]]) -> dict[str, int]:
    """How many running tasks each queue has, from the records of at most MOST_RUNNING of them."""
    tasks = [task for held in slots.values() for task in held]
    looked_at = tasks[:: max(-(-len(tasks) // MOST_RUNNING), 1)]
    counts: dict[str, int] = {}
    for reply in [
        gateway.link.command("HGET", gateway.keys("task", id=task.decode()), "q") for task in looked_at
    ]:
        queue = await reply
        if queue:
            counts[queue.decode()] = counts.get(queue.decode(), 0) + 1
    scale = len(tasks) / len(looked_at) if looked_at else 1
    return {queue: round(count * scale) for queue, count in counts.items()}


async def _oldest_waits(gateway: "Gateway", models: dict[str, dict[str, str]], now: int) -> dict[str, int]:
    """How long the task has waited that waits longest in each queue, in ms: the first of each user's tasks is looked at."""
    command, keys = gateway.link.command, gateway.keys
    lanes = [
        (queue, model)
        for model, fields in models.items()
        for queue, waiting in waiting_by_queue(fields).items()
        if waiting > 0
    ]
    share = max(MOST_HEADS // max(len(lanes), 1), 1)
    lines = [
        (queue, model, command("ZRANGE", keys(line, queue=queue, model=model), 0, share - 1))
        for queue, model in lanes[:MOST_HEADS]
        for line in ("flows", "parked")
    ]
    heads = [
        (queue, command("ZRANGE", keys("flow", queue=queue, model=model, user=user.decode()), 0, 0))
        for queue, model, reply in lines
        for user in await reply
    ]
    records = [
        (queue, command("HGET", keys("task", id=task.decode()), "en"))
        for queue, reply in heads
        for task in await reply
    ]
    oldest: dict[str, int] = {}
    for queue, reply in records:
        if (enqueued := await reply) is not None:
            oldest[queue] = max(oldest.get(queue, 0), now - int(enqueued))
    return oldest


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
        fields = fields_of(await reply)
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


async def _nothing() -> list[bytes]:
    return []
