"""Reports the offers of the workers here to the scheduler, and their presence to the other replicas."""

import asyncio
from typing import Any, NamedTuple

import msgspec
import structlog

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.inspect.presence import MAX_PER_MESSAGE, Presence, Row
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.background import observe
from fairlane.workers.server.pool.pool import Pool
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.settings import DispatchSettings

log = structlog.get_logger("fairlane.workers")

OFFER_S = 5.0
OFFER_HOLD_MS = 15_000
MAX_PAIRS = 1000
"""Models with their upstreams per call: each takes Redis about 10 us, and other calls wait meanwhile."""
PRESENT_S = 0.25
"""At most one message about the workers is sent in this time."""


class _Portion(NamedTuple):
    """What one call reports."""

    models: list[str]
    upstreams: list[tuple[str, str]]


def _portions(models: list[str], upstreams: list[tuple[str, str]]) -> list[_Portion]:
    """Models, each with all its upstreams: one portion at least, none with more than MAX_PAIRS, but for one model's."""
    by_model: dict[str, list[tuple[str, str]]] = {}
    for pair in upstreams:
        by_model.setdefault(pair[0], []).append(pair)
    portions = [_Portion([], [])]
    for model in models:
        pairs = by_model.get(model, [])
        if portions[-1].models and len(portions[-1].upstreams) + len(pairs) > MAX_PAIRS:
            portions.append(_Portion([], []))
        portions[-1].models.append(model)
        portions[-1].upstreams.extend(pairs)
    return portions


class Offers:
    """See the module. Changes are reported immediately; everything, when `report_if_due` is called and it is time."""

    def __init__(self, scheduler: Scheduler, pool: Pool, settings: DispatchSettings) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._settings = settings
        self.hurry = asyncio.Event()
        """Set when everything is to be reported again at the next opportunity."""
        self._offered = set(settings.expected) if settings.no_worker_grace_ms else set()
        self._due = 0.0
        self._presence = Presence()
        self._lines = RateLimitedLogger()
        self._present_timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop reporting on a timer."""
        if self._present_timer is not None:
            self._present_timer.cancel()

    # ---- offers ----------

    def offer_soon(self) -> None:
        """Report all offers and the presence of all workers again at the next opportunity."""
        self._due = 0.0
        self.hurry.set()

    def offer(self, worker: Worker) -> None:
        """Report the changes in offers after a worker has connected, changed or gone, ahead of whatever is asked next.

        The workers' presence is reported immediately too, unless that happened a moment ago and others of its group are known:
        thousands that connect together take a few messages.
        """
        pool = self._pool
        self._presence.changed(worker.id)
        try:
            news = pool.pop_offer_changes()
            if news and not pool.draining:
                self._send([m for m, yes in news.items() if yes], [m for m, yes in news.items() if not yes])
            if self._present_timer is None or pool.groups_changed:
                self._present()
        except StoreUnavailable:
            self.offer_soon()

    def _send(self, models: list[str], withdrawn: list[str]) -> list[asyncio.Future[Any]]:
        self._offered.difference_update(withdrawn)
        self._offered.update(models)
        grace_ms = self._settings.no_worker_grace_ms
        replies = []
        for some in _portions(models, self._pool.upstreams(models)):
            reply = self._scheduler.offer(some.models, withdrawn, OFFER_HOLD_MS, grace_ms, some.upstreams)
            reply.add_done_callback(self._on_offered)
            replies.append(reply)
            withdrawn = []
        return replies

    def _on_offered(self, reply: asyncio.Future[Any]) -> None:
        observe(reply)
        if reply.cancelled() or reply.exception() is not None:
            return
        if refused := self._scheduler.parse_offer(reply.result()):
            what = "too many model names: the store takes no more of them for now"
            self._lines.log(log.warning, what, refused=refused)

    async def report_if_due(self) -> None:
        """Report the offers again: each holds for OFFER_HOLD_MS. Raise StoreError."""
        pool, now = self._pool, self._pool.time()
        if now < self._due:
            return
        pool.pop_offer_changes()
        models = set() if pool.draining else pool.models()
        withdrawn = sorted(self._offered - models)
        offered = sorted(models)
        self._due = now + OFFER_S
        for at in range(0, max(len(offered), len(withdrawn), 1), MAX_PER_MESSAGE):
            await asyncio.gather(
                *self._send(offered[at : at + MAX_PER_MESSAGE], withdrawn[at : at + MAX_PER_MESSAGE])
            )
        moving = {w.id: (len(w.attempts), pool.silent_ms(w)) for w in pool}
        silent = {w.id: ms for w in pool if (ms := self._task_silent_ms(w)) is not None}
        news = self._presence.live(moving, silent)
        expected = self._presence.fields
        reply = await self._scheduler.update_presence(news, OFFER_HOLD_MS)
        if self._scheduler.parse_presence(reply) != expected:
            self._forget_presence()
        if self._present_timer is None:
            self._present()

    # ---- presence ----------

    def presence(self) -> list[Row]:
        """The connected workers as the admin view shows them."""
        silent_ms = self._pool.silent_ms
        return [
            {
                **self._description(w),
                "running": len(w.attempts),
                "heartbeatAgeMs": silent_ms(w),
                "taskSilentMs": self._task_silent_ms(w),
            }
            for w in self._pool
        ]

    def _task_silent_ms(self, worker: Worker) -> int | None:
        """For how long the one of its tasks that is silent for longest has given no sign; None: it runs none."""
        since = [since for attempt in worker.attempts.values() if (since := attempt.silent_since) is not None]
        return int((self._pool.time() - min(since)) * 1000) if since else None

    def changed(self, worker: Worker) -> None:
        """A worker has changed: report it with the next message."""
        self._presence.changed(worker.id)

    def _present(self) -> None:
        """Report the changed workers, and no more for a moment."""
        self.close()
        self._present_timer = None
        self._pool.groups_changed = False
        if not self._presence:
            return
        try:
            news = self._presence.next_update(self._describe)
            self._scheduler.update_presence(news, OFFER_HOLD_MS).add_done_callback(self._on_presented)
        except StoreUnavailable:
            self._forget_presence()
            self.offer_soon()
        self._present_timer = asyncio.get_running_loop().call_later(PRESENT_S, self._present)

    def _on_presented(self, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled() or reply.exception() is not None:
            self._forget_presence()

    def _forget_presence(self) -> None:
        """Report all workers with the next renewal: the store has lost them."""
        self._presence.forget([worker.id for worker in self._pool])

    def _describe(self, worker_id: str) -> Row | None:
        """What of a worker's presence stays as it is until the worker changes; None when it is not connected."""
        worker = self._pool.get(worker_id)
        return None if worker is None else self._description(worker)

    def _description(self, worker: Worker) -> Row:
        return {
            "workerId": worker.id,
            "name": worker.name,
            "replica": self._scheduler.replica,
            "version": worker.version,
            "models": worker.models,
            "taskTypes": None if worker.task_types is None else sorted(worker.task_types),
            "slots": worker.slots,
            "maxMessageBytes": worker.max_message_bytes,
            "draining": worker.draining,
            "upstream": worker.upstream or None,
            "unhealthy": worker.unhealthy_reason or None,
            "tags": worker.tags or {},
            "modelInfo": msgspec.to_builtins(
                {name: info for name, info in (worker.model_info or {}).items() if name in worker.models}
            ),
        }
