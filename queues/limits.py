"""Limits of a caller's key and of its users, as the scripts take them and return what is left. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

RATES = {
    "requests_per_minute": "requests_minute",
    "requests_per_day": "requests_day",
    "tokens_per_minute": "tokens_minute",
    "tokens_per_day": "tokens_day",
}
"""What the scripts call each of the limits over time."""
COUNTS = {"max_waiting": "waiting", "max_running": "running"}
"""And those of tasks at one time."""
LIMITS = {**RATES, **COUNTS}
"""In the order in which they are packed."""
SETTINGS = {name: setting for setting, name in LIMITS.items()}


def pack(limits: dict[str, int]) -> str:
    """Limits by the names of their settings, as `submit` takes them; '' where none is set."""
    values = [limits.get(setting) or 0 for setting in LIMITS]
    return " ".join(map(str, values)) if any(values) else ""


class Remaining(NamedTuple):
    """What is left of requests, or of tokens: of the limit with the least left, of the minute or the day, of key or user."""

    limit: int
    remaining: int
    reset_ms: int
    """Until all of it is back."""


class RateLimitStatus(NamedTuple):
    """How a caller stands with the limits over time; None = there is no such limit."""

    requests: Remaining | None
    tokens: Remaining | None


def read_rate_limit_status(reply: Sequence[int]) -> RateLimitStatus:
    """As `remaining_of` in limits.lua returns it."""
    return RateLimitStatus(*(Remaining(*reply[at : at + 3]) if reply[at] else None for at in (0, 3)))


class Allowed(NamedTuple):
    """One limit of a caller, and what is left of it."""

    of_user: bool
    """Of the user of a delegating key; else of the key."""
    setting: str
    limit: int
    remaining: int
    reset_ms: int
    """Until all of it is back; of tasks at one time 0."""


def read_allowance(left: Sequence[Sequence[Any]]) -> Iterator[Allowed]:
    """As `read_limits` in limits.lua returns it."""
    for of_user, name, limit, rest, reset_ms in left:
        yield Allowed(of_user, SETTINGS[name], limit, rest, reset_ms)
