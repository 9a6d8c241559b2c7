"""The ledger in SQL: grants of keys and users with a quota, and charges of their tasks.

Rows are added once and never changed: that of a task by its id, that of a grant by the id in the request. The same transaction
adds a row to the sums, so the sums are those of the rows at every instant. Balances are computed from the sums.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, collate, desc, func, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.inserting import insert_rows
from fairlane.gateway.database.tables import GRANTED, LedgerRow, balances, ledger
from fairlane.gateway.http.paging import read_place
from fairlane.gateway.records.entries import read_entry
from fairlane.queues.credits import Funds

_FUNDS = {"d": "day", "m": "month"}
_LETTERS = {fund: letter for letter, fund in _FUNDS.items()}


class Charge(NamedTuple):
    """What a task reserved and was charged: micro-credits of the grants, and of a window of the budget. The rest was returned."""

    task: str
    ended: int
    key_id: str
    user_name: str
    subject: str
    """The payer: a key, `k:<id>`, or a user, `u:<user>`."""
    price: str
    """As in the record; empty for a chain, whose stages have their own."""
    number: int
    """Counts the settlements of the subject; 0: unknown."""
    held: int
    charged: int
    window: str
    """`d` or `m` and the end of the window (ms); '': there is no budget."""
    window_held: int
    window_charged: int


def read_charge(packed: bytes) -> Charge | None:
    """Return the charge in an entry (credits.lua); None: there is none. Raises ValueError for an invalid entry."""
    run, spec = entry = read_entry(packed)
    if not run.paid:
        return None
    user, (whose, *numbers, window) = spec.user, run.paid.split(" ")
    number, held, charged, window_held, window_charged = map(int, numbers)
    subject = f"k:{user.partition('/')[0]}" if whose == "k" else f"u:{user}"
    return Charge(
        spec.id,
        run.ended_at,
        spec.key_id,
        user,
        subject,
        "" if run.stage else entry.text("price"),
        number,
        held,
        charged,
        "" if window == "-" else window,
        window_held,
        window_charged,
    )


async def charge(connection: AsyncConnection, packed: Sequence[bytes], _: Sequence[bytes]) -> None:
    """Add the charges of ends. The ledger keeps the name of a user who pays, even if the user was erased."""
    charges = [charge for charge in map(read_charge, packed) if charge]
    if charges:
        await add_rows(connection, [row for charge in charges for row in rows_of(charge)])


def rows_of(charge: Charge) -> list[LedgerRow]:
    """Return the rows of a task: one for each fund that it reserved or was charged from."""
    rows = []
    funds = [(GRANTED, 0, charge.held, charge.charged)]
    if charge.window:
        fund, ends = window_of(charge.window)
        funds.append((fund, ends, charge.window_held, charge.window_charged))
    for fund, ends, held, charged in funds:
        if held or charged:
            user = charge.user_name if charge.subject.startswith("u:") else ""  # as in grants
            whose = (charge.subject, charge.key_id, user)
            amounts = (held, -charged, charge.number)
            rows.append(
                LedgerRow("task", charge.task, fund, ends, *whose, *amounts, charge.price, charge.ended)
            )
    return rows


def window_of(name: str) -> tuple[str, int]:
    """Return the fund and the end of a window, by its name in the scripts."""
    return _FUNDS[name[0]], int(name[1:])


async def add_rows(connection: AsyncConnection, rows: Iterable[LedgerRow]) -> int:
    """Add the rows that are new, and add them to the sums. Return their number."""
    by_key = {row[:3]: row for row in rows}
    # sorted: all writers lock rows in the same order, so there is no deadlock
    ordered = [by_key[key] for key in sorted(by_key)]
    new = [by_key[tuple(key)] for key in await insert_rows(connection, ledger, ordered, _IF_NEW)]
    sums: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in new:
        sum_ = sums[row.subject, row.fund, row.ends]
        sum_[0] += row.amount
        if row.kind == "grant":
            sum_[1] += row.amount
            sum_[2] += 1
        sum_[3] = max(sum_[3], row.number)
    await insert_rows(connection, balances, [(*key, *sums[key]) for key in sorted(sums)], _ADDING)
    return len(new)


_IF_NEW = "ON CONFLICT (kind, id, fund) DO NOTHING RETURNING kind, id, fund"
_ADDING = (
    "ON CONFLICT (subject, fund, ends) DO UPDATE SET "
    + ", ".join(f"{name} = balances.{name} + excluded.{name}" for name in ("amount", "granted", "grants"))
    + ", number = CASE WHEN excluded.number > balances.number THEN excluded.number ELSE balances.number END"
)


# ---- reading ----------


async def read_funds(
    connection: AsyncConnection, wanted: Mapping[str, Iterable[str]], until: int | None = None
) -> dict[str, Funds]:
    """Return the funds of these subjects, and of windows of their budgets, without subjects that have no row. One statement.

    `until`: the cost of tasks with higher numbers is left out.
    """
    windows = {window for names in wanted.values() for window in names}
    ends = {window_of(window)[1] for window in windows}
    spent: Any = balances.c.granted - balances.c.amount
    if until is not None:
        same = and_(*(ledger.c[name] == balances.c[name] for name in ("subject", "fund", "ends")))
        later = select(func.coalesce(func.sum(ledger.c.amount), 0)).where(
            same, ledger.c.kind == "task", ledger.c.number > until
        )
        spent = spent + later.scalar_subquery()
    rows = await connection.execute(
        select(
            balances.c.subject,
            balances.c.fund,
            balances.c.ends,
            balances.c.granted,
            balances.c.grants,
            balances.c.number,
            spent.label("spent"),
        ).where(balances.c.subject.in_(wanted), or_(balances.c.fund == GRANTED, balances.c.ends.in_(ends)))
    )
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.subject].append(row)
    return {subject: _funds(theirs) for subject, theirs in found.items()}


def _funds(rows: Sequence[Any]) -> Funds:
    number = max(row.number for row in rows)
    windows = {f"{_LETTERS[row.fund]}{row.ends}": int(row.spent) for row in rows if row.fund != GRANTED}
    for row in rows:
        if row.fund == GRANTED:
            return Funds(row.granted, row.grants, int(row.spent), number, windows)
    return Funds(number=number, windows=windows)


async def grant_of(connection: AsyncConnection, grant_id: str) -> LedgerRow | None:
    """Return the grant of this id."""
    found = (
        await connection.execute(select(ledger).where(ledger.c.kind == "grant", ledger.c.id == grant_id))
    ).one_or_none()
    return LedgerRow(*found) if found else None


def page_of(
    subject: str | None,
    after: str,
    limit: int,
    kind: str = "",
    since: int | None = None,
    until: int | None = None,
) -> Select[Any]:
    """Return a query of up to `limit` rows, the newest first, of a subject or of all. `after`: `place` of the last row before.
    Raises ApiError(400)."""
    order = (ledger.c.at, ledger.c.id, ledger.c.fund)
    query = select(ledger).order_by(*map(desc, order)).limit(limit)
    if subject is not None:
        query = query.where(ledger.c.subject == subject)
    if kind:
        query = query.where(ledger.c.kind == kind)
    if since is not None:
        query = query.where(ledger.c.at >= since)
    if until is not None:
        query = query.where(ledger.c.at < until)
    if after:
        at, rest = read_place(after, dots=1)
        name, _, fund = rest.rpartition(".")
        query = query.where(tuple_(*order) < (at, name, fund))
    return query


def subjects_of(of_key: str, text: str, after: str, dialect: str) -> Select[Any]:
    """Return a query of the names of subjects, in the order of their bytes, behind `after`: all, or those of a key, that contain
    `text` (lower case)."""
    name = collate(balances.c.subject, "BINARY" if dialect == "sqlite" else "C")
    query = select(name).where(name > after).order_by(name).distinct()
    if of_key:
        users = and_(name > f"u:{of_key}/", name < f"u:{of_key}0")  # (0 follows /)
        query = query.where(or_(balances.c.subject.in_((f"k:{of_key}", f"u:{of_key}")), users))
    if text:
        query = query.where(func.lower(balances.c.subject).contains(text, autoescape=True))
    return query


def place(row: LedgerRow) -> str:
    """Return the place of a row, for `page_of`."""
    return f"{row.at}.{row.id}.{row.fund}"
