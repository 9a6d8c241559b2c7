"""Whether this gateway is ready for traffic, and its gauges."""

from dataclasses import dataclass, field

from fairlane.gateway.connections.connections import Connections
from fairlane.gateway.lifecycle import Lifecycle, OpenAnswers
from fairlane.gateway.watch.event_loop import EventLoopMonitor
from fairlane.gateway.watch.store import StoreMonitor
from fairlane.queues.store.channel import Channel
from fairlane.queues.store.link import RedisLink
from fairlane.workers.server.pool.pool import Pool
from fairlane.workers.server.tasks.attempts import Attempts


@dataclass(eq=False)
class Health:
    """Reads the components that determine readiness."""

    _link: RedisLink
    store: StoreMonitor
    _channel: Channel
    _lifecycle: Lifecycle
    _open_answers: OpenAnswers
    _connections: Connections
    _loop_monitor: EventLoopMonitor
    _pool: Pool
    _attempts: Attempts
    serving: bool = field(default=False, init=False)
    """From the end of the start until the shutdown begins."""

    @property
    def workers(self) -> int:
        """How many workers are connected here."""
        return len(self._pool)

    def missing(self) -> list[str]:
        """Return the reasons why the gateway should get no traffic; [] if it is ready."""
        missing = []
        if self._lifecycle.draining:
            missing.append("the gateway is shutting down")
        if not self._link.up:
            why = self._link.setup_error
            missing.append(f"no connection to Redis: {why}" if why else "no connection to Redis")
        elif not self._channel.listening.is_set():
            missing.append("not subscribed to the replica's channel")
        elif self.store.rejects_writes:
            missing.append(f"Redis rejects writes: {self._link.write_errors.why}")
        if not self.serving and not missing:
            missing.append("the gateway is starting")
        return missing

    @property
    def wait_ms(self) -> int:
        """Return the time until this gateway may be ready again, as far as it is known."""
        return self._lifecycle.left_ms if self._lifecycle.draining else self.store.down_ms

    def gauges(self) -> dict[str, float]:
        """Return current values, by the names of `metrics.gauges.PROCESS_GAUGES`."""
        return {
            "fairlane_ready": float(not self.missing()),
            "fairlane_redis_connected": float(self._link.up),
            "fairlane_redis_rejects_writes": float(self.store.rejects_writes),
            "fairlane_http_requests_open": len(self._open_answers),
            "fairlane_connections": len(self._connections.open),
            "fairlane_connections_limit": self._connections.max_open,
            "fairlane_connected_workers": len(self._pool),
            "fairlane_attempts": len(self._attempts),
            "fairlane_loop_lag_max_seconds": self._loop_monitor.longest_s,
        }
