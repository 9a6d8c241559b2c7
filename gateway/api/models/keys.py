"""Keys."""

from typing import Literal

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.account import LimitsLeft
from fairlane.gateway.api.models.base import DATABASE_AWAY, Answer, Ms


class KeySecret(Answer):
    """That a secret is valid; what it is was told once."""

    created: Ms
    valid_until: Ms | None = Field(description="null: as long as the key")
    signs: bool = Field(description="what it signs is taken: the key had `signing` when the secret was made")


class KeyShown(Answer):
    id: str
    kind: Literal["caller", "worker"]
    source: Literal["configuration", "database"]
    state: Literal["valid", "expired", "revoked", "replaced", "unusable"]
    settings: dict[str, JsonValue] = Field(description="as an entry of the configuration has them")
    note: str
    created: Ms | None
    expires: Ms | None
    revoked: Ms | None
    last_used: Ms | None
    secrets: list[KeySecret] = Field(description="the valid ones of a key of the database")


class KeyDetail(KeyShown):
    limits: LimitsLeft | None = Field(
        description="what is left of the key's; null: the store does not answer; so below"
    )
    user_limits: LimitsLeft | None = Field(description="and of the user's that is asked for")
    database_away: str | None = DATABASE_AWAY


class KeyPage(Answer):
    now: Ms
    keys: list[KeyShown]
    next: str | None
    database_away: str | None = DATABASE_AWAY


class KeyChanged(KeyShown):
    notes: list[str] = Field(description="what an operator should know of what was done")


class KeyMade(KeyChanged):
    secret: str = Field(description="told this once")


class KeyRevoked(KeyChanged):
    cancelled: int = Field(description="tasks that were ended by this call")
