"""Is the process alive, and may it be given traffic?"""

from typing import Any

from fastapi import APIRouter, Response

from fairlane import __version__
from fairlane.gateway.api.framing import TheHealth, answer
from fairlane.gateway.api.models.health import Live, NotReady, Ready, Version
from fairlane.gateway.errors import at_most_a_minute, retry_headers

router = APIRouter(tags=["health"])
MISSING: dict[int | str, dict[str, Any]] = {503: {"model": NotReady}}


@router.head("/livez", operation_id="livez_head", response_model=None)
@router.get("/livez", operation_id="livez", response_model=Live)
@router.head("/health/live", operation_id="live_head", response_model=None)
@router.get("/health/live", operation_id="live", response_model=Live)
async def live() -> Response:
    """The process answers."""
    return answer({"status": "live"}, {})


@router.get("/version", operation_id="version", response_model=Version)
async def version() -> Response:
    """The release that answers."""
    return answer({"version": __version__}, {})


@router.head("/health", operation_id="health_head", response_model=None, responses={503: {}})
@router.get("/health", operation_id="health", response_model=Ready, responses=MISSING)
@router.head("/readyz", operation_id="readyz_head", response_model=None, responses={503: {}})
@router.get("/readyz", operation_id="readyz", response_model=Ready, responses=MISSING)
@router.head("/health/ready", operation_id="ready_head", response_model=None, responses={503: {}})
@router.get("/health/ready", operation_id="ready", response_model=Ready, responses=MISSING)
async def ready(health: TheHealth) -> Response:
    """Whether it may be given traffic: 200, or 503 with what is missing."""
    store, missing = health.store, health.missing()
    if missing:
        body: dict[str, Any] = {"status": "not ready", "missing": missing}
        if store.down_since:
            body["storeDownMs"] = store.down_ms
        headers = retry_headers(at_most_a_minute(health.wait_ms))
        return answer(body, {name.decode(): value.decode() for name, value in headers}, 503)
    body = {"status": "ready", "workers": health.workers}
    if store.refuses:  # every replica has the same Redis, so it is no reason to go elsewhere
        body["storeRefuses"] = store.refusal
    return answer(body, {})
