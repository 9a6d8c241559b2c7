"""Parses entries of the outbox. Pure."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.credits.prices import unpack
from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.webhooks.enqueue import End
from fairlane.queues.chains import part_id

MAX_TOKENS = 4_194_304
"""Of one task: larger numbers of a worker are capped, as in endings.lua."""


if TYPE_CHECKING:
    Absent = Literal[False]
else:
    Absent = bool  # msgspec has no literals of this type
"""The value of a field that the task's record does not have."""


class Packed(msgspec.Struct, array_like=True, gc=False):
    """An entry, as `record_usage` packs it (records.lua): as texts."""

    ended: int
    enqueued: int | Absent
    granted: int | Absent
    first_output: int | Absent
    state: str
    code: str | Absent
    queue: str
    task_type: str | Absent
    user: str
    key: str | Absent
    scheduled: str
    asked: str | Absent
    worker: str | Absent
    attempts: int | Absent
    tries: int | Absent
    request: str | Absent
    traceparent: str | Absent
    told: str | Absent
    """The three fields `input`, `output` and `more`, of a task whose usage was reported while it still had its slot."""
    task: str
    input: str
    output: str
    more: str
    """Cached and reasoning tokens, and whether they are estimates."""
    price: str = ""
    cost: str = ""
    charge: str = ""
    """What was paid (credits.lua)."""
    route: str = ""
    template: str = ""
    """Its name, version and locale, a line for each."""
    stage: str = ""
    """Of a stage or part of a chain, which is the task: number of the stage, the part or -, name of the stage, and when the
    chain entered it, if it is not the first."""
    announced: str = ""
    """1: this is the end of the task or chain, and webhooks of its owner are notified."""


_unpack = msgspec.msgpack.Decoder(Packed, strict=False).decode


def read_usage(packed: bytes, tier_of: Callable[[str], str]) -> UsageRow:
    """Return the row of an entry. `tier_of` returns the tier of a queue. Raises ValueError for an invalid entry."""
    entry = _entry(packed)
    if not entry.task or not entry.ended:
        raise ValueError("the entry names no task, or not when it ended")
    input_, output, more = _tokens(entry.input), _tokens(entry.output), entry.more
    if entry.told and input_ is None and output is None:
        read, wrote, more = entry.told.split(" ", 2)
        input_, output = _tokens(read), _tokens(wrote)
    cached, reasoning, estimated = more.split(" ") if more else ("", "", "")
    trace = entry.traceparent.split("-") if entry.traceparent else ()
    template, version, *_ = (*entry.template.split("\n"), "")
    name, chain, stage, stage_name, part, entered = _of_chain(entry)
    return UsageRow(
        name,
        entry.ended,
        entered or entry.enqueued or 0,
        entry.granted or None,
        entry.first_output or None,
        entry.state,
        entry.code or "",
        entry.key or "",
        entry.user,
        tier_of(entry.queue),
        entry.queue,
        entry.task_type or "",
        entry.asked or entry.scheduled,
        entry.scheduled,
        entry.worker or "",
        entry.attempts or 0,
        entry.tries or 0,
        entry.request or "",
        trace[1] if len(trace) > 2 else "",
        input_,
        output,
        _part(_tokens(cached), input_),
        _part(_tokens(reasoning), output),
        estimated == "1",
        int(entry.cost) if entry.cost else None,
        _price_id(entry.price) if entry.price else "",
        entry.route,
        template,
        version,
        chain,
        stage,
        stage_name,
        part,
    )


_ANNOUNCED = b"\xa11"
"""The last bytes of an entry whose last text is 1."""


def read_announced(packed: bytes) -> End | None:
    """Return the end that webhooks are notified of; None, without parsing, for most entries. Raises ValueError for an invalid
    entry."""
    if not packed.endswith(_ANNOUNCED):
        return None
    entry = _entry(packed)
    if entry.announced != "1":
        return None
    return End(Owner(entry.key or "", entry.user), f"task.{entry.state}", entry.task, entry.ended)


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
    entry = _entry(packed)
    if not entry.charge:
        return None
    user, (whose, *numbers, window) = entry.user, entry.charge.split(" ")
    number, held, charged, window_held, window_charged = map(int, numbers)
    subject = f"k:{user.partition('/')[0]}" if whose == "k" else f"u:{user}"
    return Charge(
        entry.task,
        entry.ended,
        entry.key or "",
        user,
        subject,
        "" if entry.stage else entry.price,
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


def _entry(packed: bytes) -> Packed:
    try:
        return _unpack(packed)
    except msgspec.MsgspecError as error:
        raise ValueError(f"this is no entry: {error}") from error


@lru_cache(1000)
def _price_id(packed: str) -> str:
    return unpack(packed).id


def _tokens(text: str) -> int | None:
    """Return a number of tokens; None if it is unknown (-1)."""
    return min(int(text), MAX_TOKENS) if text and text[0] != "-" else None


def _of_chain(entry: Packed) -> tuple[str, str, int | None, str, int | None, int]:
    """Return the id of the row, its last columns, and when its stage began (0: with its task)."""
    if not entry.stage:
        return entry.task, "", None, "", None, 0
    number, part, name, *entered = entry.stage.split(" ")
    at = int(entered[0]) if entered else 0
    if part == "-":
        return f"{entry.task}.{number}", entry.task, int(number), name, None, at
    return part_id(entry.task, int(number), int(part)), entry.task, int(number), name, int(part), at


def _part(tokens: int | None, whole: int | None) -> int | None:
    """Cap tokens that are a part of `whole`."""
    return tokens if tokens is None or whole is None else min(tokens, whole)
