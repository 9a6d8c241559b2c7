"""What an operator changes while the gateways run, and the record of it: limits, weights, pause and resume."""

import re
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from fairlane.gateway.audit import NOBODY
from fairlane.gateway.bodies import parse_values
from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import bad_request
from fairlane.gateway.http import JSON, NO_STORE, Request
from fairlane.gateway.limits import check_name, in_force, no_queue, read_change
from fairlane.queues.errors import StoreError
from fairlane.queues.rules import Kind, decode, settings_of

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

log = structlog.get_logger("fairlane.audit")

MAX_BODY_BYTES = 16 * 1024
DEFAULT_ENTRIES = 100
MOST_ENTRIES = 1000
_ENTRY_ID = re.compile(r"[1-9][0-9]{0,15}-[0-9]{1,15}")


async def change_queue(gateway: "Gateway", caller: Caller, request: Request) -> None:
    """PATCH /api/admin/queues/{name}."""
    await _change(gateway, caller, request, "queue")


async def change_model(gateway: "Gateway", caller: Caller, request: Request) -> None:
    """PATCH /api/admin/models/{name}."""
    await _change(gateway, caller, request, "model")


async def _change(gateway: "Gateway", caller: Caller, request: Request, kind: Kind) -> None:
    """Change what the body names, all or nothing; it holds from the next decision on, on every replica.

    A reply of the store that is lost leaves the caller with a 503 and the change perhaps made: the same call again makes it, or
    makes no difference.
    """
    name = request.path_params["name"]
    settings, scheduler = gateway.settings, gateway.scheduler
    check_name(settings, kind, name)
    fields = parse_values(await request.json_body(MAX_BODY_BYTES, gateway.bodies.arriving))
    who = caller.key_id or NOBODY
    changed: dict[str, Any] = {}
    try:
        settled = await scheduler.effective(kind, name)
        values = read_change(settings, kind, name, fields, settled.overrides)
        if values:
            change = await scheduler.change(kind, name, values, who)
            if change is None:
                raise no_queue(settings, name)
            before, after = in_force(kind, change.before), in_force(kind, change.after)
            changed = {field: {"before": before[field], "after": after[field]} for field in values}
            log.info("setting changed", who=who, target=f"{kind} {name}", **_split(changed))
            settled = await scheduler.effective(kind, name)
    except StoreError:
        raise gateway.store_trouble() from None
    answer = {
        kind: name,
        "values": in_force(kind, settled.values),
        "overrides": settled.overrides,
        "changed": changed,
    }
    await request.respond(200, msgspec.json.encode(answer), [JSON, NO_STORE])


def _split(changed: dict[str, Any]) -> dict[str, Any]:
    """Before and after as two mappings, as the audit record has them."""
    return {when: {field: pair[when] for field, pair in changed.items()} for when in ("before", "after")}


async def audit(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /api/admin/audit?after=<id>&limit=100: the changes, newest first; `after` goes on behind an entry."""
    limit = _limit(request)
    after = request.query("after")
    if after is not None and not _ENTRY_ID.fullmatch(after):
        raise bad_request("after must be the id of an entry, such as 1700000000000-0", "after")
    newest = f"({after}" if after else "+"
    try:
        reply = await gateway.link.command(
            "XREVRANGE", gateway.keys("audit"), newest, "-", "COUNT", limit + 1
        )
    except StoreError:
        raise gateway.store_trouble() from None
    entries = [
        _entry(entry_id.decode(), dict(zip(flat[::2], flat[1::2], strict=True))) for entry_id, flat in reply
    ]
    more = len(entries) > limit
    answer = {"entries": entries[:limit], "next": entries[limit - 1]["id"] if more else None}
    await request.respond(200, msgspec.json.encode(answer), [JSON, NO_STORE])


def _limit(request: Request) -> int:
    text = request.query("limit") or str(DEFAULT_ENTRIES)
    if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= MOST_ENTRIES:
        raise bad_request(f"limit must be a number from 1 to {MOST_ENTRIES}", "limit")
    return int(text)


def _entry(entry_id: str, fields: dict[bytes, bytes]) -> dict[str, Any]:
    text = {name: fields[name.encode()].decode("utf-8", "replace") for name in ("who", "action", "target")}
    target = text["target"].partition(" ")[0]
    kind: Kind | None = "queue" if target == "queue" else "model" if target == "model" else None
    before, after = (_values(kind, msgspec.json.decode(fields[when])) for when in (b"before", b"after"))
    return {"id": entry_id, "at": int(entry_id.partition("-")[0]), **text, "before": before, "after": after}


def _values(kind: Kind | None, stored: dict[str, Any]) -> dict[str, Any]:
    """Settings are stored as Redis keeps them, others as they are shown."""
    if kind is None:
        return stored
    known = settings_of(kind)
    held = in_force(kind, {name: decode(kind, name, text) for name, text in stored.items() if name in known})
    return {name: held.get(name, value) for name, value in stored.items()}
