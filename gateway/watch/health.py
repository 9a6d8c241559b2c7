"""Whether this gateway is ready for traffic, and its gauges."""

from dataclasses import dataclass, field

from fairlane.gateway.connections.connections import Connections
from fairlane.gateway.lifecycle import Lifecycle, OpenAnswers
from fairlane.gateway.store.pools import StorePools
from fairlane.gateway.watch.event_loop import EventLoopMonitor
from fairlane.workers.server.pool.pool import Pool
from fairlane.workers.server.tasks.attempts import Attempts


@dataclass(eq=False)
class Health:
    """Reads the components that determine readiness."""

    store: StorePools
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
        troubles = [pool.missing for pool in self.store.pools]
        if all(troubles):  # with one pool that works there is something to do
            missing += dict.fromkeys(troubles)
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
            "fairlane_redis_connected": float(all(pool.link.up for pool in self.store.pools)),
            "fairlane_redis_rejects_writes": float(
                any(pool.monitor.rejects_writes for pool in self.store.pools)
            ),
            "fairlane_http_requests_open": len(self._open_answers),
            "fairlane_connections": len(self._connections.open),
            "fairlane_connections_limit": self._connections.max_open,
            "fairlane_connected_workers": len(self._pool),
            "fairlane_attempts": len(self._attempts),
            "fairlane_loop_lag_max_seconds": self._loop_monitor.longest_s,
        }
