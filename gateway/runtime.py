"""One gateway: wires its parts, starts them in order and stops them."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from fairlane.gateway.access import Entrance
from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.opencalls import OpenCalls
from fairlane.gateway.accounts.tickets import Tickets
from fairlane.gateway.bodies import Bodies
from fairlane.gateway.configuration import ConfigurationWatch
from fairlane.gateway.connections.lines import Connections
from fairlane.gateway.connections.sockets import connection_limits, open_files
from fairlane.gateway.current import Current
from fairlane.gateway.failed import TellingRecorder
from fairlane.gateway.going import Going
from fairlane.gateway.health import Health
from fairlane.gateway.inbox import Inbox
from fairlane.gateway.intake import MIN_LINGER_MS
from fairlane.gateway.loopwatch import LoopWatch
from fairlane.gateway.metrics.scrape import Scrape
from fairlane.gateway.metrics.siblings import Siblings, SnapshotServer
from fairlane.gateway.minutes import Minutes
from fairlane.gateway.newconnection import NewConnection
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.operator.drain import Drain
from fairlane.gateway.operator.operator import Operator
from fairlane.gateway.operator.state import Picture, StateReader
from fairlane.gateway.replicas import Replicas, here
from fairlane.gateway.settings import Settings
from fairlane.gateway.shutdown import Shutdown
from fairlane.gateway.storewatch import StoreWatch
from fairlane.gateway.streams import Closing
from fairlane.gateway.tasks.cancel import Cancel
from fairlane.gateway.tasks.links import StreamLinks
from fairlane.gateway.tasks.models import Models
from fairlane.gateway.tasks.poll import Poll
from fairlane.gateway.tasks.submit import Submit
from fairlane.gateway.tasks.tasks import Tasks
from fairlane.gateway.tasks.wait import Wait
from fairlane.gateway.tracing import tracer_for
from fairlane.gateway.waiting import QueueWatch
from fairlane.queues.channel import Channel
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.link import RedisLink
from fairlane.queues.scheduler import Ends, Limits, Scheduler
from fairlane.queues.scripts import load_scripts
from fairlane.queues.survey import Surveyor
from fairlane.queues.tasks import Fragment
from fairlane.queues.users import UserReader
from fairlane.queues.wire import address_of
from fairlane.streaming.events import fragment_error
from fairlane.streaming.failures import cancelled_end
from fairlane.streaming.hub import Hub
from fairlane.streaming.results import Results
from fairlane.web.dashboard import SharedFeed
from fairlane.web.dashboard_history import History
from fairlane.web.pages import Pages
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.sessions.session import SessionSettings
from fairlane.workers.server.sessions.socket import WorkerSocket
from fairlane.workers.server.settings import DispatchSettings, OutputLimits

log = structlog.get_logger("fairlane.gateway")

ENDS = Ends(
    timeout=Fragment(fragment_error("Task timeout", "TIMEOUT", False), "TIMEOUT"),
    queue_timeout=Fragment(fragment_error("Task timeout", "QUEUE_TIMEOUT", False), "QUEUE_TIMEOUT"),
    worker_lost=Fragment(fragment_error("Worker disconnected", "WORKER_LOST", False), "WORKER_LOST"),
    no_worker=Fragment(fragment_error("Worker disconnected", "WORKER_LOST", True), "WORKER_LOST"),
    left=cancelled_end("client"),
)


class Part(Protocol):
    """What begins and ends with a gateway."""

    def start(self) -> Awaitable[None] | None: ...

    def close(self) -> Awaitable[None] | None: ...


class Gateway:
    """A running gateway, as the application sees it. Made by `open_gateway`, which also ends it."""

    def __init__(
        self, settings: Settings, callers: Callers, redis_url: str, siblings: Siblings | None = None
    ) -> None:
        siblings = siblings or Siblings(Path(), 0, 1)
        loop, started_at = asyncio.get_running_loop(), time.time()
        self.replica = replica = siblings.mark + secrets.token_hex(4)
        self.keys = keys = Keys(pool_prefix())
        self.current = current = Current(settings, callers)
        self.metrics = TellingRecorder(settings.models)
        self.tracer = tracer_for(settings)
        self.pages = Pages()
        self.connections = Connections(
            connection_limits(settings.max_connections, settings.max_connections_per_address, open_files()),
            self.metrics,
        )
        bodies, closing, going = Bodies(loop.time), Closing(), Going()
        tickets = Tickets(secrets.token_bytes(32))
        self.calls = OpenCalls(settings.max_calls_per_caller)
        self.entrance = Entrance(current, tickets, self.calls, self.connections, going)

        # the store, and what tells of it
        self.link = RedisLink(
            redis_url,
            load_scripts(),
            keys.prefix,
            timeout_ms=settings.redis_timeout_ms,
            on_connect=self._new_connection,
            on_change=self._store_changed,
            metrics=self.metrics,
        )
        self.store = StoreWatch(self.link, redis_url, keys, replica)
        self.scheduler = Scheduler(self.link, keys, replica, ENDS, _limits(settings), self.metrics)
        self.configuration = ConfigurationWatch(self.scheduler, current)
        self._prepare = NewConnection(
            keys, replica, address_of(redis_url), current, tickets, self.configuration
        )
        self._listens_at = ""
        self.channel = Channel(
            redis_url,
            keys.channel(replica),
            self._on_message,
            self._channel_changed,
            timeout_ms=settings.redis_timeout_ms,
        )
        where = here(started_at)
        self.replicas = Replicas(self.link, keys, replica, where, siblings.mark or replica)

        # tasks: to workers, and back to their readers
        self.hub = Hub(self.scheduler, keep_alive_s=min(5.0, max(settings.linger_ms, MIN_LINGER_MS) / 3000))
        results = Results(self.hub.page, self.hub.last)
        self.dispatcher = Dispatcher(
            self.scheduler, self.link, self.hub, _dispatch_settings(settings), keys, self.tracer
        )
        cancels, presence = self.dispatcher.cancels, self.dispatcher.offers.presence
        self.workers = WorkerSocket(
            self.dispatcher.registry,
            lambda authorization: current.callers.authenticate_worker(authorization),
            SessionSettings(settings.heartbeat_ms, settings.dead_after_ms, settings.max_worker_message_bytes),
            refusal=lambda scope: current.callers.refuse_worker(scope),
        )
        self.surveyor = Surveyor(
            self.link,
            keys,
            replica,
            presence=presence,
            queues=lambda: current.settings.queues,
            models=lambda: current.settings.models,
        )
        minutes = Minutes(replica, self.metrics, self.surveyor, self.dispatcher.attempts.values)
        watch = QueueWatch(self.scheduler, self.hub)
        submit = Submit(
            self.dispatcher.slots.submit, self.hub, bodies, self.metrics, current, going, minutes.refused
        )
        audit = AuditRecord(self.link, keys, self.scheduler)
        cancel = Cancel(cancels.cancel, audit.note)
        poll = Poll(self.scheduler, results)
        links = StreamLinks(tickets, self.scheduler, current)
        self.tasks = Tasks(
            current=current,
            bodies=bodies,
            models=Models(current, self.surveyor.offered, started_at),
            submit=submit,
            wait=Wait(submit, self.hub, closing, cancels.cancel_soon, going),
            poll=poll,
            cancel=cancel,
            cancel_soon=cancels.cancel_soon,
            links=links,
            hub=self.hub,
            results=results,
            watch=watch,
            closing=closing,
            going=going,
        )

        # what operators see and do
        history = History(self.link, keys, replica, self.metrics, self.surveyor.waiting)
        state = StateReader(self.link, keys, self.store, self.surveyor, lambda: current.settings.queues)
        picture = Picture(state, audit, replica, presence, self._about)
        live = SharedFeed(picture)
        self.operator = Operator(
            current=current,
            bodies=bodies,
            scheduler=self.scheduler,
            state=state,
            users=UserReader(self.link, self.surveyor),
            history=history,
            live=live,
            audit=audit,
            drain=Drain(self.link, keys, self.surveyor, audit, self._drain_worker),
            poll=poll,
            cancel=cancel,
            links=links,
        )
        loop_watch = LoopWatch(self.metrics, replica)
        self.health = Health(
            self.link,
            self.store,
            self.channel,
            going,
            closing,
            self.connections,
            loop_watch,
            self.dispatcher.pool,
            self.dispatcher.attempts,
        )
        self.scrape = Scrape(siblings, self.metrics, self.health.gauges, self.surveyor)

        self._inbox = Inbox(self.hub, self.dispatcher, self._drain_worker)
        self._shutdown = Shutdown(
            going, self.dispatcher, self.workers, self.replicas, closing, live, self.hub
        )
        self._where = where
        self.stopping = False
        self._parts: list[Part] = [
            loop_watch,
            self.store,
            self.link,
            self.channel,
            *([SnapshotServer(siblings, self.scrape.own)] if siblings.size > 1 else []),
            self.hub,
            watch,
            self.surveyor,
            history,
            self.configuration,
            self.replicas,
            minutes,
            self.dispatcher,
        ]
        """In the order in which they start; they close the other way round."""

    async def start(self) -> None:
        """Connect and begin. Raises StoreRefused or StoreUnavailable with a sentence for the operator."""
        for part in self._parts:
            await _done(part.start())
        self.health.serving = True
        log.info(
            "gateway ready",
            replica=self.replica,
            host=self._where.host,
            pid=self._where.pid,
            version=self._where.version,
        )

    async def stop(self) -> None:
        """Let go of everything. Workers and streams have been told before, by `drain`."""
        self.health.serving = False
        self.stopping = True
        await self.operator.live.close()
        await self.tasks.results.close()
        for part in reversed(self._parts):
            await _done(part.close())
        if self.tracer is not None:
            await self.tracer.close()

    async def drain(self) -> None:
        """Not ready, and the way down (`Shutdown.run`), as long as `drain_ms` allows."""
        self.health.serving = False
        await self._shutdown.run(self.current.settings.drain_ms)

    async def reconfigure(self, settings: Settings, callers: Callers) -> None:
        """Take over keys and limits of new settings; what needs a restart stays as it is (`current.RELOADED`)."""
        current = self.current
        current.replace(settings, callers)
        self.dispatcher.settings.take_over(_dispatch_settings(current.settings))
        self.scheduler.limits = replace(
            self.scheduler.limits,
            max_queue_length=settings.max_queue_length,
            max_queued_bytes=settings.max_queued_bytes,
            max_retained_bytes=settings.max_retained_bytes,
        )
        self.workers.check_tokens(lambda worker: callers.renewed(worker.sha256))
        self.calls.most = settings.max_calls_per_caller
        if over := self.calls.revoke(callers.knows):
            log.info("calls of keys that are not valid any more end", replica=self.replica, calls=over)
        mine = current.settings
        while current.settings is mine and not self.stopping:  # until Redis has it, or newer settings come
            try:
                await self.configuration.bring()
                log.info("keys and limits read again", replica=self.replica)
                return
            except StoreError as error:
                log.warning("Redis does not take the new limits yet", error=str(error))
                await asyncio.sleep(1.0)

    # ---- what parts tell each other that were made before the other ----------

    def _about(self) -> dict[str, Any]:
        return {
            "startedAt": self._where.started_at,
            "draining": self.tasks.going.begun,
            "heartbeatMs": self.current.settings.heartbeat_ms,
        }

    def _drain_worker(self, worker_id: str) -> bool:
        """Give a worker that is connected here no more tasks, and tell it to go when it is done. False: it is not connected here.

        It may finish what it runs: no task may run for longer than the longest time-out.
        """
        return self.workers.drain_worker(worker_id, self.current.settings.max_task_timeout_ms)

    def _new_connection(self, link: RedisLink) -> Awaitable[None]:
        return self._prepare(link)

    def _store_changed(self, up: bool) -> None:
        self.store.changed(up, going=self.stopping)
        if up:
            server = self._prepare.server
            if not server or server != self._listens_at:
                self.channel.reconnect()  # the address leads to another server than before
            self._listens_at = server
            self.dispatcher.store_is_back()
            self.hub.check_soon(store_lost=True)

    def _channel_changed(self, up: bool) -> None:
        if up:
            self.hub.check_soon()

    def _on_message(self, message: bytes) -> None:
        self._inbox(message)


async def _done(outcome: Awaitable[None] | None) -> None:
    if outcome is not None:
        await outcome


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings, callers: Callers, redis_url: str, siblings: Siblings | None = None
) -> AsyncIterator[Gateway]:
    """A started gateway; stopped at the end, whatever happened."""
    gateway = Gateway(settings, callers, redis_url, siblings)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()


def _limits(settings: Settings) -> Limits:
    return Limits(
        lease_ms=settings.lease_ms,
        grant_ms=settings.grant_ack_ms,
        max_queue_length=settings.max_queue_length,
        max_queued_bytes=settings.max_queued_bytes,
        max_retained_bytes=settings.max_retained_bytes,
    )


def _dispatch_settings(settings: Settings) -> DispatchSettings:
    return DispatchSettings(
        flush_interval_ms=settings.stream_flush_interval_ms,
        flush_chunks=settings.stream_flush_size,
        flush_chars=settings.stream_flush_chars,
        no_worker_grace_ms=settings.no_worker_grace_ms,
        dead_after_ms=settings.dead_after_ms,
        max_output_bytes=settings.max_output_bytes,
        debug_events=settings.llm_debug and settings.environment != "production",
        output_limits={
            name: OutputLimits(model.first_output_ms, model.silence_ms)
            for name, model in settings.models.items()
            if model.first_output_ms or model.silence_ms
        },
    )
