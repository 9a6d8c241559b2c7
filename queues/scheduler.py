"""The scheduler: every transition of a task, as one call each. All decisions are made in the scripts, atomically."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec
import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.load import ModelLoad, read_model_load
from fairlane.queues.inspect.presence import PresenceUpdate
from fairlane.queues.keys import Keys
from fairlane.queues.limits import read_rate_limit_status
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
from fairlane.queues.replies import (
    decode_map,
    decode_values,
    read_entries,
    read_existing,
    read_grants,
    read_record,
    read_rejection,
    read_retry_at,
    read_state,
    texts,
    used_of,
)
from fairlane.queues.rules import (
    ConfiguredSettings,
    EffectiveSettings,
    Kind,
    Value,
    effective,
    overridden,
    read_configured,
)
from fairlane.queues.store.link import Receiver, RedisLink
from fairlane.queues.tasks import (
    NO_PLACE,
    TERMINAL,
    Append,
    Appended,
    End,
    Ended,
    Entry,
    EventFields,
    ExistingTask,
    Finished,
    Fragment,
    Grant,
    Place,
    Record,
    Rejection,
    Repair,
    RetryAt,
    State,
    Submitted,
    Taken,
    TaskSpec,
    Top,
    WaitEstimate,
)
from fairlane.queues.versions import ConfigStatus, Configuration, Version, hash_of, read_configuration

log = structlog.get_logger("fairlane.queues")

MAX_ERASED = 500
"""Tasks whose user is checked in one step."""

MAX_TAKEN = 64
"""Tasks that one `take` grants at most; as in granting.lua. A caller that gets as many asks again."""
MAX_RENEWED = 500
"""Tasks that one call of `renew` looks at, so that others are served between."""

MAX_PUBLISHED = 65_536
"""Bytes of an event that is published to other replicas; of a larger one only the id is."""

NEVER_READ = Version()
T = TypeVar("T")
_pack = msgspec.msgpack.Encoder().encode


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
        self.feature_ends: dict[str, Fragment] = {}
        """More ends that the sweep writes, by their names in the scripts."""
        self.limits = limits
        self.replica = replica
        self._dropped = RateLimitedLogger(burst=1, per_second=1 / 60)
        self._log_prefix = keys("log", id="")
        self._channel_prefix = keys.channel("")
        self.log_generation = 1
        """Increased whenever logs may have lost events, or messages of this replica may be lost: see `append_next`."""
        self.outbox_full = False
        """SQL is behind: no task is to be submitted (`Limits.max_outbox`)."""
        self.on_overrides: Callable[[bytes], None] = _ignore
        """Called with the version of the overrides after each sweep."""

    def _log_dropped(self, number: int) -> None:
        self._dropped.log(
            log.warning,
            "ended tasks take more than max_retained_size: those that ended first are dropped before their time",
            dropped=number,
            max_retained_bytes=self.limits.max_retained_bytes,
        )

    # ---- pools: see pooled.py ----------

    @property
    def up(self) -> bool:
        """Whether calls are taken."""
        return self._link.up

    def of_task(self, task_id: str) -> "Scheduler":  # noqa: ARG002
        """Return the scheduler of a task's pool."""
        return self

    def of_model(self, model: str) -> "Scheduler":  # noqa: ARG002
        """Return the scheduler of a model's pool."""
        return self

    def spans(self, models: Iterable[str]) -> bool:  # noqa: ARG002
        """Return whether models are in several pools: then a freed slot is filled by `take`, and not by `finish`."""
        return False

    def grouped(self, items: list[T], task_of: Callable[[T], str]) -> list[list[T]]:  # noqa: ARG002
        """Return items by the pools of their tasks: what one call can have."""
        return [items]

    # ---- calls ----------

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
        follow: bool = False,
        named: bool = False,
        upstream: str = "",
    ) -> asyncio.Future[Any]:
        """Queue `task`, and take up to `want` tasks of its model for this replica; `parse_submit` reads the reply.

        `follow`: this replica reads its events.
        `named`: the worker whose slots these are offers the task's model by its name, not only every model; `upstream`: of that
        worker.
        """
        limits = self.limits
        ask = self.ask(worker, upstream, want, nonce)
        ask["id"], ask["by_name"], ask["follow"] = task.id, named, follow
        ask["max_length"], ask["max_bytes"] = limits.max_queue_length, limits.max_queued_bytes
        return self._link.run_with_others("submit", _pack(ask), task.packed(), task.payload, *task.blobs)

    def run(self, name: str, ask: Mapping[str, Any], *blobs: bytes) -> asyncio.Future[Any]:
        """Run a script: a map and byte strings in, the same out."""
        return self._link.run(name, _pack(ask), *blobs)

    async def hash(self, name: str, **parts: str) -> dict[str, str]:
        """Return the fields of a key that is a hash."""
        pairs = iter(await self._link.command("HGETALL", self._keys(name, **parts)))
        return {
            field.decode(): value.decode("utf-8", "replace")
            for field, value in zip(pairs, pairs, strict=True)
        }

    async def call(self, name: str, ask: Mapping[str, Any]) -> dict[str, Any]:
        """Run a script, and return the map of its reply."""
        return decode_map((await self._link.run(name, _pack(ask)))[0])

    def ask(self, worker: str, upstream: str, want: int, nonce: str) -> dict[str, Any]:
        """Return what a call needs that takes tasks for a worker."""
        ask = {
            "replica": self.replica,
            "worker": worker,
            "want": want,
            "nonce": nonce,
            "grant_ms": self.limits.grant_ms,
        }
        if upstream:
            ask["upstream"] = upstream
        return ask

    @staticmethod
    def parse_submit(reply: Any) -> Submitted | ExistingTask | Rejection:
        """Read the reply of `submit`. Only an accepted task left something behind."""
        said = decode_map(reply[0])
        if "rejected" in said:
            return read_rejection(said)
        if "existing" in said:
            return read_existing(said)
        left = read_rate_limit_status(said["rate_limits"]) if "rate_limits" in said else None
        later, shut = read_retry_at(said["later"]) if said["later"] else ((), ())
        return Submitted(
            State(said["state"]),
            Place(*said["place"]) if "place" in said else NO_PLACE,
            said["enqueued_at"],
            read_grants(reply),
            later,
            said["model"],
            said["asked"],
            left,
            shut,
        )

    async def model_load(self, model: str) -> ModelLoad:
        """Return the load of a model. Raise StoreError."""
        return read_model_load(await self.call("measure_load", {"model": model}))

    def take(
        self, models: Sequence[str], want: int, nonce: str, worker: str = "", upstream: str = ""
    ) -> asyncio.Future[Any]:
        """The next tasks of a worker's `models` ('*': any), at most `want` and MAX_TAKEN; `parse_take` reads the reply.

        What is missing will be woken for; only who gets MAX_TAKEN must ask again.
        `want` 0 hands a wake-up on to another replica.
        """
        return self.run("take", self.ask(worker, upstream, want, nonce) | {"models": models})

    @staticmethod
    def parse_take(reply: Any) -> Taken:
        """Read the reply of `take`."""
        return Taken(read_grants(reply), *read_retry_at(decode_map(reply[0])["later"]))

    def append(self, appends: Sequence[Append]) -> asyncio.Future[Any]:
        """Add events to logs, each task's for itself; read the reply with `parse_append`."""
        calls, blobs = list[Any](), list[bytes]()
        for grant, seq, events, output in appends:
            calls.append((grant.task_id, grant.epoch, grant.token, seq, output, [kind for kind, _ in events]))
            blobs += (data for _, data in events)
        return self.run("append", {"replica": self.replica, "appends": calls}, *blobs)

    @staticmethod
    def parse_append(reply: Any) -> list[Appended]:
        """Read the reply of `append`, by task."""
        return [Appended(*one) for one in decode_map(reply[0])["outcomes"]]

    def append_next(self, receiver: Receiver, grant: Grant, seq: int, event: EventFields) -> None:
        """Add the next event of an attempt without a script, which costs Redis a fraction.

        Only after `append` was answered with 'open' and while `log_generation` is the same: then the event follows the last one.
        The receiver gets the event's id; None or a ResponseError if the grant is not current, or the event may be in the log
        already: `append` says which. Readers elsewhere get nothing: call `publish_event` when it is in the log.
        """
        kind, data = event
        self._link.command_to(
            receiver,
            "XADD",
            self._log_prefix + grant.task_id,
            "NOMKSTREAM",
            f"{grant.epoch}-{seq}",
            "type",
            kind,
            "data",
            data,
        )

    def publish_event(
        self, replica: str, task_id: str, event_id: str, event: EventFields | None = None
    ) -> None:
        """Publish a logged event to a replica with readers; a large one, or one that is not given, by its id. Its loss does
        no harm."""
        head = f"{task_id}\n{event_id}"
        if event is None or len(event[1]) > MAX_PUBLISHED:
            message = f"event_id\n{head}".encode()
        else:
            message = f"event\n{head}\n{event[0]}\n".encode() + event[1]
        with contextlib.suppress(StoreError):
            self._link.command("SPUBLISH", self._channel_prefix + replica, message)

    def sent(self, grants: Sequence[Grant]) -> asyncio.Future[Any]:
        """The requests of these attempts have left their workers: in their models' windows they count for as long as these last
        from now, and no longer until they have ended. Repeated, the last time counts. `parse_sent` reads the reply.
        """
        return self.run(
            "mark_sent", {"sent": [(grant.model, grant.task_id, grant.epoch) for grant in grants]}
        )

    @staticmethod
    def parse_sent(reply: Any) -> RetryAt:
        """Read the reply of `sent`."""
        return read_retry_at(decode_map(reply[0])["later"])[0]

    def publish_progress(self, grant: Grant, kind: str, data: bytes) -> asyncio.Future[Any]:
        """Publish an event that is not logged (progress) to readers elsewhere; the last one is kept for new readers.

        Call it when the output before it has been appended. Its loss does no harm.
        """
        ask = {"replica": self.replica, "id": grant.task_id, "epoch": grant.epoch, "token": grant.token}
        return self.run("publish_progress", ask | {"kind": kind}, data)

    def before_writing(self, call: Callable[[], None]) -> None:
        """Call once before the commands of this tick of the event loop leave: what it asks for leaves with them."""
        self._link.before_writing(call)

    def finish(self, grant: Grant, seq: int, events: Sequence[EventFields], end: End) -> asyncio.Future[Any]:
        """End a task with its last events and its terminal one, and take for the freed slot; `parse_finish` reads the reply.

        `seq`: the number of the first event, as the writer of the log counts; 0 from anybody else, whose terminal event then
        has an epoch of its own. Call again with the same `end` until it is answered: the slot is held until then.
        """
        kind, data = end.terminal
        ask = self.ask(end.worker, end.upstream, end.want, end.nonce)
        ask["id"], ask["epoch"], ask["token"], ask["seq"] = grant.task_id, grant.epoch, grant.token, seq
        ask["state"], ask["kind"], ask["used"], ask["models"] = end.state, kind, used_of(end.used), end.models
        ask["kinds"] = [kind for kind, _ in events]
        if end.code:
            ask["code"] = end.code
        if end.keep_ms:
            ask["keep_ms"] = end.keep_ms
        return self._link.run_with_others("finish", _pack(ask), *(data for _, data in events), data)

    def parse_finish(self, reply: Any) -> Finished:
        """Read the reply of `finish`. Count the tasks that ended with it: a part's chain and its other parts."""
        said = decode_map(reply[0])
        if "ended" in said:
            self.count_ends(said["ended"])
        grants = read_grants(reply)
        later = read_retry_at(said["later"]) if said.get("later") else ((), ())
        return Finished(said["outcome"], said.get("event_id", ""), grants, said.get("top", 0), *later)

    def count_ends(self, accounts: Sequence[Mapping[str, Any]]) -> None:
        """Count tasks that ended with another one."""
        for account in accounts:
            self.metrics.ended(task_end(account))

    async def requeue(
        self,
        grant: Grant,
        why: str,
        *,
        cause: Literal["lost", "failed", "falls", "declined", "redo"],
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
        ask = {
            "id": grant.task_id,
            "epoch": grant.epoch,
            "token": grant.token,
            "why": why,
            "cause": cause,
            "begun": begun,
            "suspicion": suspicion or None,
            "hold_ms": hold_ms or None,
            "by": by,
            "unsent": unsent,
            "grace": grace_ms,
            "aside_ms": aside_ms or None,
            "ends": {
                "lost": _fragment(end or ends.worker_lost),
                "no_worker": _fragment(ends.no_worker),
                "timeout": _fragment(ends.timeout),
            },
            "used": repair and used_of(repair.used),
        }
        known = {name: value for name, value in ask.items() if value is not None}
        reply = await self.run("requeue", known, *((repair.payload,) if repair else ()))
        said = decode_map(reply[0])
        outcome = said["outcome"]
        if hold_ms and outcome != "stale":
            self.metrics.count(MODEL_COOLDOWNS, grant.model)
        if outcome == "ended":
            data = said["data"].encode()
            if "account" in said:
                self.metrics.ended(task_end(said["account"], data))
                self.count_ends(said["ended"])
            return Ended(outcome, State.FAILED, said["event_id"], said["kind"], data)
        if outcome == "queued":
            self.metrics.count(TASKS_RETURNED, grant.queue, grant.model, "repair" if repair else cause)
            if repair:
                self.metrics.count(REPAIRS, grant.model, "begun")
            if said["model"] != grant.asked:
                failed = cause in ("failed", "falls")
                self.metrics.fell_back(grant.asked, said["model"], "failed" if failed else "unavailable")
            return Ended(outcome, retry_at=read_retry_at(said["later"])[0])
        return Ended(outcome)

    async def cancel(
        self, task_id: str, *, state: State, kind: str, end: Fragment, why: str, tombstone_ms: int = 0
    ) -> Ended:
        """End a task from outside, whatever it does. With `tombstone_ms`, a submit of it that comes later is refused."""
        ask = {
            "id": task_id,
            "state": state,
            "kind": kind,
            **_fragment(end),
            "why": why,
            "grace_ms": self.limits.stop_grace_ms,
        }
        said = await self.call("cancel", ask | ({"tombstone_ms": tombstone_ms} if tombstone_ms else {}))
        outcome = said["outcome"]
        if outcome == "ended":
            data = said["data"].encode()
            self.metrics.ended(task_end(said["account"], data))
            self.count_ends(said["ended"])
            return Ended(outcome, said["state"], said["event_id"], kind, data)
        return Ended(outcome, said.get("state", ""))

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
            ask = {
                "lease_ms": limits.lease_ms,
                "grace_ms": limits.deadline_grace_ms,
                "held": [
                    (grant.task_id, grant.epoch, grant.token, worker, begun, output if output >= 0 else None)
                    for grant, worker, begun, output in some
                ],
                "read": readers[max(at - len(held), 0) : max(at + MAX_RENEWED - len(held), 0)],
            }
            replies += (await self.call("renew", ask))["replies"]
        return replies

    async def sweep(self) -> tuple[int, int]:
        """End what is out of time and requeue what was lost. Return ms until the next sweep, and tasks looked at."""
        ends, limits = self._ends, self.limits
        named = {
            "timeout": ends.timeout,
            "queue_timeout": ends.queue_timeout,
            "lost": ends.worker_lost,
            "no_worker": ends.no_worker,
            "left": ends.left,
            "unavailable": ends.unavailable,
            "busy": ends.busy,
        } | self.feature_ends
        ask = {
            "lease_ms": limits.lease_ms,
            "grace_ms": limits.stop_grace_ms,
            "max_kept_bytes": limits.max_retained_bytes,
            "ends": {name: _fragment(end) for name, end in named.items()},
        }
        said = await self.call("sweep", ask)
        if said["dropped"]:
            self.metrics.count(RESULTS_DROPPED, number=said["dropped"])
            self._log_dropped(said["dropped"])
        sentences = {end.code: b"{%b}" % end.rest for end in named.values()}
        for account in said["accounts"]:
            end = task_end(account, sentences.get(account["code"], b"{}"))
            if end.state in TERMINAL:
                self.metrics.ended(end)
            else:
                self.metrics.count(TASKS_RETURNED, end.queue, end.model, "lease")
        for moved in said.get("moved", ()):
            self.metrics.fell_back(moved["model"], moved["to"], moved["why"], moved["number"])
        self.outbox_full = said["outbox"] >= limits.max_outbox
        self.on_overrides(said["overrides"].encode())
        return said["next_ms"], said["looked_at"]

    async def position(self, task_id: str) -> Record | None:
        """What is known of a task; None when unknown or expired."""
        return read_record(await self.run("read", {"id": task_id}))

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
        special = {name: wanted[name] for name in ("text",) if name in wanted}
        times = {name: int(wanted[name]) for name in ("from", "to") if name in wanted}
        others = {name: value for name, value in wanted.items() if name not in ("text", "from", "to")}
        ask = {"source": source, "after": after, "look_at": look_at, "find": most, "wanted": others}
        said, *parts = await self.run("search", ask | special | times)
        records = [
            decode_map(spec) | decode_map(run) for run, spec in zip(parts[::2], parts[1::2], strict=True)
        ]
        return [(record["id"], texts(record)) for record in records], decode_map(said)["after"]

    async def tasks_of_keys(self, keys: Iterable[str], cursor: str, look_at: int) -> tuple[list[str], str]:
        """Return tasks that wait or run and were submitted with one of these keys, of about `look_at` tasks; and where to
        continue.

        '0' is the end, and where to begin. A task that is there all the while is found, maybe twice.
        """
        ask = {"cursor": cursor, "look_at": look_at, "keys": list(keys)}
        said = await self.call("find_by_key", ask)
        return said["ids"], said["cursor"]

    async def wait_estimates(self, lanes: Sequence[tuple[str, str]]) -> list[WaitEstimate]:
        """What would await a task that came now into lanes, each a queue and a model: rough estimates, of what is learnt."""
        asked = [self._link.command("HGET", self._keys("model", model=model), "state") for _, model in lanes]
        found = []
        for (queue, _), reply in zip(lanes, asked, strict=True):
            state = read_state(await reply)
            lane = state.lanes.get(queue)
            wait_ms = (
                lane.waiting * lane.departures_ms / lane.departures if lane and lane.departures >= 1 else 0
            )
            found.append(WaitEstimate(int(wait_ms), int(state.mean_ms)))
        return found

    async def now_ms(self) -> int:
        """The store's time, which that of tasks is."""
        seconds, micros = await self._link.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    async def erase_user(self, user: str, until_ms: int) -> tuple[int, int]:
        """Remove what is kept of this user's tasks that were submitted until then and have ended; how many, and how many more
        their workers have not let go yet: these are to be erased later. Tasks that end meanwhile are not included."""
        removed = stopping = number = 0
        lines: list[int | str] = ["due", 0]
        for line in lines:
            cursor = None
            while cursor != "0":
                ask = {"line": line, "cursor": cursor or "0", "look_at": MAX_ERASED}
                said = await self.call("erase_user", ask | {"user": user, "until_ms": until_ms})
                cursor, number = said["cursor"], said["lines"]
                removed += said["removed"]
                stopping += said["stopping"]
            if line != "due" and len(lines) <= number:
                lines.append(len(lines) - 1)
        return removed, stopping

    async def follow(
        self, task_id: str, *, keep_alive: bool = False, owner: tuple[str, str] | None = None
    ) -> Record | None:
        """The record of a task; its further events come to this replica's channel from now on.

        `owner`: the key and user whose task it must be; nothing happens to anybody else's, which is None like an unknown one.
        """
        ask: dict[str, Any] = {"id": task_id, "replica": self.replica, "keeps": keep_alive}
        return read_record(await self.run("follow", ask | ({"owner": owner} if owner else {})))

    async def page(self, task_id: str, after: str, most: int, *, held: bool = True) -> list[Entry] | None:
        """A part of a task's log behind an event id ('-': from its beginning); it ends when it reaches `most` bytes.

        [] at the log's end. None when `held` and the log does not hold that event.
        """
        ask = {"id": task_id, "held": held and after != "-", "bytes": most} | (
            {"after": after} if after != "-" else {}
        )
        said, *blobs = await self.run("read_log", ask)
        return list(read_entries(blobs)) if decode_map(said)["known"] else None

    async def last_event(self, task_id: str) -> Entry | None:
        """The newest event of a task's log."""
        reply = await self._link.command("XREVRANGE", self._keys("log", id=task_id), "+", "-", "COUNT", 1)
        return _entry(reply[0]) if reply else None

    async def log_tops(self, task_ids: Sequence[str]) -> list[Top | None]:
        """Where several tasks stand; None for those unknown."""
        replies = [self._link.command("HGET", self._keys("task", id=i), "run") for i in task_ids]
        runs = [decode_map(packed) if (packed := await reply) else None for reply in replies]
        lasts = {
            at: self._link.command("XREVRANGE", self._log_prefix + task_ids[at], "+", "-", "COUNT", 1)
            for at, run in enumerate(runs)
            if run and "top" not in run and "first_output_at" in run
        }
        found: list[Top | None] = []
        for at, run in enumerate(runs):
            top = run.get("top", 0) if run else 0
            if at in lasts and (entries := await lasts[at]):
                top = _entry(entries[0]).seq
            found.append(Top(run["state"], run.get("epoch", 0), top) if run else None)
        return found

    async def payload(self, task_id: str) -> bytes | None:
        """The request body of a task; None when it has ended or begun its output."""
        reply: bytes | None = await self._link.command("HGET", self._keys("task", id=task_id), "payload")
        return reply or None

    async def request(self, task_id: str) -> bytes | None:
        """The request body of an ended task that the archive shall have with it; None when it has it."""
        reply: bytes | None = await self._link.command("GET", self._keys("request", id=task_id))
        return reply

    async def mark_read(self, task_id: str) -> None:
        """Its caller has read the end of a task: from now on it is kept for a shorter time, where the task asks for that."""
        await self.run("mark_read", {"id": task_id})

    async def delete_task(self, task_id: str) -> bool:
        """Delete what is kept of a task: immediately, or as soon as it has ended and holds no slot.
        Whether it is gone."""
        return bool((await self.call("delete", {"id": task_id}))["gone"])

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

        `upstreams`: each model and upstream, of models with a named one. `parse_offer` reads the reply.
        """
        through: dict[str, list[str]] = {}
        for model, upstream in upstreams:
            through.setdefault(model, []).append(upstream)
        ask = {"models": models, "withdrawn": withdrawn, "upstreams": through}
        return self.run("offer", ask | {"replica": self.replica, "hold_ms": hold_ms, "grace_ms": grace_ms})

    @staticmethod
    def parse_offer(reply: Any) -> int:
        """Return how many models `offer` refused: the pool knows 20,000 names at most."""
        return int(decode_map(reply[0])["refused"])

    def update_presence(self, update: PresenceUpdate, hold_ms: int) -> asyncio.Future[Any]:
        """Say who the workers of this replica are, as far as that has changed, and that the rest holds for `hold_ms`.

        `parse_presence` reads the reply.
        """
        ask = {"replica": self.replica, "hold_ms": hold_ms, "reset": update.reset, "gone": update.gone}
        return self.run("present", ask | {"fields": update.fields})

    @staticmethod
    def parse_presence(reply: Any) -> int:
        """Return how many fields the store knows of the replica now: if it should know others, it has lost some."""
        return int(decode_map(reply[0])["known"])

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
        settings = configuration(queues, models)
        ask = {
            "replica": self.replica,
            "modified_ms": version.modified_ms,
            "read_ms": version.read_ms,
            "hash": hash_of(settings),
            "settings": settings,
        }
        said = decode_map((await (link or self._link).run("configure", _pack(ask)))[0])
        return ConfigStatus(said["outcome"], read_configuration(said["version"].encode()), said["born"])

    async def effective_configuration(self) -> tuple[Configuration | None, str]:
        """The configuration in effect, and `ConfigStatus.born`; None and '' in a store that was never configured."""
        packed, born = await self._link.command("HMGET", self._keys("pool"), "version", "born")
        return None if packed is None else read_configuration(packed), (born or b"").decode()

    async def configured(self) -> ConfiguredSettings:
        """All that is configured of queues and models. Raises StoreError."""
        command, keys = self._link.command, self._keys
        version = command("HGET", keys("pool"), "version")
        configured = command("HGETALL", keys("configured"))
        packed, pairs = await version, iter(await configured)
        settings = {field.decode(): decode_map(values) for field, values in zip(pairs, pairs, strict=True)}
        return read_configured(None if packed is None else read_configuration(packed), settings)

    async def effective(self, kind: Kind, name: str) -> EffectiveSettings:
        """What holds for a queue or model."""
        key = self._keys("queue", queue=name) if kind == "queue" else self._keys("model", model=name)
        stored = self._link.command("HGET", key, "settings")
        overrides = self._link.command("HVALS", self._keys("overrides"))
        values = decode_values(await stored)
        return effective(kind, name, values, overridden(map(decode_map, await overrides)))


def _ignore(version: bytes) -> None:
    pass


def configuration(
    queues: Mapping[str, Mapping[str, Value]], models: Mapping[str, Mapping[str, Value]]
) -> dict[str, dict[str, Value]]:
    """Return what a configuration says, as `configured` keeps it: by kind and name."""
    said = [("q", name, values) for name, values in queues.items()]
    said += [("m", name, values) for name, values in models.items()]
    return {
        f"{kind}:{name}": {setting: value for setting, value in values.items() if value is not None}
        for kind, name, values in said
    }


def _fragment(end: Fragment) -> dict[str, Any]:
    return {"rest": end.rest.decode(), "code": end.code}


def task_end(account: Mapping[str, Any], error: bytes = b"{}") -> TaskEnd:
    """Return what an account says (ending.lua). `error`: the end's data, where it is at hand."""
    ended = EndedTask(
        account["id"],
        account["request_id"],
        account["user"],
        account["asked"],
        account["worker"],
        account["attempt"],
        error_message_of(error),
    )
    return TaskEnd(
        account["queue"],
        account["model"],
        account["type"],
        State(account["state"]),
        account["code"],
        account["total_ms"],
        account["ran_ms"],
        task=ended,
        user=account["user"],
    )


def _entry(raw: list[Any]) -> Entry:
    return next(read_entries([raw[0], raw[1][1], raw[1][3]]))
