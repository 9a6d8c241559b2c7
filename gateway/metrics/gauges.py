"""The gauges of a process, and those of the store. All replicas report the same values of the latter: use `max`, not `sum`."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import add
from typing import Any, Generic, NamedTuple, TypeVar

from fairlane.queues.inspect.inspector import StoreSnapshot
from fairlane.queues.inspect.upstreams import BreakerState, Upstream
from fairlane.queues.metrics import OTHER

Labels = tuple[str, ...]
Rows = dict[str, dict[Labels, float]]
"""Values by the name of a gauge and its labels."""
Label = Callable[[str], str]
"""Bounds the names of models."""
T = TypeVar("T")


class Gauge(NamedTuple):
    """A gauge without its source."""

    name: str
    labels: Labels
    help: str


@dataclass(frozen=True, slots=True)
class Scope(Generic[T]):
    """The things of one kind in a snapshot of the store, and their labels."""

    labels: Labels
    things: Callable[[StoreSnapshot, Label], Iterable[tuple[Labels, T]]]


@dataclass(frozen=True, slots=True)
class StoreGauge(Generic[T]):
    """A gauge with its source. `join` combines the values of things that share labels."""

    name: str
    scope: Scope[T]
    help: str
    value: Callable[[T], float | None]
    join: Callable[[float, float], float] = add

    @property
    def labels(self) -> Labels:
        return self.scope.labels


MAX_UPSTREAMS = 100
"""Limit of upstreams with a series of their own: workers choose the names."""
_BREAKERS = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)


def _upstreams(survey: StoreSnapshot, label: Label) -> Iterable[tuple[Labels, Upstream]]:
    """Return the upstreams. The first ones keep their names: those with a breaker that is not closed, then by name."""
    closed: dict[str, bool] = {}
    for model in survey.models:
        for one in model.upstreams:
            closed[one.upstream] = closed.get(one.upstream, True) and one.breaker is BreakerState.CLOSED
    named = set(sorted(closed, key=lambda name: (closed[name], name))[:MAX_UPSTREAMS])
    for model in survey.models:
        for one in model.upstreams:
            yield (label(model.model), one.upstream if one.upstream in named else OTHER), one


def _workers(survey: StoreSnapshot, _: Label) -> Iterable[tuple[Labels, int]]:
    found = Counter({"ready": 0, "unhealthy": 0, "draining": 0})
    found.update(
        "draining" if worker.get("draining") else "unhealthy" if worker.get("unhealthy") else "ready"
        for worker in survey.workers
    )
    return (((status,), number) for status, number in found.items())


def _replicas(survey: StoreSnapshot, _: Label) -> Iterable[tuple[Labels, int]]:
    return (((name, one.host, str(one.pid), one.version), 1) for name, one in survey.hosts.items())


def _left_s(until_ms: int | None, now_ms: int) -> float:
    return max(until_ms - now_ms, 0) / 1000 if until_ms else 0.0


def _overruled(survey: StoreSnapshot) -> int:
    newest = survey.configuration.hash if survey.configuration else ""
    return sum(own.hash != newest for own in survey.configurations.values())


# fmt: off
OUTPUT_LIMIT = Gauge(
    "fairlane_output_limit_seconds", ("model", "limit"),
    "Time limit of new attempts: until the first output (first_output), or between two outputs (silence)")
TASK_SILENCE = Gauge(
    "fairlane_task_silence_seconds", ("model",),
    "Longest time that a running task of the model has had no output and no progress")
PROCESS_GAUGES = (
    Gauge("fairlane_ready", (), "1 while the process is ready for traffic"),
    Gauge("fairlane_redis_connected", (), "1 while the connection to Redis is up"),
    Gauge("fairlane_redis_rejects_writes", (), "1 while Redis rejects writes: memory or disk full, or too few replicas"),
    Gauge("fairlane_http_requests_open", (), "Open responses that wait for a task or stream it"),
    Gauge("fairlane_connections", (), "Open connections, including workers"),
    Gauge("fairlane_connections_limit", (), "Maximum of open connections"),
    Gauge("fairlane_connected_workers", (), "Workers connected to this process"),
    Gauge("fairlane_attempts", (), "Tasks that workers of this process run or stop"),
    Gauge("fairlane_loop_lag_max_seconds", (), "The largest timer delay of the event loop in the last 30 to 60 s"),
    OUTPUT_LIMIT,
    TASK_SILENCE,
)
"""The gauges of each process; `Health.gauges` has the values of those without labels."""

LANE = Scope(("queue", "model"), lambda it, label: (((lane.queue, label(lane.model)), lane) for lane in it.lanes))
QUEUE = Scope(("queue",), lambda it, _: (((queue.queue,), queue) for queue in it.queues))
MODEL = Scope(("model",), lambda it, label: (((label(model.model),), model) for model in it.models))
MODEL_AT = Scope(("model",), lambda it, label: (((label(model.model),), (model, it.now_ms)) for model in it.models))
UPSTREAM = Scope(("model", "upstream"), _upstreams)
STORE = Scope((), lambda it, _: [((), it)])
POOL = Scope(("pool",), lambda it, _: (((str(pool.pool),), pool) for pool in it.pools))
STORE_GAUGES: tuple[StoreGauge[Any], ...] = (
    StoreGauge("fairlane_tasks_waiting", LANE, "Waiting tasks", lambda it: it.waiting),
    StoreGauge("fairlane_tasks_running", LANE, "Tasks with a slot", lambda it: it.running),
    StoreGauge("fairlane_users_waiting", LANE, "Users with waiting tasks", lambda it: it.users),
    StoreGauge("fairlane_users_parked", LANE, "Users at their limit of running tasks", lambda it: it.parked),
    StoreGauge(
        "fairlane_oldest_wait_seconds", LANE, "Age of the oldest waiting task",
        lambda it: (it.oldest_wait_ms or 0) / 1000, max),
    StoreGauge(
        "fairlane_charged_cost", LANE,
        "Cost charged: tokens (input + 2 x output), requests or slot seconds. Falls with refunds: use delta()",
        lambda it: it.charged),
    StoreGauge(
        "fairlane_queue_service_share", QUEUE, "Share of the cost charged over the last minutes, 0 to 1",
        lambda it: it.share),
    StoreGauge("fairlane_queue_weight", QUEUE, "Weight of the queue", lambda it: float(it.settings.values.get("weight") or 1)),
    StoreGauge("fairlane_queue_paused", QUEUE, "1 while an operator has paused the queue", lambda it: it.paused),
    StoreGauge("fairlane_model_slots_used", MODEL, "Used slots, including tasks that are being stopped", lambda it: it.running),
    StoreGauge("fairlane_model_slots_limit", MODEL, "Concurrency limit, if one is set or adapted", lambda it: it.limit),
    StoreGauge(
        "fairlane_model_limit_decreases", MODEL, "Decreases of the adapted concurrency limit since it is adapted: use delta()",
        lambda it: it.adaptive and it.adaptive.decreases),
    StoreGauge("fairlane_model_worker_slots", MODEL, "Slots of the connected workers that serve the model", lambda it: it.slots),
    StoreGauge("fairlane_model_workers", MODEL, "Connected workers that serve the model", lambda it: it.workers),
    StoreGauge(
        "fairlane_model_unserved", MODEL, "1 while tasks wait and no worker serves the model",
        lambda it: it.unserved, max),
    StoreGauge("fairlane_model_paused", MODEL, "1 while an operator has paused the model", lambda it: it.paused, max),
    StoreGauge(
        "fairlane_model_cooldown_seconds", MODEL_AT, "Remaining cooldown after a provider's 429",
        lambda it: _left_s(it[0].cooldown_until, it[1]), max),
    StoreGauge(
        "fairlane_model_throttle_seconds", MODEL_AT, "Remaining time until the model's throttle lets a task start",
        lambda it: _left_s(it[0].next_start_at, it[1]), max),
    StoreGauge(
        "fairlane_breaker_state", UPSTREAM,
        "Circuit breaker of an upstream: 0 closed, 1 half-open, 2 open",
        lambda it: _BREAKERS.index(it.breaker), max),
    StoreGauge(
        "fairlane_workers", Scope(("status",), _workers), "Connected workers, of all replicas: ready, unhealthy or draining",
        float),
    StoreGauge("fairlane_pool_tasks_waiting", POOL, "Waiting tasks of a pool, by its number", lambda it: it.waiting),
    StoreGauge("fairlane_pool_tasks_running", POOL, "Running tasks of a pool", lambda it: it.running),
    StoreGauge(
        "fairlane_pool_redis_cpu_seconds", POOL, "CPU time of a pool's Redis since its start: use rate()", lambda it: it.cpu_s),
    StoreGauge("fairlane_redis_memory_bytes", STORE, "Memory in use by Redis", lambda it: it.memory and it.memory.used),
    StoreGauge(
        "fairlane_redis_memory_max_bytes", STORE, "Memory limit of Redis (maxmemory); 0: none",
        lambda it: it.memory and it.memory.most),
    StoreGauge(
        "fairlane_retained_bytes", STORE, "Bytes of stored results and event logs of ended tasks",
        lambda it: it.retained_bytes),
    StoreGauge(
        "fairlane_outbox_entries", STORE, "Records of any kind that wait in Redis for the SQL database",
        lambda it: it.outbox),
    StoreGauge(
        "fairlane_outbox_oldest_seconds", STORE, "Age of the oldest record that waits",
        lambda it: it.outbox_age_ms / 1000),
    StoreGauge("fairlane_archive_entries", STORE, "Ended tasks that wait in Redis for the archive", lambda it: it.archive),
    StoreGauge(
        "fairlane_archive_oldest_seconds", STORE, "Age of the oldest task that waits for the archive",
        lambda it: it.archive_age_ms / 1000),
    StoreGauge(
        "fairlane_replica_info", Scope(("replica", "host", "pid", "version"), _replicas),
        "1 for each live gateway process", float, max),
    StoreGauge(
        "fairlane_replicas_overruled", STORE,
        "Gateway processes whose queues and models are overridden by a newer configuration", _overruled),
    StoreGauge(
        "fairlane_replicas", STORE, "Live gateway processes of all replicas",
        lambda it: len(it.replicas)),
    StoreGauge(
        "fairlane_queued_bytes", STORE, "Request bodies of tasks that can still be granted",
        lambda it: it.queued_bytes),
)
# fmt: on


def rows_of(survey: StoreSnapshot, label: Label) -> Rows:
    """Return the values by gauge and labels."""
    rows: Rows = {}
    for gauge in STORE_GAUGES:
        known = rows[gauge.name] = {}
        for labels, thing in gauge.scope.things(survey, label):
            value = gauge.value(thing)
            if value is not None:
                known[labels] = gauge.join(known[labels], value) if labels in known else float(value)
    return rows
