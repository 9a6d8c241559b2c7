"""What an operator does with single tasks: finds them, looks at one, cancels it."""

import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fairlane.gateway.api.admin import task_row
from fairlane.gateway.api.native import now_ms, read_record
from fairlane.gateway.audit import cancel_as_admin
from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http import JSON, NO_STORE, Request
from fairlane.queues.errors import StoreError
from fairlane.queues.ids import could_be_ours
from fairlane.queues.tasks import State

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

FILTERS = {"state": "st", "user": "u", "queue": "q", "model": "m", "worker": "wk", "code": "co"}
"""Parameters of a search, and the fields of a task's record that must equal them."""
STATES = frozenset(state.value for state in State)
DEFAULT_FOUND = 50
MOST_FOUND = 200
LOOK_AT = 250
MOST_CALLS = 40
"""A search looks at LOOK_AT tasks at a time, so that the store answers others between, and goes through all that are kept."""
MAX_VALUE = 256


async def search(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /api/admin/tasks?state=&user=&queue=&model=&worker=&code=&after=<task id>&limit=50: newest first.

    With `state=executing` every task that runs, else among the last 10,000 that were submitted. `next` is the `after` that goes
    on, null at the end.
    """
    wanted = {}
    for name, field in FILTERS.items():
        value = request.query(name)
        if value:
            if len(value) > MAX_VALUE:
                raise bad_request(f"{name} may have at most {MAX_VALUE} characters", name)
            wanted[field] = value
    if wanted.get("st", State.QUEUED) not in STATES:
        raise bad_request(f"state must be one of {', '.join(State)}", "state")
    after = request.query("after") or ""
    if after and not could_be_ours(after, now_ms()):
        raise bad_request("after must be the id of a task", "after")
    limit = _limit(request)
    source: Literal["running", "recent"] = "running" if wanted.get("st") == State.EXECUTING else "recent"
    rows: list[dict[str, Any]] = []
    try:
        for _ in range(MOST_CALLS):
            found, after = await gateway.scheduler.search(
                source, wanted, after=after, most=limit - len(rows), look_at=LOOK_AT
            )
            rows += [task_row(task_id, fields) for task_id, fields in found if fields.get("st") in STATES]
            if not after or len(rows) >= limit:
                break
    except StoreError:
        raise gateway.store_trouble() from None
    answer = {"now": now_ms(), "tasks": rows, "next": after or None}
    await request.respond(200, msgspec.json.encode(answer), [JSON, NO_STORE])


def _limit(request: Request) -> int:
    text = request.query("limit") or str(DEFAULT_FOUND)
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= MOST_FOUND:
        raise bad_request(f"limit must be a number from 1 to {MOST_FOUND}", "limit")
    return int(text)


async def detail(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /api/admin/tasks/{taskId}: everything but its payload and output. `streamUrl` is a link to its events."""
    task_id = request.path_params["task_id"]
    record = await read_record(gateway, task_id)
    fields = record.fields

    def number(field: str) -> int | None:
        return record.number(field) if fields.get(field) else None

    answer = task_row(task_id, fields) | {
        "now": record.now_ms,
        "priority": record.number("pr"),
        "tries": record.number("tr"),
        "stream": fields.get("sf") == "1",
        "waited": fields.get("wt") == "1",
        "estimatedInputTokens": number("ei"),
        "maxOutputTokens": number("mo"),
        "payloadBytes": number("pb"),
        "waitDeadlineAt": number("wd"),
        "deadlineAt": number("dl"),
        "attemptDeadlineAt": number("xd"),
        "keptForMs": number("tl"),
        "events": record.number("sq"),
        "streamUrl": gateway.stream_url(task_id),
        "metadata": msgspec.Raw(fields["md"].encode()) if fields.get("md") else None,
    }
    if record.state is State.QUEUED:
        place = record.place
        answer |= {
            "position": max(place.position, 1),
            "estimatedWaitMs": place.wait_ms,
            "estimatedWaitLowMs": place.low_ms,
            "estimatedWaitHighMs": place.high_ms,
        }
    await request.respond(200, msgspec.json.encode(answer), [JSON, NO_STORE])


async def cancel(gateway: "Gateway", caller: Caller, request: Request) -> None:
    """POST /api/admin/tasks/{taskId}/cancel: whoever's it is; also fine when it has ended. Written to the audit record."""
    task_id = request.path_params["task_id"]
    state = await cancel_as_admin(gateway, caller, task_id, await read_record(gateway, task_id))
    body = msgspec.json.encode({"taskId": task_id, "status": state})
    await request.respond(200, body, [JSON, (b"x-task-id", task_id.encode())])
