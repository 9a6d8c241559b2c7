"""What the dashboard is drawn from: the state of all replicas once a second over server-sent events, and the last hour."""

import time
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane import __version__
from fairlane.gateway.api.admin import read_state, store_row
from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import JSON, NO_STORE, SSE_HEADERS, Departure, Request
from fairlane.queues.errors import StoreError

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway


async def feed(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /api/admin/feed: an event `state` each second with what GET /api/admin/state says without its tasks, and more.

    `store`: what this replica sees of Redis, as of now. `asOf`: of when the rest is, which is kept while Redis is away; null when
    nothing is known yet. `gateway`: the replica that answers. `audit`: the newest entry of the record.
    """
    callers = gateway.callers
    departure = Departure(request, _nothing)
    pictures = gateway.live.watch()
    try:
        await request.start(200, SSE_HEADERS)
        async for picture in pictures:
            if gateway.callers is not callers:  # the keys were read again
                callers = gateway.callers
                if not _still_admin(gateway, request):
                    break
            if departure.gone:
                return
            await request.send({"type": "http.response.body", "body": picture, "more_body": True})
        await request.send({"type": "http.response.body"})
    finally:
        departure.close()
        await pictures.aclose()


def _nothing() -> None:
    """A caller who has left is noticed with the next picture, at most a second later."""


def _still_admin(gateway: "Gateway", request: Request) -> bool:
    try:
        return gateway.callers.authenticate(request.header).admin
    except ApiError:
        return False


async def history(gateway: "Gateway", caller: Caller, request: Request) -> None:  # noqa: ARG001
    """GET /api/admin/history: the last hour of all replicas in buckets of 10 s, and as a whole (`total`).

    Columns with one value per bucket that began `at`: accepted, completed, failed, cancelled, refused; and waitMs (to the first
    grant), firstOutputMs and totalMs (from submission), each with p50, p95, p99 (null: nothing ended), within 2.5 %.
    """
    try:
        body = await gateway.history.read()
    except StoreError:
        raise gateway.store_trouble() from None
    await request.respond(200, body, [JSON, NO_STORE])


class Painter:
    """Makes the event that all dashboards get. Keeps what it last knew, for the time that Redis is away."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._known: dict[str, Any] = {
            "queues": [],
            "models": [],
            "workers": [],
            "counts": {},
            "replicas": [],
        }
        self._as_of: int | None = None
        self._audit: str | None = None

    async def __call__(self) -> bytes:
        gateway = self._gateway
        try:
            state = await read_state(gateway, 0)
            newest = await gateway.link.command("XREVRANGE", gateway.keys("audit"), "+", "-", "COUNT", 1)
        except StoreError:
            self._known["workers"] = [
                *gateway.dispatcher.presence(),
                *(row for row in self._known["workers"] if row["replica"] != gateway.replica),
            ]
        else:
            del state["tasks"]
            self._known, self._as_of = state, state["now"]
            self._audit = newest[0][0].decode() if newest else None
        now = time.time_ns() // 1_000_000
        picture = self._known | {
            "now": now,
            "asOf": self._as_of,
            "store": store_row(gateway),
            "audit": self._audit,
            "gateway": {
                "replica": gateway.replica,
                "version": __version__,
                "startedAt": int(gateway.started_at * 1000),
                "draining": gateway.draining,
                "heartbeatMs": gateway.settings.heartbeat_ms,
            },
        }
        return b"event: state\ndata: " + msgspec.json.encode(picture) + b"\n\n"
