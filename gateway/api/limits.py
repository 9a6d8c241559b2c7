"""What an operator changes while the gateways run, and the record of it: limits, weights, pause and resume."""

from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from fairlane.gateway.callers import Caller
from fairlane.gateway.http import JSON, Request
from fairlane.gateway.intake import parse_object
from fairlane.gateway.limits import Kind, check_name, read_change
from fairlane.queues.errors import StoreError

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

log = structlog.get_logger("fairlane.audit")

MAX_BODY_BYTES = 16 * 1024
NOBODY = "(open)"
"""Who changed something in a gateway without keys; no key can be named so."""


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
    check_name(gateway.settings, kind, name)
    fields = parse_object(await request.json_body(MAX_BODY_BYTES))
    who = caller.key_id or NOBODY
    changed: dict[str, Any] = {}
    scheduler = gateway.scheduler
    try:
        settled = await scheduler.effective(kind, name)
        values = read_change(gateway.settings, kind, name, fields, settled.overrides)
        if values:
            change = await scheduler.change(kind, name, values, who)
            log.info(
                "setting changed", who=who, target=f"{kind}s.{name}", before=change.before, after=change.after
            )
            changed = {
                field: {"before": change.before.get(field), "after": change.after.get(field)}
                for field in values
            }
            settled = await scheduler.effective(kind, name)
    except StoreError:
        raise gateway.store_unavailable() from None
    answer = {kind: name, "values": settled.values, "overrides": settled.overrides, "changed": changed}
    await request.respond(200, msgspec.json.encode(answer), [JSON, (b"cache-control", b"no-store")])
