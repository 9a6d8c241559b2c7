"""One gateway: wires its parts, starts them in order and stops them."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace as replace_fields

from fairlane.gateway.access import Authorizer
from fairlane.gateway.accounts.admin import KeyAdmin
from fairlane.gateway.accounts.callers import Caller, StoredKeys
from fairlane.gateway.accounts.in_flight import InFlightRequests
from fairlane.gateway.accounts.key_cache import ApiKeyCache
from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.accounts.upstreams import OWN_WORKER, UpstreamTokens
from fairlane.gateway.admin.drain import Drain
from fairlane.gateway.admin.erasure import UserErasure
from fairlane.gateway.admin.operator import Operator
from fairlane.gateway.admin.overview import OverviewFeed, OverviewReader
from fairlane.gateway.admin.settings_view import SettingsView
from fairlane.gateway.attached import Attached, attached
from fairlane.gateway.audit.log import AuditRecord, as_shown
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.connections.connections import Connections
from fairlane.gateway.connections.sockets import connection_limit, open_files
from fairlane.gateway.core.bodies import Bodies
from fairlane.gateway.core.cancel import Cancel, KeyTasks
from fairlane.gateway.core.links import StreamLinks, Tickets
from fairlane.gateway.core.models import Models
from fairlane.gateway.core.poll import Poll
from fairlane.gateway.core.positions import PositionMonitor
from fairlane.gateway.core.spec import MIN_LINGER_MS
from fairlane.gateway.core.submit import Submit
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.dispatching import dispatch_settings, limits_of
from fairlane.gateway.http.tracing import tracer_for
from fairlane.gateway.lifecycle import Component, Lifecycle, OpenAnswers
from fairlane.gateway.metrics.scrape import DatabaseSurveyor, Scrape
from fairlane.gateway.metrics.siblings import Siblings, SnapshotServer
from fairlane.gateway.records.records import Records
from fairlane.gateway.settings import Settings
from fairlane.gateway.shutdown import Shutdown
from fairlane.gateway.store.inbox import Inbox
from fairlane.gateway.store.pools import StoreEvents, StorePool, StorePools
from fairlane.gateway.watch.event_loop import EventLoopMonitor
from fairlane.gateway.watch.health import Health
from fairlane.gateway.watch.replicas import Replicas, here
from fairlane.gateway.watch.task_log import LoggingRecorder
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import ReplicaInfo, StoreInspector
from fairlane.queues.inspect.pooled import PooledInspector
from fairlane.streaming.hub import Hub
from fairlane.streaming.results import Results
from fairlane.streaming.structured.checker import Checker
from fairlane.web.dashboard import SharedFeed
from fairlane.web.history.history import History
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.sessions.session import SessionSettings
from fairlane.workers.server.sessions.socket import WorkerSocket

log = structlog.get_logger("fairlane.gateway")
T = TypeVar("T")


class Gateway:
    """A running gateway, as the application sees it. Made by `open_gateway`, which also ends it."""

    def __init__(
        self,
        settings: Settings,
        redis_urls: Sequence[str],
        siblings: Siblings | None = None,
        own_workers: UpstreamTokens | None = None,
    ) -> None:
        siblings = siblings or Siblings(Path(), 0, 1)
        started_at = time.time()
        self.replica = replica = siblings.mark + secrets.token_hex(4)
        self.current = current = ActiveConfig(settings, own_workers)
        self.database = Database(parse_address(settings.database_url, settings.data_dir))
        key_store = KeyStore(self.database)
        self.key_cache = ApiKeyCache(key_store, self._keys_changed, self._used_keys)
        self.metrics = LoggingRecorder(current.settings.models)
        self.metrics.declare_fallbacks(current.plans.routes.moves())
        self.tracer = tracer_for(settings)
        self.connections = Connections(
            connection_limit(settings.tuning.max_connections, open_files()),
            settings.max_connections_per_address,
            self.metrics,
        )
        self.bodies = bodies = Bodies()
        open_answers = OpenAnswers()
        self.lifecycle = lifecycle = Lifecycle()
        self.tickets = tickets = Tickets(secrets.token_bytes(32))
        self.calls = InFlightRequests(settings.max_calls_per_caller)
        self.authorizer = Authorizer(current, tickets, self.calls, lifecycle)

        # the store and its state
        self._endpoints_listener: Callable[[bool], None] = lambda _: None
        events = StoreEvents(self._on_message, self._store_back, self._messages_missed, self._is_stopping)
        pools = [
            StorePool(number, url, replica, current, self.database, tickets, self.metrics, events)
            for number, url in enumerate(redis_urls)
        ]
        self.store = store = StorePools(pools, current)
        self.scheduler = store.scheduler
        self.link, self.keys = store.first.link, store.first.keys
        keys = self.keys
        self._where = here(started_at)
        self.replicas = Replicas(
            [(pool.link, pool.keys) for pool in pools], replica, self._of_itself, siblings.mark or replica
        )

        # tasks: to workers, and back to their readers
        self.hub = Hub(
            self.scheduler, keep_alive_s=min(5.0, max(settings.tuning.linger_ms, MIN_LINGER_MS) / 3000)
        )
        self.results = results = Results(self.hub)
        self.checker = checker = Checker()
        self.dispatcher = Dispatcher(
            self.scheduler, self.link, self.hub, dispatch_settings(current), keys, checker, self.tracer
        )
        cancels, presence = self.dispatcher.cancels, self.dispatcher.offers.presence
        self.workers = WorkerSocket(
            self.dispatcher,
            lambda authorization: current.callers.authenticate_worker(authorization),
            SessionSettings(
                settings.tuning.heartbeat_ms, settings.tuning.dead_after_ms, settings.max_worker_message_bytes
            ),
            refusal=lambda scope: current.callers.reject_worker(scope),
            unknown_token=lambda scope: self.metrics.unknown_key(
                "UNAUTHORIZED", route="/ws", address=(scope.get("client") or ("",))[0]
            ),
        )
        inspectors = [
            StoreInspector(
                link,
                its_keys,
                replica,
                presence=presence,
                queues=lambda: current.settings.queues,
                models=lambda: current.settings.models,
                first=store.links[0],
            )
            for link, its_keys in store.links
        ]
        self.inspector = inspectors[0] if len(inspectors) == 1 else PooledInspector(inspectors)
        positions = PositionMonitor(self.scheduler)
        self.attached: list[Attached] = []
        self.records = records = Records(
            self.database, store.links, replica, current, self.metrics, as_shown, self.attached
        )
        self.submit = submit = Submit(
            self.dispatcher, self.metrics, current, lifecycle, checker, self.attached
        )
        self.audit = audit = AuditRecord(self.scheduler, records.slots, records.outbox.catch_up)
        self.cancel = cancel = Cancel(cancels.cancel, audit.note)
        self.key_tasks = KeyTasks(self.scheduler, cancel, self.dispatcher.background)
        self.poll = poll = Poll(self.scheduler, results, self.attached)
        links = StreamLinks(tickets, self.scheduler, current)
        models = Models(
            current, self.inspector.offered, self.inspector.workers, self.dispatcher.takes, started_at
        )
        self.tasks = Tasks(
            current=current,
            calls=self.calls,
            bodies=bodies,
            models=models,
            submit=submit,
            poll=poll,
            cancel=cancel,
            cancel_soon=cancels.cancel_soon,
            links=links,
            hub=self.hub,
            results=results,
            positions=positions,
            open_answers=open_answers,
            lifecycle=lifecycle,
            attached=self.attached,
            part=self.part,
        )
        self._parts_by_class: dict[type, Any] = {}
        self.add(current, key_store, audit, records.usage, self.scheduler)
        for feature in attached(self, settings.disabled_features):
            self.attached.append(feature)
            self.add(*feature.parts)

        # what operators see and do
        history = History(self.link, keys, self.metrics, self.inspector.waiting)
        overview = OverviewReader(
            self.scheduler, self.store, self.database, self.inspector, current, self.dispatcher.congestion
        )
        live = SharedFeed(OverviewFeed(overview, audit, replica, presence, self._about))
        self.operator = operator = Operator(
            current=current,
            scheduler=self.scheduler,
            overview=overview,
            inspector=self.inspector,
            history=history,
            live=live,
            audit=audit,
            drain=Drain(self.link, keys, self.inspector, audit, self._drain_worker),
            poll=poll,
            cancel=cancel,
            links=links,
            erase=UserErasure(
                *(self.database, records.erased, self.scheduler),
                [feature.end_user for feature in self.attached if feature.end_user],
                audit,
            ),
            settings=SettingsView(
                self.inspector,
                self.scheduler,
                current,
                self._of_itself,
                [feature.settings for feature in self.attached if feature.settings],
            ),
            cancel_batch=next((feature.cancel for feature in self.attached if feature.cancel), None),
        )
        keys_admin = KeyAdmin(key_store, self.key_cache, current, audit, self.key_tasks, self.scheduler)
        loop_monitor = EventLoopMonitor(self.metrics, replica)
        self.health = Health(
            self.store,
            lifecycle,
            open_answers,
            self.connections,
            loop_monitor,
            self.dispatcher.pool,
            self.dispatcher.attempts,
        )
        database_gauges = DatabaseSurveyor(self.database, [one.gauges for one in self.attached if one.gauges])
        self.scrape = Scrape(
            siblings, self.metrics, self.health, self.dispatcher, self.inspector, database_gauges
        )
        self.add(operator, keys_admin, self.health, self.scrape)

        self._inbox = Inbox(self.hub, self.dispatcher, self._drain_worker, self.metrics, replica)
        self._shutdown = Shutdown(
            lifecycle, self.dispatcher, self.workers, self.replicas, open_answers, live, self.hub, self.store
        )
        self.stopping = False
        self._parts: list[Component] = [
            loop_monitor,
            self.database,
            self.key_cache,
            *(one for feature in self.attached for one in feature.first),
            store,
            *([SnapshotServer(siblings, self.scrape.own)] if siblings.size > 1 else []),
            self.hub,
            positions,
            self.inspector,
            history,
            *(pool.configuration for pool in pools),
            self.replicas,
            *records.parts,
            checker,
            self.dispatcher,
            *(one for feature in self.attached for one in feature.components),
        ]
        """In the order in which they start; they close the other way round."""

    def add(self, *parts: object) -> None:
        """Make parts known by their classes."""
        self._parts_by_class |= {type(part): part for part in parts}

    def part(self, kind: type[T]) -> T:
        """Return the part of this class: of the core, or of a feature, which must be enabled."""
        found: T = self._parts_by_class[kind]
        return found

    async def start(self) -> None:
        """Connect and begin. Raise StoreRefused, StoreUnavailable or DatabaseError with a sentence for the operator."""
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
        """Release everything. `drain` has closed workers and streams before."""
        self.health.serving = False
        self.stopping = True
        await self.operator.live.close()
        for part in reversed(self._parts):
            await _done(part.close())
        if self.tracer is not None:
            await self.tracer.close()

    async def drain(self) -> None:
        """Report not ready, and shut down (`Shutdown.run`) within `drain_ms`."""
        self.health.serving = False
        await self._shutdown.run(self.current.settings.drain_ms)

    async def reconfigure(self, settings: Settings) -> None:
        """Take over keys and limits of new settings; what needs a restart stays as it is (`current.RELOADED`)."""
        current = self.current
        changes = current.replace(settings)
        self.settings_changed()
        self.scheduler.limits = limits_of(current.settings)
        self.calls.max_open = settings.max_calls_per_caller
        self.metrics.declare_fallbacks(current.plans.routes.moves())
        self._end_calls()
        self.endpoints_changed()
        mine = current.settings
        while current.settings is mine and not self.stopping:  # until Redis has it, or newer settings come
            try:
                await self.bring_configuration()
                write = log.warning if "needs_restart" in changes else log.info
                write("keys and limits read again", replica=self.replica, **changes)
                return
            except StoreError as error:
                log.warning("Redis does not take the new limits yet", error=str(error))
                await asyncio.sleep(1.0)

    async def bring_configuration(self) -> None:
        """Write the settings of queues and models to all pools. Raise StoreError."""
        for pool in self.store.pools:
            await pool.configuration.bring()

    # ---- connections between components that are created before each other ----------

    def settings_changed(self) -> None:
        """Dispatch by the current settings from now on."""
        self.dispatcher.settings.take_over(dispatch_settings(self.current))

    async def balance(self, caller: Caller) -> Any:
        """Return a caller's balance; None without the feature, or without a quota."""
        for feature in self.attached:
            if feature.balance is not None:
                return await feature.balance(caller)
        return None

    def on_endpoints(self, listener: Callable[[bool], None]) -> None:
        """Call `listener` with whether there are endpoints that are called from here: now, and whenever they change."""
        self._endpoints_listener = listener
        self.endpoints_changed()

    def endpoints_changed(self) -> None:
        """Report whether there are endpoints."""
        self.workers.endpoints_changed()
        self._endpoints_listener(len(self.current.endpoints) > 0)

    def _keys_changed(self, stored: StoredKeys, cut: frozenset[str]) -> None:
        self.current.take_keys(stored)
        self._end_calls()
        if cut:
            self.key_tasks.end_soon(cut)

    def _end_calls(self) -> None:
        """End calls of keys that are not valid any more, and connections of workers whose tokens are not."""
        callers = self.current.callers
        # the process that starts workers of our own also ends them, when they have finished their tasks
        self.workers.check_tokens(
            lambda worker: worker if worker.id == OWN_WORKER else callers.renewed(worker.sha256)
        )
        if over := self.calls.revoke(callers.is_current):
            log.info("calls of revoked or expired keys end", replica=self.replica, calls=over)

    def _used_keys(self) -> set[str]:
        configured = {
            key.id for keys in (self.current.settings.keys, self.current.settings.workers) for key in keys
        }
        return (self.calls.used() | self.workers.used()) - configured

    def _of_itself(self) -> ReplicaInfo:
        return replace_fields(
            self._where,
            keys_hash=self.current.callers.hash,
            routes_hash=self.current.routes_hash,
            reload_error=self.current.reload_error,
            settings_hash=self.current.settings_hash,
        )

    def _about(self) -> dict[str, Any]:
        return {
            "startedAt": self._where.started_at,
            "draining": self.tasks.lifecycle.draining,
            "heartbeatMs": self.current.settings.tuning.heartbeat_ms,
        }

    def _drain_worker(self, worker_id: str) -> bool:
        """Give a worker that is connected here no more tasks, and ask it to disconnect when it is done. Return False if it is not
        connected here.

        It may finish its tasks: none may run for longer than the longest time-out.
        """
        return self.workers.drain_worker(worker_id, self.current.settings.max_task_timeout_ms)

    def _is_stopping(self) -> bool:
        return self.stopping

    def _store_back(self) -> None:
        """A pool of Redis is back, and may have lost something."""
        self.scheduler.log_generation += 1
        self.dispatcher.store_is_back()
        for feature in self.attached:
            if feature.store_back is not None:
                feature.store_back()
        self.hub.check_soon(store_lost=True)

    def _messages_missed(self) -> None:
        self.scheduler.log_generation += 1
        self.hub.check_soon()

    def _on_message(self, message: bytes) -> None:
        self._inbox(message)


async def _done(outcome: Awaitable[None] | None) -> None:
    if outcome is not None:
        await outcome


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    redis_urls: Sequence[str],
    siblings: Siblings | None = None,
    own_workers: UpstreamTokens | None = None,
) -> AsyncIterator[Gateway]:
    """Yield a started gateway, and stop it in any case. `own_workers`: tokens of the workers that this gateway starts."""
    gateway = Gateway(settings, redis_urls, siblings, own_workers)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.stop()
