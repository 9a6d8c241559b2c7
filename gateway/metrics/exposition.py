"""Snapshots and a survey as Prometheus reads them: text, or OpenMetrics where the scraper asks for it.

The only place that imports prometheus_client (a megabyte, 20 ms), when metrics are first asked for; it runs in a thread.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from fairlane import __version__
from fairlane.gateway.metrics.database_gauges import DATABASE_GAUGES
from fairlane.gateway.metrics.snapshot import GAUGES, OUTPUT_LIMIT, TASK_SILENCE, Labels, Snapshot
from fairlane.gateway.metrics.store_gauges import STORE_GAUGES, Rows, StoreGauge, rows_of
from fairlane.queues.metrics import Counter, Histogram, Recorder
from fairlane.queues.survey.survey import Survey

PROCESS = "process"
"""The label that tells the processes of one gateway apart: a number from 0."""

PROVIDER = ("gen_ai_provider_name", "fairlane")
"""OpenTelemetry asks for it; what stands behind the workers is theirs to say."""


def expose(
    snapshots: Sequence[Snapshot],
    survey: Survey | None,
    label: Callable[[str], str],
    of_database: Rows | None,
    accept: str,
) -> tuple[bytes, str]:
    """(body, content type) for a scraper that sent `accept`. `label` bounds the names of models.
    `of_database`: what that says."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Everything(snapshots, survey, label, of_database))
    return encode(registry), content_type


class _Everything(Collector):
    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        survey: Survey | None,
        label: Callable[[str], str],
        of_database: Rows | None,
    ) -> None:
        self._snapshots = snapshots
        self._survey = survey
        self._label = label
        self._of_database = of_database

    def collect(self) -> Iterator[Metric]:
        for series in Recorder().series:
            yield _family(series, self._snapshots)
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
            "1 when the database told what it is asked for",
            self._of_database is not None,
        )
        if self._of_database is not None:
            yield from _gauges(DATABASE_GAUGES, self._of_database)
        info = GaugeMetricFamily("fairlane_build_info", "1; the version of this gateway", labels=("version",))
        info.add_metric((__version__,), 1)
        yield info

    def _by_process(self, gauge: StoreGauge, values: Callable[[Snapshot], dict[Labels, float]]) -> Metric:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=(*gauge.labels, PROCESS))
        for snapshot in self._snapshots:
            for key, value in values(snapshot).items():
                family.add_metric((*key, str(snapshot.process)), value)
        return family


def _family(series: Counter | Histogram, snapshots: Iterable[Snapshot]) -> Metric:
    constant, names = ((PROVIDER[1],), (PROVIDER[0],)) if series.name.startswith("gen_ai_") else ((), ())
    labels = (*names, *series.labels, PROCESS)
    if isinstance(series, Counter):
        counter = CounterMetricFamily(series.name, series.help, labels=labels)
        for key, (value,) in _samples(series.name, snapshots):
            counter.add_metric((*constant, *key), value)
        return counter
    histogram = HistogramMetricFamily(series.name, series.help, labels=labels)
    bounds = [*(f"{bound:.12g}" for bound in series.bounds), "+Inf"]
    for key, row in _samples(series.name, snapshots):
        count, buckets = 0.0, []
        for bound, number in zip(bounds, row[:-1], strict=True):
            count += number
            buckets.append((bound, count))
        histogram.add_metric((*constant, *key), buckets, row[-1])
    return histogram


def _samples(name: str, snapshots: Iterable[Snapshot]) -> Iterator[tuple[tuple[str, ...], list[float]]]:
    for snapshot in snapshots:
        for key, numbers in snapshot.series.get(name, ()):
            yield (*key, str(snapshot.process)), numbers


def _processes(snapshots: Iterable[Snapshot]) -> Iterator[Metric]:
    """Memory, processor time and files of each process, by the names that all of Prometheus's clients use."""
    families: dict[str, Any] = {}
    for snapshot in snapshots:
        for found in ProcessCollector(registry=None, pid=partial(int, snapshot.pid)).collect():
            kind = CounterMetricFamily if found.type == "counter" else GaugeMetricFamily
            family = families.setdefault(found.name, kind(found.name, found.documentation, labels=(PROCESS,)))
            for sample in found.samples:
                family.add_metric((str(snapshot.process),), sample.value)
    yield from families.values()


def _shared(survey: Survey | None, label: Callable[[str], str]) -> Iterator[Metric]:
    yield _flag(
        "fairlane_survey_success", "1 when Redis told what the other shared metrics say", survey is not None
    )
    if survey is not None:
        yield from _gauges(STORE_GAUGES, rows_of(survey, label))


def _flag(name: str, help_text: str, holds: bool) -> Metric:
    gauge = GaugeMetricFamily(name, help_text)
    gauge.add_metric((), float(holds))
    return gauge


def _gauges(metrics: Iterable[StoreGauge], rows: Rows) -> Iterator[Metric]:
    for metric in metrics:
        gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        for key, value in rows.get(metric.name, {}).items():
            gauge.add_metric(key, value)
        yield gauge
