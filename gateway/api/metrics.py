"""The call for Prometheus."""

from fastapi import Response

from fairlane.gateway.api.dependencies import RequestDep, ScrapeDep, described, keyed_router
from fairlane.gateway.api.schemas import STRING

router = keyed_router("operators")
TEXT = {kind: {"schema": STRING} for kind in ("text/plain", "application/openmetrics-text")}


@router.get(
    "/metrics",
    **described("metrics.get", "Get the metrics for Prometheus", content=TEXT, response_class=Response),
)
async def metrics(scrape: ScrapeDep, request: RequestDep) -> Response:
    """Return the metrics of all processes of this gateway. While Redis or the database is down, theirs are missing."""
    body, content_type = await scrape.text(request.header(b"accept") or "")
    return Response(body, headers={"content-type": content_type})
