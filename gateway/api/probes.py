"""Probes: the process is alive, and can serve traffic; and the metrics for Prometheus."""

from typing import Annotated, Any

from fastapi import APIRouter, Response

from fairlane.gateway.access import Access
from fairlane.gateway.api.dependencies import RequestDep, answer, described, keyed_router, part
from fairlane.gateway.api.schemas import INTEGER, STRING, fields, json
from fairlane.gateway.errors import at_most_a_minute, retry_headers
from fairlane.gateway.metrics.scrape import Scrape
from fairlane.gateway.watch.health import Health

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
async def ready(health: Annotated[Health, part(Health)]) -> Response:
    """Answer 200 if this gateway can serve traffic, else 503 with what is `missing`."""
    store, missing = health.store, health.missing()
    if missing:
        body: dict[str, Any] = {"status": "not ready", "missing": missing}
        if store.down:
            body["storeDownMs"] = store.down_ms
        headers = retry_headers(at_most_a_minute(health.wait_ms))
        return answer(body, {name.decode(): value.decode() for name, value in headers}, 503)
    return answer({"status": "ready", "workers": health.workers})


metrics_router = keyed_router("operators")
TEXT = {kind: {"schema": STRING} for kind in ("text/plain", "application/openmetrics-text")}


@metrics_router.get(
    "/metrics",
    **described("metrics.get", "Get the metrics for Prometheus", content=TEXT, response_class=Response),
)
async def metrics(scrape: Annotated[Scrape, part(Scrape)], request: RequestDep) -> Response:
    """Return the metrics of all processes of this gateway. While Redis or the database is down, theirs are missing."""
    body, content_type = await scrape.text(request.header(b"accept") or "")
    return Response(body, headers={"content-type": content_type})


ROUTERS = ((router, Access.OPEN), (metrics_router, Access.METRICS))
