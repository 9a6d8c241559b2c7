"""Balances of keys and users with a quota, their ledger, and grants."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from fairlane.gateway.accounts.admin import no_key
from fairlane.gateway.accounts.callers import MAX_USER_CHARS, Caller
from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.admin.bodies import Note, StrictBody, read_body
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.credits.balances import BalanceRow, Balances
from fairlane.gateway.database.tables import GRANTED, LedgerRow
from fairlane.gateway.errors import bad_request
from fairlane.gateway.prices.prices import MAX_CREDITS, credits_of, plain_credits, read_credits, unpack
from fairlane.gateway.prices.quota import Quota
from fairlane.queues.clock import now_ms
from fairlane.queues.overrides import Actor

_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_Credits = Annotated[
    int,
    BeforeValidator(lambda value: read_credits(value, least=-MAX_CREDITS)),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]


class NewGrant(StrictBody):
    """Credits for a key or a user, in addition to any budget."""

    key: str | None = Field(None, description="id of the key that pays; or `user`")
    user: str | None = Field(
        None, description="one of a delegating key's, as the task list names it: `site/ann`"
    )
    credits: _Credits = Field(description="at most 6 decimals; less than 0 removes credits")
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")] | None = Field(
        None,
        description="yours, such as the number of an invoice: repeating it grants nothing more; random by default",
    )
    note: Note | None = None


class Subject(NamedTuple):
    """The payer: a key, or a user of a delegating key."""

    key_id: str
    user: str = ""
    """Empty: the key."""

    @property
    def name(self) -> str:
        """Its name in balances (limits.lua)."""
        return f"u:{self.user}" if self.user else f"k:{self.key_id}"

    @property
    def target(self) -> str:
        """Its name in the audit log."""
        return f"user {self.user}" if self.user else f"key {self.key_id}"

    @property
    def shown(self) -> dict[str, Any]:
        """Its members in answers."""
        return {"of": "user" if self.user else "key", "key": self.key_id, "user": self.user or None}


def read_subject(key: str | None, user: str | None) -> Subject | None:
    """Return the payer that a call names. Raise ApiError(400)."""
    if key and user:
        raise bad_request("name a key or a user, not both", "user")
    if key:
        if not _KEY_ID.fullmatch(key):
            raise bad_request("key must be the id of a key", "key")
        return Subject(key)
    if not user:
        return None
    key_id, slash, name = user.partition("/")
    named = not slash or (0 < len(name) <= MAX_USER_CHARS and name.isprintable())
    if not named or not _KEY_ID.fullmatch(key_id):
        sentence = "user must be one of a delegating key's, as the task list names it: key/name"
        raise bad_request(sentence, "user")
    return Subject(key_id, user)


def subject_of(name: str) -> Subject:
    """Return the payer of a name in balances."""
    return Subject(name[2:]) if name.startswith("k:") else Subject(name[2:].partition("/")[0], name[2:])


@dataclass(eq=False)
class BalanceAdmin:
    """Use cases. All raise ApiError, StoreError and DatabaseUnavailable."""

    _balances: Balances
    _store: KeyStore
    _current: ActiveConfig
    _audit: AuditRecord

    async def page(self, wanted: Subject | None, text: str, after: str, limit: int) -> dict[str, Any]:
        """Return balances: all, those of a key, or of one user, and the `after` of the next page.

        A named key or user is always among them. Raises ApiError(404) for an unknown key.
        """
        balances = self._balances
        names, more = await self._names(wanted, text, after, limit)
        if wanted is not None and not await self._known(wanted.key_id) and not await balances.known(names):
            raise no_key(wanted.key_id)
        rows = [self._shown(row) for row in await balances.rows(self._texts(names))]
        return {"now": now_ms(), "rows": rows, "next": more or None}

    async def _names(
        self, wanted: Subject | None, text: str, after: str, limit: int
    ) -> tuple[list[str], str]:
        """Return the names of a page, a named key or user first, and the `after` of the next page."""
        if wanted is not None and wanted.user:
            return [wanted.name], ""
        names, more = await self._balances.subjects(wanted.key_id if wanted else "", text, after, limit)
        first = [wanted.name] if wanted is not None and not after else []
        return [*first, *(name for name in names if name not in first)], more

    def _texts(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self._text(subject_of(name)) for name in names}

    async def grant(self, fields: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
        """Grant credits, or remove some, once for each id."""
        wanted = read_body(NewGrant, fields)
        subject = read_subject(wanted.key, wanted.user)
        if subject is None:
            raise bad_request("name who is granted: key or user", "key")
        if not wanted.credits:
            raise bad_request("credits must not be 0", "credits")
        if not await self._known(subject.key_id):
            raise no_key(subject.key_id)
        notes = self._doubts(subject)
        grant_id = wanted.id or f"grant-{secrets.token_hex(8)}"
        note = wanted.note or ""
        done = await self._balances.grant(
            subject.name,
            wanted.credits,
            grant_id=grant_id,
            who=actor.name,
            note=note,
            quota=self._text(subject),
        )
        if done.new:
            after = done.row.balance
            granted = {"id": grant_id, "credits": plain_credits(wanted.credits), "note": note}
            before = {"balance": plain_credits(after - wanted.credits)}
            now = {"balance": plain_credits(after), **granted}
            await self._audit.note(actor, "grant", subject.target, before, now, notes)
        answer = {"id": grant_id, "new": done.new, "credits": credits_of(wanted.credits), "notes": notes}
        return {**answer, **self._shown(done.row)}

    async def ledger(
        self, wanted: Subject | None, kind: str, since: int, until: int, after: str, limit: int
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return ledger rows, the newest first, and the cursor of the next page."""
        name = wanted.name if wanted else None
        page = await self._balances.ledger_page(name, after, limit, kind=kind, since=since, until=until)
        return [_row(row) for row in page.rows], page.next or None

    async def own(self, caller: Caller) -> dict[str, Any] | None:
        """Return the caller's balance. Return None if its tasks cost nothing, or for a link's token, which may not see it."""
        if caller.quota is None or not caller.sees_quota:
            return None
        subject = caller.quota.subject(caller.key_id, caller.user)
        (row,) = await self._balances.rows(self._texts([subject]))
        shown = self._shown(row)
        return {name: value for name, value in shown.items() if name not in ("key", "user", "active")}

    async def _known(self, key_id: str) -> bool:
        """Return whether there is or was an API key of this id."""
        if self._current.callers.of_key(key_id) is not None:
            return True
        key = await self._store.get(key_id)
        return key is not None and key.kind == "caller"

    def _doubts(self, subject: Subject) -> list[str]:
        """Return the reasons why granted credits may be of no use."""
        who = self._current.callers.of_key(subject.key_id)
        if who is None:
            return [f"The key {subject.key_id} is not valid: the credits cannot be used"]
        if who.quota is None:
            return [f"The key {subject.key_id} has no quota: its tasks cost nothing until it has one"]
        if who.quota.of_user != bool(subject.user):
            pays = "each user of it pays" if who.quota.of_user else "it pays for all its users"
            return [
                f"By the quota of the key {subject.key_id} {pays}: what was granted lies idle until that changes"
            ]
        return []

    def _quota(self, subject: Subject) -> Quota | None:
        """Return the quota by which a subject pays now; None if there is none."""
        who = self._current.callers.of_key(subject.key_id)
        quota = who and who.quota
        return quota if quota and quota.of_user == bool(subject.user) else None

    def _text(self, subject: Subject) -> str:
        """Return the same in the form of `submit`; '' if there is none."""
        quota = self._quota(subject)
        return self._current.plans.budgets.text(quota, now_ms()) if quota else ""

    def _shown(self, row: BalanceRow) -> dict[str, Any]:
        subject = subject_of(row.subject)
        quota, budget = self._quota(subject), row.budget
        return {
            **subject.shown,
            "active": quota is not None,
            "granted": credits_of(row.granted),
            "spent": credits_of(row.spent),
            "balance": credits_of(row.balance),
            "reserved": credits_of(row.held + (budget.held if budget else 0)),
            "available": credits_of(row.available),
            "budget": budget
            and {
                "limit": credits_of(budget.limit),
                "per": budget.per,
                "used": credits_of(budget.used),
                "reserved": credits_of(budget.held),
                "remaining": credits_of(budget.remaining),
                "ends": budget.ends_ms,
            },
            "otherwise": (quota and quota.otherwise) or None,
        }


def _row(row: LedgerRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "fund": row.fund,
        "ends": None if row.fund == GRANTED else row.ends,
        **subject_of(row.subject).shown,
        "reserved": credits_of(row.held),
        "amount": credits_of(row.amount),
        "refunded": credits_of(max(row.held + row.amount, 0) if row.kind == "task" else 0),
        "price": unpack(row.price).id if row.price else "",
        "at": row.at,
        "grantedBy": row.who,
        "note": row.note,
    }
