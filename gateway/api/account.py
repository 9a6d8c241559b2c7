"""What a page asks first: who am I here, what may I choose, and how much is left of what I may use?"""

from fastapi import Request as Framed
from fastapi import Response

from fairlane import __version__
from fairlane.gateway.api.dependencies import CallerDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import Account
from fairlane.gateway.settings import MODES

router = keyed_router("account")


@router.get("/api/me", **described("caller.get", "Get the caller of this request", Account))
async def caller(request: Framed, caller: CallerDep) -> Response:
    """As whom this request counts, and what it could name instead.

    `tiers` are there for those whose X-Fairlane-User and X-Fairlane-Tier are believed (`delegating`). `limits` are those of
    the key, over all its users, which no holder of a token is told, and `userLimits` those of this user. `quota` is what the
    key, or this user, can pay with.
    """
    gateway = request.app.gateway
    return answer(
        {
            "user": caller.user,
            "tier": caller.tier,
            "key": caller.key_id or None,
            "open": caller.open,
            "delegating": caller.delegating,
            "admin": caller.admin,
            "scopes": sorted(caller.scopes | ({"admin"} if caller.admin else set())),
            "tiers": sorted(gateway.current.settings.tiers) if caller.delegating else [caller.tier],
            "modes": list(MODES),
            "version": __version__,
            **await gateway.tasks.allowances.describe(
                caller.user, "" if caller.claims else caller.key_limits, caller.user_limits
            ),
            "quota": await gateway.quota.own(caller),
        }
    )
