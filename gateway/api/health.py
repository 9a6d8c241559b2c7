"""Is the process alive, and may it be given traffic?"""

from typing import Any

from fastapi import APIRouter, Response

from fairlane.gateway.api import models
from fairlane.gateway.api.framing import TheGateway, answer
from fairlane.gateway.errors import at_most_a_minute, retry_headers
from fairlane.gateway.runtime import Gateway

router = APIRouter(tags=["health"])
MISSING: dict[int | str, dict[str, Any]] = {503: {"model": models.NotReady}}


@router.head("/health/live", operation_id="live_head", response_model=None)
@router.get("/health/live", operation_id="live", response_model=models.Live)
async def live() -> Response:
    """The event loop turns."""
    return answer({"status": "live"}, {})


@router.head("/health/ready", operation_id="ready_head", response_model=None, responses={503: {}})
@router.get("/health/ready", operation_id="ready", response_model=models.Ready, responses=MISSING)
async def ready(gateway: TheGateway) -> Response:
    """Whether it may be given traffic: 200, or 503 with what is missing."""
    missing = what_is_missing(gateway)
    if missing:
        body: dict[str, Any] = {"status": "not ready", "missing": missing}
        if gateway.store.down_since:
            body["storeDownMs"] = gateway.store.down_ms
        wait_ms = gateway.shutdown.left_ms if gateway.shutdown.begun else gateway.store.down_ms
        headers = retry_headers(at_most_a_minute(wait_ms))
        return answer(body, {name.decode(): value.decode() for name, value in headers}, 503)
    body = {"status": "ready", "workers": len(gateway.dispatcher.pool)}
    if gateway.store.refuses:  # every replica has the same Redis, so it is no reason to go elsewhere
        body["storeRefuses"] = gateway.link.refusals.why
    return answer(body, {})


def what_is_missing(gateway: Gateway) -> list[str]:
    """Why the gateway should get no traffic; empty when it should."""
    missing = []
    if gateway.shutdown.begun:
        missing.append("the gateway is shutting down")
    if not gateway.link.up:
        why = gateway.link.complaint
        missing.append(f"no connection to Redis: {why}" if why else "no connection to Redis")
    elif not gateway.channel.listening.is_set():
        missing.append("not subscribed to the replica's channel")
    if not gateway.ready and not missing:
        missing.append("the gateway is starting")
    return missing
