"""Takes the tasks whose turn it is to get a permit, and gives it out: what a worker is for other tasks.

There is no process behind it and nothing to wait for: a grant becomes a signed permit in the task's log, in one step in the store, which
holds it from then on. So any replica can take any number of them, nothing of a permit is remembered here, and a gateway that
dies takes none with it: one that was granted and not given out is granted again when its lease is over.
"""

import asyncio
from functools import partial
from typing import Any

from fairlane.gateway.permits.signed import Signer
from fairlane.gateway.permits.wanted import read_wanted
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.scheduler import MOST_TAKEN, Scheduler
from fairlane.queues.tasks import PERMIT_HOLDER, Grant
from fairlane.streaming.events import Event, fragment_permit, parse_event_id
from fairlane.streaming.hub import Hub
from fairlane.workers.server.background import Background
from fairlane.workers.server.timers import ModelTimers


class Holder:
    """See the module. `close` takes no more; what is under way is given out, or granted again elsewhere."""

    def __init__(self, scheduler: Scheduler, hub: Hub, background: Background, signer: Signer) -> None:
        self._scheduler = scheduler
        self._hub = hub
        self._background = background
        self._signer = signer
        self._timers = ModelTimers(asyncio.get_running_loop(), self.on_wake)
        self._asking: dict[str, bool] = {}
        """Models of which permits are asked for now; True: once more when that is answered."""
        self._closed = False

    def start(self) -> None:
        """Nothing begins by itself: the store tells when a permit can be given out."""

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._timers.close()

    def on_wake(self, model: str) -> None:
        """A permit of this model can be given out, as the store tells, or as was to be expected: take all that can be."""
        if self._closed:
            return
        if model in self._asking:
            self._asking[model] = True
            return
        try:
            nonce = self._scheduler.nonce()
            reply = self._scheduler.take([model], MOST_TAKEN, nonce, PERMIT_HOLDER)
        except StoreUnavailable:
            return  # the sweep says it again
        self._asking[model] = False
        reply.add_done_callback(partial(self._on_taken, model))

    def _on_taken(self, model: str, reply: asyncio.Future[Any]) -> None:
        again = self._asking.pop(model)
        if reply.cancelled() or reply.exception() is not None:
            return  # grants that nobody knows of are free again after a few seconds; the sweep says it again
        taken = self._scheduler.taken(reply.result())
        self._timers.set(taken.later)
        for grant in taken.grants:
            self._background.spawn(self._give_out(grant))
        if again or len(taken.grants) == MOST_TAKEN:
            self.on_wake(model)

    async def _give_out(self, grant: Grant) -> None:
        scheduler, task_id = self._scheduler, grant.task_id
        self._hub.deliver(task_id, [Event(grant.epoch, grant.start_seq, "start", grant.start.encode())])
        payload = await self._background.until_answered(lambda: scheduler.payload(task_id))
        if payload is None:  # it has ended meanwhile, and nobody else knows that its slot is free
            await self._background.until_answered(
                lambda: scheduler.requeue(grant, "its payload is gone", cause="declined", begun=False)
            )
            return
        wanted = read_wanted(payload)
        permit = self._signer.permit(task_id, grant.epoch, wanted.endpoint)
        event = fragment_permit(permit, wanted.endpoint, wanted.url)
        given = await self._background.until_answered(
            lambda: scheduler.permit(grant, wanted.unused_ms, wanted.used_ms, event)
        )
        if given is None:
            return
        self._hub.deliver(task_id, [Event(*parse_event_id(given.id), "permit", given.data)])
        if grant.attempt == 1:
            scheduler.metrics.granted(grant.queue, grant.model, grant.granted_ms - grant.enqueued_ms)
