"""Metrics as text for Prometheus, or as OpenMetrics if the scraper asks for it.

The only place that imports prometheus_client (a megabyte, 20 ms), when metrics are first asked for; it runs in a thread.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fairlane import __version__
from fairlane.gateway.metrics.gauges import PROCESS_GAUGES, STORE_GAUGES, Gauge, Label, Labels, Rows, rows_of
from fairlane.gateway.metrics.siblings import Snapshot
from fairlane.queues.inspect.inspector import StoreSnapshot
from fairlane.queues.metrics import METRICS, Metric

PROCESS = "process"
"""The label of a process of one gateway: a number from 0."""

PROVIDER = ("gen_ai_provider_name", "fairlane")
"""OpenTelemetry requires it; only workers know their provider."""


FLAGS = (
    ("fairlane_survey_success", "1 if Redis returned the other shared metrics"),
    ("fairlane_database_survey_success", "1 if the database returned its metrics"),
)
"""Whether the metrics of Redis and of the database are there."""


class _Families(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


def expose(
    snapshots: Sequence[Snapshot],
    survey: StoreSnapshot | None,
    label: Label,
    database_gauges: Sequence[Gauge],
    of_database: Rows | None,
    accept: str,
) -> tuple[bytes, str]:
    """Return body and content type for a scraper that sent `accept`. `survey`, `of_database`: None while they are unavailable."""
    redis = {} if survey is None else rows_of(survey, label)
    families = [
        *(
            _family(HistogramMetricFamily if one.bounds else CounterMetricFamily, one, snapshots, one.bounds)
            for one in METRICS
        ),
        *(_family(GaugeMetricFamily, gauge, snapshots) for gauge in PROCESS_GAUGES),
        *_processes(snapshots),
        *(
            _gauge(name, (), text, {(): float(found is not None)})
            for (name, text), found in zip(FLAGS, (survey, of_database), strict=True)
        ),
        *(
            _gauge(one.name, one.labels, one.help, rows.get(one.name, {}))
            for table, rows in ((STORE_GAUGES, redis), (database_gauges, of_database or {}))
            for one in table
            if rows
        ),
        _gauge("fairlane_build_info", ("version",), "1; the version of this gateway", {(__version__,): 1}),
    ]
    encode, content_type = choose_encoder(accept)
    return encode(_Families(families)), content_type


def _family(
    kind: Any, metric: Metric | Gauge, snapshots: Iterable[Snapshot], bounds: Iterable[float] = ()
) -> Any:
    """Return a metric of all processes."""
    constant, names = ((PROVIDER[1],), (PROVIDER[0],)) if metric.name.startswith("gen_ai_") else ((), ())
    family: Any = kind(metric.name, metric.help, labels=(*names, *metric.labels, PROCESS))
    buckets = [*(f"{bound:.12g}" for bound in bounds), "+Inf"]
    for snapshot in snapshots:
        for labels, row in snapshot.values.get(metric.name, ()):
            key = (*constant, *labels, str(snapshot.process))
            if isinstance(row, list):
                family.add_metric(key, list(zip(buckets, accumulate(row[:-1]), strict=True)), row[-1])
            else:
                family.add_metric(key, row)
    return family


def _processes(snapshots: Iterable[Snapshot]) -> Iterator[Family]:
    """Yield memory, processor time and files of each process, under the usual names of Prometheus's clients."""
    families: dict[str, Any] = {}
    for snapshot in snapshots:
        for found in ProcessCollector(registry=None, pid=partial(int, snapshot.pid)).collect():
            kind = CounterMetricFamily if found.type == "counter" else GaugeMetricFamily
            family = families.setdefault(found.name, kind(found.name, found.documentation, labels=(PROCESS,)))
            for sample in found.samples:
                family.add_metric((str(snapshot.process),), sample.value)
    yield from families.values()


def _gauge(name: str, labels: Labels, text: str, rows: Mapping[Labels, float]) -> Family:
    gauge = GaugeMetricFamily(name, text, labels=labels)
    for key, value in rows.items():
        gauge.add_metric(key, value)
    return gauge
