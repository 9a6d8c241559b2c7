"""Parses entries of the outbox. Pure."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.prices.prices import unpack
from fairlane.gateway.webhooks.enqueue import End
from fairlane.queues.chains import part_id
from fairlane.queues.tasks import Used

MAX_TOKENS = 4_194_304
"""Of one task: larger numbers of a worker are capped, as in ending.lua."""


class _Spec(msgspec.Struct, gc=False):
    """The gateway's part of a task's record (keys.py, SPEC)."""

    id: str
    user: str
    model: str
    queue: str
    type: str = ""
    key_id: str = ""
    request_id: str = ""
    traceparent: str = ""
    route: str = ""
    template: str = ""
    price: str = ""
    webhooks: bool = False
    chain: str = ""
    """Of a part its chain."""


class _Run(msgspec.Struct, gc=False):
    """The scripts' part (keys.py, RECORD), as it was when the task was recorded. None: as the gateway's part has it."""

    ended_at: int
    state: str
    enqueued_at: int = 0
    granted_at: int = 0
    first_output_at: int = 0
    code: str = ""
    model: str | None = None
    queue: str | None = None
    requested_model: str | bool = ""
    type: str | bool | None = None
    route: str | bool | None = None
    template: str | bool | None = None
    price: str | bool | None = None
    worker: str = ""
    attempt: int = 0
    attempts_before: int = 0
    tries: int = 0
    used: Any = None
    used_before: Any = None
    cost: int | None = None
    paid: str = ""
    """What was paid (credits.lua)."""
    stage: str = ""
    """Of a stage or part of a chain, which is the task: number of the stage, the part or -, name of the stage."""
    stage_entered_at: int = 0
    unannounced: bool = False
    """The chain continues: no webhook reports an end."""


_unpack = msgspec.msgpack.Decoder(tuple[_Run, _Spec]).decode


class _Entry(NamedTuple):
    """An entry: the two parts of a task's record."""

    run: _Run
    spec: _Spec

    def text(self, name: str) -> str:
        """Return a field that both parts may have."""
        value = getattr(self.run, name)
        return getattr(self.spec, name) if value is None else value or ""


def read_usage(packed: bytes, tier_of: Callable[[str], str]) -> UsageRow:
    """Return the row of an entry. `tier_of` returns the tier of a queue. Raises ValueError for an invalid entry."""
    entry = _entry(packed)
    run, spec = entry
    if not spec.id or not run.ended_at:
        raise ValueError("the entry names no task, or not when it ended")
    used = Used.read(run.used).plus(Used.read(run.used_before))  # of a repaired answer, both
    read, wrote, cached, reasoning = (None if n < 0 else min(n, MAX_TOKENS) for n in used[:4])
    trace = spec.traceparent.split("-") if spec.traceparent else ()
    template, version, *_ = (*entry.text("template").split("\n"), "")
    scheduled, queue, price = entry.text("model"), entry.text("queue"), entry.text("price")
    name, chain, stage, stage_name, part = _of_chain(entry)
    return UsageRow(
        name,
        run.ended_at,
        run.stage_entered_at or run.enqueued_at,
        run.granted_at or None,
        run.first_output_at or None,
        run.state,
        run.code,
        spec.key_id,
        spec.user,
        tier_of(queue),
        queue,
        entry.text("type"),
        entry.text("requested_model") or scheduled,
        scheduled,
        run.worker,
        run.attempt - run.attempts_before,
        run.tries,
        spec.request_id,
        trace[1] if len(trace) > 2 else "",
        read,
        wrote,
        _part(cached, read),
        _part(reasoning, wrote),
        used.estimated,
        run.cost,
        _price_id(price) if price else "",
        entry.text("route"),
        template,
        version,
        chain,
        stage,
        stage_name,
        part,
    )


def read_announced(packed: bytes) -> End | None:
    """Return the end that webhooks are notified of; None for most entries. Raises ValueError for an invalid entry."""
    run, spec = _entry(packed)
    if not spec.webhooks or spec.chain or run.unannounced:
        return None
    return End(Owner(spec.key_id, spec.user), f"task.{run.state}", spec.id, run.ended_at)


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
    run, spec = entry = _entry(packed)
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


def at_of(entry_id: str) -> int:
    """Return when an entry of the audit log was written, ms: its id begins with Redis's time in microseconds."""
    return int(entry_id.partition("-")[0]) // 1000


def _entry(packed: bytes) -> _Entry:
    try:
        return _Entry(*_unpack(packed))
    except msgspec.MsgspecError as error:
        raise ValueError(f"this is no entry: {error}") from error


@lru_cache(1000)
def _price_id(packed: str) -> str:
    return unpack(packed).id


def _of_chain(entry: _Entry) -> tuple[str, str, int | None, str, int | None]:
    """Return the id of the row, and its last columns."""
    run, task, chain = entry.run, entry.spec.id, entry.spec.chain
    if not run.stage:
        return task, "", None, "", None
    number, part, name = run.stage.split(" ")
    if part == "-":
        return f"{task}.{number}", task, int(number), name, None
    return part_id(chain, int(number), int(part)), chain, int(number), name, int(part)


def _part(tokens: int | None, whole: int | None) -> int | None:
    """Cap tokens that are a part of `whole`."""
    return tokens if tokens is None or whole is None else min(tokens, whole)
