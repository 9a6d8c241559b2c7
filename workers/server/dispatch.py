"""The workers' side of a replica: assigns granted tasks to its workers, and follows workers that connect, change or leave.

```
 submit, wake-ups ─▶ Slots ── grant ─▶ Dispatcher ─▶ Runner: Attempt ── end ─▶ Runner ── the slot is free ─▶ Slots
 sessions ─▶ Dispatcher (who is here) ─▶ Offers          Maintenance: repeatedly
```
"""

import asyncio
from collections.abc import Collection

from fairlane.queues.keys import Keys
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink
from fairlane.queues.tasks import Grant
from fairlane.streaming.hub import Hub
from fairlane.streaming.structured.checker import Checker
from fairlane.workers.server.health import Health
from fairlane.workers.server.hooks.chains import Chains
from fairlane.workers.server.hooks.congestion import Congestion
from fairlane.workers.server.hooks.features import Features
from fairlane.workers.server.hooks.silence import Silence
from fairlane.workers.server.hooks.spans import trace_wait
from fairlane.workers.server.maintenance import Maintenance
from fairlane.workers.server.pool.remote_workers import RemoteWorkers
from fairlane.workers.server.pool.suspects import Loss, read_suspicion, suspects
from fairlane.workers.server.pool.worker import Mismatch, Worker
from fairlane.workers.server.runner import Runner
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.accounts import Accounts
from fairlane.workers.server.tasks.attempt import LOST, Attempt
from fairlane.workers.tracing import Tracer

LOST_REPLY_S = 2.0
"""A reply of Redis seldom takes this long. Replies arrive in order, so a reply to a later call proves that it is lost."""


