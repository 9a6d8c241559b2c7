"""As whom a request counts, and what is left of limits."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Left, Ms
from fairlane.gateway.api.models.quota import QuotaLeft
from fairlane.gateway.settings.parts import Mode


class LimitLeft(Answer):
    """A limit of a key or a user, and what is left of it."""

    limit: int
    remaining: int
    reset_ms: Ms = Field(0, description="until all of it is back; of requests and tokens")


class LimitsLeft(Answer):
    """Those that are set."""

    requests_per_minute: LimitLeft | Left = None
    requests_per_day: LimitLeft | Left = None
    tokens_per_minute: LimitLeft | Left = None
    tokens_per_day: LimitLeft | Left = None
    max_running: LimitLeft | Left = None
    max_waiting: LimitLeft | Left = None


class Account(Answer):
    """As whom a request counts."""

    user: str
    tier: str
    key: str | None
    open: bool
    delegating: bool
    admin: bool
    scopes: list[Literal["call", "viewer", "metrics", "admin"]] = Field(description="what the key is for")
    tiers: list[str]
    modes: list[Mode]
    version: str
    limits: LimitsLeft = Field(description="of the key, over all its users")
    user_limits: LimitsLeft = Field(description="of this user of a delegating key")
    quota: QuotaLeft | None = Field(description="null: nobody pays for its tasks")
