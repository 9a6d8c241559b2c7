"""The workers' side of a replica: its parts, made, started and stopped together. Each holds the parts that it needs.

```
 submit, wake-ups ─▶ Slots ── grant ─▶ Assigner ─▶ Attempt ── step ─▶ AttemptEffects ── the slot is free ─▶ Slots
 sessions ─▶ Registry (who is here) ─▶ Offers        RemoteStops ─▶ attempts ended elsewhere      Maintenance: again and again
```
"""

import asyncio
from collections.abc import Collection

from fairlane.queues.keys import Keys
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink
from fairlane.streaming.append_batcher import AppendBatcher
from fairlane.streaming.hub import Hub
from fairlane.streaming.structured.checker import Checker
from fairlane.workers.server.background import Background
from fairlane.workers.server.cancel import Cancels
from fairlane.workers.server.congestion import Congestion
from fairlane.workers.server.maintenance import Maintenance
from fairlane.workers.server.offers.health import Health
from fairlane.workers.server.offers.offers import Offers
from fairlane.workers.server.offers.remote_workers import RemoteWorkers
from fairlane.workers.server.payloads import PayloadCache
from fairlane.workers.server.pool import Pool
from fairlane.workers.server.registry import Registry
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.assigner import Assigner
from fairlane.workers.server.tasks.attempts import Attempts
from fairlane.workers.server.tasks.chains import Chains
from fairlane.workers.server.tasks.effects import AttemptEffects
from fairlane.workers.server.tasks.output_timeouts import OutputTimeouts
from fairlane.workers.server.tasks.remote_stops import RemoteStops
from fairlane.workers.tracing import Tracer


class Dispatcher:
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
        loop = asyncio.get_running_loop()
        self.settings = settings
        self.pool = pool = Pool(loop.time)
        self.attempts = Attempts()
        self.payloads = PayloadCache(settings.payload_cache_bytes, pool.time)
        self.background = background = Background()
        self.cancels = Cancels(scheduler, hub.deliver, background)
        self.slots = slots = Slots(scheduler, pool, self.payloads, self.cancels)
        self.offers = Offers(scheduler, pool, settings)
        self._remote_workers = RemoteWorkers(link, keys, scheduler.replica)
        self.health = health = Health(slots, self.offers, self._remote_workers, background)
        self.congestion = Congestion(scheduler, settings)
        timeouts = OutputTimeouts(settings, self.congestion)
        self.registry = Registry(slots, self.offers, health, settings)
        self._effects = AttemptEffects(
            scheduler,
            hub,
            self.attempts,
            slots,
            self.offers,
            health,
            self.payloads,
            background,
            timeouts,
            checker,
            settings,
        )
        assigner = Assigner(
            scheduler,
            slots,
            self._effects,
            self.payloads,
            self._remote_workers,
            background,
            settings,
            AppendBatcher(scheduler, loop),
            timeouts,
            tracer,
        )
        slots.start = assigner.start  # a slot goes round
        self._effects.move, self._effects.release_held = assigner.move, assigner.release_held
        self.stops = RemoteStops(scheduler, self._effects, background)
        self.maintenance = Maintenance(
            scheduler, hub, slots, self.attempts, self.payloads, self.offers, health, timeouts, settings
        )

    async def takes(self, models: Collection[str] | None, task_type: str) -> bool:
        """Return whether a worker, here or elsewhere, takes tasks of a type ('': any) of one of these models (None: of any). The
        state of workers elsewhere is a moment old. Raise StoreError."""
        return self.pool.offers(models, task_type) or await self._remote_workers.offers(models, task_type)

    def use_chains(self, chains: Chains) -> None:
        """Set the object that knows what follows a stage of a chain. Once, before the start."""
        self._effects.chains = chains

    def start(self) -> None:
        """Start the maintenance, and the rounds that follow the queues."""
        self.maintenance.start()
        self.congestion.start()

    async def close(self) -> None:
        """End the maintenance. Attempts under way are forgotten here: their leases end by themselves."""
        self.slots.close()
        await self.congestion.close()
        await self.maintenance.close()
        self.offers.close()
        self._remote_workers.close()
        await self.background.close()
        self._effects.close()

    def abandon(self) -> None:
        """End all attempts, as the time to finish is over: a task with output ends, because no other worker can continue it;
        others are requeued."""
        for attempt in list(self.attempts.values()):
            attempt.lost("The gateway stopped before the task was done", blameless=True)

    def silences(self) -> dict[str, float]:
        """By model: for how long the one of its tasks here that is silent for longest has given no sign, s."""
        now = self.pool.time()
        return {model: now - since for model, since in self.attempts.silent_since().items()}

    @property
    def settled(self) -> bool:
        """Whether nothing runs here, and Redis knows how everything ended."""
        return not self.background and not any(attempt.held for attempt in self.attempts.values())

    def store_is_back(self) -> None:
        """The connection to Redis is up again: offer, renew, sweep, and fill what stayed empty."""
        self.background.store_is_back()  # first: it may cancel what a free slot would take
        self.offers.offer_soon()
        self.background.spawn(self.slots.fill_all())
