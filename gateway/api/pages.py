"""The web pages, and what a page asks first: who am I here, and what may I choose?"""

from typing import TYPE_CHECKING

import msgspec

from fairlane import __version__
from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import JSON, Request
from fairlane.gateway.settings import MODES

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway


async def page(gateway: "Gateway", request: Request) -> None:
    """GET /, /dashboard and /static/…: the files of `fairlane.web`."""
    answer = gateway.pages.answer(
        request.path, request.header(b"accept-encoding"), request.header(b"if-none-match")
    )
    if answer is None:
        raise ApiError(404, "NOT_FOUND", "There is no such page")
    await request.respond(answer.status, answer.body, answer.headers)


async def caller(gateway: "Gateway", caller: Caller, request: Request) -> None:
    """GET /api/caller: as whom this request counts, and what it could name instead.

    `tiers` are there for those whose X-Fairlane-User and X-Fairlane-Tier are believed (`delegating`).
    """
    body = {
        "user": caller.user,
        "tier": caller.tier,
        "key": caller.key_id or None,
        "open": caller.open,
        "delegating": caller.delegating,
        "admin": caller.admin,
        "tiers": sorted(gateway.settings.tiers) if caller.delegating else [caller.tier],
        "modes": list(MODES),
        "version": __version__,
    }
    await request.respond(200, msgspec.json.encode(body), [JSON, (b"cache-control", b"no-store")])
