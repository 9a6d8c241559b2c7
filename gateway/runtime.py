"""One gateway: everything that lives as long as the process serves, in the order in which it is started and stopped."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import structlog

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.opencalls import OpenCalls
from fairlane.gateway.accounts.tickets import Tickets
from fairlane.gateway.bodies import Bodies
from fairlane.gateway.connections.lines import Connections
from fairlane.gateway.connections.sockets import connection_limits, open_files
from fairlane.gateway.errors import SECOND_MS, ApiError, stopping, store_unavailable
from fairlane.gateway.intake import MIN_LINGER_MS
from fairlane.gateway.loopwatch import LoopWatch
from fairlane.gateway.metrics.siblings import Siblings, SnapshotServer
from fairlane.gateway.metrics.snapshot import Snapshot, take_snapshot
from fairlane.gateway.minutes import Minutes
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.operator.drain import Drain
from fairlane.gateway.operator.settings import configured
from fairlane.gateway.operator.state import Picture, StateReader
from fairlane.gateway.replicas import Replicas, here
from fairlane.gateway.settings import Settings
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
from fairlane.queues.scheduler import Ends, Limits, Scheduler, configuration, configuring, standing
from fairlane.queues.scripts import load_scripts
from fairlane.queues.survey import Surveyor
from fairlane.queues.tasks import Fragment
from fairlane.queues.versions import Standing, Version, hash_of
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
COMPARE_S = 5.0
TELL_DRAINING_S = 10.0
"""How often a replica looks which configuration of queues and models holds."""
SETTLE_S = 2.0
"""How long the ends of tasks that were not done in time may take to be written, once the drain is over."""
FAREWELL_MS = 5000
"""How much longer workers stay than what they run: until its end is written and streams have ended."""

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
        self.draining = False
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
        self._drain_until = 0.0
        self._others_stay = False
        self._overruled_by = ""
        self._hashed: tuple[Settings, str] | None = None
        self._server = self._listens_at = ""
        self._comparing: asyncio.Task[None] | None = None
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
        self._replicas = Replicas(self.link, self.keys, self.replica, self._where)
        self.store = StoreWatch(self.link, redis_url, self.keys, self.replica)
        limits = Limits(
            lease_ms=settings.lease_ms,
            grant_ms=settings.grant_ack_ms,
            max_queue_length=settings.max_queue_length,
            max_queued_bytes=settings.max_queued_bytes,
            max_retained_bytes=settings.max_retained_bytes,
        )
        self.scheduler = Scheduler(self.link, self.keys, self.replica, ENDS, limits, self.metrics)
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
            lambda: self.going() if self.draining else None,
            lambda model: model in self.settings.models,
            lambda user: self.minutes.refused(user),
        )
        self.wait = Wait(self.submit, self.hub, self.closing, self.dispatcher.cancel_soon, self.going)
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

    async def _compare_configurations(self) -> None:
        """Bring ours again while another one holds: it does so no longer than a replica lives that has it."""
        while True:
            await asyncio.sleep(COMPARE_S)
            with contextlib.suppress(StoreError):
                in_force = await self.scheduler.in_force()
                mine = self.settings
                if in_force is None or in_force.hash != self._configuration_hash(mine):
                    self._note_standing(await self.scheduler.configure(*configured(mine), _version(mine)))

    def _configuration_hash(self, settings: Settings) -> str:
        if self._hashed is None or self._hashed[0] is not settings:
            self._hashed = (settings, hash_of(configuration(*configured(settings))))
        return self._hashed[1]

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
        self._comparing = asyncio.create_task(self._compare_configurations(), name="configuration")
        self._replicas.start()
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
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)
        await self.dispatcher.close()
        await self.minutes.close()
        await self._replicas.close()
        await self._leave()
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
        """Not ready, no new grants, no new workers; what runs may finish within `drain_ms`, other callers are told to come back.

        What runs: tasks of workers here, and tasks elsewhere whose callers here could not read the rest elsewhere. What is not
        done by then ends with an error if it had output, and goes back to its queue if not, before streams are told to come back.
        """
        self.ready = False
        self.draining = True
        self.dispatcher.drain()
        self.workers.drain(self.settings.drain_ms + FAREWELL_MS)
        self._drain_until = time.monotonic() + self.settings.drain_ms / 1000
        self._others_stay = await self.another_stays()
        self._tell_draining("the gateway drains")
        tell_at = time.monotonic() + TELL_DRAINING_S
        while (self._working or self.closing.patience) and time.monotonic() < self._drain_until:
            self.workers.release()
            await asyncio.sleep(0.05)
            if tell_at <= time.monotonic() < self._drain_until - TELL_DRAINING_S / 2:
                tell_at += TELL_DRAINING_S
                self._tell_draining("the gateway still drains")
        self._tell_draining(
            "the time to drain is over: what still runs is stopped"
            if self._working
            else "the gateway has drained"
        )
        self.dispatcher.abandon()
        until = time.monotonic() + SETTLE_S
        while not self.dispatcher.settled and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.closing.begin()
        await self.live.close()
        self.hub.wake_all()
        until = time.monotonic() + 2.0
        while len(self.closing) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.workers.close("the gateway stops")

    def _tell_draining(self, event: str) -> None:
        """What a gateway that goes waits for, of which the oldest is named."""
        held = [attempt for attempt in self.dispatcher.attempts.values() if attempt.held]
        oldest = min(held, key=lambda attempt: attempt.started_at, default=None)
        named = {} if oldest is None else {"task_id": oldest.grant.task_id, "worker_id": oldest.worker.id}
        left_s = max(self._drain_until - time.monotonic(), 0)
        log.info(event, replica=self.replica, tasks=len(held), left_s=round(left_s), **named)

    async def another_stays(self) -> bool:
        """Whether another replica lives which does not go with this one, as the other processes of this gateway do."""
        try:
            now, known = await asyncio.gather(
                self.link.command("TIME"),
                self.link.command("ZRANGE", self.keys("replicas"), 0, -1, "WITHSCORES"),
            )
        except StoreError:
            return False
        ours = self.siblings.mark or self.replica
        names_and_ends = zip(known[::2], known[1::2], strict=True)
        return any(
            float(end) > int(now[0]) * 1000 and not name.decode().startswith(ours)
            for name, end in names_and_ends
        )

    async def _leave(self) -> None:
        """Be no live replica any more, at once, for those who go next and look whether another stays."""
        with contextlib.suppress(StoreError):  # it is forgotten after some seconds anyway
            await self.link.command("ZADD", self.keys("replicas"), "XX", 1, self.replica)

    @property
    def _working(self) -> bool:
        return any(attempt.held for attempt in self.dispatcher.attempts.values())

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
                self._note_standing(await self.scheduler.configure(*configured(mine), _version(mine)))
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
            "draining": self.draining,
            "heartbeatMs": self.settings.heartbeat_ms,
        }

    def stream_url(self, task_id: str) -> str:
        """Where to read a task's events without a key: a signed link for this one task, for a while from now on."""
        until = time.time_ns() // 1_000_000 + self.settings.stream_token_ms
        return f"/api/task/{task_id}/events?token={self.tickets.issue(task_id, until)}"

    def store_unavailable(self) -> ApiError:
        """The answer while Redis is away."""
        return store_unavailable(self.store_down_ms)

    def store_trouble(self) -> ApiError:
        """The same for an operator, who is told why."""
        error = self.store_unavailable()
        error.why = self.store.trouble
        return error

    @property
    def store_down_ms(self) -> int:
        """How long Redis has been away; 0 when it is there."""
        since = self.store.down_since
        return max(int((time.time() - since) * 1000), 0) if since else 0

    def going(self, task_id: str | None = None) -> ApiError:
        """The answer of a gateway that shuts down: another one takes the call at once, or a successor when this one is gone."""
        return stopping(SECOND_MS if self._others_stay else self.drain_left_ms, task_id)

    @property
    def drain_left_ms(self) -> int:
        """How long what runs may still take, once the gateway drains."""
        return max(int((self._drain_until - time.monotonic()) * 1000), 0)

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
        mine = configuring(self.replica, *configured(self.settings), _version(self.settings))
        self._note_standing(standing(await link.run("configure", *mine)))

    def _note_standing(self, standing: Standing) -> None:
        """Say once when another replica has a newer configuration, which holds for queues and models here, too."""
        in_force = standing.in_force
        overruled_by = in_force.hash if standing.outcome == "older" else ""
        if overruled_by and overruled_by != self._overruled_by:
            log.warning(
                "another replica has a newer configuration, which holds for queues and models as long as it lives: give "
                "this gateway the same file, or touch its own and send SIGHUP",
                replica=self.replica,
                modified=_when(self.settings.times.modified_ms),
                newer_replica=in_force.replica,
                newer_modified=_when(in_force.modified_ms),
            )
        self._overruled_by = overruled_by

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


def _version(settings: Settings) -> Version:
    return Version(settings.times.modified_ms, settings.times.read_ms)


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


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
