"""Takes granted tasks of type `permit`, and writes their permits: the part of a worker for these tasks.

A grant becomes a signed permit in the task's log, in one step in the store. So any replica can take any number of them and
remembers none: after a crash a grant without a permit is granted again when its lease ends.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fairlane.gateway.endpoints.endpoints import Endpoints
from fairlane.gateway.endpoints.payloads import permit_of
from fairlane.gateway.permits.signed import PERMIT, Signer
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.metrics import EndedTask, TaskEnd
from fairlane.queues.scheduler import MAX_TAKEN, Scheduler
from fairlane.queues.tasks import PERMIT_HOLDER, End, Grant, State, Used
from fairlane.streaming.events import Event, compose, fragment_error, fragment_permit, parse_event_id
from fairlane.streaming.hub import Hub
from fairlane.workers.server.background import Background
from fairlane.workers.server.timers import ModelTimers

PERMIT_MS = 30_000
"""How long a permit can be used; then the next task in the queue gets one."""
GONE = "The endpoint issues no permits any more"
_GONE_END = fragment_error(GONE, "ENDPOINT_GONE", False)


class PermitIssuer:
    """See the module. `endpoints` returns the current ones."""

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
        self._taking: dict[str, bool] = {}
        """Models whose grants are being taken now; True: take again after the reply."""
        self._closed = False

    def start(self) -> None:
        """Do nothing: the store's wake-ups start everything."""

    def close(self) -> None:
        """Take no more."""
        self._closed = True
        self._timers.close()

    def on_wake(self, model: str) -> None:
        """Take all grants of this model: the store, or a timer, says that there are some."""
        if self._closed:
            return
        if model in self._taking:
            self._taking[model] = True
            return
        try:
            nonce = self._scheduler.nonce()
            reply = self._scheduler.take([model], MAX_TAKEN, nonce, PERMIT_HOLDER)
        except StoreUnavailable:
            return  # the sweep sends the wake-up again
        self._taking[model] = False
        reply.add_done_callback(partial(self._on_taken, model))

    def _on_taken(self, model: str, reply: asyncio.Future[Any]) -> None:
        again = self._taking.pop(model)
        if reply.cancelled() or reply.exception() is not None:
            return  # grants whose reply was lost expire after a few seconds; the sweep sends the wake-up again
        taken = self._scheduler.parse_take(reply.result())
        self.ask_later(taken.retry_at)
        for grant in taken.grants:
            self._background.spawn(self._issue(grant))
        if again or len(taken.grants) == MAX_TAKEN:
            self.on_wake(model)

    async def _issue(self, grant: Grant) -> None:
        scheduler, task_id = self._scheduler, grant.task_id
        self._hub.deliver(task_id, [Event(grant.epoch, grant.start_seq, "start", grant.start.encode())])
        payload = await self._background.until_answered(lambda: scheduler.payload(task_id))
        if payload is None:  # it has ended meanwhile: only this replica can free its slot
            await self._background.until_answered(
                lambda: scheduler.requeue(grant, "its payload is gone", cause="declined", begun=False)
            )
            return
        found = permit_of(self._endpoints(), grant.model, payload)
        if found is None:
            await self._fail(grant)
            return
        endpoint, url = found
        permit = self._signer.sign(PERMIT, task_id, grant.epoch, endpoint.name)
        event = fragment_permit(permit, endpoint.name, url)
        # a call holds its slot until the proxy reports its end, or for the endpoint's timeout: after the mean time others would
        # be admitted while it runs
        unused_ms, used_ms = PERMIT_MS, endpoint.timeout_ms
        issued = await self._background.until_answered(
            lambda: scheduler.issue_permit(grant, unused_ms, used_ms, event)
        )
        if issued is None:
            return
        self._hub.deliver(task_id, [Event(*parse_event_id(issued.id), "permit", issued.data)])
        if grant.attempt == 1:
            scheduler.metrics.granted(grant.queue, grant.model, grant.granted_ms - grant.enqueued_ms)

    async def _fail(self, grant: Grant) -> None:
        """End the task: its endpoint is gone, or issues no permits any more."""
        scheduler, now_ms = self._scheduler, await self._background.until_answered(self._scheduler.now_ms)
        terminal = "error", compose(grant.task_id, now_ms, _GONE_END)
        end = End(State.FAILED, "ENDPOINT_GONE", terminal, Used(), scheduler.nonce())
        finished = scheduler.parse_finish(
            await self._background.until_answered(lambda: scheduler.finish(grant, 0, [], end))
        )
        if finished.outcome != "ok":
            return
        self._hub.deliver(grant.task_id, [Event(*parse_event_id(finished.event_id), *terminal)])
        ended = EndedTask(
            grant.task_id, grant.request_id, grant.user, grant.asked, PERMIT_HOLDER, grant.attempt, GONE
        )
        waited_ms = now_ms - grant.enqueued_ms
        scheduler.metrics.ended(
            TaskEnd(
                *(grant.queue, grant.model, grant.task_type, State.FAILED, "ENDPOINT_GONE"),
                *(waited_ms, now_ms - grant.granted_ms),
                task=ended,
                user=grant.user,
            )
        )
