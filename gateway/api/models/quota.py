"""Credits: who pays, with what, and what was paid."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import DATABASE_AWAY, Answer, Ms


class BudgetLeft(Answer):
    """A budget in the day or month that is now, in credits."""

    limit: float
    per: Literal["day", "month"]
    used: float
    held: float = Field(description="for tasks that have not ended")
    remaining: float
    ends: Ms = Field(description="when it comes anew")


class QuotaLeft(Answer):
    """What somebody can pay with, in credits."""

    of: Literal["key", "user"] = Field(description="who pays: the key for all its users, or each user")
    granted: float = Field(description="all grants together")
    spent: float = Field(description="what tasks have cost of them")
    balance: float = Field(description="`granted` less `spent`; less than 0: a debt")
    held: float = Field(description="for tasks that have not ended, of grants and budget together")
    available: float = Field(description="what the next task may be held")
    budget: BudgetLeft | None
    otherwise: str | None = Field(
        description="the tier in which a task goes on that cannot be paid; null: it is refused"
    )


class QuotaShown(QuotaLeft):
    key: str
    user: str | None = Field(description="null: the key pays")
    active: bool = Field(description="the key has a quota by which it, or its users, pay now")


class QuotaPage(Answer):
    now: Ms
    rows: list[QuotaShown]
    next: str | None
    database_away: str | None = DATABASE_AWAY


class QuotaGranted(QuotaShown):
    id: str
    new: bool = Field(description="false: it had been made before, and nothing more was granted")
    credits: float
    notes: list[str] = Field(description="what an operator should know of what was done")


class LedgerEntry(Answer):
    """What a grant or a task did to a fund."""

    id: str = Field(description="of the grant or the task")
    kind: Literal["grant", "task"]
    fund: Literal["granted", "day", "month"]
    ends: Ms | None = Field(description="of the budget's day or month")
    of: Literal["key", "user"]
    key: str
    user: str | None
    held: float = Field(description="while the task went on")
    amount: float = Field(description="less than 0: it was paid, or taken back")
    refunded: float = Field(description="what came back of what was held")
    price: str = Field(description="as of usage records")
    at: Ms
    who: str = Field(description="of a grant: the key of the operator")
    note: str


class Ledger(Answer):
    now: Ms
    rows: list[LedgerEntry]
    next: str | None
