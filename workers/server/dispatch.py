"""Brings tasks to workers: asks the scheduler whenever a local slot is free, and runs what it grants.

The replica's one place that knows which of its slots are taken, reserved for a question under way, or free. Grants are handled
in callbacks of the scheduler's replies, so that a grant is never lost with the request that happened to receive it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
import structlog

from fairlane.queues.errors import StoreError, StoreUnavailable
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Fragment, Grant, Later, Record, Refused, State, Submitted, TaskSpec
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event, compose, fragment_cancelled, fragment_error, parse_event_id
from fairlane.streaming.hub import Hub
from fairlane.workers.server.alarms import Alarms
from fairlane.workers.server.attempt import NO_USAGE, Attempt, Cause, Phase, result_ack
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import ANY, RETRY_REST_MS, Misfit, Pool, Recent, Worker
from fairlane.workers.server.spans import trace_wait
from fairlane.workers.server.upkeep import Upkeep, observe
from fairlane.workers.tracing import Tracer

log = structlog.get_logger("fairlane.workers")

LOST_REPLY_S = 2.0
"""A reply of Redis seldom takes as long; and as they come in order, one to a later question proves that it never will."""
TOMBSTONE_MS = 600_000
MOST_UNHEARD = 1000
"""Models remembered whose wake-up found no free slot here; the sweep repeats wake-ups anyway."""
MOST_SENT_AWAY = 1000
"""Tasks remembered that nobody here could run, with how often they came."""
MISFIT_REST_S = 1.0
"""How long a worker asks for nothing after a task that only others take: it would be given the same one again."""
MOST_REFUSALS = 5
"""Times that a task is brought to other replicas because nobody here supports it; then that is believed of all."""


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How long a model's worker may stay silent, ms; None = as long as it likes."""

    first_output_ms: int | None = None
    silence_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """What the dispatcher is told by the gateway's settings. Durations in ms."""

    flush_interval_ms: float = 40
    flush_chunks: int = 8
    flush_chars: int = 1024
    ack_ms: int = 5000
    cancel_grace_ms: int = 5000
    no_worker_grace_ms: int = 0
    dead_after_ms: int = 30_000
    payload_cache_bytes: int = 64 << 20
    debug_events: bool = False
    """Log the payload that each worker gets, for readers who debug prompts."""
    output_limits: Mapping[str, OutputLimits] = field(default_factory=dict)


