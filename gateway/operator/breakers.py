"""Set the circuit breaker of an upstream."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import structlog

from fairlane.gateway.errors import ApiError, bad_request
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler

log = structlog.get_logger("fairlane.audit")

Wanted = Literal["open", "closed", "auto"]
STATES: Final = ("open", "closed", "auto")
FIELDS: Final = ("breaker", "upstream")


async def force(
    scheduler: Scheduler, model: str, fields: Mapping[str, Any], actor: Actor
) -> dict[str, dict[str, str]]:
    """Set the circuit breaker of an upstream of a model, on every replica, until it is set again. Return its status before and
    after. Raise ApiError (400, 404, 409) and StoreError."""
    for name, value in fields.items():
        if name not in FIELDS:
            raise bad_request(
                f"{name[:64]!r} cannot be set with a breaker: only {' and '.join(FIELDS)}", name[:64]
            )
        if not isinstance(value, str):
            raise bad_request(f"{name} must be a text", name)
    state, upstream = (fields.get(name, "") for name in FIELDS)
    if state not in STATES:
        raise bad_request(f"breaker must be one of {', '.join(STATES)}", "breaker")
    try:
        before, _ = await scheduler.force_breaker(model, upstream, cast(Wanted, state), actor)
    except LookupError:
        known = f"an upstream {upstream[:100]!r}" if upstream else "an upstream without a name"
        raise ApiError(
            404,
            "UPSTREAM_NOT_FOUND",
            f"No worker serves {model[:100]!r} through {known}: list the upstreams with `fairlane breaker list`",
        ) from None
    except OverflowError as error:
        raise ApiError(409, "TOO_MANY_UPSTREAMS", f"It cannot be changed: {error}") from None
    log.info(
        "breaker forced",
        actor=actor.name,
        address=actor.address,
        model=model,
        upstream=upstream,
        before=before,
        after=state,
    )
    return {"breaker": {"before": before, "after": state}}
