"""Is the process alive, and may it be given traffic?"""

from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.gateway.errors import at_most_a_minute, retry_headers
from fairlane.gateway.http import JSON, Request

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway


async def live(gateway: "Gateway", request: Request) -> None:  # noqa: ARG001
    """GET /health/live: the event loop turns."""
    await request.respond(200, b'{"status":"live"}', [JSON])


async def ready(gateway: "Gateway", request: Request) -> None:
    """GET /health/ready: 200, or 503 with what is missing."""
    missing = what_is_missing(gateway)
    if missing:
        answer: dict[str, Any] = {"status": "not ready", "missing": missing}
        if gateway.store.down_since:
            answer["storeDownMs"] = gateway.store_down_ms
        wait_ms = gateway.drain_left_ms if gateway.draining else gateway.store_down_ms
        headers = [JSON, *retry_headers(at_most_a_minute(wait_ms))]
        await request.respond(503, msgspec.json.encode(answer), headers)
    else:
        answer = {"status": "ready", "workers": len(gateway.dispatcher.pool)}
        if gateway.store.refuses:  # every replica has the same Redis, so it is no reason to go elsewhere
            answer["storeRefuses"] = gateway.link.refusals.why
        await request.respond(200, msgspec.json.encode(answer), [JSON])


def what_is_missing(gateway: "Gateway") -> list[str]:
    """Why the gateway should get no traffic; empty when it should."""
    missing = []
    if gateway.draining:
        missing.append("the gateway is shutting down")
    if not gateway.link.up:
        why = gateway.link.complaint
        missing.append(f"no connection to Redis: {why}" if why else "no connection to Redis")
    elif not gateway.channel.listening.is_set():
        missing.append("not subscribed to the replica's channel")
    if not gateway.ready and not missing:
        missing.append("the gateway is starting")
    return missing
