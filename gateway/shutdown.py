"""Shutdown of a gateway."""

import asyncio
import time
from dataclasses import dataclass

import structlog

from fairlane.gateway.lifecycle import Lifecycle, OpenAnswers
from fairlane.gateway.store.pools import StorePools
from fairlane.gateway.watch.replicas import Replicas
from fairlane.streaming.hub import Hub
from fairlane.web.dashboard import SharedFeed
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.sessions.socket import WorkerSocket

log = structlog.get_logger("fairlane.gateway")

LOG_S = 10.0
"""Interval of the log lines that name what a shutdown waits for."""
SETTLE_S = 2.0
"""Time after the drain for writing and reading the ends of tasks that did not finish in time."""
MAX_OUTAGE_MS = 5000
"""After a longer outage of Redis, a shutdown waits for nothing that Redis must record."""
FAREWELL_MS = 5000
"""Time that workers stay connected after their last task, until its end is written and streams have ended."""


@dataclass(eq=False)
class Shutdown:
    """Shuts a gateway down once, by `run`."""

    _lifecycle: Lifecycle
    _dispatcher: Dispatcher
    _workers: WorkerSocket
    _replicas: Replicas
    _open_answers: OpenAnswers
    _live: SharedFeed
    _hub: Hub
    _store: StorePools

    async def run(self, drain_ms: int) -> None:
        """Grant no tasks and accept no workers, let running tasks finish within `drain_ms`, ask other callers to reconnect.

        Running tasks are those of workers here, and those of workers elsewhere whose callers here could not read the rest from
        another replica. Such callers of queued tasks wait, too, if another replica may run them. A task that is not done by then
        ends with an error if it had output, and returns to its queue otherwise; then other streams are asked to reconnect.
        Nothing is waited for after MAX_OUTAGE_MS without Redis.
        """
        self._lifecycle.drain(drain_ms)
        self._dispatcher.drain()
        self._workers.drain(drain_ms + FAREWELL_MS)
        peer = self._lifecycle.peer_available = await self._replicas.another_stays()
        self._log("the gateway drains")
        log_at = time.monotonic() + LOG_S
        while (self._working or self._open_answers.patience(peer)) and not (
            self._lifecycle.deadline_passed or self._hopeless
        ):
            self._workers.release()
            await asyncio.sleep(0.05)
            if log_at <= time.monotonic() and self._lifecycle.left_ms > LOG_S / 2 * 1000:
                log_at += LOG_S
                self._log("the gateway still drains")
        why = "the time to drain is over" if self._lifecycle.deadline_passed else "Redis is unavailable"
        self._log(f"{why}: what still runs is stopped" if self._working else "the gateway has drained")
        self._dispatcher.abandon()
        until = time.monotonic() + SETTLE_S
        while (not self._dispatcher.settled or self._hub.catching_up) and not (
            time.monotonic() > until or self._hopeless
        ):
            await asyncio.sleep(0.02)
        self._open_answers.begin()
        await self._live.close()
        self._hub.wake_all()
        until = time.monotonic() + 2.0
        while len(self._open_answers) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self._workers.close("the gateway stops")

    @property
    def _hopeless(self) -> bool:
        return self._store.down_ms > MAX_OUTAGE_MS

    @property
    def _working(self) -> bool:
        return any(attempt.held for attempt in self._dispatcher.attempts.values())

    def _log(self, event: str) -> None:
        """Log what the shutdown waits for, and name the oldest of these tasks."""
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