class Dispatcher(Slots):
    """See the module. `start` begins the maintenance (offers, renewals, sweeps); `close` ends it and forgets all attempts."""

    def __init__(
        self,
        scheduler: Scheduler,
        link: RedisLink,
        hub: Hub,
        settings: DispatchSettings,
        keys: Keys,
        checker: Checker,
        tracer: Tracer | None = None,
    ) -> None:
        """`settings`: changes in it apply to all parts. `checker` checks structured output; its owner closes it."""
        super().__init__(scheduler, hub, settings)
        self._tracer = tracer
        self._remote_workers = RemoteWorkers(link, keys, scheduler.replica)
        self.health = health = Health(self, self._remote_workers)
        self.congestion = Congestion(scheduler, settings)
        silence = Silence(self.congestion)
        accounts = Accounts(self, health)
        self._features = Features(self, accounts, checker, tracer)
        self._runner = Runner(self, health, accounts, self._features, silence, self._remote_workers)
        self.attempts = self._runner.attempts
        self.maintenance = Maintenance(self, self.attempts, health, silence)

    # ---- life ----------

    def use_chains(self, chains: Chains) -> None:
        """Set the object that knows what follows a stage of a chain. Once, before the start."""
        self._features.stages.chains = chains

    def start(self) -> None:
        """Start the maintenance, and the rounds that follow the queues."""
        self.maintenance.start()
        self.congestion.start()

    def drain(self) -> None:
        """No worker gets another task, new ones included; running tasks continue. Other replicas are notified."""
        self.pool.draining = True
        for worker in self.pool:
            worker.draining = True
            self.offers.changed(worker)
        self.offers.offer_soon()

    def abandon(self) -> None:
        """End all attempts, as the time to finish is over: a task with output ends, because no other worker can continue it;
        others are requeued."""
        for attempt in list(self.attempts.values()):
            attempt.lost("The gateway stopped before the task was done", blameless=True)

    async def close(self) -> None:
        """End the maintenance. Attempts under way are forgotten here: their leases end by themselves."""
        self._timers.close()
        await self.congestion.close()
        await self.maintenance.close()
        self.offers.close()
        self._remote_workers.close()
        await self.background.close()
        self._runner.close()

    def store_is_back(self) -> None:
        """The connection to Redis is up again: offer, renew, sweep, and fill what stayed empty."""
        self.background.store_is_back()  # first: it may cancel what a free slot would take
        self.offers.offer_soon()
        self.background.spawn(self.fill_all())

    @property
    def settled(self) -> bool:
        """Whether nothing runs here, and Redis knows how everything ended."""
        return not self.background and not any(attempt.held for attempt in self.attempts.values())

    async def takes(self, models: Collection[str] | None, task_type: str) -> bool:
        """Return whether a worker, here or elsewhere, takes tasks of a type ('': any) of one of these models (None: of any). The
        state of workers elsewhere is a moment old. Raise StoreError."""
        return self.pool.offers(models, task_type) or await self._remote_workers.offers(models, task_type)

    def silences(self) -> dict[str, float]:
        """By model: for how long the one of its tasks here that is silent for longest has given no sign, s."""
        now = self.time()
        return {model: now - since for model, since in self.attempts.silent_since().items()}

    # ---- workers ----------

    def connected(self, worker: Worker, unhealthy: str = "") -> None:
        """Offer a new worker's models and fill its slots. `unhealthy`: why it says that it cannot work."""
        worker.heard_at = self.time()
        self.pool.add(worker)
        self.offers.offer(worker)
        self.health.report(worker, unhealthy)
        self.fill(worker)
        self.health.review_soon()

    def changed(self, worker: Worker) -> None:
        """A worker changed its models or slots, or drains. A slot that stays empty is filled again if it was requested with the
        old offer."""
        self.offers.offer(worker)
        if not worker.draining:
            worker.changed = worker.free(self.time()) < worker.usable
            self.fill(worker)

    def disconnected(self, worker: Worker, loss: Loss) -> None:
        """A worker is gone: its tasks are tried elsewhere or end."""
        if not self.pool.remove(worker):
            return
        self.offers.offer(worker)
        attempts = list(worker.attempts.values())
        if any(attempt.held for attempt in attempts):
            self.pool.count_loss(worker)
        candidates = [candidate for attempt in attempts if (candidate := attempt.candidate)]
        found = suspects(candidates, worker.identity, loss)
        sentence = LOST if worker.version >= 2 else "Worker disconnected"
        for attempt in attempts:
            suspicion = found.get(attempt.key)
            attempt.lost(sentence, blameless=self.pool.draining, suspicion=suspicion)

    # ---- assigning tasks ----------

    def assign_task(self, grant: Grant, worker: Worker) -> None:
        """Begin a granted task, on the worker that it was granted for or a better one.

        0 An older attempt of the task that is held here has lost its lease: it is stopped, and its slot is free when its worker
        answers. 1 On the least recently used of those of the same upstream that are free for it. The slot that it was granted for
        stays free then; it is known to be, if the other one asked for the same models and got none; else it asks again. 2 With no
        other: back to its place if the worker is gone, drains, may not offer the model any more, cannot distinguish the two
        attempts, or backs off; one that should rather not tries again. 3 A task that the worker does not take is brought to
        one that does, or ends.
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
            if self._tracer is not None:
                trace_wait(self._tracer, grant)
        runner = self._runner
        suspicion = read_suspicion(grant.last_lost) if grant.last_lost else None
        other = self.pool.pick(
            grant.model, grant.task_type, grant.task_id, worker.upstream, suspicion=suspicion
        )
        apart = worker.version > 1 or worker.key_of(grant) not in worker.attempts
        if other is worker and apart:  # 1, as it is with most
            runner.begin(grant, worker)
            return
        mismatch = worker.mismatch(grant.task_type, grant.task_id)
        if suspicion is not None and suspicion.excludes(worker.identity):
            mismatch = Mismatch.CLOSED
        if other is not None and other is not worker:  # 1
            known_free = other.models == worker.models and other.free(self.time()) > 0
            runner.begin(grant, other)
            if mismatch or not known_free:
                self.fill(worker)
        elif (
            worker not in self.pool
            or worker.draining
            or not worker.serves(grant.model)
            or not apart
            or (worker.cap is not None and len(worker.attempts) >= worker.cap)
        ):  # 2
            runner.give_back_soon(grant)
            if not worker.serves(grant.model):
                self.fill(worker)  # with what it offers by now
        elif mismatch:  # 3
            runner.move(runner.new_attempt(grant, worker), mismatch)
        else:
            runner.begin(grant, worker)

    # ---- tasks that were ended elsewhere ----------

    def on_stop(self, task_id: str, epoch: int, why: str) -> None:
        """Stop an attempt here, with this epoch, whose task another replica, or a script, has ended."""
        attempt = self._held(task_id, epoch)
        if attempt is None:
            self.background.spawn(self._confirm_stop(task_id, epoch, why))
        else:
            attempt.stop(why)

    def on_reader(self, task_id: str, epoch: int, replica: str) -> None:
        """Publish the events of an attempt here to another replica, which reads its task."""
        attempt = self._held(task_id, epoch)
        if attempt is not None:
            attempt.writer.add_reader(replica)

    def _held(self, task_id: str, epoch: int) -> Attempt | None:
        attempt = self.attempts.newest(task_id)
        return attempt if attempt is not None and attempt.grant.epoch == epoch else None

    async def _confirm_stop(self, task_id: str, epoch: int, why: str) -> None:
        """The grant is not known here. Only this replica can free its slot, if the grant was lost."""
        await asyncio.sleep(LOST_REPLY_S)
        attempt = self._held(task_id, epoch)
        if attempt is not None:  # the grant came after the report of its end
            attempt.stop(why)
            return
        record = await self.background.until_answered(lambda: self.scheduler.position(task_id))
        if record is None or record.number("epoch") != epoch or self._held(task_id, epoch):
            return
        self._runner.give_back_soon(record.grant(task_id))
