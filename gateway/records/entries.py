"""Parses entries of the outbox. Pure."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.prices.prices import unpack
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
    entry = read_entry(packed)
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


def at_of(entry_id: str) -> int:
    """Return when an entry of the audit log was written, ms: its id begins with Redis's time in microseconds."""
    return int(entry_id.partition("-")[0]) // 1000


def read_entry(packed: bytes) -> _Entry:
    """Return the two parts of an entry. Raises ValueError for an invalid one."""
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
