"""Takes the tasks whose turn it is to get a permit, and gives it out: what a worker is for other tasks.

There is no process behind it and nothing to wait for: a grant becomes a signed permit in the task's log, in one step in the
store, which holds it from then on. So any replica can take any number of them, nothing of a permit is remembered here, and a
gateway that dies takes none with it: one that was granted and not given out is granted again when its lease is over.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlane.gateway.endpoints.endpoints import Endpoints
from fairlane.gateway.endpoints.payloads import permit_of
from fairlane.gateway.permits.signed import Signer
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.metrics import EndedTask, TaskEnd
from fairlane.queues.scheduler import MAX_TAKEN, Scheduler
from fairlane.queues.tasks import PERMIT_HOLDER, End, Grant, State, Used
from fairlane.streaming.events import Event, compose, fragment_error, fragment_permit, parse_event_id
from fairlane.streaming.hub import Hub
from fairlane.workers.server.background import Background
from fairlane.workers.server.timers import ModelTimers

GONE = "The endpoint gives no permits any more"
_GONE_END = fragment_error(GONE, "ENDPOINT_GONE", False)


class PermitIssuer:
    """See the module. `endpoints`: those that there are now. `close` takes no more; what is under way is given out, or granted
    again elsewhere."""

    def __init__(
        self,
        scheduler: Scheduler,
        hub: Hub,
        background: Background,
        signer: Signer,
        endpoints: Callable[[], Endpoints],
    ) -> None:
        self._scheduler = scheduler
        self._hub = hub
        self._background = background
        self._signer = signer
        self._endpoints = endpoints
        self._timers = ModelTimers(asyncio.get_running_loop(), self.on_wake)
        self.ask_later = self._timers.set
        """Look again when a model may start its next task."""
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
            reply = self._scheduler.take([model], MAX_TAKEN, nonce, PERMIT_HOLDER)
        except StoreUnavailable:
            return  # the sweep says it again
        self._asking[model] = False
        reply.add_done_callback(partial(self._on_taken, model))

    def _on_taken(self, model: str, reply: asyncio.Future[Any]) -> None:
        again = self._asking.pop(model)
        if reply.cancelled() or reply.exception() is not None:
            return  # grants that nobody knows of are free again after a few seconds; the sweep says it again
        taken = self._scheduler.taken(reply.result())
        self.ask_later(taken.later)
        for grant in taken.grants:
            self._background.spawn(self._give_out(grant))
        if again or len(taken.grants) == MAX_TAKEN:
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
        found = permit_of(self._endpoints(), grant.model, payload)
        if found is None:
            await self._refuse(grant)
            return
        endpoint, url = found
        permit = self._signer.permit(task_id, grant.epoch, endpoint.name)
        event = fragment_permit(permit, endpoint.name, url)
        # a call takes its place until a proxy reports its end, or for as long as one may take: not for as long as the mean one
        # does, as then others would be let in while it goes on
        unused_ms, used_ms = endpoint.permit_ms, endpoint.timeout_ms
        given = await self._background.until_answered(
            lambda: scheduler.permit(grant, unused_ms, used_ms, event)
        )
        if given is None:
            return
        self._hub.deliver(task_id, [Event(*parse_event_id(given.id), "permit", given.data)])
        if grant.attempt == 1:
            scheduler.metrics.granted(grant.queue, grant.model, grant.granted_ms - grant.enqueued_ms)

    async def _refuse(self, grant: Grant) -> None:
        """Its endpoint is gone, or gives no permits any more: the task ends, as one does whose request cannot be made."""
        scheduler, now_ms = self._scheduler, await self._background.until_answered(self._scheduler.now_ms)
        terminal = "error", compose(grant.task_id, now_ms, _GONE_END)
        end = End(State.FAILED, "ENDPOINT_GONE", terminal, Used(), scheduler.nonce())
        finished = scheduler.finished(
            await self._background.until_answered(lambda: scheduler.finish(grant, 0, [], end))
        )
        if finished.outcome != "ok":
            return
        self._hub.deliver(grant.task_id, [Event(*parse_event_id(finished.event_id), *terminal)])
        told = EndedTask(
            grant.task_id, grant.request_id, grant.user, grant.asked, PERMIT_HOLDER, grant.attempt, GONE
        )
        waited_ms = now_ms - grant.enqueued_ms
        scheduler.metrics.ended(
            TaskEnd(
                *(grant.queue, grant.model, grant.task_type, State.FAILED, "ENDPOINT_GONE"),
                *(waited_ms, now_ms - grant.granted_ms),
                task=told,
                user=grant.user,
            )
        )
