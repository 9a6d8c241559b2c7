"""The way down of a gateway."""

import asyncio
import time

import structlog

from fairlane.gateway.calls.streams import OpenAnswers
from fairlane.gateway.lifecycle import Lifecycle
from fairlane.gateway.watch.replicas import Replicas
from fairlane.streaming.hub import Hub
from fairlane.web.dashboard import SharedFeed
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.sessions.socket import WorkerSocket

log = structlog.get_logger("fairlane.gateway")

TELL_S = 10.0
"""How often the log says what a gateway that goes waits for."""
SETTLE_S = 2.0
"""How long the ends of tasks that were not done in time may take to be written, and read here, once the drain is over."""
FAREWELL_MS = 5000
"""How much longer workers stay than what they run: until its end is written and streams have ended."""


class Shutdown:
    """Takes a gateway down once, by `run`."""

    def __init__(
        self,
        lifecycle: Lifecycle,
        dispatcher: Dispatcher,
        workers: WorkerSocket,
        replicas: Replicas,
        open_answers: OpenAnswers,
        live: SharedFeed,
        hub: Hub,
    ) -> None:
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._workers = workers
        self._replicas = replicas
        self._open_answers = open_answers
        self._live = live
        self._hub = hub

    async def run(self, drain_ms: int) -> None:
        """No new grants, no new workers; what runs may finish within `drain_ms`, other callers are told to come back.

        What runs: tasks of workers here, and tasks elsewhere whose callers here could not read the rest elsewhere. What is not
        done by then ends with an error if it had output, and goes back to its queue if not, before streams are told to come back.
        """
        self._lifecycle.drain(drain_ms)
        self._dispatcher.registry.drain()
        self._workers.drain(drain_ms + FAREWELL_MS)
        self._lifecycle.peer_available = await self._replicas.another_stays()
        self._tell("the gateway drains")
        tell_at = time.monotonic() + TELL_S
        while (self._working or self._open_answers.patience) and not self._lifecycle.deadline_passed:
            self._workers.release()
            await asyncio.sleep(0.05)
            if tell_at <= time.monotonic() and self._lifecycle.left_ms > TELL_S / 2 * 1000:
                tell_at += TELL_S
                self._tell("the gateway still drains")
        self._tell(
            "the time to drain is over: what still runs is stopped"
            if self._working
            else "the gateway has drained"
        )
        self._dispatcher.abandon()
        until = time.monotonic() + SETTLE_S
        while (not self._dispatcher.settled or self._hub.catching_up) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self._open_answers.begin()
        await self._live.close()
        self._hub.wake_all()
        until = time.monotonic() + 2.0
        while len(self._open_answers) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self._workers.close("the gateway stops")

    @property
    def _working(self) -> bool:
        return any(attempt.held for attempt in self._dispatcher.attempts.values())

    def _tell(self, event: str) -> None:
        """What a gateway that goes waits for, of which the oldest is named."""
        held = [attempt for attempt in self._dispatcher.attempts.values() if attempt.held]
        oldest = min(held, key=lambda attempt: attempt.started_at, default=None)
        named = {} if oldest is None else {"task_id": oldest.grant.task_id, "worker_id": oldest.worker.id}
        log.info(
            event,
            replica=self._replicas.me,
            tasks=len(held),
            left_s=round(self._lifecycle.left_ms / 1000),
            **named,
        )
