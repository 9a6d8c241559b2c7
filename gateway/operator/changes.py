"""Changing a queue's or a model's settings while the gateways run."""

from collections.abc import Mapping
from typing import Any

import structlog

from fairlane.gateway.operator.settings import described, in_force, no_queue, read_change
from fairlane.gateway.settings import Settings
from fairlane.queues.actor import Actor
from fairlane.queues.rules import Kind
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")


async def change(
    settings: Settings,
    scheduler: Scheduler,
    kind: Kind,
    name: str,
    fields: Mapping[str, Any],
    actor: Actor,
    *,
    check: bool = False,
) -> dict[str, Any]:
    """Change what `fields` name, all or nothing, and what then holds. The change counts from the next decision on, on every
    replica, and is written to the audit record in the same step. `check`: it is not made, only refused if it would be.

    `check_name` has let the name pass. Raises ApiError (404, 400) and StoreError. A reply of the store that is lost leaves the
    change perhaps made: the same call again makes it, or makes no difference.
    """
    settled = await scheduler.effective(kind, name)
    values = read_change(settings, kind, name, fields, settled.overrides)
    changed: dict[str, dict[str, Any]] = {}
    if values and not check:
        change = await scheduler.change(kind, name, values, actor)
        if change is None:
            raise no_queue(settings, name)
        before, after = in_force(kind, change.before), in_force(kind, change.after)
        changed = {field: {"before": before[field], "after": after[field]} for field in values}
        split = {when: {field: pair[when] for field, pair in changed.items()} for when in ("before", "after")}
        log.info("setting changed", who=actor.who, address=actor.address, target=f"{kind} {name}", **split)
        settled = await scheduler.effective(kind, name)
    return {
        kind: name,
        "values": in_force(kind, settled.values),
        "overrides": settled.overrides,
        "changed": changed,
        "settings": described(kind),
    }
