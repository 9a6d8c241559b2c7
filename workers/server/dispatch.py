"""Brings tasks to workers: asks the scheduler whenever a local slot is free, and runs what it grants.

The replica's one place that knows which of its slots are taken, reserved for a question under way, or free. Grants are handled
in callbacks of the scheduler's replies, so that a grant is never lost with the request that happened to receive it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal

import msgspec
import structlog

from fairlane.queues.errors import StoreError, StoreUnavailable
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink
from fairlane.queues.presence import Row, read_presence
from fairlane.queues.scheduler import MOST_TAKEN, Scheduler
from fairlane.queues.tasks import Fragment, Grant, Later, Record, Refused, State, Submitted, TaskSpec
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event, fragment_error
from fairlane.streaming.failures import cancelled_end
from fairlane.streaming.hub import Hub
from fairlane.streaming.writer import TaskWriter, flushes
from fairlane.workers.server.attempt import Attempt, Attempts, Phase, attempts_on, key_of
from fairlane.workers.server.background import Background
from fairlane.workers.server.ending import Endings, terminal_event
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import ANY, Mismatch, Pool, Recent, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.spans import trace_attempt, trace_wait
from fairlane.workers.server.timers import ModelTimers
from fairlane.workers.server.upkeep import Upkeep
from fairlane.workers.tracing import Tracer

log = structlog.get_logger("fairlane.workers")

LOST_REPLY_S = 2.0
"""A reply of Redis seldom takes as long; and as they come in order, one to a later question proves that it never will."""
TOMBSTONE_MS = 600_000
FILLED_AT_ONCE = 50
FILL_PAUSE_S = 0.02
MOST_UNHEARD = 1000
"""Models remembered whose wake-up found no free slot here; the sweep repeats wake-ups anyway."""
MOST_SENT_AWAY = 1000
"""Tasks remembered that nobody here could run, with how often they came."""
ELSEWHERE_S = 0.05
"""Tasks that look for a worker at other replicas wait so long for each other: one reading serves them all."""
MISMATCH_REST_S = 1.0
"""How long a worker asks for nothing after a task that only others take: it would be given the same one again."""
MOST_REFUSALS = 5
"""Times that a task is brought to other replicas because nobody here supports it; then that is believed of all."""


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
        self.attempts = Attempts()
        self.deliver = hub.deliver
        self.stop_grace_s = scheduler.limits.stop_grace_ms / 1000
        self.payloads = PayloadCache(settings.payload_cache_bytes, self.time)
        self._background = Background()
        self._flushes = flushes(self._loop)
        self._accepting = True
        self._unheard: set[str] = set()
        self._sent_away: Recent[str, int] = Recent(MOST_SENT_AWAY)
        self._elsewhere: asyncio.Task[set[_RemoteWorker]] | None = None
        self._timers = ModelTimers(self._loop, partial(self.on_wake, targeted=True))
        self._endings = Endings(scheduler, link, hub, self, self.attempts, self._background)
        self.upkeep = Upkeep(self, hub)

    # ---- life ----------

    def start(self) -> None:
        """Begin the upkeep."""
        self.upkeep.start()

    async def close(self) -> None:
        """End the upkeep. Attempts under way are forgotten here: their leases end by themselves."""
        self._timers.close()
        await self.upkeep.close()
        if self._elsewhere is not None:
            self._elsewhere.cancel()
        await self._background.close()
        self._endings.close()

    @property
    def draining(self) -> bool:
        """True once no more tasks are taken here."""
        return not self._accepting

    def drain(self) -> None:
        """Take no more tasks; running ones go on. Other replicas are told that nothing is offered here."""
        self._accepting = False
        for worker in self.pool:
            worker.draining = True
            self.upkeep.changed(worker)
        self.upkeep.offer_soon()

    def abandon(self) -> None:
        """The time to finish is over: a task whose output was seen ends now, as nobody can go on with it; others go back."""
        for attempt in list(self.attempts.values()):
            attempt.lost("The gateway stopped before the task was done", blameless=True)

    @property
    def settled(self) -> bool:
        """Whether nothing runs here, and Redis knows how everything ended."""
        return not self._background and not any(attempt.held for attempt in self.attempts.values())

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
        self.upkeep.offer(worker)
        self.fill(worker)

    def changed(self, worker: Worker) -> None:
        """A worker changed its models or slots, or drains."""
        self.upkeep.offer(worker)
        if not worker.draining:
            self.fill(worker)

    def disconnected(self, worker: Worker) -> None:
        """A worker is gone: its tasks are tried elsewhere or end."""
        if not self.pool.remove(worker):
            return
        self.upkeep.offer(worker)
        if any(attempt.held for attempt in attempts_on(worker)):
            self.pool.count_loss(worker)
        for attempt in attempts_on(worker):
            attempt.lost(blameless=self.draining)

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
        self.payloads.put(task.id, task.payload)
        try:
            named = worker is not None and worker.models != (ANY,)
            nonce, worker_id = self.scheduler.nonce(), worker.id if worker else ""
            reply = self.scheduler.submit(task, want, nonce, worker_id, named=named)
        except StoreUnavailable:
            self.payloads.pop(task.id)
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
            self.payloads.pop(task_id)
            if isinstance(error, StoreError) and error.sent:
                self._background.spawn(self._withdraw(task_id))
            if not done.done():
                done.set_exception(error)
                done.exception()
            return
        answer = self.scheduler.submitted(reply.result())
        if isinstance(answer, Refused):
            self.payloads.pop(task_id)
        elif worker:
            self._start_all(answer.grants, worker)
            if not answer.grants:
                self._came_back_empty(worker)
        if isinstance(answer, Submitted):
            self._timers.set(answer.later)
        if not done.done():
            done.set_result(answer)

    async def _withdraw(self, task_id: str) -> None:
        """After a submit of unknown outcome: it shall not run, whether it arrived or comes late."""
        end = cancelled_end("gateway")
        await self._background.until_answered(
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
            self._background.spawn(self._end(task_id, State.CANCELLED, "cancelled", cancelled_end(why), why))
        else:
            end = Fragment(fragment_error("Task timeout", "TIMEOUT", False), "TIMEOUT")
            self._background.spawn(self._end(task_id, State.FAILED, "error", end, why))

    def on_wake(self, model: str, *, targeted: bool) -> None:
        """A task of `model` may start. A wake-up meant for this replica alone is handed on if nothing is free here.

        So is the one of its own timer: whoever is idle elsewhere may not know that there is something to wait for.
        """
        reserved = self.pool.reserve(model, MOST_TAKEN)
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
            self._timers.set(self.scheduler.taken(reply.result()).later)

    def _came_back_empty(self, worker: Worker) -> None:
        """A slot was not filled. A wake-up that overtook this answer found the slot still reserved: ask again."""
        if self._unheard:
            heard = {model for model in self._unheard if worker.serves(model)}
            if heard:
                self._unheard -= heard
                self.fill(worker)

    def fill(self, worker: Worker) -> None:
        """Ask for tasks for all free slots of a worker: at most MOST_TAKEN at a time, and again while all are granted."""
        free = worker.free(self.time()) if self.pool.get(worker.id) is worker else 0
        if free > 0:
            want = min(free, MOST_TAKEN)
            self.pool.hold(worker, want)
            self._take(worker, want)

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
        self._timers.set(later)
        self._start_all(grants, worker)
        if len(grants) < want:
            self._came_back_empty(worker)
        elif woken is not None:
            self.on_wake(woken, targeted=False)
        elif want == MOST_TAKEN:
            self.fill(worker)

    def want_after(self, worker: Worker, ending: Attempt | None = None) -> int:
        """How many tasks to ask for when an attempt of this worker ends: one for its slot, or none.

        `ending` still stands among the worker's attempts. A worker that has fewer slots now gets nothing until they suffice.
        """
        taken = len(worker.attempts) + worker.reserved
        if ending is not None and worker.attempts.get(ending.key) is ending:
            taken -= 1
        available = self.pool.get(worker.id) is worker and not worker.draining and not worker.suspended
        available = available and taken < worker.slots
        return 1 if available and self.time() >= max(worker.hold_until, worker.rest_until) else 0

    def connected_now(self, worker: Worker) -> bool:
        """Whether a worker's connection is still there."""
        return self.pool.get(worker.id) is worker

    def reserve(self, worker: Worker, count: int) -> None:
        """Keep slots for a question that is under way; negative: give them back."""
        worker.reserved += count

    def use(self, worker: Worker, grants: list[Grant], later: Later) -> None:
        """Begin what was granted for a free slot, or ask again if a wake-up was missed."""
        self._timers.set(later)
        if grants:
            self._start_all(grants, worker)
        else:
            self._came_back_empty(worker)

    def fill_soon(self, worker: Worker) -> None:
        """Ask for tasks when what is under way has been dealt with."""
        self._loop.call_soon(self.fill, worker)

    def ask_later(self, later: Later) -> None:
        """Set timers for models that may start a task in a while."""
        self._timers.set(later)

    # ---- attempts ----------

    def _start_all(self, grants: list[Grant], worker: Worker) -> None:
        for grant in grants:
            self._start(grant, worker)

    def _start(self, grant: Grant, asked_for: Worker) -> None:
        """Begin a granted task, on the worker it was asked for or a better one.

        0 An older attempt of the task that is held here has lost its lease: it is stopped, and its slot is free when its worker
        answers. 1 On the least recently used of those that are free for it. The slot that it was asked for stays free then; it is
        known to be, if the other one had asked for the same models in vain, else it asks again. 2 With no other: back to its
        place if the worker is gone, drains, may not offer the model any more, or could not tell the two attempts apart; one that
        should rather not tries again. 3 A task that the worker does not take is brought to somebody who does, or ends.
        """
        known = self.attempts.newest(grant.task_id)
        if known is not None:
            if known.grant.token == grant.token:
                return  # a repeated reply
            known.worker.avoided.put(grant.task_id, True)
            known.stop("superseded")  # 0
        if grant.attempt == 1:
            waited_ms = grant.granted_ms - grant.enqueued_ms
            self.scheduler.metrics.granted(grant.queue, grant.model, waited_ms)
            if self.tracer is not None:
                trace_wait(self.tracer, grant)
        worker = asked_for
        mismatch = worker.mismatch(grant.task_type, grant.task_id)
        other = self.pool.pick(grant.model, grant.task_type, grant.task_id)
        if other is not None and other is not worker:  # 1
            known_free = other.models == worker.models and other.free(self.time()) > 0
            self._begin(grant, other)
            if mismatch or not known_free:
                self.fill(worker)
        elif (
            not self.connected_now(worker)
            or worker.draining
            or not worker.serves(grant.model)
            or key_of(grant, worker) in worker.attempts
        ):  # 2
            self._background.spawn(self._give_back(grant))
        elif mismatch:  # 3
            self.mismatch(self._new_attempt(grant, worker), mismatch)
        else:
            self._begin(grant, worker)

    def _begin(self, grant: Grant, worker: Worker) -> None:
        attempt = self._new_attempt(grant, worker)
        payload = self.payloads.pop(grant.task_id)
        if payload is not None:
            attempt.send(payload)
        else:
            self._background.spawn(self._fetch_payload(attempt))

    def _new_attempt(self, grant: Grant, worker: Worker) -> Attempt:
        coalescer = self.new_coalescer()
        max_bytes = self.settings.max_output_bytes
        writer = TaskWriter(
            self.scheduler, self._endings, grant, coalescer, self._flushes, max_bytes=max_bytes
        )
        span = None if self.tracer is None else trace_attempt(self.tracer, grant, worker)
        attempt = Attempt(self._endings, grant, worker, writer, span)
        worker.attempts[attempt.key] = attempt
        self.attempts.add(attempt)
        self.pool.touch(worker)
        self.deliver(grant.task_id, [Event(grant.epoch, grant.start_seq, "start", grant.start)])
        return attempt

    async def _fetch_payload(self, attempt: Attempt) -> None:
        task_id = attempt.grant.task_id
        try:
            payload = await self._background.until_answered(lambda: self.scheduler.payload(task_id))
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
        self.payloads.put(task_id, payload)

    def mismatch(self, attempt: Attempt, why: Mismatch) -> None:
        """An attempt's worker cannot run it: bring it to a worker that can, here or elsewhere, or end it.

        The attempt was sent to nobody, or is rejected; from here on it is this method's.
        """
        grant, worker = attempt.grant, attempt.worker
        if why is not Mismatch.TYPE:
            worker.refused.put(grant.task_id, why)
        other = self.pool.pick(grant.model, grant.task_type, grant.task_id)
        if other is not None:
            self._endings.moved(attempt)
            self._begin(grant, other)
            self.fill(worker)
            return
        self._rest(worker)
        if self.pool.anybody_takes(grant.model, grant.task_type, grant.task_id):
            attempt.decline(why.value)
        else:
            self._background.spawn(self._mismatch(attempt, why))

    def _rest(self, worker: Worker) -> None:
        """Ask for no task for a while: it would be the same one again. What is at hand may be given all the same."""
        worker.rest_until = self.time() + MISMATCH_REST_S
        self._loop.call_later(MISMATCH_REST_S + 0.001, self.fill, worker)

    async def _mismatch(self, attempt: Attempt, why: Mismatch) -> None:
        """No worker here can run it: let another replica's have it, if there is one."""
        grant = attempt.grant
        times = (self._sent_away.get(grant.task_id) or 0) + 1
        self._sent_away.put(grant.task_id, times)
        tired = why is Mismatch.REJECTED and times > MOST_REFUSALS
        if not tired and await self._background.until_answered(lambda: self._taken_elsewhere(grant, why)):
            attempt.decline(why.value)
            return
        sentence = {
            Mismatch.TYPE: f"No connected worker takes tasks of type {grant.task_type}",
            Mismatch.SIZE: "The task is too large for the connected workers",
            Mismatch.REJECTED: "No connected worker can run this task",
        }[why]
        attempt.fail("NO_WORKER", sentence, retryable=False)

    async def _taken_elsewhere(self, grant: Grant, why: Mismatch) -> bool:
        """Whether a worker of another replica takes the task, as far as the replicas tell."""
        if self._elsewhere is None:
            self._elsewhere = asyncio.create_task(self._read_elsewhere(), name="workers-elsewhere")
        return any(
            kind.takes(grant.model, grant.task_type) and (kind.version >= 2 or why is not Mismatch.SIZE)
            for kind in await asyncio.shield(self._elsewhere)
        )

    async def _read_elsewhere(self) -> set["_RemoteWorker"]:
        """The kinds of workers of other replicas; who asks within a moment shares the reading."""
        try:
            await asyncio.sleep(ELSEWHERE_S)
            kinds: set[_RemoteWorker] = set()
            for name in await self._link.command("ZRANGE", self._keys("replicas"), 0, -1):
                replica = name.decode()
                if replica != self.scheduler.replica:
                    reply = await self._link.command("HGETALL", self._keys("presence", replica=replica))
                    kinds.update(msgspec.convert(read_presence(reply), list[_RemoteWorker]))
            return kinds
        finally:
            self._elsewhere = None

    async def _give_back(self, grant: Grant) -> None:
        ended = await self._background.until_answered(
            lambda: self.scheduler.requeue(grant, "no worker any more", cause="declined", begun=False)
        )
        self._timers.set(ended.later)

    def show_end(self, task_id: str, event_id: str, kind: str, data: bytes) -> None:
        """Bring the terminal event that a call from here wrote to the readers here."""
        self.deliver(task_id, [terminal_event(event_id, kind, data)])

    async def _end(self, task_id: str, state: State, kind: str, end: Fragment, why: str) -> None:
        ended = await self._background.until_answered(
            lambda: self.scheduler.cancel(task_id, state=state, kind=kind, end=end, why=why)
        )
        if ended.outcome == "ended":
            self.show_end(task_id, ended.event_id, ended.kind, ended.data)

    def on_stop(self, task_id: str, epoch: int, why: str) -> None:
        """Another replica, or a script, ended a task that runs here."""
        attempt = self._held(task_id, epoch)
        if attempt is None:
            self._background.spawn(self._confirm(task_id, epoch, why))
        else:
            attempt.stop(why)

    def _held(self, task_id: str, epoch: int) -> Attempt | None:
        attempt = self.attempts.newest(task_id)
        return attempt if attempt is not None and attempt.grant.epoch == epoch else None

    async def _confirm(self, task_id: str, epoch: int, why: str) -> None:
        """A task was ended whose grant is not known here. Nobody but us can say that its slot is free, if the grant was lost."""
        await asyncio.sleep(LOST_REPLY_S)
        attempt = self._held(task_id, epoch)
        if attempt is not None:  # the grant came after the news of its end
            attempt.stop(why)
            return
        record: Record | None = await self._background.until_answered(
            lambda: self.scheduler.position(task_id)
        )
        if record is None or record.number("ep") != epoch or self._held(task_id, epoch):
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

    # ---- the store ----------

    def store_is_back(self) -> None:
        """The connection to Redis is up again: offer, renew, sweep, and fill what stayed empty."""
        self._background.store_is_back()  # first: it may withdraw what a free slot would take
        self.upkeep.offer_soon()
        self._background.spawn(self._fill_all())

    async def _fill_all(self) -> None:
        """Fill what stayed empty; of many workers a few at a time, so that nothing else waits for all of them."""
        for number, worker in enumerate(self.pool, 1):
            self.fill(worker)
            if number % FILLED_AT_ONCE == 0:
                await asyncio.sleep(FILL_PAUSE_S)

    def presence(self) -> list[Row]:
        """The connected workers as the admin view shows them."""
        return [
            {**self._description(w), "running": len(w.attempts), "heartbeatAgeMs": self.silent_ms(w)}
            for w in self.pool
        ]

    def describe(self, worker_id: str) -> Row | None:
        """What of a worker's presence stays as it is until the worker changes; None when it is not connected."""
        worker = self.pool.get(worker_id)
        return None if worker is None else self._description(worker)

    def _description(self, worker: Worker) -> Row:
        return {
            "workerId": worker.id,
            "name": worker.name,
            "replica": self.scheduler.replica,
            "version": worker.version,
            "models": worker.models,
            "taskTypes": None if worker.task_types is None else sorted(worker.task_types),
            "slots": worker.slots,
            "draining": worker.draining,
        }

    def silent_ms(self, worker: Worker) -> int:
        """How long ago a worker was last heard of."""
        return int((self.time() - worker.heard_at) * 1000)


class _RemoteWorker(msgspec.Struct, rename="camel", frozen=True):
    """What another replica tells of one of its workers, as far as it counts for who takes a task."""

    models: tuple[str, ...]
    task_types: tuple[str, ...] | None = None
    version: int = 1
    draining: bool = False

    def takes(self, model: str, task_type: str) -> bool:
        return (
            not self.draining
            and (model in self.models or ANY in self.models)
            and (self.task_types is None or task_type in self.task_types)
        )
