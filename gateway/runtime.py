"""One gateway: everything that lives as long as the process serves, in the order in which it is started and stopped."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import structlog

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.opencalls import OpenCalls
from fairlane.gateway.accounts.tickets import Tickets
from fairlane.gateway.bodies import Bodies
from fairlane.gateway.configuration import ConfigurationWatch
from fairlane.gateway.connections.lines import Connections
from fairlane.gateway.connections.sockets import connection_limits, open_files
from fairlane.gateway.intake import MIN_LINGER_MS
from fairlane.gateway.loopwatch import LoopWatch
from fairlane.gateway.metrics.siblings import Siblings, SnapshotServer
from fairlane.gateway.metrics.snapshot import Snapshot, take_snapshot
from fairlane.gateway.minutes import Minutes
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.operator.drain import Drain
from fairlane.gateway.operator.state import Picture, StateReader
from fairlane.gateway.replicas import Replicas, here
from fairlane.gateway.settings import Settings
from fairlane.gateway.shutdown import Shutdown
from fairlane.gateway.storewatch import StoreWatch
from fairlane.gateway.streams import Closing
from fairlane.gateway.tasks.cancel import Cancel
from fairlane.gateway.tasks.poll import Poll
from fairlane.gateway.tasks.submit import Submit
from fairlane.gateway.tasks.wait import Wait
from fairlane.gateway.tracing import tracer_for
from fairlane.gateway.waiting import QueueWatch
from fairlane.queues.channel import Channel
from fairlane.queues.embedded.server import verify_server
from fairlane.queues.errors import StoreError, StoreRefused
from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.link import RedisLink
from fairlane.queues.scheduler import Ends, Limits, Scheduler
from fairlane.queues.scripts import load_scripts
from fairlane.queues.survey import Surveyor
from fairlane.queues.tasks import Fragment
from fairlane.streaming.events import fragment_error
from fairlane.streaming.failures import cancelled_end
from fairlane.streaming.hub import Hub
from fairlane.streaming.results import Results
from fairlane.web.dashboard import SharedFeed
from fairlane.web.dashboard_history import History, HourRecorder
from fairlane.web.pages import Pages
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.session import SessionSettings
from fairlane.workers.server.settings import DispatchSettings, OutputLimits
from fairlane.workers.server.socket import WorkerSocket

log = structlog.get_logger("fairlane.gateway")

RELOADED = (
    "models",
    "queues",
    "keys",
    "workers",
    "max_queue_length",
    "max_queued_bytes",
    "max_retained_bytes",
    "max_queue_wait_ms",
    "max_calls_per_caller",
)
"""Settings that are taken over while running."""

ENDS = Ends(
    timeout=Fragment(fragment_error("Task timeout", "TIMEOUT", False), "TIMEOUT"),
    queue_timeout=Fragment(fragment_error("Task timeout", "QUEUE_TIMEOUT", False), "QUEUE_TIMEOUT"),
    worker_lost=Fragment(fragment_error("Worker disconnected", "WORKER_LOST", False), "WORKER_LOST"),
    no_worker=Fragment(fragment_error("Worker disconnected", "WORKER_LOST", True), "WORKER_LOST"),
    left=cancelled_end("client"),
)


class Gateway:
    """The parts of a running gateway. Made by `open_gateway`, which also ends it."""

    def __init__(
        self, settings: Settings, callers: Callers, redis_url: str, siblings: Siblings | None = None
    ) -> None:
        self.settings = settings
        self.siblings = siblings or Siblings(Path(), 0, 1)
        self.callers = callers
        self.replica = self.siblings.mark + secrets.token_hex(4)
        self.prefix = pool_prefix()
        self.keys = Keys(self.prefix)
        self.ready = False
        self.stopping = False
        self.closing = Closing()
        self.bodies = Bodies(asyncio.get_running_loop().time)
        self.tickets = Tickets(secrets.token_bytes(32))
        self.pages = Pages()
        self.started_at = time.time()
        self.metrics = HourRecorder(settings.models)
        self.loop_watch = LoopWatch(self.metrics, self.replica)
        self.tracer = tracer_for(settings)
        self.calls = OpenCalls(settings.max_calls_per_caller)
        self.connections = Connections(
            connection_limits(settings.max_connections, settings.max_connections_per_address, open_files()),
            self.metrics,
        )
        self._server = self._listens_at = ""
        self.link = RedisLink(
            redis_url,
            load_scripts(),
            self.prefix,
            timeout_ms=settings.redis_timeout_ms,
            on_connect=self._prepare_store,
            on_change=self._store_changed,
            metrics=self.metrics,
        )
        self._where = here(self.started_at)
        self.replicas = Replicas(
            self.link, self.keys, self.replica, self._where, self.siblings.mark or self.replica
        )
        self.store = StoreWatch(self.link, redis_url, self.keys, self.replica)
        limits = Limits(
            lease_ms=settings.lease_ms,
            grant_ms=settings.grant_ack_ms,
            max_queue_length=settings.max_queue_length,
            max_queued_bytes=settings.max_queued_bytes,
            max_retained_bytes=settings.max_retained_bytes,
        )
        self.scheduler = Scheduler(self.link, self.keys, self.replica, ENDS, limits, self.metrics)
        self.configuration = ConfigurationWatch(self.scheduler, lambda: self.settings)
        self.history = History(self.link, self.keys, self.replica, self.metrics)
        self.hub = Hub(self.scheduler, keep_alive_s=min(5.0, max(settings.linger_ms, MIN_LINGER_MS) / 3000))
        self.results = Results(self.hub.page, self.hub.last)
        self.watch = QueueWatch(self.scheduler, self.hub)
        self.dispatcher = Dispatcher(
            self.scheduler, self.link, self.hub, _dispatch_settings(settings), self.keys
        )
        self.dispatcher.tracer = self.tracer
        self.submit = Submit(
            self.dispatcher.submit,
            self.hub,
            self.bodies,
            self.metrics,
            lambda: self.shutdown.refusal() if self.shutdown.begun else None,
            lambda model: model in self.settings.models,
            lambda user: self.minutes.refused(user),
        )
        self.wait = Wait(
            self.submit,
            self.hub,
            self.closing,
            self.dispatcher.cancel_soon,
            lambda task_id: self.shutdown.refusal(task_id),
        )
        self.poll = Poll(self.scheduler, self.results)
        self._snapshot_server = SnapshotServer(self.siblings, self.snapshot)
        self.surveyor = Surveyor(
            self.link,
            self.keys,
            self.replica,
            presence=self.dispatcher.presence,
            queues=lambda: self.settings.queues,
            models=lambda: self.settings.models,
        )
        self.audit = AuditRecord(self.link, self.keys, self.scheduler)
        self.cancel = Cancel(self.scheduler, self.dispatcher.show_end, self.audit.note)
        self.state = StateReader(
            self.link, self.keys, self.store, self.surveyor, lambda: self.settings.queues
        )
        self.drain_anywhere = Drain(self.link, self.keys, self.surveyor, self.audit, self.drain_worker)
        picture = Picture(self.state, self.audit, self.replica, self.dispatcher.presence, self._about)
        self.live = SharedFeed(picture)
        self.minutes = Minutes(self.replica, self.metrics, self.surveyor, self.dispatcher.attempts.values)
        self.channel = Channel(
            redis_url,
            self.keys.channel(self.replica),
            self._on_message,
            self._channel_changed,
            timeout_ms=settings.redis_timeout_ms,
        )
        self.workers = WorkerSocket(
            self.dispatcher,
            lambda authorization: self.callers.authenticate_worker(authorization),
            SessionSettings(settings.heartbeat_ms, settings.dead_after_ms, settings.max_worker_message_bytes),
            refusal=lambda scope: self.callers.refuse_worker(scope),
        )
        self.shutdown = Shutdown(
            self.dispatcher, self.workers, self.replicas, self.closing, self.live, self.hub
        )

    async def start(self) -> None:
        """Connect and begin. Raises StoreRefused or StoreUnavailable with a sentence for the operator."""
        self.loop_watch.start()
        await self.link.start()
        self.store.start()
        await self.channel.start()
        if self.siblings.size > 1:
            await self._snapshot_server.start()
        self.hub.start()
        self.watch.start()
        self.surveyor.start()
        self.history.start()
        self.dispatcher.start()
        self.configuration.start()
        self.replicas.start()
        self.minutes.start()
        self.ready = True
        log.info(
            "gateway ready",
            replica=self.replica,
            host=self._where.host,
            pid=self._where.pid,
            version=self._where.version,
        )

    async def stop(self) -> None:
        """Let go of everything. Workers and streams have been told before, by `drain`."""
        self.ready = False
        self.stopping = True
        self.loop_watch.close()
        await self.live.close()
        await self.configuration.close()
        await self.dispatcher.close()
        await self.minutes.close()
        await self.replicas.close()
        await self.watch.close()
        await self.surveyor.close()
        await self.history.close()
        await self._snapshot_server.close()
        await self.results.close()
        await self.hub.close()
        await self.channel.close()
        await self.store.close()
        await self.link.close()
        if self.tracer is not None:
            await self.tracer.close()

    async def drain(self) -> None:
        """Not ready, and the way down (`Shutdown.run`), as long as `drain_ms` allows."""
        self.ready = False
        await self.shutdown.run(self.settings.drain_ms)

    async def reconfigure(self, settings: Settings, callers: Callers) -> None:
        """Take over keys and limits (RELOADED) of new settings; what needs a restart stays as it is."""
        self.callers = callers
        self.settings = self.settings.model_copy(update={name: getattr(settings, name) for name in RELOADED})
        self.settings.came(settings.times)
        self.dispatcher.settings = _dispatch_settings(self.settings)
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
        mine = self.settings
        while self.settings is mine and not self.stopping:  # until Redis has it, or newer settings come
            try:
                await self.configuration.bring()
                log.info("keys and limits read again", replica=self.replica)
                return
            except StoreError as error:
                log.warning("Redis does not take the new limits yet", error=str(error))
                await asyncio.sleep(1.0)

    # ---- what the calls need ----------

    def snapshot(self) -> Snapshot:
        """What this process has measured so far."""
        gauges = {
            "fairlane_ready": float(self.ready and self.link.up),
            "fairlane_redis_connected": float(self.link.up),
            "fairlane_redis_refusing": float(self.store.refuses),
            "fairlane_http_requests_open": len(self.closing),
            "fairlane_connections": len(self.connections.open),
            "fairlane_connections_limit": self.connections.limits.most,
            "fairlane_connected_workers": len(self.dispatcher.pool),
            "fairlane_attempts": len(self.dispatcher.attempts),
            "fairlane_loop_lag_max_seconds": self.loop_watch.longest_s,
        }
        return take_snapshot(self.siblings.index, self.metrics, gauges)

    def _about(self) -> dict[str, Any]:
        return {
            "startedAt": int(self.started_at * 1000),
            "draining": self.shutdown.begun,
            "heartbeatMs": self.settings.heartbeat_ms,
        }

    def stream_url(self, task_id: str) -> str:
        """Where to read a task's events without a key: a signed link for this one task, for a while from now on."""
        until = time.time_ns() // 1_000_000 + self.settings.stream_token_ms
        return f"/api/task/{task_id}/events?token={self.tickets.issue(task_id, until)}"

    def drain_worker(self, worker_id: str) -> bool:
        """Give a worker that is connected here no more tasks, and tell it to go when it is done. False: it is not connected here.

        It may finish what it runs: no task may run for longer than the longest time-out.
        """
        return self.workers.drain_worker(worker_id, self.settings.max_task_timeout_ms)

    def cancel_soon(self, task_id: str, by: Literal["client", "timeout"]) -> None:
        """End a task whose caller is gone, without anybody waiting for it; tried until Redis answers."""
        self.dispatcher.cancel_soon(task_id, by)

    # ---- callbacks ----------

    async def _prepare_store(self, link: RedisLink) -> None:
        info = _parse_info(await link.command("INFO", "server"))
        policy = await _config(link, "maxmemory-policy")
        before, self._server = self._server, info.get("run_id", "")
        refused = verify_server(info, policy)
        if refused:
            raise StoreRefused(refused)
        secret = self.settings.stream_token_secret
        if secret is not None:
            key = secret.get_secret_value().encode()
        else:
            name = self.keys("secret")
            await link.command("SET", name, secrets.token_bytes(32), "NX")
            key = await link.command("GET", name)
        self.tickets = Tickets(key)
        if before and not await link.command("EXISTS", self.keys("queues")):
            log.error(
                "Redis has come back empty: every task that waited, ran or was kept is lost, and what was changed while "
                "running; see that it writes to a disk (appendonly yes)",
                replica=self.replica,
                address=self.store.address,
            )
        await self.configuration.bring(link)

    def _store_changed(self, up: bool) -> None:
        self.store.changed(up, going=self.stopping)
        if up:
            if not self._server or self._server != self._listens_at:
                self.channel.reconnect()  # the address leads to another server than before
            self._listens_at = self._server
            self.dispatcher.store_is_back()
            self.hub.check_soon(store_lost=True)

    def _channel_changed(self, up: bool) -> None:
        if up:
            self.hub.check_soon()

    def _on_message(self, message: bytes) -> None:
        try:
            self._handle(message)
        except Exception:  # a message that cannot be understood is dropped: it must not make the replica deaf
            log.exception("cannot handle a message of the channel", replica=self.replica)

    def _handle(self, message: bytes) -> None:
        kind = message[:1]
        if kind in (b"e", b"i", b"n"):
            self.hub.on_event(message)
        elif kind in (b"w", b"r"):
            self.dispatcher.on_wake(message[2:].decode(), targeted=kind == b"w")
        elif kind == b"s":
            _, task_id, epoch, why = message.decode().split("\n", 3)
            self.dispatcher.on_stop(task_id, int(epoch), why)
        elif kind == b"d":
            self.drain_worker(message[2:].decode())


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


def _parse_info(raw: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in raw.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


async def _config(link: RedisLink, name: str) -> str | None:
    """A server setting; None where the server does not tell (managed services)."""
    try:
        reply = await link.command("CONFIG", "GET", name)
    except Exception:  # CONFIG may be forbidden or renamed: then the operator is on their own
        return None
    return reply[1].decode() if reply else None
