"""Having the breaker of an upstream open or closed."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import structlog

from fairlane.gateway.calls.intake import check_model_name
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.queues.actor import Actor
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

Wanted = Literal["open", "closed", "auto"]
STATES: Final = ("open", "closed", "auto")
FIELDS: Final = ("model", "upstream", "breaker")


async def force(scheduler: Scheduler, fields: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
    """Do what `fields` say (BreakerChange); what it was before. It holds from the next decision on, on every replica, until it is
    changed again. Raises ApiError (400, 404) and StoreError."""
    for name, value in fields.items():
        if name not in FIELDS:
            raise bad_request(f"{name[:64]!r} is not known here; there are {', '.join(FIELDS)}", name[:64])
        if not isinstance(value, str):
            raise bad_request(f"{name} must be a text", name)
    model, upstream, state = (fields.get(name, "") for name in FIELDS)
    if state not in STATES:
        raise bad_request(f"breaker must be one of {', '.join(STATES)}", "breaker")
    check_model_name(model)
    try:
        before, audit_id = await scheduler.force(model, upstream, cast(Wanted, state), actor)
    except LookupError:
        known = f"an upstream {upstream[:100]!r}" if upstream else "an upstream without a name"
        raise ApiError(
            404,
            "UPSTREAM_NOT_FOUND",
            f"No worker offers {model[:100]!r} through {known}; `fairlane breaker list` shows which there are",
        ) from None
    except OverflowError as error:
        raise ApiError(409, "TOO_MANY_UPSTREAMS", f"It cannot be changed: {error}") from None
    log.info(
        "breaker forced",
        who=actor.who,
        address=actor.address,
        model=model,
        upstream=upstream,
        before=before,
        after=state,
    )
    return {"model": model, "upstream": upstream, "breaker": state, "before": before, "auditId": audit_id}
