"""What a page asks first: who am I here, and what may I choose?"""

from fastapi import APIRouter, Depends, Response
from fastapi import Request as Framed

from fairlane import __version__
from fairlane.gateway.api import models
from fairlane.gateway.api.framing import KEY, TheCaller, answer, refusals
from fairlane.gateway.settings import MODES

router = APIRouter(tags=["account"], dependencies=[Depends(KEY)], responses=refusals(400, 401, 403, 429, 503))


@router.get("/api/caller", response_model=models.Account)
async def caller(request: Framed, caller: TheCaller) -> Response:
    """As whom this request counts, and what it could name instead.

    `tiers` are there for those whose X-Fairlane-User and X-Fairlane-Tier are believed (`delegating`).
    """
    return answer(
        {
            "user": caller.user,
            "tier": caller.tier,
            "key": caller.key_id or None,
            "open": caller.open,
            "delegating": caller.delegating,
            "admin": caller.admin,
            "scopes": sorted(caller.scopes | ({"admin"} if caller.admin else set())),
            "tiers": sorted(request.app.gateway.current.settings.tiers)
            if caller.delegating
            else [caller.tier],
            "modes": list(MODES),
            "version": __version__,
        }
    )
