"""What is left of limits: of a caller's, beside a task and without one, and of a key's, for operators."""

import asyncio
from typing import Any

from pydantic.alias_generators import to_camel

from fairlane.gateway.accounts.callers import Caller
from fairlane.queues.errors import StoreError
from fairlane.queues.limits import RATES, RateLimitStatus, tightest
from fairlane.queues.scheduler import Scheduler

LOOK_S = 0.25
"""So long an answer waits for what is told beside it."""


class Allowances:
    """Whoever has no limits costs the store nothing; it is asked once, and nothing is taken."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def told(self, user: str, of_key: str, of_user: str) -> dict[str, Any]:
        """Each limit of a user and of his key, both packed, as JSON tells them. Raises StoreError."""
        told: dict[str, dict[str, Any]] = {"limits": {}, "userLimits": {}}
        if not of_key and not of_user:
            return told
        for one in await self._scheduler.allowance(user, of_key, of_user):
            left: dict[str, int] = {"limit": one.limit, "remaining": one.remaining}
            if one.setting in RATES:
                left["resetMs"] = one.reset_ms
            told["userLimits" if one.of_user else "limits"][to_camel(one.setting)] = left
        return told

    async def rate_limits(self, caller: Caller) -> RateLimitStatus | None:
        """How a caller stands who submits nothing now; None without limits, and where the store does not answer at once: what
        is told beside an answer is no reason to fail, nor to wait."""
        if not caller.key_limits and not caller.user_limits:
            return None
        try:
            async with asyncio.timeout(LOOK_S):
                left = await self._scheduler.allowance(caller.user, caller.key_limits, caller.user_limits)
        except (StoreError, TimeoutError):
            return None
        return tightest(left)
