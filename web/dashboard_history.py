"""The last hour, ten seconds at a time: what was accepted, refused and ended, and how long it took; of all replicas together.

Each replica counts what it sees (`HourRecorder`, an addition or two per event) and writes what came together in ten seconds as
one entry of a Redis stream, which ends with its hour. Whoever asks reads what is new there and adds it up. So it costs the hot
path nothing that grows, survives restarts, and shows the dead replica's part too.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink
from fairlane.queues.metrics import OTHER, Recorder, TaskEnd
from fairlane.queues.survey import MOST_MODELS
from fairlane.queues.tasks import State

log = structlog.get_logger("fairlane.web")

BUCKET_MS = 10_000
SPAN_MS = 3_600_000
BUCKETS = SPAN_MS // BUCKET_MS
MINUTE_BUCKETS = 60_000 // BUCKET_MS
KEPT_MS = 2 * SPAN_MS
"""How long Redis keeps a history to which nobody adds."""
PAGE = 1000
LATE_MS = 1000
"""How long after its end a bucket is shown: until then every replica has told its part."""
MOST_CODES = 50
MOST_USERS = 100
USERS_MS = 600_000
"""Over how long users' tokens are told."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_GAMMA = 1.05
_LOG_GAMMA = math.log(_GAMMA)


class Sketch(msgspec.Struct, array_like=True):
    """How many durations were about so long: quantiles within 2.5 %, and sketches of several replicas can be added.

    Duration d (ms, at least 1) counts in bin ceil(log d / log 1.05), which stands for the middle of what falls in it. (Masson,
    Rim, Lee: DDSketch, VLDB 2019.)
    """

    bins: dict[int, int] = {}

    def add(self, ms: float) -> None:
        number = math.ceil(math.log(ms) / _LOG_GAMMA) if ms > 1 else 0
        self.bins[number] = self.bins.get(number, 0) + 1

    def merge(self, other: "Sketch") -> None:
        for number, count in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + count

    def quantiles(self, wanted: Iterable[float]) -> list[float | None]:
        """Durations (ms) that these parts of all are within; None when there are none. `wanted` in rising order."""
        total = sum(self.bins.values())
        if not total:
            return [None for _ in wanted]
        ordered = iter(sorted(self.bins.items()))
        number, seen = next(ordered)
        found: list[float | None] = []
        for part in wanted:
            while seen < part * total:
                number, count = next(ordered)
                seen += count
            found.append(1.0 if number == 0 else round(2 * _GAMMA**number / (_GAMMA + 1), 1))
        return found


class Bucket(msgspec.Struct, omit_defaults=True):
    """What happened in ten seconds."""

    accepted: int = 0
    completed: int = 0
    cancelled: int = 0
    waiting: int = 0
    """Tasks that waited when it was over, on all replicas together: each tells the same."""
    failures: dict[str, int] = {}
    refusals: dict[str, int] = {}
    arrived: dict[str, int] = {}
    """Accepted, by model; the survey shows no more of them."""
    ended: dict[str, int] = {}
    """By model."""
    tokens: dict[str, int] = {}
    """Of output, by model."""
    users: dict[str, int] = {}
    """Tokens of input and output, by user, of tasks that ended."""
    wait: Sketch = msgspec.field(default_factory=Sketch)
    first: Sketch = msgspec.field(default_factory=Sketch)
    total: Sketch = msgspec.field(default_factory=Sketch)

    @property
    def empty(self) -> bool:
        """Nothing happened."""
        return self == Bucket()

    def merge(self, other: "Bucket") -> None:
        self.accepted += other.accepted
        self.completed += other.completed
        self.cancelled += other.cancelled
        self.waiting = max(self.waiting, other.waiting)
        for counts, more, most in (
            (self.failures, other.failures, MOST_CODES),
            (self.refusals, other.refusals, MOST_CODES),
            (self.arrived, other.arrived, MOST_MODELS),
            (self.ended, other.ended, MOST_MODELS),
            (self.tokens, other.tokens, MOST_MODELS),
            (self.users, other.users, MOST_USERS),
        ):
            for name, number in more.items():
                count(counts, name, number, most=most)
        self.wait.merge(other.wait)
        self.first.merge(other.first)
        self.total.merge(other.total)


def count(counts: dict[str, int], name: str, number: int = 1, *, most: int = MOST_CODES) -> None:
    """Add to a name's number; workers make codes and models up, so only the first ones keep their names."""
    if name not in counts and len(counts) >= most:
        name = OTHER
    counts[name] = counts.get(name, 0) + number


