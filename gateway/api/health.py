"""Probes: the process is alive, and can serve traffic."""

from typing import Any

from fastapi import APIRouter, Response

from fairlane.gateway.api.dependencies import HealthDep, answer, described
from fairlane.gateway.api.schemas import INTEGER, STRING, fields, json
from fairlane.gateway.errors import at_most_a_minute, retry_headers

router = APIRouter(tags=["health"])
READY = fields(status=STRING, workers=INTEGER)
NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {
        "description": "The gateway cannot serve traffic",
        "content": json(fields(status=STRING, missing={"type": "array", "items": STRING})),
    }
}


@router.head("/api/hello", operation_id="health.hello", summary="Check the connection, as Claude Code does")
@router.head("/livez", operation_id="health.live_head", summary="Check liveness")
@router.get("/livez", **described("health.live", "Check liveness", fields(status=STRING)))
async def live() -> Response:
    """Answer 200: the process is alive."""
    return answer({"status": "live"})


@router.head("/readyz", operation_id="health.ready_head", summary="Check readiness", responses={503: {}})
@router.get("/readyz", **described("health.ready", "Check readiness", READY, responses=NOT_READY))
async def ready(health: HealthDep) -> Response:
    """Answer 200 if this gateway can serve traffic, else 503 with what is `missing`."""
    store, missing = health.store, health.missing()
    if missing:
        body: dict[str, Any] = {"status": "not ready", "missing": missing}
        if store.down_since:
            body["storeDownMs"] = store.down_ms
        headers = retry_headers(at_most_a_minute(health.wait_ms))
        return answer(body, {name.decode(): value.decode() for name, value in headers}, 503)
    return answer({"status": "ready", "workers": health.workers})
