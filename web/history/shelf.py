"""Buckets of one width, of all replicas added up, and what is told of them. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from fairlane.queues.failures import category_of
from fairlane.queues.metrics import OTHER
from fairlane.web.history.buckets import Bucket, Kind, Series

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_COLUMNS = {
    "accepted": "accepted",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "refused": "refused",
    "waiting": "waiting",
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
}
_WORKERS = {"completed", "failed", "inputTokens", "outputTokens"}
"""What is known of a worker: it accepts nothing, has no queue, and is told when somebody else cancels."""
_KINDS: tuple[Kind, ...] = ("model", "queue", "worker")
_DURATIONS = {"waitMs": "wait", "firstOutputMs": "first", "totalMs": "total"}
MOST_SHOWN = 500
"""Models, queues or workers of a shelf that have a name; the others together are OTHER. Workers make names up."""


class Shelf:
    """Buckets that began at multiples of `step`."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._buckets: dict[int, Bucket] = {}
        self._told: dict[int, set[str]] = {}
        self._quantiles: dict[int, list[list[float | None]]] = {}
        self._seen: dict[Kind, dict[str, int]] = {kind: {} for kind in _KINDS}
        """Each name, and the latest bucket that it is in."""

    def add(self, source: str, at: int, bucket: Bucket) -> None:
        """Add what a source counted in the bucket that began at `at`, once."""
        at -= at % self.step
        told = self._told.setdefault(at, set())
        if source in told:
            return
        told.add(source)
        whole = self._buckets.setdefault(at, Bucket())
        whole.merge(bucket, MOST_SHOWN)
        self._limit_names(at, whole)
        self._quantiles.pop(at, None)

    def put(self, at: int, parts: Iterable[Bucket]) -> None:
        """Replace the bucket that began at `at` by the sum of these."""
        whole = Bucket()
        for part in parts:
            whole.merge(part, MOST_SHOWN)
        self._limit_names(at, whole)
        self._buckets[at] = whole
        self._quantiles[at] = _quantiles(whole)

    def forget_before(self, oldest: int) -> None:
        """Drop the buckets that began earlier."""
        for at in [at for at in self._buckets if at < oldest]:
            del self._buckets[at]
            self._told.pop(at, None)
            self._quantiles.pop(at, None)
        for seen in self._seen.values():
            for name in [name for name, at in seen.items() if at < oldest]:
                del seen[name]

    def _limit_names(self, at: int, bucket: Bucket) -> None:
        """Leave the names of a bucket of this shelf that are known, or for which there is room."""
        for kind in _KINDS:
            named, seen = bucket.of(kind), self._seen[kind]
            for name in list(named):
                if name in seen or len(seen) < MOST_SHOWN:
                    seen[name] = max(seen.get(name, 0), at)
                elif name != OTHER:
                    named.setdefault(OTHER, Series()).merge(named.pop(name))

    def draw(self, times: Sequence[int], kind: Kind | None = None, name: str = "") -> dict[str, Any]:
        """The buckets that began then in columns, one value per bucket, and all of them together (`total`): of everything, or of
        what has this name. What is not known of it is null."""
        buckets = [self._buckets.get(at, _NOTHING) for at in times]
        if kind is None:
            rows = [bucket.whole() for bucket in buckets]
        else:
            rows = [bucket.of(kind).get(name, _NONE) for bucket in buckets]
        known = _WORKERS if kind == "worker" else _COLUMNS.keys()
        together = Series()
        for row in rows:
            together.merge(row)

        def tell(column: str, of: Any) -> Any:
            return of(_COLUMNS[column]) if column in known else None

        total = {column: tell(column, lambda field: getattr(together, field)) for column in _COLUMNS}
        del total["waiting"]
        durations: dict[str, Any] = dict.fromkeys(_DURATIONS)
        more: dict[str, Any] = dict.fromkeys((*_DURATIONS, "failures", "refusals"))
        if kind is None:
            spans = [self._quantiles_of(at) for at in times]
            durations = {
                told: {quantile: [span[i][j] for span in spans] for j, quantile in enumerate(QUANTILES)}
                for i, told in enumerate(_DURATIONS)
            }
            whole = Bucket()
            for bucket in buckets:
                whole.merge_sums(bucket)
            more = {
                told: dict(zip(QUANTILES, values, strict=True))
                for told, values in zip(_DURATIONS, _quantiles(whole), strict=True)
            } | {"failures": _failures(whole.failures), "refusals": _ranked(whole.refusals)}
        return {
            "bucketMs": self.step,
            "at": list(times),
            **{
                column: tell(column, lambda field: [getattr(row, field) for row in rows])
                for column in _COLUMNS
            },
            **durations,
            "total": {**total, **more},
            "names": {
                f"{one}s": sorted({name for bucket in buckets for name in bucket.of(one)}) for one in _KINDS
            },
        }

    def by_model(self, times: Iterable[int]) -> dict[str, Any]:
        """What each model did in the buckets that began then: the last minute."""
        minute = Bucket()
        for at in times:
            for name, series in self._buckets.get(at, _NOTHING).models.items():
                minute.models.setdefault(name, Series()).merge(series)
        return {
            model: {
                "acceptedLastMinute": series.accepted,
                "endedLastMinute": series.ended,
                "cancelledLastMinute": series.cancelled,
                "outputTokensLastMinute": series.output_tokens,
            }
            for model, series in sorted(minute.models.items())
            if series.accepted or series.ended
        }

    def tokens_by_user(self, since: int) -> dict[str, int]:
        """Of the buckets that began then or later."""
        whole: dict[str, int] = {}
        for at, bucket in self._buckets.items():
            if at >= since:
                for user, tokens in bucket.users.items():
                    whole[user] = whole.get(user, 0) + tokens
        whole.pop(OTHER, None)
        return whole

    def _quantiles_of(self, at: int) -> list[list[float | None]]:
        """The quantiles of a bucket, which seldom changes once it is over."""
        bucket = self._buckets.get(at)
        if bucket is None:
            return _NO_QUANTILES
        if at not in self._quantiles:
            self._quantiles[at] = _quantiles(bucket)
        return self._quantiles[at]


_NOTHING = Bucket()
_NONE = Series()


def _quantiles(bucket: Bucket) -> list[list[float | None]]:
    return [getattr(bucket, name).quantiles(list(QUANTILES.values())) for name in _DURATIONS.values()]


_NO_QUANTILES = _quantiles(_NOTHING)


def _ranked(counts: dict[str, int]) -> list[dict[str, Any]]:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"code": code, "count": number} for code, number in ranked]


def _failures(counts: dict[str, int]) -> list[dict[str, Any]]:
    """The same of failure codes, with their categories."""
    return [
        {**row, "category": "" if row["code"] == OTHER else category_of(row["code"])}
        for row in _ranked(counts)
    ]
