"""Headers with what is left of a caller's limits, as OpenAI and Anthropic name them. Pure."""

from datetime import UTC, datetime

from fairlane.gateway.errors import Headers, duration
from fairlane.queues.limits import RateLimitStatus

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
