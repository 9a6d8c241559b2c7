"""The call for Prometheus."""

import asyncio
import importlib
from typing import Any

from fastapi import Response

from fairlane.gateway.api.dependencies import RequestDep, ScrapeDep, described, keyed_router

router = keyed_router("operators")
TEXT = {kind: {"schema": {"type": "string"}} for kind in ("text/plain", "application/openmetrics-text")}


@router.get(
    "/metrics",
    **described("metrics.get", "Get the metrics for Prometheus", content=TEXT, response_class=Response),
)
async def metrics(scrape: ScrapeDep, request: RequestDep) -> Response:
    """Return the metrics of all processes of this gateway. While Redis or the database is down, theirs are missing."""
    snapshots, survey, of_database = await asyncio.gather(
        scrape.snapshots(), scrape.survey(), scrape.of_database()
    )
    names = {row.model: scrape.recorder.label(row.model) for row in survey.models} if survey else {}
    accept = request.header(b"accept") or ""
    body, content_type = await asyncio.to_thread(
        _expose, snapshots, survey, names.__getitem__, of_database, accept
    )
    return Response(body, headers={"content-type": content_type})


def _expose(*args: Any) -> tuple[bytes, str]:
    """Write the metrics, in a thread: its imports and work would hold the event loop for too long."""
    exposition = importlib.import_module("fairlane.gateway.metrics.exposition")
    answer: tuple[bytes, str] = exposition.expose(*args)
    return answer