class HourRecorder(Recorder):
    """The process's metrics, which also go into the bucket of the moment."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._bucket = Bucket()

    def take(self) -> Bucket:
        """What came together since this was called last."""
        bucket, self._bucket = self._bucket, Bucket()
        return bucket

    def accepted(self, queue: str, model: str) -> None:
        super().accepted(queue, model)
        self._bucket.accepted += 1
        count(self._bucket.arrived, model, most=MOST_MODELS)

    def refused(self, queue: str, model: str, reason: str) -> None:
        super().refused(queue, model, reason)
        count(self._bucket.refusals, reason)

    def granted(self, queue: str, model: str, waited_ms: float) -> None:
        super().granted(queue, model, waited_ms)
        self._bucket.wait.add(waited_ms)

    def began_output(self, model: str, task_type: str, since_ms: float) -> None:
        super().began_output(model, task_type, since_ms)
        self._bucket.first.add(since_ms)

    def ended(self, end: TaskEnd) -> None:
        super().ended(end)
        bucket = self._bucket
        count(bucket.ended, end.model, most=MOST_MODELS)
        if end.used[1] > 0:
            count(bucket.tokens, end.model, end.used[1], most=MOST_MODELS)
        if end.user and (used := sum(max(tokens, 0) for tokens in end.used)):
            count(bucket.users, end.user, used, most=MOST_USERS)
        if end.state is State.COMPLETED:
            bucket.completed += 1
            bucket.total.add(end.total_ms)
        elif end.state is State.FAILED:
            self.failed(end)
        else:
            bucket.cancelled += 1

    def failed(self, end: TaskEnd) -> None:
        """A task has failed."""
        count(self._bucket.failures, end.code)
        self._bucket.total.add(end.total_ms)


class History:
    """Writes this replica's buckets, and reads everybody's. `start` begins the writing, `close` ends it with the last part."""

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        replica: str,
        recorder: HourRecorder,
        waiting: Callable[[], Awaitable[int]],
    ) -> None:
        """`waiting`: how many tasks wait on all replicas now; raises StoreError."""
        self._link = link
        self._key = keys("history")
        self._replica = replica
        self._recorder = recorder
        self._count_waiting = waiting
        self._waiting = 0
        self._unsent: dict[int, Bucket] = {}
        self._task: asyncio.Task[None] | None = None
        self._hour = Hour()
        self._read_to = "0-0"
        self._lock = asyncio.Lock()
        self._answer = b""
        self._answer_end = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="history")

    async def close(self) -> None:
        """Write the last part, if Redis takes it at once, and end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._collect(_now_ms() // BUCKET_MS * BUCKET_MS)
        await self._send()

    async def _run(self) -> None:
        while True:
            now = _now_ms()
            begun = now // BUCKET_MS * BUCKET_MS
            await asyncio.sleep((begun + BUCKET_MS - now) / 1000)
            await self._look()
            self._collect(begun)
            await self._send()

    async def _look(self) -> None:
        """See how many tasks wait. While Redis is away, as many as before: none begins or ends."""
        with contextlib.suppress(StoreError):
            self._waiting = await self._count_waiting()

    def _collect(self, at: int) -> None:
        """Put aside what came together in the bucket that began at `at`."""
        bucket = self._recorder.take()
        bucket.waiting = self._waiting
        if bucket.empty:
            return
        if at in self._unsent:
            self._unsent[at].merge(bucket)
        else:
            self._unsent[at] = bucket
        while len(self._unsent) > BUCKETS:
            del self._unsent[next(iter(self._unsent))]

    async def _send(self) -> None:
        """Write what was put aside, oldest first; what Redis does not take now is kept for the next time.

        Should a reply be lost, an entry may be written twice; readers count it once.
        """
        try:
            for at, bucket in list(self._unsent.items()):
                await self._link.command(
                    *("XADD", self._key, "MINID", "~", _now_ms() - SPAN_MS - BUCKET_MS, "*"),
                    *("from", self._replica, "at", at, "bucket", msgspec.json.encode(bucket)),
                )
                del self._unsent[at]
                await self._link.command("PEXPIRE", self._key, KEPT_MS)
        except StoreError:
            pass
        except Exception:  # a history with a hole is better than none: the next bucket is written again
            log.exception("cannot write the history")
            self._unsent.clear()

    async def read(self) -> bytes:
        """The answer of GET /api/admin/history, as JSON; made anew when another bucket is over. Raises StoreError."""
        async with self._lock:
            now = _now_ms()
            end = (now - LATE_MS) // BUCKET_MS * BUCKET_MS
            if end != self._answer_end:
                await self._catch_up(end - SPAN_MS)
                self._answer = msgspec.json.encode({"now": now, **self._hour.draw(end)})
                self._answer_end = end
            return self._answer

    async def tokens_by_user(self) -> dict[str, int]:
        """Input and output of the tasks that ended in the last USERS_MS; of very many users some are counted as OTHER, which is
        left out. Raises StoreError."""
        async with self._lock:
            now = _now_ms()
            await self._catch_up(now - SPAN_MS - BUCKET_MS)
            return self._hour.tokens_by_user(now - USERS_MS)

    async def _catch_up(self, oldest: int) -> None:
        """Add up what was written since the last time, by whomever."""
        more = True
        while more:
            page = await self._link.command("XRANGE", self._key, f"({self._read_to}", "+", "COUNT", PAGE)
            for entry_id, fields in page:
                self._read_to = entry_id.decode()
                bucket = msgspec.json.decode(fields[5], type=Bucket)
                self._hour.add(fields[1].decode(), int(fields[3]), bucket)
            more = len(page) == PAGE
        for (
            at,
            bucket,
        ) in self._unsent.items():  # what Redis did not take; counted once, also when it comes later
            self._hour.add(self._replica, at, bucket)
        self._hour.forget_before(oldest)


class Hour:
    """The buckets of all replicas, added up. Pure."""

    def __init__(self) -> None:
        self._buckets: dict[int, Bucket] = {}
        self._told: dict[int, set[str]] = {}
        self._quantiles: dict[int, list[list[float | None]]] = {}

    def add(self, replica: str, at: int, bucket: Bucket) -> None:
        """Add what a replica counted in the bucket that began at `at`, once."""
        at -= at % BUCKET_MS
        told = self._told.setdefault(at, set())
        if replica in told:
            return
        told.add(replica)
        self._buckets.setdefault(at, Bucket()).merge(bucket)
        self._quantiles.pop(at, None)

    def forget_before(self, oldest: int) -> None:
        """Drop the buckets that began earlier."""
        for at in [at for at in self._buckets if at < oldest]:
            del self._buckets[at], self._told[at]
            self._quantiles.pop(at, None)

    def draw(self, end: int) -> dict[str, Any]:
        """The hour until `end` in columns, one value per bucket, oldest first; the whole of it (`total`); and what models did in
        its last minute (`models`)."""
        times = list(range(end - SPAN_MS, end, BUCKET_MS))
        buckets = [self._buckets.get(at, _NOTHING) for at in times]
        spans = [self._quantiles_of(at) for at in times]
        whole = Bucket()
        for bucket in buckets:
            whole.merge(bucket)
        minute = Bucket()
        for bucket in buckets[-MINUTE_BUCKETS:]:
            minute.merge(bucket)
        return {
            "bucketMs": BUCKET_MS,
            "at": times,
            "accepted": [bucket.accepted for bucket in buckets],
            "completed": [bucket.completed for bucket in buckets],
            "failed": [sum(bucket.failures.values()) for bucket in buckets],
            "cancelled": [bucket.cancelled for bucket in buckets],
            "refused": [sum(bucket.refusals.values()) for bucket in buckets],
            "waiting": [bucket.waiting for bucket in buckets],
            **{
                name: {quantile: [span[i][j] for span in spans] for j, quantile in enumerate(QUANTILES)}
                for i, name in enumerate(_DURATIONS)
            },
            "models": {
                model: {
                    "acceptedLastMinute": minute.arrived.get(model, 0),
                    "endedLastMinute": minute.ended.get(model, 0),
                    "outputTokensLastMinute": minute.tokens.get(model, 0),
                }
                for model in sorted(minute.arrived.keys() | minute.ended.keys())
            },
            "total": {
                "accepted": whole.accepted,
                "completed": whole.completed,
                "failed": sum(whole.failures.values()),
                "cancelled": whole.cancelled,
                "refused": sum(whole.refusals.values()),
                **{
                    name: dict(zip(QUANTILES, values, strict=True))
                    for name, values in zip(_DURATIONS, _quantiles(whole), strict=True)
                },
                "failures": _ranked(whole.failures),
                "refusals": _ranked(whole.refusals),
            },
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


_DURATIONS = {"waitMs": "wait", "firstOutputMs": "first", "totalMs": "total"}


def _quantiles(bucket: Bucket) -> list[list[float | None]]:
    return [getattr(bucket, name).quantiles(list(QUANTILES.values())) for name in _DURATIONS.values()]


_NOTHING = Bucket()
_NO_QUANTILES = _quantiles(_NOTHING)


def _ranked(counts: dict[str, int]) -> list[dict[str, Any]]:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"code": code, "count": number} for code, number in ranked]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
