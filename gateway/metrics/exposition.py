"""Metrics as text for Prometheus, or as OpenMetrics if the scraper asks for it.

The only place that imports prometheus_client (a megabyte, 20 ms), when metrics are first asked for; it runs in a thread.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fairlane import __version__
from fairlane.gateway.metrics.database_gauges import DATABASE_GAUGES
from fairlane.gateway.metrics.snapshot import GAUGES, OUTPUT_LIMIT, TASK_SILENCE, Labels, Snapshot
from fairlane.gateway.metrics.store_gauges import STORE_GAUGES, Rows, StoreGauge, rows_of
from fairlane.queues.inspect.inspector import StoreSnapshot
from fairlane.queues.metrics import METRICS, Metric

PROCESS = "process"
"""The label of a process of one gateway: a number from 0."""

PROVIDER = ("gen_ai_provider_name", "fairlane")
"""OpenTelemetry requires it; only workers know their provider."""


def expose(
    snapshots: Sequence[Snapshot],
    survey: StoreSnapshot | None,
    label: Callable[[str], str],
    of_database: Rows | None,
    accept: str,
) -> tuple[bytes, str]:
    """Return body and content type for a scraper that sent `accept`. `label` bounds the names of models; `of_database`: its
    values, None while it is unavailable."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Everything(snapshots, survey, label, of_database))
    return encode(registry), content_type


@dataclass(eq=False)
class _Everything(Collector):
    _snapshots: Sequence[Snapshot]
    _survey: StoreSnapshot | None
    _label: Callable[[str], str]
    _of_database: Rows | None

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield _family(metric, self._snapshots)
        for name, help_text in GAUGES.items():
            gauge = GaugeMetricFamily(name, help_text, labels=(PROCESS,))
            for snapshot in self._snapshots:
                gauge.add_metric((str(snapshot.process),), snapshot.gauges[name])
            yield gauge
        yield self._by_process(OUTPUT_LIMIT, lambda snapshot: snapshot.limits)
        yield self._by_process(TASK_SILENCE, lambda snapshot: snapshot.silences)
        yield from _processes(self._snapshots)
        yield from _shared(self._survey, self._label)
        yield _flag(
            "fairlane_database_survey_success",
            "1 when the database answered the queries of the other metrics",
            self._of_database is not None,
        )
        if self._of_database is not None:
            yield from _gauges(DATABASE_GAUGES, self._of_database)
        info = GaugeMetricFamily("fairlane_build_info", "1; the version of this gateway", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info

    def _by_process(self, gauge: StoreGauge, values: Callable[[Snapshot], dict[Labels, float]]) -> Family:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=(*gauge.labels, PROCESS))
        for snapshot in self._snapshots:
            for key, value in values(snapshot).items():
                family.add_metric((*key, str(snapshot.process)), value)
        return family


def _family(metric: Metric, snapshots: Iterable[Snapshot]) -> Any:
    constant, names = ((PROVIDER[1],), (PROVIDER[0],)) if metric.name.startswith("gen_ai_") else ((), ())
    kind = HistogramMetricFamily if metric.bounds else CounterMetricFamily
    family: Any = kind(metric.name, metric.help, labels=(*names, *metric.labels, PROCESS))
    bounds = [*(f"{bound:.12g}" for bound in metric.bounds), "+Inf"]
    for snapshot in snapshots:
        for labels, row in snapshot.values.get(metric.name, ()):
            key = (*constant, *labels, str(snapshot.process))
            if isinstance(row, list):
                family.add_metric(key, list(zip(bounds, accumulate(row[:-1]), strict=True)), row[-1])
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


def _shared(survey: StoreSnapshot | None, label: Callable[[str], str]) -> Iterator[Family]:
    yield _flag(
        "fairlane_survey_success",
        "1 when Redis returned what the other shared metrics show",
        survey is not None,
    )
    if survey is not None:
        yield from _gauges(STORE_GAUGES, rows_of(survey, label))


def _flag(name: str, help_text: str, holds: bool) -> Family:
    gauge = GaugeMetricFamily(name, help_text)
    gauge.add_metric((), float(holds))
    return gauge


def _gauges(metrics: Iterable[StoreGauge], rows: Rows) -> Iterator[Family]:
    for metric in metrics:
        gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for key, value in rows.get(metric.name, {}).items():
            gauge.add_metric(key, value)
        yield gauge
