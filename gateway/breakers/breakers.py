"""Set the circuit breaker of an upstream."""

from collections.abc import Mapping
from typing import Any, Literal

import structlog
from pydantic import Field

from fairlane.gateway.admin.bodies import StrictBody, read_body
from fairlane.gateway.errors import ApiError
from fairlane.queues.overrides import Actor, audit_mark
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")


class BreakerChange(StrictBody):
    """A circuit breaker to be set, without other settings."""

    breaker: Literal["open", "closed", "auto"] = Field(description="`auto`: the gateway opens and closes it")
    upstream: str = Field("", description="empty: that of workers without a named one")


async def force(
    scheduler: Scheduler, model: str, fields: Mapping[str, Any], actor: Actor
) -> dict[str, dict[str, str]]:
    """Set the circuit breaker of an upstream of a model, on every replica, until it is set again. Return its status before and
    after. Raise ApiError (400, 404, 409) and StoreError."""
    wanted = read_body(BreakerChange, fields)
    upstream, after = wanted.upstream, wanted.breaker
    try:
        before, _ = await force_breaker(scheduler, model, upstream, after, actor)
    except LookupError:
        known = f"an upstream {upstream[:100]!r}" if upstream else "an upstream without a name"
        raise ApiError(
            404,
            "UPSTREAM_NOT_FOUND",
            f"No worker serves {model[:100]!r} through {known}: list the upstreams with `fairlane breaker list`",
        ) from None
    except OverflowError as error:
        raise ApiError(409, "TOO_MANY_UPSTREAMS", f"It cannot be changed: {error}") from None
    facts = {"model": model, "upstream": upstream, "before": before, "after": after}
    log.info("breaker forced", actor=actor.name, address=actor.address, **facts)
    return {"breaker": {"before": before, "after": after}}


async def force_breaker(
    scheduler: Scheduler, model: str, upstream: str, state: Literal["open", "closed", "auto"], actor: Actor
) -> tuple[str, str]:
    """Have the breaker of an upstream open or closed, or let it go by itself. What it was before, and the id of the entry in
    the audit record, which is written in the same step. Raises LookupError: no worker names such an upstream.
    """
    who = {"who": actor.name, "address": actor.address, "mark": audit_mark(), "replica": scheduler.replica}
    ask = {"model": model, "upstream": upstream, "state": state} | who
    said = await scheduler.of_model(model).call("force_breaker", ask)
    if said["outcome"] == "unknown":
        raise LookupError(upstream)
    if said["outcome"] == "too_many":
        raise OverflowError("more upstreams are known than there may be")
    return said["before"], said["audit"]
