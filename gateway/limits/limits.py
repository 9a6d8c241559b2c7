"""Limits of a caller's key and users in responses: the error message of a rejection, and OpenAI's and Anthropic's headers.
Pure."""

from datetime import UTC, datetime
from typing import Any

from pydantic.alias_generators import to_camel

from fairlane.gateway.durations import duration
from fairlane.gateway.errors import Headers, RateLimited
from fairlane.queues.limits import RATES, RateLimitStatus
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Rejection


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


_OF = {
    "requests_per_minute": "requests per min (RPM)",
    "requests_per_day": "requests per day (RPD)",
    "tokens_per_minute": "tokens per min (TPM)",
    "tokens_per_day": "tokens per day (TPD)",
}
"""OpenAI's names of the limits."""


def rate_limited(rejection: Rejection) -> RateLimited:
    """Return the error of a task that a limit rejected, in OpenAI's words. The limit is over all models, so it names none."""
    reached = rejection.reached
    assert reached is not None
    whose = "this user" if reached.of_user else "this key"
    counts = "tokens" if reached.setting.startswith("tokens") else "requests"
    facts = {"limit": f"{'user_limits' if reached.of_user else 'limits'}.{reached.setting}"}
    again = f"Please try again in {duration(rejection.retry_ms)}."
    if reached.setting not in RATES:
        message = f"Rate limit reached for {whose} on waiting tasks: Limit {reached.limit}, Waiting {reached.used}. {again}"
    else:
        message = (
            f"Rate limit reached for {whose} on {_OF[reached.setting]}: Limit {reached.limit}, Used {reached.used}, "
            f"Requested {reached.asked}. {again}"
        )
    return RateLimited(message, counts, rejection.retry_ms, facts)


LIMIT_HEADERS = tuple(
    f"{prefix}-{rest}"
    for counts in ("requests", "tokens")
    for name in ("limit", "remaining", "reset")
    for prefix, rest in (("x-ratelimit", f"{name}-{counts}"), ("anthropic-ratelimit", f"{counts}-{name}"))
)
"""Names of the headers below."""


def limit_headers(rate_limits: RateLimitStatus) -> Headers:
    """Return what is left of the limits that are set, as OpenAI's headers."""
    headers: Headers = []
    for counts, left in ((b"requests", rate_limits.requests), (b"tokens", rate_limits.tokens)):
        if left is not None:
            headers += [
                (b"x-ratelimit-limit-" + counts, b"%d" % left.limit),
                (b"x-ratelimit-remaining-" + counts, b"%d" % left.remaining),
                (b"x-ratelimit-reset-" + counts, duration(left.reset_ms).encode()),
            ]
    return headers


def anthropic_limit_headers(rate_limits: RateLimitStatus, now_s: float) -> Headers:
    """Return what is left of the limits that are set, as Anthropic's headers."""
    headers: Headers = []
    for counts, left in (("requests", rate_limits.requests), ("tokens", rate_limits.tokens)):
        if left is not None:
            reset = datetime.fromtimestamp(now_s + left.reset_ms / 1000, UTC).isoformat(timespec="seconds")
            name = f"anthropic-ratelimit-{counts}-".encode()
            headers += [
                (name + b"limit", b"%d" % left.limit),
                (name + b"remaining", b"%d" % left.remaining),
                (name + b"reset", reset.replace("+00:00", "Z").encode()),
            ]
    return headers
