"""Values from Redis as gauges. Every replica reports the same: query them with `max`, not with `sum`."""

from collections.abc import Callable
from dataclasses import dataclass

from fairlane.queues.inspect.inspector import StoreSnapshot
from fairlane.queues.inspect.upstreams import BreakerState
from fairlane.queues.metrics import OTHER

Rows = dict[str, dict[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class StoreGauge:
    """One gauge. `joins` combines the values of models that share a label."""

    name: str
    labels: tuple[str, ...]
    help: str
    joins: Callable[[float, float], float] = lambda one, other: one + other


MAX_UPSTREAMS = 100
"""Limit of upstreams with a series of their own: workers choose the names."""
_STATES = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)
_LANE, _MODEL, _QUEUE = ("queue", "model"), ("model",), ("queue",)

STORE_GAUGES = (
    StoreGauge("fairlane_tasks_waiting", _LANE, "Tasks that wait"),
    StoreGauge("fairlane_tasks_running", _LANE, "Tasks that hold a slot"),
    StoreGauge("fairlane_users_waiting", _LANE, "Users in line"),
    StoreGauge("fairlane_users_parked", _LANE, "Users who wait because they run as many tasks as they may"),
    StoreGauge("fairlane_oldest_wait_seconds", _LANE, "How long the oldest waiting task has waited", max),
    StoreGauge(
        "fairlane_charged_cost",
        _LANE,
        "Cost charged: tokens (input + 2 x output), requests or slot seconds. Falls with refunds: use delta()",
    ),
    StoreGauge(
        "fairlane_queue_service_share", _QUEUE, "Share of the cost charged over the last minutes, 0 to 1"
    ),
    StoreGauge("fairlane_queue_weight", _QUEUE, "Weight of the queue"),
    StoreGauge("fairlane_queue_paused", _QUEUE, "1 while an operator has paused the queue"),
    StoreGauge("fairlane_model_slots_used", _MODEL, "Slots taken, also by tasks that are being stopped"),
    StoreGauge("fairlane_model_slots_limit", _MODEL, "Concurrency limit, where one is set"),
    StoreGauge("fairlane_model_worker_slots", _MODEL, "Slots of the connected workers that serve the model"),
    StoreGauge("fairlane_model_workers", _MODEL, "Connected workers that serve the model"),
    StoreGauge(
        "fairlane_model_unserved", _MODEL, "1 while tasks wait for the model, which no worker serves", max
    ),
    StoreGauge("fairlane_model_paused", _MODEL, "1 while an operator has paused the model", max),
    StoreGauge("fairlane_model_cooldown_seconds", _MODEL, "Remaining cooldown after a provider's 429", max),
    StoreGauge(
        "fairlane_model_throttle_seconds",
        _MODEL,
        "Remaining time until the model's throttle lets a task start",
        max,
    ),
    StoreGauge(
        "fairlane_breaker_state",
        ("model", "upstream"),
        "Whether something of a model starts through an upstream: 0 closed, 1 half-open, 2 open",
        max,
    ),
    StoreGauge(
        "fairlane_workers", ("status",), "Connected workers, of all replicas: ready, unhealthy or draining"
    ),
    StoreGauge("fairlane_redis_memory_bytes", (), "Memory that Redis takes"),
    StoreGauge("fairlane_redis_memory_max_bytes", (), "Memory that Redis may take; 0: no limit is set"),
    StoreGauge(
        "fairlane_retained_bytes", (), "Bytes of the results and event logs that are kept of ended tasks"
    ),
    StoreGauge("fairlane_outbox_entries", (), "Records of any kind that wait in Redis for the SQL database"),
    StoreGauge("fairlane_outbox_oldest_seconds", (), "How long the oldest of them has waited"),
    StoreGauge("fairlane_archive_entries", (), "Ended tasks that wait in Redis for the archive"),
    StoreGauge("fairlane_archive_oldest_seconds", (), "How long the first of them has waited"),
    StoreGauge(
        "fairlane_replica_info",
        ("replica", "host", "pid", "version"),
        "1; where each live gateway process runs",
        max,
    ),
    StoreGauge(
        "fairlane_replicas_overruled",
        (),
        "Gateway processes with a configuration of queues and models that is not in effect: another one is newer",
    ),
    StoreGauge("fairlane_replicas", (), "Gateway processes of all replicas that have reported recently"),
    StoreGauge(
        "fairlane_queued_bytes",
        (),
        "Bytes of the bodies of tasks that may still have to be given to a worker",
    ),
)


def rows_of(survey: StoreSnapshot, label: Callable[[str], str]) -> Rows:
    """Return the values by metric and labels. `label` bounds the names of models; models that share one are joined."""
    rows: Rows = {metric.name: {} for metric in STORE_GAUGES}
    joins = {metric.name: metric.joins for metric in STORE_GAUGES}

    def put(name: str, key: tuple[str, ...], value: float | None) -> None:
        if value is not None:
            known = rows[name].get(key)
            rows[name][key] = value if known is None else joins[name](known, value)

    for lane in survey.lanes:
        key = (lane.queue, label(lane.model))
        put("fairlane_tasks_waiting", key, lane.waiting)
        put("fairlane_tasks_running", key, lane.running)
        put("fairlane_users_waiting", key, lane.users)
        put("fairlane_users_parked", key, lane.parked)
        put("fairlane_oldest_wait_seconds", key, (lane.oldest_wait_ms or 0) / 1000)
        put("fairlane_charged_cost", key, lane.charged)
    for queue in survey.queues:
        name = (queue.queue,)
        put("fairlane_queue_service_share", name, queue.share)
        put("fairlane_queue_weight", name, float(queue.settings.values.get("weight") or 1))
        put("fairlane_queue_paused", name, float(queue.paused))
    upstreams = _named_upstreams(survey)
    for model in survey.models:
        name = (label(model.model),)
        put("fairlane_model_slots_used", name, model.running)
        put("fairlane_model_slots_limit", name, model.limit)
        put("fairlane_model_worker_slots", name, model.slots)
        put("fairlane_model_workers", name, model.workers)
        put("fairlane_model_unserved", name, float(model.unserved))
        put("fairlane_model_paused", name, float(model.paused))
        put("fairlane_model_cooldown_seconds", name, _left(model.held_until_ms, survey.now_ms))
        put("fairlane_model_throttle_seconds", name, _left(model.next_start_ms, survey.now_ms))
        for upstream in model.upstreams:
            shown = upstream.upstream if upstream.upstream in upstreams else OTHER
            put("fairlane_breaker_state", (*name, shown), _STATES.index(upstream.state))
    states = [
        "draining" if worker.get("draining") else "unhealthy" if worker.get("unhealthy") else "ready"
        for worker in survey.workers
    ]
    for state in ("ready", "unhealthy", "draining"):
        put("fairlane_workers", (state,), states.count(state))
    put("fairlane_replicas", (), len(survey.replicas))
    for replica, where in survey.hosts.items():
        put("fairlane_replica_info", (replica, where.host, str(where.pid), where.version), 1)
    if survey.memory is not None:
        put("fairlane_redis_memory_bytes", (), survey.memory.used)
        put("fairlane_redis_memory_max_bytes", (), survey.memory.most)
    put("fairlane_queued_bytes", (), survey.queued_bytes)
    put("fairlane_retained_bytes", (), survey.retained_bytes)
    put("fairlane_outbox_entries", (), survey.outbox)
    put("fairlane_outbox_oldest_seconds", (), survey.outbox_age_ms / 1000)
    put("fairlane_archive_entries", (), survey.archive)
    put("fairlane_archive_oldest_seconds", (), survey.archive_age_ms / 1000)
    newest = survey.configuration.hash if survey.configuration else ""
    put("fairlane_replicas_overruled", (), sum(own.hash != newest for own in survey.configurations.values()))
    return rows


def _named_upstreams(survey: StoreSnapshot) -> set[str]:
    """Return the upstreams that keep their names: first those with breakers that are not closed, then by name."""
    well = {one.upstream: True for model in survey.models for one in model.upstreams}
    for model in survey.models:
        for one in model.upstreams:
            well[one.upstream] &= one.state is BreakerState.CLOSED
    return set(sorted(well, key=lambda name: (well[name], name))[:MAX_UPSTREAMS])


def _left(until_ms: int | None, now_ms: int) -> float:
    return max(until_ms - now_ms, 0) / 1000 if until_ms else 0.0
