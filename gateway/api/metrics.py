"""The call that Prometheus makes."""

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

from fairlane.gateway.callers import Caller
from fairlane.gateway.http import Request
from fairlane.gateway.metrics.family import snapshots_of
from fairlane.queues.errors import StoreError

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway
    from fairlane.queues.survey import Survey


async def metrics(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /metrics. With Redis down it tells what this gateway knows by itself."""
    snapshots, survey = await asyncio.gather(
        snapshots_of(gateway.family, gateway.snapshot()), _survey(gateway)
    )
    names = {row.model: gateway.measures.label(row.model) for row in survey.models} if survey else {}
    accept = request.header(b"accept") or ""
    body, content_type = await asyncio.to_thread(_expose, snapshots, survey, names.__getitem__, accept)
    headers = [(b"content-type", content_type.encode()), (b"cache-control", b"no-store")]
    await request.respond(200, body, headers)


async def _survey(gateway: "Gateway") -> "Survey | None":
    try:
        return await gateway.surveyor.recent()
    except StoreError:
        return None


def _expose(*args: Any) -> tuple[bytes, str]:
    """In a thread: what it imports and writes takes too long for an event loop that streams."""
    exposition = importlib.import_module("fairlane.gateway.metrics.exposition")
    answer: tuple[bytes, str] = exposition.expose(*args)
    return answer
