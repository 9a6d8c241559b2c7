"""What operators did, and what was refused."""

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Ms


class AuditEntry(Answer):
    id: str
    at: Ms
    who: str
    from_: str = Field(
        alias="from", description="the client's address, as the gateway sees it; empty: not known"
    )
    action: str
    target: str
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]


class Audit(Answer):
    entries: list[AuditEntry]
    next: str | None


class Refusal(Answer):
    minute: Ms = Field(description="when it began")
    key: str = Field(description="empty: a gateway that asks for no key, or a link of a task")
    code: str = Field(description="that of the errors")
    count: int


class RefusalPage(Answer):
    refusals: list[Refusal]
    next: str | None
