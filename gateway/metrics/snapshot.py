"""The metrics of one process at one moment, in a form that another process can read."""

import os
from collections.abc import Mapping

import msgspec

from fairlane.gateway.metrics.store_gauges import StoreGauge
from fairlane.queues.metrics import Recorder
from fairlane.workers.server.congestion import ModelLimits

Labels = tuple[str, ...]


class Snapshot(msgspec.Struct):
    """The values of a `Recorder` by name, each as (labels, numbers) pairs, and current values."""

    process: int
    """Number of the process in its gateway, from 0; a restarted process has the number of its predecessor."""
    pid: int
    values: dict[str, list[tuple[Labels, float | list[float]]]]
    gauges: dict[str, float]
    limits: dict[Labels, float] = {}
    """Limits in effect, s, by the labels of OUTPUT_LIMIT."""
    silences: dict[Labels, float] = {}
    """By the labels of TASK_SILENCE, s."""


def take_snapshot(
    process: int,
    metrics: Recorder,
    gauges: dict[str, float],
    limits: Mapping[str, ModelLimits],
    silences: Mapping[str, float],
) -> Snapshot:
    """Return the metrics of this process. `gauges`: by the names of GAUGES; `limits`, `silences`: by model. Models that share a
    label have one limit, and the longest silence."""
    output_limits: dict[Labels, float] = {}
    for model, of_model in limits.items():
        for kind, limit in (("first_output", of_model.first_output_ms), ("silence", of_model.silence_ms)):
            if limit is not None:
                output_limits[metrics.label(model), kind] = limit / 1000
    longest: dict[Labels, float] = {}
    for model, silent_s in silences.items():
        label = (metrics.label(model),)
        longest[label] = max(silent_s, longest.get(label, 0.0))
    values = {name: list(rows.items()) for name, rows in metrics.values.items()}
    return Snapshot(process, os.getpid(), values, gauges, output_limits, longest)


GAUGES = {
    "fairlane_ready": "1 while the process may be given traffic",
    "fairlane_redis_connected": "1 while the connection to Redis is up",
    "fairlane_redis_rejects_writes": "1 while Redis is connected and rejects writes",
    "fairlane_http_requests_open": "Answers under way that wait for a task or stream it",
    "fairlane_connections": "Connections open, workers' too",
    "fairlane_connections_limit": "Connections that may be open",
    "fairlane_connected_workers": "Workers connected to this process",
    "fairlane_attempts": "Tasks that workers of this process run or are being stopped",
    "fairlane_loop_lag_max_seconds": "The longest that the event loop was late, within the last half minute to minute",
}
"""The gauges of each process, with their help."""
OUTPUT_LIMIT = StoreGauge(
    "fairlane_output_limit_seconds",
    ("model", "limit"),
    "How long a model may be silent: before its first output, or after it (silence), as it holds for tasks that begin now",
)
"""The same, of each model with such limits."""
TASK_SILENCE = StoreGauge(
    "fairlane_task_silence_seconds",
    ("model",),
    "How long the running task of a model that is silent for longest has given no sign: no output, no progress",
)
"""The same, of each model that runs on workers of a process."""
