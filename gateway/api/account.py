"""The caller's own identity, choices and limits."""

from fastapi import Request as Framed
from fastapi import Response

from fairlane import __version__
from fairlane.gateway.api.dependencies import CallerDep, answer, described, keyed_router
from fairlane.gateway.api.operator_schemas import Account
from fairlane.gateway.settings import MODES
from fairlane.gateway.tasks.limits import limit_fields

router = keyed_router("account")


@router.get("/api/me", **described("me.get", "Get the caller of this request", Account))
async def caller(request: Framed, caller: CallerDep) -> Response:
    """Return the user, tier and key that this request counts for.

    `tiers`: the choices of a delegating key in X-Fairlane-Tier. `limits` are the key's over all its users, empty for the holder
    of a token; `userLimits` are this user's. `quota` is the balance of the key, or of this user.
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
            **await limit_fields(
                gateway.scheduler, caller.user, "" if caller.claims else caller.key_limits, caller.user_limits
            ),
            "quota": await gateway.balances.own(caller),
        }
    )
