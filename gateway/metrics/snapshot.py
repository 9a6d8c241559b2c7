"""What one process of a gateway has measured, at one moment, in a form that another process can read."""

import os
from typing import TYPE_CHECKING

import msgspec

from fairlane.queues.measures import Counter, Recorder

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

Labels = tuple[str, ...]


class Snapshot(msgspec.Struct):
    """The series of a `Recorder` by name, each as (labels, numbers) pairs, and what holds now."""

    process: int
    """Number of the process in its gateway, from 0; the one that takes the place of a dead one gets its number."""
    pid: int
    series: dict[str, list[tuple[Labels, list[float]]]]
    gauges: dict[str, float]


def take_snapshot(gateway: "Gateway", process: int) -> Snapshot:
    """What this process has measured."""
    return Snapshot(process, os.getpid(), series_of(gateway.measures), gauges_of(gateway))


def series_of(measures: Recorder) -> dict[str, list[tuple[Labels, list[float]]]]:
    """Numbers of all series: of a counter one, of a histogram its row (see `Histogram`)."""
    return {
        series.name: (
            [(key, [value]) for key, value in series.values.items()]
            if isinstance(series, Counter)
            else [(key, list(row)) for key, row in series.values.items()]
        )
        for series in measures.series
    }


GAUGES = {
    "fairlane_ready": "1 while the process may be given traffic",
    "fairlane_redis_connected": "1 while the connection to Redis is up",
    "fairlane_redis_refusing": "1 while Redis is there and refuses writes",
    "fairlane_http_requests_open": "Answers under way that wait for a task or stream it",
    "fairlane_connections": "Connections open, workers' too",
    "fairlane_connections_limit": "Connections that may be open",
    "fairlane_connected_workers": "Workers connected to this process",
    "fairlane_attempts": "Tasks that workers of this process run or are being stopped",
    "fairlane_loop_lag_max_seconds": "The longest that the event loop was late, within the last half minute to minute",
}
"""What holds now, of each process, and what it means."""


def gauges_of(gateway: "Gateway") -> dict[str, float]:
    """The values of GAUGES."""
    return {
        "fairlane_ready": float(gateway.ready and gateway.link.up),
        "fairlane_redis_connected": float(gateway.link.up),
        "fairlane_redis_refusing": float(gateway.store.refuses),
        "fairlane_http_requests_open": len(gateway.closing),
        "fairlane_connections": len(gateway.connections.open),
        "fairlane_connections_limit": gateway.connections.limits.most,
        "fairlane_connected_workers": len(gateway.dispatcher.pool),
        "fairlane_attempts": len(gateway.dispatcher.attempts),
        "fairlane_loop_lag_max_seconds": gateway.loop_watch.longest_s,
    }
