"""The operators' calls for balances, grants and the ledger."""

from typing import Annotated, Literal

from fastapi import Query, Response

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.me import QuotaLeft
from fairlane.gateway.api.dependencies import (
    ActorDep,
    BodyDep,
    RequestDep,
    answer,
    described,
    keyed_router,
    part,
)
from fairlane.gateway.api.schemas import INTEGER, Ms, Schema, json, listed, says
from fairlane.gateway.credits.admin import BalanceAdmin, NewGrant, read_subject
from fairlane.gateway.usage.queries import CSV, PLAIN, Filter, Form, Since, Until, as_csv, between, wants_csv
from fairlane.queues.clock import now_ms


class QuotaShown(QuotaLeft, kw_only=True):
    key: str
    user: Annotated[str | None, says("null: the key pays")]
    active: Annotated[bool, says("the key's quota applies now")]


class QuotaGranted(QuotaShown, kw_only=True):
    id: str
    new: Annotated[bool, says("false: this id was granted before, and nothing more was granted")]
    credits: float
    notes: Annotated[list[str], says("hints for the operator")]


class LedgerEntry(Schema, kw_only=True):
    """The effect of a grant or a task on a fund."""

    id: Annotated[str, says("of the grant or the task")]
    kind: Literal["grant", "task"]
    fund: Literal["granted", "day", "month"]
    ends: Annotated[Ms | None, says("of the budget's day or month")]
    of: Literal["key", "user"]
    key: str
    user: str | None
    reserved: Annotated[float, says("while the task ran")]
    amount: Annotated[float, says("less than 0: a payment, or a withdrawn grant")]
    refunded: Annotated[float, says("the part of the reservation that was returned")]
    price: Annotated[str, says("as of usage records")]
    at: Ms
    granted_by: Annotated[str, says("of a grant: the key of the operator")]
    note: str


MAX_ROWS = 200
MAX_LEDGER_ROWS = 1000
COLUMNS = (
    *("id", "kind", "fund", "ends", "of", "key", "user"),
    *("reserved", "amount", "refunded", "price", "at", "grantedBy", "note"),
)
"""The columns of the ledger as CSV."""

BalancesDep = Annotated[BalanceAdmin, part(BalanceAdmin)]
router = keyed_router("operators")
KeyId = Annotated[
    str, Query(pattern=r"^[A-Za-z0-9._-]{0,64}$", description="The id of a key that pays for its tasks.")
]
User = Annotated[
    str, Query(max_length=256, pattern=PLAIN, description="A paying user, as in the task list: `site/ann`.")
]
After = Annotated[str, Query(max_length=300, pattern=PLAIN)]


@router.get(
    "/api/admin/balances",
    **described("admin.balances.list", "List balances", listed("rows", QuotaShown, now=INTEGER)),
)
async def balances(
    admin: BalancesDep,
    key: KeyId = "",
    user: User = "",
    text: Filter = "",
    after: After = "",
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
) -> Response:
    """Return the balances of keys and users with grants or payments; with `key` those of a key and its users, with `user` that
    of a user, also without any. `text` is a part of the name, in any case.

    `balance` is `granted` less `spent`, below 0 if a task cost more than was reserved for it; `reserved` is for tasks that have
    not ended; `available` is what the next task may reserve, from the `budget` first. All of it is in credits. `active`: the
    key's quota applies now. `next` is the `after` of the next page, null at the end.
    """
    return answer(await admin.page(read_subject(key, user), text.lower(), after, limit))


@router.post(
    "/api/admin/balances/grants",
    **described(
        "admin.balances.grant",
        "Grant credits",
        QuotaGranted,
        body=NewGrant,
        status=201,
        responses={200: {"content": json(QuotaGranted)}},
    ),
)
async def grant(admin: BalancesDep, actor: ActorDep, body: BodyDep) -> Response:
    """Grant credits to a key or a user, immediately on all replicas. They do not expire; a negative amount withdraws some.

    With your own `id` the call can be repeated: it grants once (then 200 and `new: false`); 409: the id names another grant. The
    audit log has an entry. `notes`: why the grant may have no effect, such as a key without a quota.
    """
    done = await admin.grant(body, actor)
    return answer(done, status=201 if done["new"] else 200)


@router.get(
    "/api/admin/balances/ledger",
    **described(
        "admin.balances.ledger", "List ledger entries", listed("rows", LedgerEntry, now=INTEGER), content=CSV
    ),
)
async def ledger(
    admin: BalancesDep,
    request: RequestDep,
    key: KeyId = "",
    user: User = "",
    kind: Literal["task", "grant", ""] = "",
    since: Since = "",
    until: Until = "",
    after: After = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LEDGER_ROWS)] = 100,
    form: Form = "",
) -> Response:
    """Return grants and the costs of tasks, newest first: all, or those of a paying key or user.

    A task has a row for each fund that it reserved or was charged from: `granted`, or the budget of a `day` or `month`, until it
    `ends`. `amount` is the change in credits, below 0 for payments; `refunded` is the returned part of `reserved`. The amounts in
    the fund `granted` add up to the balance. `next` is the `after` of the next page, null at the end (in CSV: the header
    `x-next`).
    """
    rows, more = await admin.ledger(read_subject(key, user), kind, *between(since, until), after, limit)
    if wants_csv(request, form):
        return await as_csv(COLUMNS, rows, "ledger", {"x-next": more} if more else {})
    return answer({"now": now_ms(), "rows": rows, "next": more})


ROUTERS = ((router, Access.ADMIN),)
