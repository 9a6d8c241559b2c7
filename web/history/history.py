"""What happened in the last hour on all replicas: accepted, rejected and ended tasks, and how long they took.

Each replica counts what it sees (`HistoryRecorder`) and writes it every ten seconds as one entry of a Redis stream that holds an
hour. A reader adds up the entries of all replicas. For longer periods there is Prometheus.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.failures import category_of
from fairlane.queues.keys import Keys
from fairlane.queues.loops import Periodic
from fairlane.queues.metrics import OTHER
from fairlane.queues.store.link import RedisLink
from fairlane.web.history.buckets import Bucket, ModelCounts
from fairlane.web.history.recorder import HistoryRecorder

BUCKET_MS = 10_000
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
USERS_MS = 600_000
"""The period for which users' tokens are reported."""
EXPIRE_MS = 2 * HOUR_MS
"""How long Redis keeps a history to which no replica adds."""
LATE_MS = 1000
"""How long after its end a bucket is shown: until then every replica has written its part."""
PAGE = 100
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
DURATIONS = {"waitMs": "wait", "firstOutputMs": "first", "totalMs": "total"}
COUNTS = ("accepted", "completed", "failed", "cancelled", "rejected")


class History(Periodic):
    """Writes this replica's buckets, and reads those of all. `start` begins the writing, `close` ends it with the last part."""

    name = "history"
    interval_s = BUCKET_MS / 1000
    expected = (StoreError,)

    def __init__(
        self, link: RedisLink, keys: Keys, recorder: HistoryRecorder, waiting: Callable[[], Awaitable[int]]
    ) -> None:
        """`waiting`: how many tasks wait on all replicas now; raises StoreError."""
        self._link = link
        self._keys = keys
        self._recorder = recorder
        self._count_waiting = waiting
        self._waiting = 0
        self._unsent = Bucket()
        self._hour = Hour()
        self._read_to = "0-0"
        self._lock = asyncio.Lock()
        self._answer = b""
        self._answer_end = 0

    def start(self) -> None:
        """Start writing a bucket every ten seconds."""
        self.delay_s = _rest_s()
        super().start()

    async def close(self) -> None:
        """Write the last bucket, if Redis accepts it immediately, and stop."""
        if self._task is not None:
            await super().close()
            await self.write(now_ms() // BUCKET_MS * BUCKET_MS)

    async def step(self) -> float:
        """Write a bucket. Return the time until the next one is over."""
        begun = now_ms() // BUCKET_MS * BUCKET_MS - BUCKET_MS
        self._waiting = await self._count_waiting()  # while Redis is unavailable, the number stays
        await self.write(begun)
        return _rest_s()

    async def write(self, at: int) -> None:
        """Write what was counted, as the bucket that began at `at`. If Redis accepts no writes, the next bucket includes it."""
        self._unsent.merge(self._recorder.take())
        self._unsent.waiting = self._waiting
        if self._unsent.empty:
            return
        with contextlib.suppress(StoreError):
            await self._link.command(
                *("XADD", self._keys("history"), "MINID", "~", at - HOUR_MS, "*"),
                *("at", at, "bucket", msgspec.json.encode(self._unsent)),
            )
            self._unsent = Bucket()
            await self._link.command("PEXPIRE", self._keys("history"), EXPIRE_MS)

    # ---- reading ----------

    async def read(self) -> bytes:
        """Return the answer of GET /api/admin/timeseries as JSON, made once per bucket. Raise StoreError."""
        async with self._lock:
            now = now_ms()
            end = (now - LATE_MS) // BUCKET_MS * BUCKET_MS
            if end != self._answer_end:
                await self._catch_up(end - HOUR_MS)
                self._answer = msgspec.json.encode({"now": now, "until": end, **self._hour.draw(end)})
                self._answer_end = end
            return self._answer

    async def tokens_by_user(self) -> dict[str, int]:
        """Return the tokens of input and output of tasks that ended in the last USERS_MS. Raise StoreError."""
        async with self._lock:
            now = now_ms()
            await self._catch_up(now - HOUR_MS - BUCKET_MS)
            return self._hour.tokens_by_user(now - USERS_MS)

    async def _catch_up(self, oldest: int) -> None:
        """Add up what all replicas wrote since the last time."""
        while True:
            page = await self._link.command(
                "XRANGE", self._keys("history"), f"({self._read_to}", "+", "COUNT", PAGE
            )
            for entry_id, fields in page:
                self._read_to = entry_id.decode()
                self._hour.add(int(fields[1]), msgspec.json.decode(fields[3], type=Bucket))
            if len(page) < PAGE:
                break
            await asyncio.sleep(0)
        self._hour.forget_before(oldest)


class Hour:
    """The buckets of all replicas, added up. Pure."""

    def __init__(self) -> None:
        self._buckets: dict[int, Bucket] = {}

    def add(self, at: int, bucket: Bucket) -> None:
        """Add what a replica counted in the bucket that began at `at`."""
        self._buckets.setdefault(at - at % BUCKET_MS, Bucket()).merge(bucket)

    def forget_before(self, oldest: int) -> None:
        """Drop the buckets that began earlier."""
        self._buckets = {at: bucket for at, bucket in self._buckets.items() if at >= oldest}

    def draw(self, end: int) -> dict[str, Any]:
        """Return the hour before `end` in columns, one value per bucket, and as a whole (`total`)."""
        times = range(end - HOUR_MS, end, BUCKET_MS)
        buckets = [self._buckets.get(at, _NOTHING) for at in times]
        whole = Bucket()
        for bucket in buckets:
            whole.merge(bucket)
        spans = [_NO_QUANTILES if bucket is _NOTHING else _quantiles(bucket) for bucket in buckets]
        return {
            "bucketMs": BUCKET_MS,
            "at": list(times),
            **{name: [getattr(bucket, name) for bucket in buckets] for name in (*COUNTS, "waiting")},
            **{
                name: {quantile: [span[i][j] for span in spans] for j, quantile in enumerate(QUANTILES)}
                for i, name in enumerate(DURATIONS)
            },
            "total": {
                **{name: getattr(whole, name) for name in COUNTS},
                **{
                    name: dict(zip(QUANTILES, values, strict=True))
                    for name, values in zip(DURATIONS, _quantiles(whole), strict=True)
                },
                "failures": _failures(whole.failures),
                "rejections": _ranked(whole.rejections),
            },
            "models": self._last_minute(end),
        }

    def _last_minute(self, end: int) -> dict[str, Any]:
        minute: dict[str, ModelCounts] = {}
        for at in range(end - MINUTE_MS, end, BUCKET_MS):
            for name, counts in self._buckets.get(at, _NOTHING).models.items():
                minute.setdefault(name, ModelCounts()).merge(counts)
        return {
            model: {
                "acceptedLastMinute": counts.accepted,
                "endedLastMinute": counts.ended,
                "cancelledLastMinute": counts.cancelled,
                "outputTokensLastMinute": counts.output_tokens,
            }
            for model, counts in sorted(minute.items())
        }

    def tokens_by_user(self, since: int) -> dict[str, int]:
        """Return the tokens by user of the buckets that began at `since` or later, without those counted as OTHER."""
        whole = Counter[str]()
        for at, bucket in self._buckets.items():
            if at >= since:
                whole.update(bucket.users)
        del whole[OTHER]
        return whole


def _rest_s() -> float:
    return (BUCKET_MS - now_ms() % BUCKET_MS) / 1000


_NOTHING = Bucket()


def _quantiles(bucket: Bucket) -> list[list[float | None]]:
    return [getattr(bucket, name).quantiles(list(QUANTILES.values())) for name in DURATIONS.values()]


_NO_QUANTILES = _quantiles(_NOTHING)


def _ranked(counts: dict[str, int]) -> list[dict[str, Any]]:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"code": code, "count": number} for code, number in ranked]


def _failures(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return the same of failure codes, with their categories."""
    return [
        {**row, "category": "" if row["code"] == OTHER else category_of(row["code"])}
        for row in _ranked(counts)
    ]
