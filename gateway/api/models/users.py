"""Users: who uses most, and what a call forgot of one."""

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Ms


class TopUser(Answer):
    user: str
    waiting: int
    running: int
    tokens: int
    share: float | None
    model: str | None


class TopUsers(Answer):
    now: Ms
    users: list[TopUser]
    number: int
    complete: bool


class Forgotten(Answer):
    """Of how many rows, each once."""

    usage: int
    days: int
    archived: int
    audit: int
    responses: int
    files: int
    batches: int = Field(description="batches that have ended; those that had not were cancelled")
    webhooks: int = Field(description="of webhooks of this user, and of what any told of this user's ends")
    results: int
    ledger: int = Field(
        description="rows that keep the name: what was granted to this user and what tasks have cost them"
    )
    unended: int = Field(description="batches that were cancelled and have not ended yet")
    stopping: int = Field(description="tasks that were cancelled, and that their workers have not let go yet")
    more: bool = Field(description="there is more, or something has not ended yet")
