"""The remaining limits of a caller, or of a key for operators."""

from typing import Any

from pydantic.alias_generators import to_camel

from fairlane.queues.limits import RATES
from fairlane.queues.scheduler import Scheduler


async def limit_fields(scheduler: Scheduler, user: str, of_key: str, of_user: str) -> dict[str, Any]:
    """Return each limit of a user and of its key, both packed, as JSON shows it, without using it up. Raise StoreError."""
    shown: dict[str, dict[str, Any]] = {"limits": {}, "userLimits": {}}
    if not of_key and not of_user:
        return shown
    for one in await scheduler.allowance(user, of_key, of_user):
        left: dict[str, int] = {"limit": one.limit, "remaining": one.remaining}
        if one.setting in RATES:
            left["resetMs"] = one.reset_ms
        shown["userLimits" if one.of_user else "limits"][to_camel(one.setting)] = left
    return shown
