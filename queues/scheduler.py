"""The scheduler: every transition of a task, as one call each. All decisions are made in the scripts, atomically."""

import asyncio
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import structlog

from fairlane.queues.chains import (
    MAX_BYTES,
    Advanced,
    Chain,
    ChainEnd,
    ChainStart,
    Part,
    Stage,
    StageEntry,
    Step,
    read_stage,
    read_used,
)
from fairlane.queues.credits import Balance, Funds
from fairlane.queues.inspect.load import ModelLoad, read_model_load
from fairlane.queues.inspect.presence import PresenceUpdate
from fairlane.queues.keys import Keys
from fairlane.queues.limits import SETTINGS, Allowed, read_allowance, read_rate_limit_status
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import (
    MODEL_COOLDOWNS,
    REPAIRS,
    RESULTS_DROPPED,
    TASKS_RETURNED,
    EndedTask,
    Recorder,
    TaskEnd,
    error_message_of,
)
from fairlane.queues.overrides import Actor, audit_mark, new_override_id
from fairlane.queues.rules import (
    Change,
    ConfiguredSettings,
    EffectiveSettings,
    Kind,
    Value,
    decode,
    encode,
    fields_of,
    read_configured,
    settings_of,
)
from fairlane.queues.store.link import Arg, RedisLink
from fairlane.queues.tasks import (
    TERMINAL,
    Admitted,
    Append,
    ClosedUpstreams,
    End,
    Ended,
    Entry,
    EventFields,
    EventRow,
    ExistingTask,
    Finished,
    Fragment,
    Grant,
    LimitHit,
    PermitEnd,
    Place,
    QuotaShortfall,
    Record,
    Rejection,
    Repair,
    RetryAt,
    State,
    Submitted,
    Taken,
    TaskSpec,
    Top,
    Used,
    WaitEstimate,
)
from fairlane.queues.versions import ConfigStatus, Configuration, Version, hash_of, read_configuration

log = structlog.get_logger("fairlane.queues")

MAX_ERASED = 500
"""Tasks whose user is checked in one step."""

MAX_TAKEN = 64
"""Tasks that one `take` grants at most; as in grants.lua. A caller that gets as many asks again."""
MAX_RENEWED = 500
"""Tasks that one call of `renew` looks at, so that others are served between."""

NEVER_READ = Version()
_DRAIN = struct.Struct("<ddd")
"""Departures from a lane, as lanes.lua packs them: their number, the ms they took, when the last was."""

_GRANT = msgspec.msgpack.Decoder(Grant, strict=False)
"""Reads a grant as the scripts describe it: its fields in their order, numbers as text."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The terminal events that scripts write by themselves: the words are the gateway's, the decision is theirs."""

    timeout: Fragment
    queue_timeout: Fragment
    worker_lost: Fragment
    no_worker: Fragment
    left: Fragment
    """The `cancelled` event of a task whose readers left."""
    unavailable: Fragment
    """A caller waits for it, and the upstreams of all models that may run it fail."""
    permit_unreported: Fragment
    """The `done` event of a permit that was used, and whose call's end was not reported in time."""
    permit_unused: Fragment
    busy: Fragment
    """Its time is over, and the model's provider takes no request (429)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for every task of a pool. Durations in ms."""

    lease_ms: int = 15_000
    grant_ms: int = 3_000
    stop_grace_ms: int = 60_000
    """How long a slot may stay taken by a task that was ended from outside."""
    deadline_grace_ms: int = 5_000
    max_queue_length: int = 1000
    max_queued_bytes: int = 1 << 30
    max_retained_bytes: int = 1 << 30
    """Of records and logs of ended tasks; beyond it those that ended first are dropped."""
    max_outbox: int = 1_000_000
    """Entries that wait to be brought to SQL; beyond it no task is accepted."""


