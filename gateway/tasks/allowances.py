"""The remaining limits of a caller, or of a key for operators."""

import asyncio
from typing import Any

from pydantic.alias_generators import to_camel

from fairlane.gateway.accounts.callers import Caller
from fairlane.queues.errors import StoreError
from fairlane.queues.limits import RATES, RateLimitStatus, tightest
from fairlane.queues.scheduler import Scheduler

TIMEOUT_S = 0.25
"""How long an answer waits for its limit headers."""


class Allowances:
    """Reads limits without using them up. A caller without limits costs the store nothing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def describe(self, user: str, of_key: str, of_user: str) -> dict[str, Any]:
        """Return each limit of a user and of its key, both packed, as JSON shows it. Raise StoreError."""
        shown: dict[str, dict[str, Any]] = {"limits": {}, "userLimits": {}}
        if not of_key and not of_user:
            return shown
        for one in await self._scheduler.allowance(user, of_key, of_user):
            left: dict[str, int] = {"limit": one.limit, "remaining": one.remaining}
            if one.setting in RATES:
                left["resetMs"] = one.reset_ms
            shown["userLimits" if one.of_user else "limits"][to_camel(one.setting)] = left
        return shown

    async def rate_limits(self, caller: Caller) -> RateLimitStatus | None:
        """Return what is left for a caller that submits nothing now; None without limits, and if the store does not answer soon:
        headers are no reason to fail."""
        if not caller.key_limits and not caller.user_limits:
            return None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                left = await self._scheduler.allowance(caller.user, caller.key_limits, caller.user_limits)
        except (StoreError, TimeoutError):
            return None
        return tightest(left)
