"""The caller's own identity, choices and limits."""

from typing import Annotated, Literal

from fastapi import Request as Framed
from fastapi import Response
from msgspec import UNSET, UnsetType

from fairlane import __version__
from fairlane.gateway.access import Access
from fairlane.gateway.accounts.admin import limit_fields
from fairlane.gateway.api.dependencies import CallerDep, answer, described, keyed_router
from fairlane.gateway.api.schemas import Ms, Schema, says
from fairlane.gateway.settings import MODES
from fairlane.gateway.settings.parts import Mode


class BudgetLeft(Schema, kw_only=True):
    """A budget of the current day or month, in credits."""

    limit: float
    per: Literal["day", "month"]
    used: float
    reserved: Annotated[float, says("for tasks that have not ended")]
    remaining: float
    ends: Annotated[Ms, says("when it is renewed")]


class QuotaLeft(Schema, kw_only=True):
    """The balance of a key or a user, in credits."""

    of: Annotated[Literal["key", "user"], says("the payer: the key for all its users, or each user")]
    granted: Annotated[float, says("all grants together")]
    spent: Annotated[float, says("the costs of tasks that were paid from grants")]
    balance: Annotated[float, says("`granted` less `spent`; less than 0: a debt")]
    reserved: Annotated[float, says("for tasks that have not ended, of grants and budget together")]
    available: Annotated[float, says("what the next task may reserve")]
    budget: BudgetLeft | None
    otherwise: str | None


class LimitLeft(Schema, kw_only=True):
    """A limit of a key or a user, and what is left of it."""

    limit: int
    remaining: int
    reset_ms: Annotated[Ms, says("until it is full again; of requests and tokens")] = 0


class LimitsLeft(Schema, kw_only=True):
    """The limits that are set."""

    requests_per_minute: LimitLeft | UnsetType = UNSET
    requests_per_day: LimitLeft | UnsetType = UNSET
    tokens_per_minute: LimitLeft | UnsetType = UNSET
    tokens_per_day: LimitLeft | UnsetType = UNSET
    max_running: LimitLeft | UnsetType = UNSET
    max_waiting: LimitLeft | UnsetType = UNSET


class Account(Schema, kw_only=True):
    """The caller of a request."""

    user: str
    tier: str
    key: str | None
    open: bool
    delegating: bool
    admin: bool
    scopes: Annotated[list[Literal["call", "viewer", "metrics", "admin"]], says("what the key is for")]
    tiers: list[str]
    modes: list[Mode]
    version: str
    disabled_features: Annotated[list[str], says("see the setting; pages leave out what needs them")]
    limits: Annotated[LimitsLeft, says("of the key, over all its users")]
    user_limits: Annotated[LimitsLeft, says("of this user of a delegating key")]
    quota: Annotated[QuotaLeft | None, says("null: its tasks are free")]


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
            "disabledFeatures": gateway.current.settings.disabled_features,
            **await limit_fields(
                gateway.scheduler, caller.user, "" if caller.claims else caller.key_limits, caller.user_limits
            ),
            "quota": await gateway.balance(caller),
        }
    )


ROUTERS = ((router, Access.KEY),)