class Scheduler:
    """One replica's calls into the shared scheduler.

    Every method is one round trip and atomic: it happened as a whole or not at all. When the reply is lost it raises
    StoreUnavailable(sent=True): `submit`, `take` and `finish` called again with the same nonce answer as before, so do the
    others. `nonce()` makes one; grant tokens derive from it.
    """

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        replica: str,
        ends: Ends,
        limits: Limits,
        metrics: Recorder | None = None,
    ) -> None:
        self.metrics: Recorder = metrics or Recorder()
        self._link = link
        self._keys = keys
        self._ends = ends
        self._numbers = itertools.count(1)
        self.limits = limits
        self.replica = replica
        self._dropped = RateLimitedLogger(burst=1, per_second=1 / 60)
        self.on_overrides: Callable[[bytes], None] = _ignore
        """Called with the version of the overrides after each sweep."""

    def _log_dropped(self, number: int) -> None:
        self._dropped.log(
            log.warning,
            "ended tasks take more than max_retained_size: those that ended first are dropped before their time",
            dropped=number,
            max_retained_bytes=self.limits.max_retained_bytes,
        )

    def nonce(self) -> str:
        """A name for one call, unique over all replicas (the replica id is random)."""
        return f"{self.replica}.{next(self._numbers):x}"

    def submit(
        self,
        task: TaskSpec,
        want: int,
        nonce: str,
        worker: str = "",
        *,
        named: bool = False,
        upstream: str = "",
        chain: ChainStart | None = None,
    ) -> asyncio.Future[Any]:
        """Queue `task`, and take up to `want` tasks of its model for this replica; `parse_submit` reads the reply.

        `named`: the worker whose slots these are offers the task's model by its name, not only every model; `upstream`: of that
        worker. With a `chain` the task is the first stage of one, and the id is the chain's: it is refused as one task is, and
        held what that stage and the later ones may cost. The parts of a stage that has several are queued in its place.
        """
        limits = self.limits
        return self._link.run(
            "submit_task",
            task.id,
            task.queue,
            task.model,
            task.user,
            task.priority,
            task.timeout_ms,
            -task.wait_ms if task.whole_wait else task.wait_ms,
            task.linger_ms,
            task.payload,
            self.replica,
            want,
            nonce,
            limits.grant_ms,
            limits.max_queue_length,
            limits.max_queued_bytes,
            b"1" if task.follow else b"0",
            worker,
            b"1" if named else b"0",
            limits.max_outbox,
            task.key_limits,
            task.user_limits,
            task.quota,
            task.idempotency,
            upstream,
            *_start_of(chain, limits),
            *_record_of(task),
        )

    @staticmethod
    def parse_submit(reply: Any) -> Submitted | ExistingTask | Rejection:
        """What `submit` answered. Only an accepted task left something behind."""
        outcome = reply[0].decode()
        if outcome == "ok":
            state, place = State(reply[1].decode()), Place(*reply[2])
            grants = [_GRANT.decode(packed) for packed in reply[4]]
            rate_limits = read_rate_limit_status(reply[8]) if len(reply) > 8 else None
            line, model = reply[6].decode(), reply[7].decode()
            later, shut = _retry_at(reply[5])
            return Submitted(state, place, int(reply[3]), grants, later, line, model, rate_limits, shut)
        rate_limits = read_rate_limit_status(reply[-1]) if isinstance(reply[-1], list) else None
        if outcome == "same":
            known_state = State(reply[2].decode()) if reply[2] else None
            line, model, name, template = (text.decode() for text in reply[5:9])
            known = reply[1].decode(), known_state, Place(*reply[3]), int(reply[4])
            return ExistingTask(*known, line, model, name, template, rate_limits)
        if outcome in ("full", "user_full", "too_long"):
            return Rejection(
                outcome, waiting=reply[1], limit=reply[2], retry_ms=reply[3], rate_limits=rate_limits
            )
        if outcome == "names":
            return Rejection("idempotency_keys", retry_ms=reply[1], rate_limits=rate_limits)
        if outcome in ("full_bytes", "unavailable"):
            return Rejection(outcome, retry_ms=reply[1], rate_limits=rate_limits)
        if outcome == "no_worker":
            return Rejection(
                outcome, others_offered=reply[1] == 1, retry_ms=reply[2], rate_limits=rate_limits
            )
        if outcome == "used_up":
            return Rejection(outcome, limit=reply[1], rate_limits=rate_limits)
        if outcome == "limited":
            name, subject, limit, used, asked, retry_ms = reply[1:7]
            reached = LimitHit(SETTINGS[name.decode()], limit, used, asked, subject.startswith(b"u:"))
            return Rejection("rate_limited", retry_ms=retry_ms, reached=reached, rate_limits=rate_limits)
        if outcome == "quota":
            return Rejection(outcome, short=QuotaShortfall(reply[1], reply[2]), rate_limits=rate_limits)
        if outcome == "no_balance":
            return Rejection(outcome, unknown=(reply[1].decode(), reply[2].decode()))
        return Rejection(outcome)

    async def allowance(self, user: str, key_limits: str, user_limits: str) -> list[Allowed]:
        """What is left of each limit of a caller: of its key, and of the user; both packed (`limits.pack`)."""
        reply = await self._link.run("read_limits", user, key_limits, user_limits)
        return list(read_allowance(reply))

    async def model_load(self, model: str) -> ModelLoad:
        """Return the load of a model. Raise StoreError."""
        return read_model_load(await self._link.run("measure_load", model))

    async def balance(self, subject: str) -> Balance | None:
        """What a key or user can pay with; None: SQL knows."""
        fields = _fields(await self._link.command("HGETALL", self._keys("balance", subject=subject)))
        return Balance(fields) if "balance" in fields else None

    async def load_balance(self, subject: str, funds: Funds, window: str = "") -> bool:
        """Load what SQL knows of a subject, and of a window. Return whether it was not loaded before.

        What is known here already does not change.
        """
        said = (funds.granted, funds.grants, funds.spent, funds.number)
        of_window = (window, funds.windows.get(window, 0)) if window else ()
        return bool(await self._link.run("load_balance", subject, *said, *of_window))

    async def due_balances(
        self, most: int, pause_ms: int, *, all_due: bool = False
    ) -> tuple[str, list[tuple[str, Balance, int]]]:
        """Return the balances to be compared with SQL now: the newest entry of the outbox ('' = none); and of at most `most`
        subjects how they stand, and for how long (ms) nothing has happened. They are due again in `pause_ms`.

        `all_due`: all are due now.
        """
        newest, *due = await self._link.run("list_due_balances", most, pause_ms, b"1" if all_due else b"0")
        found = [(subject.decode(), Balance(_fields(fields)), idle) for subject, fields, idle in due]
        return newest.decode(), found

    async def adjust_balance(
        self, subject: str, compared: Balance, funds: Funds, spent: int, windows: Mapping[str, int]
    ) -> bool:
        """Correct a balance that was `compared`: SQL's grants hold, and tasks have cost `spent` more, and `windows` more.

        Return False if it has changed meanwhile."""
        more = [part for window in windows.items() for part in window]
        said = (compared.mark, funds.number, funds.granted, funds.grants, spent, "")
        return bool(await self._link.run("adjust_balance", subject, *said, *more))

    async def evict_balance(self, subject: str, compared: Balance) -> bool:
        """Forget a balance that SQL knows as well. False: something has happened meanwhile."""
        return bool(
            await self._link.run(
                "adjust_balance", subject, compared.mark, "0", "0", "0", "0", compared.number
            )
        )

    def take(
        self, models: Sequence[str], want: int, nonce: str, worker: str = "", upstream: str = ""
    ) -> asyncio.Future[Any]:
        """The next tasks of a worker's `models` ('*': any), at most `want` and MAX_TAKEN; `parse_take` reads the reply.

        What is missing will be woken for; only who gets MAX_TAKEN must ask again.
        `want` 0 hands a wake-up on to another replica.
        """
        return self._link.run(
            "take_tasks", self.replica, nonce, self.limits.grant_ms, want, worker, upstream, *models
        )

    @staticmethod
    def parse_take(reply: Any) -> Taken:
        """What `take` answered."""
        return Taken([_GRANT.decode(packed) for packed in reply[0]], *_retry_at(reply[1]))

    def append(self, appends: Iterable[Append]) -> asyncio.Future[Any]:
        """Add events to logs, each task's for itself; read the reply with `parse_append`."""
        args: list[Arg] = [self.replica]
        for grant, seq, events, output in appends:
            args += (grant.task_id, grant.epoch, grant.token, seq, b"1" if output else b"0", len(events))
            for event in events:
                args += event
        return self._link.run("append_events", *args)

    @staticmethod
    def parse_append(reply: Any) -> list[tuple[str, int]]:
        """What `append` answered of each task: ('ok', 0), ('stale', 0) = the grant is over, stop; or ('hole', top of the log)."""
        outcomes = []
        for one in reply:
            outcomes.append(("hole", one) if isinstance(one, int) else (one.decode(), 0))
        return outcomes

    def sent(self, grants: Iterable[Grant]) -> asyncio.Future[Any]:
        """The requests of these attempts have left their workers: in their models' windows they count for as long as these last
        from now, and no longer until they have ended. Repeated, the last time counts. `parse_sent` reads the reply.
        """
        return self._link.run(
            "mark_sent", *(part for grant in grants for part in (grant.model, grant.task_id, grant.epoch))
        )

    @staticmethod
    def parse_sent(reply: Any) -> RetryAt:
        """What `sent` answered."""
        return _retry_at(reply)[0]

    def publish_progress(self, grant: Grant, kind: str, data: bytes) -> asyncio.Future[Any]:
        """Publish an event that is not logged (progress) to readers elsewhere; the last one is kept for new readers.

        Call it when the output before it has been appended. Its loss does no harm.
        """
        return self._link.run(
            "publish_progress", self.replica, grant.task_id, grant.epoch, grant.token, kind, data
        )

    def before_writing(self, call: Callable[[], None]) -> None:
        """Call once before the commands of this tick of the event loop leave: what it asks for leaves with them."""
        self._link.before_writing(call)

    def finish(self, grant: Grant, seq: int, events: Sequence[EventFields], end: End) -> asyncio.Future[Any]:
        """End a task with its last events and its terminal one, and take for the freed slot; `parse_finish` reads the reply.

        `seq`: the number of the first event, as the writer of the log counts; 0 from anybody else, whose terminal event then
        has an epoch of its own. Call again with the same `end` until it is answered: the slot is held until then.
        """
        args: list[Arg] = [
            grant.task_id,
            grant.epoch,
            grant.token,
            end.state,
            end.code,
            seq,
            end.used.input,
            end.used.output,
            self.replica,
            end.nonce,
            self.limits.grant_ms,
            end.want,
            end.worker,
            len(events),
            end.keep_ms,
            end.used.more,
            end.upstream,
        ]
        for event in events:
            args.extend(event)
        args.extend(end.terminal)
        args.extend(end.models)
        return self._link.run("finish_task", *args)

    def parse_finish(self, reply: Any) -> Finished:
        """Read the reply of `finish`. Count the tasks that ended with it: a part's chain and its other parts."""
        self._count_related_ends(reply[5])
        grants = [_GRANT.decode(packed) for packed in reply[2]]
        return Finished(reply[0].decode(), reply[1].decode(), grants, reply[3], *_retry_at(reply[4]))

    def advance(
        self, grant: Grant, seq: int, events: Sequence[EventFields], step: Step
    ) -> asyncio.Future[Any]:
        """Complete a stage of a chain, or a part of one, begin what follows, and take tasks for the freed slot.

        `parse_advance` reads the reply.

        One step: the last events, the stage's result and usage, its charge, and the entry of the next stage into its line (or the
        chain's end). The chain keeps the age of its submission. For an attempt that failed there are `requeue` and `finish`, as
        for any task: where these end it, the chain has ended; where it was a part, its chain ends as it did, and the other parts
        are cancelled.

        `seq`: as `finish` has it. Call again with the same `step` until it is answered: the slot is held until then. A call that
        comes when the chain has advanced further returns a stale grant.
        """
        used = step.used
        args: list[Arg] = [
            grant.task_id,
            grant.epoch,
            grant.token,
            seq,
            used.input,
            used.output,
            used.more,
            self.replica,
            step.nonce,
            self.limits.grant_ms,
            step.want,
            step.worker,
            step.upstream,
            step.result,
            MAX_BYTES,
            len(events),
            len(step.log_events),
            len(step.models),
        ]
        for event in (*events, *step.log_events):
            args.extend(event)
        args.extend(step.models)
        if isinstance(step.then, StageEntry):
            args.extend(_entry_of(step.then))
        elif step.then is not None:
            args.extend(_end_of(step.then))
        return self._link.run("advance_chain", *args)

    def parse_advance(self, reply: Any) -> Advanced:
        """Read the reply of `advance`. Count the chain's end, if it ended with the last of its parts."""
        outcome, event_id, packed, top, later, details, beside = reply
        grants = [_GRANT.decode(one) for one in packed]
        self._count_related_ends(beside)
        answer = Advanced(outcome.decode(), event_id.decode(), grants, top, *_retry_at(later))
        if answer.outcome == "moved":
            return answer._replace(model=details[0].decode())
        if answer.outcome == "quota":
            return answer._replace(needed=details[0], available=details[1])
        if answer.outcome == "no_balance":
            return answer._replace(unknown=(details[0].decode(), details[1].decode()))
        return answer

    def _count_related_ends(self, accounts: Sequence[list[Any]]) -> None:
        """Count tasks that ended with another one."""
        for account in accounts:
            self.metrics.ended(_task_end(account))

    async def chain(self, task_id: str, *, contents: bool = True) -> Chain | None:
        """What is known of a chain; None: it is none, or it is unknown or expired.

        `contents`: with its plan and results, which may be large; else only which results there are.
        """
        reply = await self._link.run("read_chain", task_id, b"1" if contents else b"0")
        return _read_chain(reply) if reply else None

    async def requeue(
        self,
        grant: Grant,
        why: str,
        *,
        cause: Literal["lost", "failed", "falls", "declined", "repair"],
        begun: bool,
        end: Fragment | None = None,
        suspicion: str = "",
        hold_ms: int = 0,
        repair: Repair | None = None,
        unsent: bool = False,
        by: str = "",
        grace_ms: int = 0,
        aside_ms: int = 0,
    ) -> Ended:
        """Give a granted task back to its old place; it may end instead (output was seen, tries used up, no worker left).

        `cause`: the worker is lost, it failed in a way that a retry may fix, or only another model (`falls`), or it declined
        (costs no try). `end`: what the task ends with when its tries are used up, instead of WORKER_LOST. `suspicion`: the
        record's `last_lost`, if the task may be the reason that its worker was lost. `hold_ms`: nothing of the model starts for
        so long, because its provider said so to the worker `by`. A task ends after 100 attempts anyhow, or 1,000 if the last was
        refused so.
        `repair`, with the cause of this name: what its worker is given now. What its answer used is charged. It happens once a
        task, and not behind its first output: else the task ends with `end`. `unsent`: no worker has begun it, so it counts in
        no window of its model. `grace_ms`: how long a task with a waiting caller waits if no worker is left.
        `aside_ms`: how long the task stands aside.
        """
        ends = self._ends
        reply = await self._link.run(
            "requeue_task",
            grant.task_id,
            grant.epoch,
            grant.token,
            why,
            cause,
            b"1" if begun else b"0",
            suspicion,
            hold_ms,
            *(end or ends.worker_lost),
            *ends.no_worker,
            *ends.timeout,
            *(_repair_fields(repair) if repair else ()),
            *(("unsent", b"1") if unsent else ()),
            *(("by", by) if hold_ms else ()),
            *(("grace", grace_ms) if grace_ms else ()),
            *(("aside", aside_ms) if aside_ms else ()),
        )
        outcome = reply[0].decode()
        if hold_ms and outcome != "stale":
            self.metrics.count(MODEL_COOLDOWNS, grant.model)
        if outcome == "ended":
            if len(reply) > 4:
                self.metrics.ended(_task_end(reply[4], reply[3]))
                self._count_related_ends(reply[5])
            return Ended(outcome, State.FAILED, reply[1].decode(), reply[2].decode(), reply[3])
        if outcome == "queued":
            self.metrics.count(TASKS_RETURNED, grant.queue, grant.model, cause)
            model = reply[2].decode()
            if repair:
                self.metrics.count(REPAIRS, grant.model, "begun")
            if model != grant.asked:
                failed = cause in ("failed", "falls")
                self.metrics.fell_back(grant.asked, model, "failed" if failed else "unavailable")
            return Ended(outcome, retry_at=_retry_at(reply[1])[0])
        return Ended(outcome)

    async def cancel(
        self, task_id: str, *, state: State, kind: str, end: Fragment, why: str, tombstone_ms: int = 0
    ) -> Ended:
        """End a task from outside, whatever it does. With `tombstone_ms`, a submit of it that comes later is refused."""
        reply = await self._link.run(
            "cancel_task",
            task_id,
            state,
            kind,
            end.rest,
            end.code,
            why,
            self.limits.stop_grace_ms,
            tombstone_ms,
        )
        outcome = reply[0].decode()
        if outcome == "ended":
            self.metrics.ended(_task_end(reply[4], reply[3]))
            self._count_related_ends(reply[5])
            return Ended(outcome, reply[1].decode(), reply[2].decode(), kind, reply[3])
        return Ended(outcome, reply[1].decode() if outcome == "over" else "")

    async def issue_permit(self, grant: Grant, unused_ms: int, used_ms: int, rest: bytes) -> EventRow | None:
        """Give out the permit that a task was granted: its event is logged, of these fields and `expiresAt`, and returned. From
        now on the store holds it, alone: for `unused_ms`, and once it is used for `used_ms` at most. None: the grant is over.
        """
        args = (grant.task_id, grant.epoch, grant.token, unused_ms, used_ms, rest, self.replica)
        outcome, *event = await self._link.run("issue_permit", *args)
        return EventRow(event[0].decode(), event[1]) if outcome == b"ok" else None

    async def use_permit(self, task_id: str, epoch: int, nonce: str) -> tuple[Admitted, RetryAt]:
        """Use the permit of this grant, which works once over all replicas; a call of the same nonce may be repeated.

        The permit then holds its slot until `release_permit`, or until its time is over. Return the outcome, and when the next
        task of its model may start, if time alone is in the way.
        """
        outcome, *later = await self._link.run("use_permit", task_id, epoch, nonce)
        return Admitted(outcome.decode()), _retry_at(later[0])[0] if later else ()

    async def release_permit(self, task_id: str, epoch: int, rest: bytes) -> PermitEnd:
        """What was let in with the permit of this grant has ended: its task completes, with a terminal event of these fields."""
        outcome, *account = await self._link.run("release_permit", task_id, epoch, rest)
        if account:
            self.metrics.ended(_task_end(account[0]))
        return PermitEnd(outcome.decode())

    async def renew(
        self, held: Sequence[tuple[Grant, str, bool, int]], read: Iterable[str] = ()
    ) -> list[int]:
        """Keep the leases of `held` and the interest in the tasks `read`: one round trip for MAX_RENEWED of them.

        Each held one with its worker, whether that has begun, and the tokens of its output so far (-1 unknown): what a task
        uses beyond what it was charged is charged while it runs.
        For each held one: 1 renewed, 0 over (stop it), 2 ended from outside (stop it, then call finish).
        """
        limits, replies, readers = self.limits, list[int](), list(read)
        calls = max(-(-(len(held) + len(readers)) // MAX_RENEWED), 1)
        for at in range(0, calls * MAX_RENEWED, MAX_RENEWED):
            some = held[at : at + MAX_RENEWED]
            args: list[Arg] = [limits.lease_ms, limits.deadline_grace_ms, len(some)]
            for grant, worker, begun, output in some:
                args.extend(
                    (grant.task_id, grant.epoch, grant.token, worker, b"1" if begun else b"0", output)
                )
            args.extend(readers[max(at - len(held), 0) : max(at + MAX_RENEWED - len(held), 0)])
            replies += await self._link.run("renew_leases", *args)
        return replies

    async def sweep(self) -> tuple[int, int]:
        """End what is out of time and requeue what was lost. Return ms until the next sweep, and tasks looked at."""
        ends, limits = self._ends, self.limits
        reply = await self._link.run(
            "sweep",
            limits.lease_ms,
            limits.stop_grace_ms,
            *ends.timeout,
            *ends.queue_timeout,
            *ends.worker_lost,
            *ends.no_worker,
            *ends.left,
            limits.max_retained_bytes,
            *ends.unavailable,
            ends.permit_unreported.rest,
            *ends.permit_unused,
            *ends.busy,
        )
        if reply[4]:
            self.metrics.count(RESULTS_DROPPED, number=reply[4])
            self._log_dropped(reply[4])
        sentences = {
            end.code: b"{%b}" % end.rest
            for end in (
                ends.worker_lost,
                ends.timeout,
                ends.queue_timeout,
                ends.unavailable,
                ends.permit_unused,
                ends.busy,
            )
        }
        for account in reply[3]:
            end = _task_end(account, sentences.get(account[4].decode(), b"{}"))
            if end.state in TERMINAL:
                self.metrics.ended(end)
            else:
                self.metrics.count(TASKS_RETURNED, end.queue, end.model, "lease")
        for pair, number in zip(reply[5][::2], reply[5][1::2], strict=True):
            model, other, cause = pair.decode().split("\n")
            self.metrics.fell_back(model, other, cause, number)
        self.on_overrides(reply[6])
        return max(int(reply[0]) - int(reply[1]), 0), reply[2]

    async def position(self, task_id: str) -> Record | None:
        """What is known of a task; None when unknown or expired."""
        reply = await self._link.run("read_task", task_id)
        if not reply:
            return None
        return Record(Place(*reply[0]), int(reply[1]), _fields(reply[2:]))

    async def search(
        self,
        source: Literal["running", "recent"],
        wanted: Mapping[str, str],
        *,
        after: str = "",
        most: int = 50,
        look_at: int = 1000,
    ) -> tuple[list[tuple[str, dict[str, str]]], str]:
        """Tasks whose record has the `wanted` fields, newest first, with their records; at most `most`, of at most `look_at`.

        `text` among them is a part of the id or the user, in small letters; `from` and `to`: submitted
        then or later, and before then, ms.

        `running`: all that hold a slot; `recent`: the last 10,000 that were submitted. The second value is the task behind
        which to continue (`after`), '' when there are no more; it may come with less than `most`, or none.
        """
        args = [text for pair in wanted.items() for text in pair]
        reply = await self._link.run("search_tasks", source, after, look_at, most, *args)
        return [(task_id.decode(), _fields(record)) for task_id, record in reply[1:]], reply[0].decode()

    async def tasks_of_keys(self, keys: Iterable[str], cursor: str, look_at: int) -> tuple[list[str], str]:
        """Return tasks that wait or run and were submitted with one of these keys, of about `look_at` tasks; and where to
        continue.

        '0' is the end, and where to begin. A task that is there all the while is found, maybe twice.
        """
        reply = await self._link.run("find_by_key", cursor, look_at, *keys)
        return [task_id.decode() for task_id in reply[1:]], reply[0].decode()

    async def wait_estimates(self, lanes: Sequence[tuple[str, str]]) -> list[WaitEstimate]:
        """What would await a task that came now into lanes, each a queue and a model: rough estimates, of what is learnt."""
        asked = [
            self._link.command(
                "HMGET", self._keys("model", model=model), "mean_ms", f"waiting:{queue}", f"drain:{queue}"
            )
            for queue, model in lanes
        ]
        found = []
        for reply in asked:
            mean, waiting, drain = await reply
            count, took, _ = _DRAIN.unpack(drain) if drain and len(drain) == _DRAIN.size else (0.0, 0.0, 0.0)
            wait_ms = float(waiting or 0) * took / count if count >= 1 else 0.0
            found.append(WaitEstimate(int(wait_ms), int(float(mean)) if mean else -1))
        return found

    async def now_ms(self) -> int:
        """The store's time, which that of tasks is."""
        seconds, micros = await self._link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def erase_user(self, user: str, until_ms: int) -> tuple[int, int]:
        """Remove what is kept of this user's tasks that were submitted until then and have ended; how many, and how many more
        their workers have not let go yet: these are to be erased later. Tasks that end meanwhile are not included."""
        removed = stopping = 0
        for line in ("endings", "ended", "due"):
            cursor = b"0"
            while True:
                reply = await self._link.run("erase_user", line, cursor, MAX_ERASED, user, until_ms)
                cursor, more, held = reply
                removed += more
                stopping += held
                if cursor == b"0":
                    break
        return removed, stopping

    async def record_action(
        self, actor: Actor, action: str, target: str, before: Mapping[str, Any], after: Mapping[str, Any]
    ) -> None:
        """Write into the audit record what an operator did that is no change of a setting."""
        written = [msgspec.json.encode(before), msgspec.json.encode(after)]
        await self._link.run("record_action", *actor, audit_mark(), action, target, *written)

    async def newest_audit_id(self) -> str | None:
        """The id of the newest entry of the audit record; None if there is none since the store began."""
        newest: bytes | None = await self._link.command("HGET", self._keys("pool"), "acted")
        return newest.decode() if newest else None

    async def follow(
        self, task_id: str, *, keep_alive: bool = False, owner: tuple[str, str] | None = None
    ) -> Record | None:
        """The record of a task; its further events come to this replica's channel from now on.

        `owner`: the key and user whose task it must be; nothing happens to anybody else's, which is None like an unknown one.
        """
        reply = await self._link.run(
            "follow_task",
            task_id,
            self.replica,
            b"1" if keep_alive else b"0",
            b"0" if owner is None else b"1",
            *(owner or ("", "")),
        )
        return Record(Place(*reply[0]), int(reply[1]), _fields(reply[2])) if reply else None

    async def page(self, task_id: str, after: str, most: int, *, held: bool = True) -> list[Entry] | None:
        """A part of a task's log behind an event id ('-': from its beginning); it ends when it reaches `most` bytes.

        [] at the log's end. None when `held` and the log does not hold that event.
        """
        reply = await self._link.run("read_log", task_id, after, b"1" if held else b"0", most)
        return [_entry(e) for e in reply[0]] if reply else None

    async def last_event(self, task_id: str) -> Entry | None:
        """The newest event of a task's log."""
        reply = await self._link.command("XREVRANGE", self._keys("log", id=task_id), "+", "-", "COUNT", 1)
        return _entry(reply[0]) if reply else None

    async def log_tops(self, task_ids: Sequence[str]) -> list[Top | None]:
        """Where several tasks stand, in one round trip; None for those unknown."""
        replies = [
            self._link.command("HMGET", self._keys("task", id=i), "state", "epoch", "top_seq")
            for i in task_ids
        ]
        found: list[Top | None] = []
        for reply in replies:
            state, epoch, seq = await reply
            found.append(Top(state.decode(), int(epoch or 0), int(seq or 0)) if state else None)
        return found

    async def payload(self, task_id: str) -> bytes | None:
        """The request body of a task; None when it has ended or begun its output."""
        reply: bytes | None = await self._link.command("GET", self._keys("payload", id=task_id))
        return reply

    async def request(self, task_id: str) -> bytes | None:
        """The request body of an ended task that the archive shall have with it; None when it has it."""
        reply: bytes | None = await self._link.command("GET", self._keys("request", id=task_id))
        return reply

    async def mark_read(self, task_id: str) -> None:
        """Its caller has read the end of a task: from now on it is kept for a shorter time, where the task asks for that."""
        await self._link.run("mark_read", task_id)

    async def delete_task(self, task_id: str) -> bool:
        """Delete what is kept of a task: immediately, or as soon as it has ended and holds no slot.
        Whether it is gone."""
        return int(await self._link.run("delete_task", task_id)) != 0

    def mark_ticket_used(self, task_id: str, until: int, ms: int) -> asyncio.Future[Any]:
        """Remember for `ms` that the ticket of a task whose own time ends at `until` (ms) is used."""
        return self._link.command("SET", self._keys("ticket", id=task_id, until=str(until)), "1", "PX", ms)

    async def is_ticket_used(self, task_id: str, until: int) -> bool:
        """Whether that ticket has been used within the time that was given then."""
        return bool(await self._link.command("EXISTS", self._keys("ticket", id=task_id, until=str(until))))

    def offer(
        self,
        models: Sequence[str],
        withdrawn: Sequence[str],
        hold_ms: int,
        grace_ms: int,
        upstreams: Sequence[tuple[str, str]] = (),
    ) -> asyncio.Future[Any]:
        """Say which models this replica's workers serve, for `hold_ms`. What is not named stays as it was said before.

        `upstreams`: each model and upstream, of models with a named one. The reply is how many models were refused: the
        pool knows 20,000 names at most.
        """
        through = [part for pair in upstreams for part in pair]
        said: list[Arg] = [len(upstreams), *through, len(models), *models, *withdrawn]
        return self._link.run("offer_models", self.replica, hold_ms, grace_ms, *said)

    def update_presence(self, update: PresenceUpdate, hold_ms: int) -> asyncio.Future[Any]:
        """Say who the workers of this replica are, as far as that has changed, and that the rest holds for `hold_ms`.

        The reply is how many fields the store knows now: another number than the caller expects means that it lost some.
        """
        fields = [part for field in update.fields.items() for part in field]
        begin = b"1" if update.reset else b"0"
        return self._link.run(
            "update_presence", self.replica, hold_ms, begin, len(update.gone), *update.gone, *fields
        )

    async def configure(
        self,
        queues: Mapping[str, Mapping[str, Value]],
        models: Mapping[str, Mapping[str, Value]],
        version: Version = NEVER_READ,
        link: RedisLink | None = None,
    ) -> ConfigStatus:
        """Set what the configuration says of queues and models (see `rules`); holds from the next decision on, everywhere.

        What it does not say is no longer set; what was changed while running stays as it was changed. It is not set while another
        replica lives whose version is newer (ask again), or if what holds says the same. `link`: a connection that is being made.
        """
        said = configuration(queues, models)
        outcome, effective, born = await (link or self._link).run(
            "configure", self.replica, version.modified_ms, version.read_ms, hash_of(said), *said
        )
        return ConfigStatus(outcome.decode(), read_configuration(effective), born.decode())

    async def effective_configuration(self) -> tuple[Configuration | None, str]:
        """The configuration in effect, and `ConfigStatus.born`; None and '' in a store that was never configured."""
        packed, born = await self._link.command("HMGET", self._keys("pool"), "version", "born")
        return None if packed is None else read_configuration(packed), (born or b"").decode()

    async def configured(self) -> ConfiguredSettings:
        """All that is configured of queues and models. Raises StoreError."""
        command, keys = self._link.command, self._keys
        version = command("HGET", keys("pool"), "version")
        configured = command("HGETALL", keys("configured"))
        packed, texts = await version, _fields(await configured)
        return read_configured(None if packed is None else read_configuration(packed), texts)

    async def override(
        self, kind: Kind, name: str, values: Mapping[str, Value], actor: Actor
    ) -> Change | None:
        """Set settings of a queue or model for good; None: there is no such queue. KeyError for an unknown setting, OverflowError
        if there are too many overrides.

        They hold from the next decision on, on every replica, until a value of None restores what is configured. No other
        override of the queue or model sets them any more. The audit log entry is written in the same step.
        """
        asked = {
            "id": new_override_id(),
            "target": kind,
            "name": name,
            "settings": {setting: encode(kind, setting, value) for setting, value in values.items()},
            "who": actor.name,
            "address": actor.address,
            "mark": audit_mark(),
        }
        reply = await self._link.run("set_settings", msgspec.msgpack.encode(asked))
        if reply[0] == b"unknown":
            return None
        if reply[0] == b"full":
            raise OverflowError("there are too many overrides")
        before, after = (
            {
                setting: decode(kind, setting, text)
                for setting, text in msgspec.json.decode(raw or b"{}").items()
            }
            for raw in reply[2:4]
        )
        return Change(before, after, reply[1].decode())

    async def force_breaker(
        self, model: str, upstream: str, state: Literal["open", "closed", "auto"], actor: Actor
    ) -> tuple[str, str]:
        """Have the breaker of an upstream open or closed, or let it go by itself. What it was before, and the id of the entry in
        the audit record, which is written in the same step. Raises LookupError: no worker names such an upstream.
        """
        reply = await self._link.run(
            "force_breaker", model, upstream, state, *actor, audit_mark(), self.replica
        )
        if reply[0] == b"unknown":
            raise LookupError(upstream)
        if reply[0] == b"too_many":
            raise OverflowError("more upstreams are known than there may be")
        return reply[2].decode(), reply[1].decode()

    async def effective(self, kind: Kind, name: str) -> EffectiveSettings:
        """What holds for a queue or model."""
        key = self._keys("queue", queue=name) if kind == "queue" else self._keys("model", model=name)
        names = list(settings_of(kind))
        stored = self._link.command("HMGET", key, *names)
        changed = self._link.command(
            "HMGET", self._keys("overridden"), *(f"{kind[0]}:{name}:{setting}" for setting in names)
        )
        values, overrides = await stored, await changed

        def known(replies: list[bytes | None]) -> dict[str, Value]:
            return {n: decode(kind, n, raw.decode()) for n, raw in zip(names, replies, strict=True) if raw}

        return EffectiveSettings(known(values), known(overrides))


def _ignore(version: bytes) -> None:
    pass


def configuration(
    queues: Mapping[str, Mapping[str, Value]], models: Mapping[str, Mapping[str, Value]]
) -> list[Arg]:
    """What a configuration says, as settings and their values in turn."""
    args: list[Arg] = []
    for name, values in queues.items():
        for pair in fields_of("queue", name, values):
            args.extend(pair)
    for name, values in models.items():
        for pair in fields_of("model", name, values):
            args.extend(pair)
    return args


def _record_of(task: TaskSpec) -> list[Arg]:
    """What a task's record holds as the caller said it (keys.py, RECORD), each name and its value: only what was said."""
    fields: list[Arg] = ["type", task.task_type, "ttl", task.keep_ms]
    if task.key:
        fields += ("key_id", task.key)
    if task.estimated_input:
        fields += ("input_tokens", task.estimated_input)
    if task.max_input > task.estimated_input:
        fields += ("max_input", task.max_input)
    if task.max_output:
        fields += ("max_output", task.max_output)
    elif task.answers > 1:
        fields += ("answers", task.answers)
    if task.weight != 1:
        fields += ("weight", task.weight)
    if task.priority > 0:
        fields += ("priority", task.priority)
    if task.run_ms > 0:
        fields += ("run_limit", task.run_ms)
    if task.max_tries:
        fields += ("max_tries", task.max_tries)
    if task.linger_ms > 0:
        fields += ("linger", task.linger_ms)
    if task.waiting:
        fields += ("waiting", b"1")
    if task.stream:
        fields += ("stream", b"1")
    if task.metadata:
        fields += ("metadata", task.metadata)
    if task.asked:
        fields += ("route", task.asked)
    if task.template:
        fields += ("template", task.template)
    if task.fallbacks:
        fields += ("fallbacks", task.fallbacks, "fallback_after", task.fallback_after_ms)
    if task.model_omitted:
        fields += ("model_omitted", b"1")
    if task.traceparent:
        fields += ("traceparent", task.traceparent)
    if task.request_id:
        fields += ("request_id", task.request_id)
    if task.price:
        fields += ("price", task.price)
    if task.uses:
        fields += ("token_use", task.uses)
    if task.answer:
        fields += ("schema", task.answer)
    if task.repair:
        fields += ("repair", b"1")
    if task.archive_ms:
        beside = " l" if task.archive_log else " r" if task.archive_request else ""
        fields += ("archive", f"{task.archive_ms}{beside}")
    if task.after_read_ms:
        fields += ("keep_after_read", task.after_read_ms)
    if task.has_webhooks:
        fields += ("webhooks", b"1")
    return fields


def _start_of(chain: ChainStart | None, limits: Limits) -> list[Arg]:
    """The arguments of `submit` for a chain: how many, and those."""
    if chain is None:
        return [0]
    args: list[Arg] = [*chain.stage, chain.of, chain.plan, chain.head, chain.request, chain.reserve]
    args.append(limits.stop_grace_ms)
    args.extend(_parts_of(chain.parts))
    return [len(args), *args]


def _parts_of(parts: Sequence[Part]) -> Iterable[Arg]:
    return itertools.chain.from_iterable(parts)


def _entry_of(entry: StageEntry) -> list[Arg]:
    """The arguments of `advance` for the next stage."""
    task = entry.task
    args: list[Arg] = ["entry", *entry.stage, task.model, task.queue, task.payload, task.wait_ms, task.quota]
    return [*args, entry.reserve, len(entry.parts), *_parts_of(entry.parts), *_record_of(task)]


def _end_of(end: ChainEnd) -> list[Arg]:
    """The arguments of `advance` for a chain's end."""
    stage = end.stage or Stage(-1, "")
    return ["end", end.state, end.code, *end.terminal, *stage, end.model, end.queue]


def _read_chain(reply: list[Any]) -> Chain:
    state, stage, of, parts, begun, done, *flat = reply
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    results: dict[tuple[int, int], bytes] = {}
    used: dict[tuple[int, int], Used] = {}
    for field, value in fields.items():
        kind, _, place = field.decode().partition(":")
        at, _, part = place.partition(".")
        if kind == "result":
            results[int(at), int(part or -1)] = value
        elif kind == "usage":
            used[int(at), int(part or -1)] = read_used(value.decode())
    at_stage, _ = read_stage(stage.decode())
    plan, head = fields.get(b"plan", b""), fields.get(b"head", b"")
    return Chain(State(state.decode()), at_stage, int(of), parts, begun, done, plan, head, results, used)


def _repair_fields(repair: Repair) -> tuple[Arg, ...]:
    used = repair.used
    return ("payload", repair.payload, "input", used.input, "output", used.output, "more", used.more)


def _task_end(account: list[Any], error: bytes = b"{}") -> TaskEnd:
    """What an account says (endings.lua). `error`: the end's data, where it is at hand."""
    queue, model, task_type, state, code, total_ms, ran_ms, *whose = account
    task_id, request_id, user, asked, worker, attempt = (value.decode() for value in whose)
    return TaskEnd(
        queue.decode(),
        model.decode(),
        task_type.decode(),
        State(state.decode()),
        code.decode(),
        total_ms,
        ran_ms,
        task=EndedTask(task_id, request_id, user, asked, worker, int(attempt), error_message_of(error)),
        user=user,
    )


def _entry(raw: list[Any]) -> Entry:
    epoch, _, seq = raw[0].partition(b"-")
    fields = raw[1]
    return Entry(int(epoch), int(seq), fields[1].decode(), fields[3])


def _fields(flat: list[bytes]) -> dict[str, str]:
    pairs = iter(flat)
    return {name.decode(): value.decode("utf-8", "replace") for name, value in zip(pairs, pairs, strict=True)}


def _retry_at(flat: list[Any]) -> tuple[RetryAt, ClosedUpstreams]:
    if not flat:
        return (), ()
    parts = iter(flat)
    rows = [(model.decode(), ms, shut) for model, ms, shut in zip(parts, parts, parts, strict=True)]
    return tuple((model, ms) for model, ms, _ in rows), tuple((model, ms) for model, ms, shut in rows if shut)
