"""The operators' calls for quotas: who has how much, grants, and the ledger."""

from typing import Annotated, Any, Literal

from fastapi import Query, Response

from fairlane.gateway.api.dependencies import (
    ActorDep,
    BodyDep,
    OperatorDep,
    RequestDep,
    answer,
    described,
    keyed_router,
)
from fairlane.gateway.api.operator_schemas import LedgerEntry, QuotaGranted, QuotaShown
from fairlane.gateway.api.queries import PLAIN, Count, Filter, Plain, Since, Until, between
from fairlane.gateway.api.schemas import INTEGER, NULLABLE, json, listed
from fairlane.gateway.api.tables import CSV, Form, as_csv, wants_csv
from fairlane.gateway.operator.quota import NewGrant, read_subject
from fairlane.queues.clock import now_ms

MAX_ROWS = 200
MAX_LEDGER_ROWS = 1000
COLUMNS = (
    *("id", "kind", "fund", "ends", "of", "key", "user"),
    *("reserved", "amount", "refunded", "price", "at", "grantedBy", "note"),
)
"""Of the ledger as CSV."""

router = keyed_router("operators")
KeyId = Annotated[
    str, Query(pattern=r"^[A-Za-z0-9._-]{0,64}$", description="The id of a key that pays for its tasks.")
]
User = Annotated[
    str,
    Query(
        max_length=256, pattern=PLAIN, description="A user who pays, as the task list names it: `site/ann`."
    ),
    Plain,
]
After = Annotated[str, Query(max_length=300, pattern=PLAIN), Plain]


@router.get(
    "/api/admin/balances",
    **described(
        "admin.quota.list", "List balances", listed("rows", QuotaShown, now=INTEGER, databaseError=NULLABLE)
    ),
)
async def standings(
    operator: OperatorDep,
    key: KeyId = "",
    user: User = "",
    text: Filter = "",
    after: After = "",
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS), Count] = 100,
) -> Response:
    """How those stand who were granted credits or have paid for tasks; with `key` that key and its users, with `user` that one,
    also if they never did. `text` is a part of the name, in small or large letters.

    `balance` is what was `granted` less what was `spent` of it, less than nothing where a task took more than was held for it;
    `held` is for tasks that have not ended; `available` is what the next task may be held, of the `budget` first. All of it in
    credits. `active`: its key has such a quota now. `next` is the `after` that goes on, null at the end.
    """
    return answer(await operator.quota.page(read_subject(key, user), text.lower(), after, limit))


@router.post(
    "/api/admin/balances/grants",
    **described(
        "admin.quota.grant",
        "Grant credits",
        QuotaGranted,
        body=NewGrant,
        status=201,
        responses={200: {"content": json(QuotaGranted)}},
    ),
)
async def grant(operator: OperatorDep, actor: ActorDep, body: BodyDep) -> Response:
    """Grants credits to a key or a user, which stay until they are used; less than 0 takes some back. On all replicas at once.

    With an `id` of yours the call can be repeated: it grants once (200 and `new: false` afterwards), and 409 says that the id
    names another grant. Written to the audit record. `notes` say why what was granted may be of no use, as where the key has no
    quota.
    """
    done = await operator.quota.grant(await body.fields(), actor)
    return answer(done, status=201 if done["new"] else 200)


@router.get(
    "/api/admin/balances/ledger",
    **described(
        "admin.quota.ledger", "List ledger entries", listed("rows", LedgerEntry, now=INTEGER), content=CSV
    ),
)
async def ledger(
    operator: OperatorDep,
    request: RequestDep,
    key: KeyId = "",
    user: User = "",
    kind: Literal["task", "grant", ""] = "",
    since: Since = "",
    until: Until = "",
    after: After = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LEDGER_ROWS), Count] = 100,
    form: Form = "",
) -> Response:
    """What was granted and what tasks have cost, the newest first: of all, of a key that pays, or of a user who does.

    A task has a row for each fund that it was held or charged of: `granted`, or the budget of the `day` or `month` that then
    `ends`.
    `amount` is what that did to it, in credits: less than 0 for what was paid; `refunded` is what came back of what was `held`.
    The amounts in the fund `granted` add up to the balance. `next` is the `after` that goes on, null at the end (of CSV: the
    header `x-next`).
    """
    rows, more = await operator.quota.ledger(
        read_subject(key, user), kind, *between(since, until), after, limit
    )
    if wants_csv(request, form):
        told: dict[str, Any] = {"x-next": more} if more else {}
        return await as_csv(COLUMNS, rows, "ledger", told)
    return answer({"now": now_ms(), "rows": rows, "next": more})