class Dispatcher:
    """See the module. `start` begins the upkeep (offers, renewals, sweeps); `close` ends it and forgets all attempts."""

    def __init__(
        self, scheduler: Scheduler, link: RedisLink, hub: Hub, settings: DispatchSettings, keys: Keys
    ) -> None:
        self.scheduler = scheduler
        self.settings = settings
        self._link = link
        self._hub = hub
        self._keys = keys
        self._loop = asyncio.get_running_loop()
        self.tracer: Tracer | None = None
        """Set before `start`, where traces are wanted."""
        self.time: Callable[[], float] = self._loop.time
        self.pool = Pool(self.time)
        self.attempts: dict[str, Attempt] = {}
        self.deliver = hub.deliver
        self.stop_grace_s = scheduler.limits.stop_grace_ms / 1000
        self._payloads = PayloadCache(settings.payload_cache_bytes)
        self._background: set[asyncio.Task[None]] = set()
        self._store_back = asyncio.Event()
        self._accepting = True
        self._unheard: set[str] = set()
        self._sent_away: Recent[str, int] = Recent(MOST_SENT_AWAY)
        self._alarms = Alarms(self._loop, partial(self.on_wake, targeted=True))
        self.upkeep = Upkeep(self, hub)

    # ---- life ----------

    def start(self) -> None:
        """Begin the upkeep."""
        self.upkeep.start()

    async def close(self) -> None:
        """End the upkeep. Attempts under way are forgotten here: their leases end by themselves."""
        self._alarms.close()
        await self.upkeep.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for attempt in list(self.attempts.values()):
            attempt.forget()

    @property
    def draining(self) -> bool:
        """True once no more tasks are taken here."""
        return not self._accepting

    def drain(self) -> None:
        """Take no more tasks; running ones go on. Other replicas are told that nothing is offered here."""
        self._accepting = False
        for worker in self.pool:
            worker.draining = True
        self.upkeep.offer_soon()

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def new_coalescer(self) -> Coalescer:
        settings = self.settings
        return Coalescer(settings.flush_interval_ms, settings.flush_chunks, settings.flush_chars)

    # ---- workers ----------

    def connected(self, worker: Worker) -> None:
        """A worker is ready: offer its models and fill its slots."""
        worker.heard_at = self.time()
        if not self._accepting:
            worker.draining = True
        self.pool.add(worker)
        self.upkeep.offer()
        self.fill(worker)

    def changed(self, worker: Worker) -> None:
        """A worker changed its models or slots, or drains."""
        self.upkeep.offer()
        if not worker.draining:
            self.fill(worker)

    def disconnected(self, worker: Worker) -> None:
        """A worker is gone: its tasks are tried elsewhere or end."""
        if not self.pool.remove(worker):
            return
        self.upkeep.offer()
        if any(attempt.held for attempt in worker.attempts.values()):
            self.pool.count_loss(worker)
        for attempt in list(worker.attempts.values()):
            attempt.lost()

    def hold(self, worker: Worker, ms: int) -> None:
        """Give a worker no task for a while (it says that it is full)."""
        seconds = min(ms, 60_000) / 1000
        worker.hold_until = max(worker.hold_until, self.time() + seconds)
        self._loop.call_later(seconds + 0.001, self.fill, worker)

    # ---- asking the scheduler ----------

    def submit(self, task: TaskSpec) -> Awaitable[Submitted | Refused]:
        """Queue a task. Raises StoreUnavailable; what happened to it then, it will not run later."""
        done: asyncio.Future[Submitted | Refused] = self._loop.create_future()
        reserved = self.pool.reserve(task.model, 1, task.task_type) if self._accepting else None
        worker, want = reserved or (None, 0)
        self._payloads.put(task.id, task.payload)
        try:
            reply = self.scheduler.submit(task, want, self.scheduler.nonce(), worker.id if worker else "")
        except StoreUnavailable:
            self._payloads.pop(task.id)
            if worker:
                worker.reserved -= want
            raise
        task.payload = b""  # its caller may wait for long; the store and the cache have it
        reply.add_done_callback(partial(self._on_submitted, task.id, worker, want, done))
        return done

    def _on_submitted(
        self,
        task_id: str,
        worker: Worker | None,
        want: int,
        done: asyncio.Future[Submitted | Refused],
        reply: asyncio.Future[Any],
    ) -> None:
        if worker:
            worker.reserved -= want
        error = reply.exception()
        if error is not None:
            self._payloads.pop(task_id)
            if isinstance(error, StoreError) and error.sent:
                self._spawn(self._withdraw(task_id))
            if not done.done():
                done.set_exception(error)
                done.exception()
            return
        answer = self.scheduler.submitted(reply.result())
        if isinstance(answer, Refused):
            self._payloads.pop(task_id)
        elif worker:
            self._start_all(answer.grants, worker)
            if not answer.grants:
                self._came_back_empty(worker)
        if isinstance(answer, Submitted):
            self._alarms.set(answer.later)
        if not done.done():
            done.set_result(answer)

    async def _withdraw(self, task_id: str) -> None:
        """After a submit of unknown outcome: it shall not run, whether it arrived or comes late."""
        end = Fragment(fragment_cancelled("gateway"), "")
        await self._until_answered(
            lambda: self.scheduler.cancel(
                task_id,
                state=State.CANCELLED,
                kind="cancelled",
                end=end,
                why="client",
                tombstone_ms=TOMBSTONE_MS,
            )
        )

    def cancel_soon(self, task_id: str, why: Literal["client", "timeout"]) -> None:
        """End a task whose caller is gone; tried until Redis answers."""
        if why == "client":
            self._spawn(
                self._end(task_id, State.CANCELLED, "cancelled", Fragment(fragment_cancelled(why), ""), why)
            )
        else:
            end = Fragment(fragment_error("Task timeout", "TIMEOUT", False), "TIMEOUT")
            self._spawn(self._end(task_id, State.FAILED, "error", end, why))

    def on_wake(self, model: str, *, targeted: bool) -> None:
        """A task of `model` may start. A wake-up meant for this replica alone is handed on if nothing is free here.

        So is the one of its own timer: whoever is idle elsewhere may not know that there is something to wait for.
        """
        reserved = self.pool.reserve(model, 64)
        if reserved is not None:
            self._take(*reserved, woken=model)
            return
        if len(self._unheard) < MOST_UNHEARD:
            self._unheard.add(model)
        if targeted:
            with contextlib.suppress(StoreUnavailable):  # the sweep repeats the wake-up
                reply = self.scheduler.take([model], 0, self.scheduler.nonce())
                reply.add_done_callback(self._on_handed_on)

    def _on_handed_on(self, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            self._alarms.set(self.scheduler.taken(reply.result()).later)

    def _came_back_empty(self, worker: Worker) -> None:
        """A slot was not filled. A wake-up that overtook this answer found the slot still reserved: ask again."""
        if self._unheard:
            heard = {model for model in self._unheard if worker.serves(model)}
            if heard:
                self._unheard -= heard
                self.fill(worker)

    def fill(self, worker: Worker) -> None:
        """Ask for tasks for all free slots of a worker."""
        free = worker.free(self.time()) if self.pool.get(worker.id) is worker else 0
        if free > 0:
            self.pool.hold(worker, free)
            self._take(worker, free)

    def _take(self, worker: Worker, want: int, woken: str | None = None) -> None:
        try:
            reply = self.scheduler.take(worker.models, want, self.scheduler.nonce(), worker.id)
        except StoreUnavailable:
            worker.reserved -= want
            return  # filled again when the connection is back
        reply.add_done_callback(partial(self._on_taken, worker, want, woken))

    def _on_taken(self, worker: Worker, want: int, woken: str | None, reply: asyncio.Future[Any]) -> None:
        worker.reserved -= want
        if reply.cancelled() or reply.exception() is not None:
            return  # grants that nobody knows of are free again after a few seconds; the sweep wakes
        grants, later = self.scheduler.taken(reply.result())
        self._alarms.set(later)
        self._start_all(grants, worker)
        if len(grants) < want:
            self._came_back_empty(worker)
        if woken is not None and len(grants) == want:
            self.on_wake(woken, targeted=False)

    def want_after(self, worker: Worker, ending: Attempt | None = None) -> int:
        """How many tasks to ask for when an attempt of this worker ends: one for its slot, or none.

        `ending` still stands among the worker's attempts. A worker that has fewer slots now gets nothing until they suffice.
        """
        taken = len(worker.attempts) + worker.reserved
        if ending is not None and worker.attempts.get(ending.grant.task_id) is ending:
            taken -= 1
        available = self.pool.get(worker.id) is worker and not worker.draining and not worker.suspended
        available = available and taken < worker.slots
        return 1 if available and self.time() >= max(worker.hold_until, worker.rest_until) else 0

    # ---- attempts ----------

    def _start_all(self, grants: list[Grant], worker: Worker) -> None:
        for grant in grants:
            self._start(grant, worker)

    def _start(self, grant: Grant, asked_for: Worker) -> None:
        """Begin a granted task, on the worker it was asked for or a better one.

        1 On the least recently used of those that are free for it. The slot that it was asked for stays free then; it is known to
        be, if the other one had asked for the same models in vain, else it asks again. 2 With no other: back to its place if the
        worker is gone or drains; one that should rather not tries again. 3 A task that the worker does not take is brought to
        somebody who does, or ends.
        """
        known = self.attempts.get(grant.task_id)
        if known is not None and known.grant.token == grant.token:
            return  # a repeated reply
        if grant.attempt == 1:
            waited_ms = grant.granted_ms - grant.enqueued_ms
            self.scheduler.measures.granted(grant.queue, grant.model, waited_ms)
            if self.tracer is not None:
                trace_wait(self.tracer, grant)
        worker = asked_for
        misfit = worker.misfit(grant.task_type, grant.task_id)
        other = self.pool.pick(grant.model, grant.task_type, grant.task_id)
        if other is not None and other is not worker:  # 1
            known_free = other.models == worker.models and other.free(self.time()) > 0
            self._begin(grant, other)
            if misfit or not known_free:
                self.fill(worker)
        elif self.pool.get(worker.id) is not worker or worker.draining:  # 2
            self._spawn(self._give_back(grant))
        elif misfit:  # 3
            self.misfit(self._new_attempt(grant, worker), misfit)
        else:
            self._begin(grant, worker)

    def _begin(self, grant: Grant, worker: Worker) -> None:
        attempt = self._new_attempt(grant, worker)
        payload = self._payloads.pop(grant.task_id)
        if payload is not None:
            attempt.send(payload)
        else:
            self._spawn(self._fetch_payload(attempt))

    def _new_attempt(self, grant: Grant, worker: Worker) -> Attempt:
        attempt = Attempt(self, grant, worker)
        worker.attempts[grant.task_id] = attempt
        self.attempts[grant.task_id] = attempt
        self.pool.touch(worker)
        self.deliver(grant.task_id, [Event(grant.epoch, grant.start_seq, "start", grant.start)])
        return attempt

    async def _fetch_payload(self, attempt: Attempt) -> None:
        task_id = attempt.grant.task_id
        try:
            payload = await self._until_answered(lambda: self.scheduler.payload(task_id))
        except BaseException:  # whatever it was, the task must not stay with a worker that never hears of it
            attempt.decline("its payload could not be read")
            raise
        if attempt.phase is not Phase.SENT:
            return
        if payload is None:
            attempt.withdraw()  # it ended between the grant and this read
        else:
            attempt.send(payload)

    # ---- tasks that a worker cannot run ----------

    def keep_payload(self, task_id: str, payload: bytes) -> None:
        """Keep a body at hand for the next worker that its task is given to."""
        self._payloads.put(task_id, payload)

    def misfit(self, attempt: Attempt, why: Misfit) -> None:
        """An attempt's worker cannot run it: bring it to a worker that can, here or elsewhere, or end it.

        The attempt was sent to nobody, or is rejected; from here on it is this method's.
        """
        grant, worker = attempt.grant, attempt.worker
        if why is not Misfit.TYPE:
            worker.refused.put(grant.task_id, why)
        other = self.pool.pick(grant.model, grant.task_type, grant.task_id)
        if other is not None:
            attempt.move()
            self._begin(grant, other)
            self.fill(worker)
            return
        self._rest(worker)
        if self.pool.anybody_takes(grant.model, grant.task_type, grant.task_id):
            attempt.decline(why.value)
        else:
            self._spawn(self._misfit(attempt, why))

    def _rest(self, worker: Worker) -> None:
        """Ask for no task for a while: it would be the same one again. What is at hand may be given all the same."""
        worker.rest_until = self.time() + MISFIT_REST_S
        self._loop.call_later(MISFIT_REST_S + 0.001, self.fill, worker)

    async def _misfit(self, attempt: Attempt, why: Misfit) -> None:
        """No worker here can run it: let another replica's have it, if there is one."""
        grant = attempt.grant
        times = (self._sent_away.get(grant.task_id) or 0) + 1
        self._sent_away.put(grant.task_id, times)
        tired = why is Misfit.REJECTED and times > MOST_REFUSALS
        if not tired and await self._until_answered(lambda: self._taken_elsewhere(grant, why)):
            attempt.decline(why.value)
            return
        sentence = {
            Misfit.TYPE: f"No connected worker takes tasks of type {grant.task_type}",
            Misfit.SIZE: "The task is too large for the connected workers",
            Misfit.REJECTED: "No connected worker can run this task",
        }[why]
        attempt.fail("NO_WORKER", sentence, retryable=False)

    async def _taken_elsewhere(self, grant: Grant, why: Misfit) -> bool:
        """Whether a worker of another replica takes the task, as far as the replicas tell."""
        names = await self._link.command("ZRANGE", self._keys("replicas"), 0, -1)
        for name in names:
            replica = name.decode()
            if replica == self.scheduler.replica:
                continue
            known = await self._link.command("GET", self._keys("presence", replica=replica))
            for worker in msgspec.json.decode(known or b"[]", type=list[_Elsewhere]):
                if worker.takes(grant.model, grant.task_type) and (
                    worker.version >= 2 or why is not Misfit.SIZE
                ):
                    return True
        return False

    async def _give_back(self, grant: Grant) -> None:
        ended = await self._until_answered(
            lambda: self.scheduler.requeue(grant, "no worker any more", cause="declined", begun=False)
        )
        self._alarms.set(ended.later)

    def over(self, attempt: Attempt, grants: list[Grant], outcome: str = "stale", later: Later = ()) -> None:
        """An attempt has ended and its slot is free; `grants` and `later` came with the answer and are for that slot."""
        worker = self._forget(attempt)
        self._alarms.set(later)
        if worker.version >= 2 and attempt.answered:
            worker.send(result_ack(*attempt.key, outcome))
        if grants:
            self._start_all(grants, worker)
        else:
            self._came_back_empty(worker)

    def _forget(self, attempt: Attempt) -> Worker:
        worker, task_id = attempt.worker, attempt.grant.task_id
        if worker.attempts.get(task_id) is attempt:
            del worker.attempts[task_id]
        if self.attempts.get(task_id) is attempt:
            del self.attempts[task_id]
        worker.past.put(attempt.key, attempt.answered)
        if attempt.span is not None:
            attempt.span.end()
        if worker.suspended and not any(a.phase is Phase.STOPPING for a in worker.attempts.values()):
            worker.suspended = False
            self._loop.call_soon(self.fill, worker)
        return worker

    def moved(self, attempt: Attempt) -> None:
        """An attempt goes on with another worker: its slot is free, the grant stays."""
        self._forget(attempt)

    def requeue(
        self, attempt: Attempt, why: str, cause: Cause, begun: bool, end: Fragment | None, hold_ms: int
    ) -> None:
        """Give an attempt's task back; its slot is free at once. `hold_ms`: no task of its model begins for so long."""
        if attempt.span is not None:
            attempt.span.end(why)
        worker = self._forget(attempt)
        if not hold_ms:  # then the worker was not the reason
            worker.avoided.put(attempt.grant.task_id, True)
        if cause == "failed":
            self.hold(worker, RETRY_REST_MS)
        log.info(
            "task goes back to its queue",
            task_id=attempt.grant.task_id,
            worker_id=worker.id,
            why=why,
            hold_ms=hold_ms,
        )
        self._spawn(self._requeue(attempt, worker, why, cause, begun, end, hold_ms))

    async def _requeue(
        self,
        attempt: Attempt,
        worker: Worker,
        why: str,
        cause: Cause,
        begun: bool,
        end: Fragment | None,
        hold_ms: int,
    ) -> None:
        grant = attempt.grant
        ended = await self._until_answered(
            lambda: self.scheduler.requeue(
                grant, why, cause=cause, begun=begun, end=end, who=worker.identity, hold_ms=hold_ms
            )
        )
        self._alarms.set(ended.later)
        if ended.outcome == "ended":
            self.show_end(grant.task_id, ended.event_id, ended.kind, ended.data)
        if worker.version >= 2 and attempt.answered:
            worker.send(result_ack(*attempt.key, "stale" if ended.outcome == "stale" else "ok"))
        self.fill(worker)

    def release(self, attempt: Attempt, used: tuple[int, int]) -> None:
        """A stopped task's worker has answered: free the lease, settle, and take for the slot."""
        worker = self._forget(attempt)
        self._spawn(self._release(attempt, worker, used))

    async def _release(self, attempt: Attempt, worker: Worker, used: tuple[int, int]) -> None:
        grant = attempt.grant
        nonce = self.scheduler.nonce()
        want = self.want_after(worker)
        self.pool.hold(worker, want)
        cancelled = compose(
            grant.task_id, self.now_ms(), fragment_cancelled("gateway")
        )  # if the store lost the real end
        try:
            reply = await self._until_answered(
                lambda: self.scheduler.finish(
                    grant,
                    State.CANCELLED,
                    "",
                    0,
                    [],
                    ("cancelled", cancelled),
                    used=used,
                    want=want,
                    models=worker.models,
                    nonce=nonce,
                    worker=worker.id,
                )
            )
        finally:
            worker.reserved -= want
        finished = self.scheduler.finished(reply)
        self._alarms.set(finished.later)
        if finished.outcome == "ok":
            attempt.measure_end(State.CANCELLED, "", used)
        if worker.version >= 2 and attempt.answered:
            worker.send(result_ack(*attempt.key, finished.outcome))
        self._start_all(finished.grants, worker)
        if not finished.grants:
            self._came_back_empty(worker)

    def give_up(self, attempt: Attempt, why: str) -> None:
        """The log cannot be written any more: too much waits for Redis, or Redis lost its end. The worker still runs it."""
        code, text = (
            ("OUTPUT_TOO_LARGE", "The output grew faster than it could be stored")
            if why == "overflow"
            else ("STORE_LOST", "The store lost a part of the output")
        )
        log.warning("task given up", task_id=attempt.grant.task_id, worker_id=attempt.worker.id, code=code)
        self._spawn(self._give_up(attempt, code, fragment_error(text, code, False)))

    async def _give_up(self, attempt: Attempt, code: str, fragment: bytes) -> None:
        grant, worker = attempt.grant, attempt.worker
        nonce = self.scheduler.nonce()
        data = compose(grant.task_id, self.now_ms(), fragment)
        reply = await self._until_answered(
            lambda: self.scheduler.finish(
                grant,
                State.FAILED,
                code,
                0,
                [],
                ("error", data),
                used=NO_USAGE,
                want=0,
                models=worker.models,
                nonce=nonce,
                worker=worker.id,
                keep_ms=self.scheduler.limits.stop_grace_ms,
            )
        )
        finished = self.scheduler.finished(reply)
        if finished.outcome == "ok":
            attempt.measure_end(State.FAILED, code)
            self.show_end(grant.task_id, finished.event_id, "error", data)
        attempt.wait_for_stop()

    def show_end(self, task_id: str, event_id: str, kind: str, data: bytes) -> None:
        """Bring the terminal event that a call from here wrote to the readers here."""
        self.deliver(task_id, [Event(*parse_event_id(event_id), kind, data)])

    async def _end(self, task_id: str, state: State, kind: str, end: Fragment, why: str) -> None:
        ended = await self._until_answered(
            lambda: self.scheduler.cancel(task_id, state=state, kind=kind, end=end, why=why)
        )
        if ended.outcome == "ended":
            self.show_end(task_id, ended.event_id, ended.kind, ended.data)

    def on_stop(self, task_id: str, epoch: int, why: str) -> None:
        """Another replica, or a script, ended a task that runs here."""
        attempt = self.attempts.get(task_id)
        if attempt is None:
            self._spawn(self._confirm(task_id, epoch, why))
        elif attempt.grant.epoch == epoch:
            attempt.stop(why)

    async def _confirm(self, task_id: str, epoch: int, why: str) -> None:
        """A task was ended whose grant is not known here. Nobody but us can say that its slot is free, if the grant was lost."""
        await asyncio.sleep(LOST_REPLY_S)
        if task_id in self.attempts:  # the grant came after the news of its end
            self.on_stop(task_id, epoch, why)
            return
        record: Record | None = await self._until_answered(lambda: self.scheduler.position(task_id))
        if record is None or record.number("ep") != epoch or task_id in self.attempts:
            return
        fields = record.fields
        grant = Grant(
            task_id=task_id,
            attempt=record.number("at"),
            epoch=epoch,
            token=fields.get("gt", ""),
            model=fields["m"],
            queue=fields["q"],
            task_type=fields.get("ty", ""),
            user=fields["u"],
            key=fields.get("k", ""),
            stream=False,
            left_ms=0,
            tries=0,
            enqueued_ms=record.number("en"),
            start_seq=1,
            metadata=b"",
            waiting=False,
            readers="",
            granted_ms=record.number("ga"),
            start=b"",
        )
        await self._give_back(grant)

    def show(self, grant: Grant, event: Event) -> None:
        """Bring an event that is not logged to the readers known at the grant."""
        self._hub.show(grant.task_id, event)
        message = b"n\n%b\n%b\n%b" % (grant.task_id.encode(), event.type.encode(), event.data)
        for replica in grant.readers.split(","):
            if replica and replica != self.scheduler.replica:
                try:
                    self._link.command("PUBLISH", self.scheduler.channel(replica), message).add_done_callback(
                        observe
                    )
                except StoreUnavailable:
                    return  # nobody keeps what is not logged

    # ---- the store ----------

    def store_is_back(self) -> None:
        """The connection to Redis is up again: offer, renew, sweep, and fill what stayed empty."""
        self._store_back.set()  # what waits to be said goes first: it may withdraw what a free slot would take
        self._store_back.clear()
        self.upkeep.offer_soon()
        for worker in self.pool:
            self._loop.call_soon(self.fill, worker)

    def presence(self) -> list[dict[str, Any]]:
        """The connected workers as the admin view shows them."""
        now = self.time()
        return [
            {
                "workerId": worker.id,
                "name": worker.name,
                "replica": self.scheduler.replica,
                "version": worker.version,
                "models": list(worker.models),
                "taskTypes": None if worker.task_types is None else sorted(worker.task_types),
                "slots": worker.slots,
                "running": len(worker.attempts),
                "heartbeatAgeMs": int((now - worker.heard_at) * 1000),
                "draining": worker.draining,
            }
            for worker in self.pool
        ]

    async def _until_answered(self, call: Callable[[], Awaitable[Any]], patience_s: float = 600.0) -> Any:
        """Repeat a call that may be repeated until Redis answers it; gives up after `patience_s`."""
        delay = 0.05
        give_up_at = self.time() + patience_s
        while True:
            try:
                return await call()
            except StoreError:
                if self.time() > give_up_at:
                    raise
            try:
                async with asyncio.timeout(delay):
                    await self._store_back.wait()
            except TimeoutError:
                pass
            delay = min(delay * 2, 1.0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a background step failed; leases end by themselves", error=repr(error))


class _Elsewhere(msgspec.Struct, rename="camel"):
    """What another replica tells of one of its workers (see `presence`)."""

    models: list[str]
    task_types: list[str] | None = None
    version: int = 1
    draining: bool = False

    def takes(self, model: str, task_type: str) -> bool:
        return (
            not self.draining
            and (model in self.models or ANY in self.models)
            and (self.task_types is None or task_type in self.task_types)
        )
