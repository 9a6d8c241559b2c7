"""The pools of Redis as this gateway uses them: of each the connection, the channel, the scheduler, and what watches them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.links import Tickets
from fairlane.gateway.database.database import Database
from fairlane.gateway.dispatching import ENDS, limits_of
from fairlane.gateway.features import lua_modules
from fairlane.gateway.lifecycle import Component
from fairlane.gateway.store.configuration import ConfigurationMonitor
from fairlane.gateway.store.connection import NewConnection
from fairlane.gateway.watch.store import StoreMonitor
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.metrics import Recorder
from fairlane.queues.pooled import ModelMoves, PooledScheduler
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.address import parse_address
from fairlane.queues.store.channel import Channel
from fairlane.queues.store.link import RedisLink
from fairlane.queues.store.scripts import load_scripts


class StorePool:
    """One pool."""

    def __init__(
        self,
        number: int,
        url: str,
        replica: str,
        current: ActiveConfig,
        database: Database,
        tickets: Tickets,
        metrics: Recorder,
        events: "StoreEvents",
    ) -> None:
        settings = current.settings
        self.number = number
        self.name = settings.pools[number]
        self.keys = keys = Keys(pool_prefix(number))
        address = parse_address(url, keys.prefix)
        shown = str(address) if settings.redis_url else f"its own, in {settings.data_dir.resolve()}"
        self._events = events
        timeout_ms = settings.tuning.redis_timeout_ms
        scripts = load_scripts(features=lua_modules(settings.disabled_features))
        self.link = RedisLink(
            address,
            scripts,
            keys.prefix,
            timeout_ms=timeout_ms,
            on_connect=self._connected,
            on_change=self._changed,
            metrics=metrics,
        )
        self.monitor = StoreMonitor(self.link, shown, keys, replica)
        self.scheduler = Scheduler(self.link, keys, replica, ENDS, limits_of(settings), metrics)
        self.configuration = ConfigurationMonitor(self.scheduler, current, shown, metrics, self._emptied)
        self._prepare = NewConnection(
            keys, replica, shown, current, database, tickets if number == 0 else None, self.configuration
        )
        self._listens_at = ""
        self.channel = Channel(
            address, keys.channel(replica), events.on_message, self._channel_changed, timeout_ms=timeout_ms
        )

    @property
    def missing(self) -> str:
        """Return why no task of this pool can be served; '' if it works."""
        if not self.link.up:
            why = self.link.setup_error
            return f"no connection to Redis: {why}" if why else "no connection to Redis"
        if not self.channel.listening.is_set():
            return "not subscribed to the replica's channel"
        if self.monitor.rejects_writes:
            return f"Redis rejects writes: {self.link.write_errors.why}"
        return ""

    async def _connected(self, link: RedisLink) -> None:
        await self._prepare(link)

    def _changed(self, up: bool) -> None:
        self.monitor.changed(up, stopping=self._events.stopping())
        if up:
            server = self._prepare.server
            if not server or server != self._listens_at:
                self.channel.reconnect()  # the address leads to another server than before
            self._listens_at = server
            self._events.on_store_back()

    async def _emptied(self) -> None:
        await self._prepare.share_secret(self.link)
        self._events.on_store_back()

    def _channel_changed(self, up: bool) -> None:
        if up:
            self._events.on_listening()


@dataclass(frozen=True, slots=True)
class StoreEvents:
    """What a gateway does when its store reports something."""

    on_message: Callable[[bytes], None]
    on_store_back: Callable[[], None]
    """A pool is back, and may have lost something."""
    on_listening: Callable[[], None]
    stopping: Callable[[], bool]


class StorePools:
    """All pools. The first one has what belongs to the deployment as a whole."""

    def __init__(self, pools: Sequence[StorePool], current: ActiveConfig) -> None:
        self.pools = pools
        self.first = pools[0]
        self._moves: ModelMoves | None = None
        self.scheduler = self.first.scheduler
        """Of all pools."""
        if len(pools) > 1:
            self.scheduler = PooledScheduler(
                [pool.scheduler for pool in pools], lambda: current.plans.placement
            )

    @property
    def links(self) -> list[tuple[RedisLink, Keys]]:
        """Return each pool's connection, and the names of its keys."""
        return [(pool.link, pool.keys) for pool in self.pools]

    def moves(self, changed: Callable[[], None]) -> list[Component]:
        """Return what follows models that move to another pool. `changed`: see `ModelMoves`."""
        if isinstance(self.scheduler, PooledScheduler):
            self._moves = ModelMoves(self.scheduler, changed)
        return [self._moves] if self._moves else []

    def look_for_moves(self) -> bool:
        """The configuration has changed. Return whether models may have moved."""
        if self._moves is not None:
            self._moves.wake.set()
        return self._moves is not None

    async def start(self) -> None:
        """Connect. Raise StoreRefused if a pool is badly configured, and StoreUnavailable if none is available. One that is
        unavailable among others is connected later."""
        for pool in self.pools:
            pool.monitor.start()
        alone = len(self.pools) == 1
        await asyncio.gather(*(pool.link.start(required=alone) for pool in self.pools))
        if not any(pool.link.up for pool in self.pools):
            raise StoreUnavailable(f"no pool of Redis could be used: {self.trouble}", sent=False)
        await asyncio.gather(*(pool.channel.start() for pool in self.pools))

    async def close(self) -> None:
        """Disconnect."""
        for pool in self.pools:
            await pool.channel.close()
            await pool.link.close()
            await pool.monitor.close()

    @property
    def address(self) -> str:
        """Where Redis is, for operators."""
        return ", ".join(dict.fromkeys(pool.monitor.address for pool in self.pools))

    @property
    def trouble(self) -> str:
        """Return the present problems, for an operator; '' if there is none."""
        found = {pool.name: pool.monitor.trouble for pool in self.pools}
        if len(found) == 1:
            return self.first.monitor.trouble
        return "; ".join(f"pool {name}: {trouble}" for name, trouble in found.items() if trouble)

    @property
    def down(self) -> bool:
        """Return whether no pool is connected."""
        return all(pool.monitor.down_since for pool in self.pools)

    @property
    def down_ms(self) -> int:
        """Return for how long no pool has accepted writes; 0 if one does."""
        return min(pool.monitor.down_ms for pool in self.pools)

    @property
    def longest_down_ms(self) -> int:
        """Return for how long a pool has not accepted writes; 0 if all do."""
        return max(pool.monitor.down_ms for pool in self.pools)
