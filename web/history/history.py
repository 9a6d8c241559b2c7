"""What happened in the last minutes, hours and days: accepted, refused and ended tasks, and how long they took; of all replicas.

Each replica counts what it sees (`HistoryRecorder`, a few additions per event). What came together in ten seconds it writes as
one entry of a Redis stream, which ends with its hour; and once a minute, in one call, how its part of longer buckets has grown
(`Rolls`): one field of a hash per replica and bucket, always the whole part, so a telling that is repeated changes nothing.
Whoever asks adds the parts up. So it costs the hot path nothing that grows, survives restarts, and shows the dead replica's
part too, but for its last minute.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import end_tasks
from fairlane.queues.store.link import RedisLink
from fairlane.queues.survey.survey import Waiting
from fairlane.web.history.buckets import Bucket, Kind, series_of
from fairlane.web.history.ranges import BUCKET_MS, FINE_MS, MINUTE_MS, RANGES, ROLLED, Range
from fairlane.web.history.recorder import HistoryRecorder
from fairlane.web.history.rolls import Roll, Rolls
from fairlane.web.history.shelf import Shelf

log = structlog.get_logger("fairlane.web")

KEPT_MS = 2 * FINE_MS
"""How long Redis keeps a history to which nobody adds."""
PAGE = 100
LATE_MS = 1000
"""How long after its end a bucket is shown: until then every replica has told its part."""
USERS_MS = 600_000
"""Over how long users' tokens are told."""
SETTLED_MS = 600_000
"""A longer bucket is read again until it is over for so long, and at least so often: a replica that was cut off tells later."""
ROLLS_AT_ONCE = 50
READ_AT_ONCE = 20
MOST_ANSWERS = 20


class History:
    """Writes this replica's buckets, and reads everybody's. `start` begins the writing, `close` ends it with the last part."""

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        replica: str,
        recorder: HistoryRecorder,
        waiting: Callable[[], Awaitable[Waiting]],
    ) -> None:
        """`waiting`: how many tasks wait on all replicas now; raises StoreError."""
        self._link = link
        self._keys = keys
        self._replica = replica
        self._recorder = recorder
        self._count_waiting = waiting
        self._waiting = Waiting({}, {})
        self._unsent: dict[int, Bucket] = {}
        self._rolls = Rolls(replica)
        self._task: asyncio.Task[None] | None = None
        self._hour = Shelf(BUCKET_MS)
        self._read_to = "0-0"
        self._shelves = {step: Shelf(step) for step in ROLLED}
        self._read_at: dict[tuple[int, int], int] = {}
        self._read_until: dict[int, int] = {}
        self._lock = asyncio.Lock()
        self._answers: dict[tuple[str, Kind | None, str], bytes] = {}
        self._answers_end = 0

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="history")

    async def close(self) -> None:
        """Write the last part, if Redis takes it at once, and end."""
        if self._task is None:
            return
        await end_tasks(self._task)
        self._task = None
        now = now_ms()
        self._collect(now // BUCKET_MS * BUCKET_MS)
        await self._send(now, ending=True)

    async def _run(self) -> None:
        while True:
            now = now_ms()
            begun = now // BUCKET_MS * BUCKET_MS
            await asyncio.sleep((begun + BUCKET_MS - now) / 1000)
            await self._look()
            self._collect(begun)
            await self._send(now_ms())

    # ---- writing ----------

    async def _look(self) -> None:
        """See how many tasks wait. While Redis is away, as many as before: none begins or ends."""
        with contextlib.suppress(StoreError):
            self._waiting = await self._count_waiting()

    def _collect(self, at: int) -> None:
        """Put aside what came together in the bucket that began at `at`."""
        bucket = self._recorder.take()
        waiting = self._waiting
        bucket.waiting = sum(waiting.queues.values())
        for named, counts in ((bucket.queues, waiting.queues), (bucket.models, waiting.models)):
            for name, number in counts.items():
                if number:
                    series_of(named, name).waiting += number
        if bucket.empty:
            return
        self._rolls.add(at, bucket)
        if at in self._unsent:
            self._unsent[at].merge(bucket)
        else:
            self._unsent[at] = bucket
        while len(self._unsent) > FINE_MS // BUCKET_MS:
            del self._unsent[next(iter(self._unsent))]

    async def _send(self, now: int, *, ending: bool = False) -> None:
        """Write what was put aside, oldest first; what Redis does not take now is kept for the next time.

        Should a reply be lost, an entry may be written twice; readers count it once.
        """
        rolls = self._rolls.due(now, ending=ending)
        try:
            for at, bucket in list(self._unsent.items()):
                await self._link.command(
                    *("XADD", self._keys("history"), "MINID", "~", now - FINE_MS - BUCKET_MS, "*"),
                    *("from", self._replica, "at", at, "bucket", msgspec.json.encode(bucket)),
                )
                del self._unsent[at]
                await self._link.command("PEXPIRE", self._keys("history"), KEPT_MS)
            for first in range(0, len(rolls), ROLLS_AT_ONCE):
                await self._tell(rolls[first : first + ROLLS_AT_ONCE])
        except StoreError:
            pass
        except Exception:  # a history with a hole is better than none: the next bucket is written again
            log.exception("cannot write the history")
            self._unsent.clear()

    async def _tell(self, rolls: list[Roll]) -> None:
        args: list[int | str | bytes] = []
        for roll in rolls:
            kept = ROLLED[roll.step] + roll.step
            args += (roll.step, roll.at, kept, roll.source, msgspec.json.encode(roll.bucket))
        await self._link.run("tally", *args)
        for roll in rolls:
            roll.told = True

    # ---- reading ----------

    async def read(self, name: str = "1h", kind: Kind | None = None, of: str = "") -> bytes:
        """The answer of GET /api/admin/history, as JSON, for the range of this name: of everything, or of one model, queue or
        worker; made anew when another ten seconds are over. Raises StoreError."""
        async with self._lock:
            now = now_ms()
            end = (now - LATE_MS) // BUCKET_MS * BUCKET_MS
            if end != self._answers_end or len(self._answers) > MOST_ANSWERS:
                self._answers.clear()
                self._answers_end = end
            asked = name, kind, of
            if asked not in self._answers:
                await self._catch_up(end - FINE_MS)
                wanted, shelf, until = RANGES[name], self._hour, end
                if wanted.step_ms != BUCKET_MS:
                    shelf, until = self._shelves[wanted.step_ms], end - end % MINUTE_MS
                    await self._read_longer(wanted, until)
                self._answers[asked] = msgspec.json.encode(
                    {
                        "now": now,
                        "range": name,
                        "until": until,
                        **shelf.draw(wanted.times(until), kind, of),
                        "models": self._hour.by_model(range(end - MINUTE_MS, end, BUCKET_MS)),
                    }
                )
            return self._answers[asked]

    async def tokens_by_user(self) -> dict[str, int]:
        """Input and output of the tasks that ended in the last USERS_MS; of very many users some are counted as OTHER, which is
        left out. Raises StoreError."""
        async with self._lock:
            now = now_ms()
            await self._catch_up(now - FINE_MS - BUCKET_MS)
            return self._hour.tokens_by_user(now - USERS_MS)

    async def _catch_up(self, oldest: int) -> None:
        """Add up what was written since the last time, by whomever."""
        more = True
        while more:
            page = await self._link.command(
                "XRANGE", self._keys("history"), f"({self._read_to}", "+", "COUNT", PAGE
            )
            for entry_id, fields in page:
                self._read_to = entry_id.decode()
                bucket = msgspec.json.decode(fields[5], type=Bucket)
                self._hour.add(fields[1].decode(), int(fields[3]), bucket)
            await asyncio.sleep(0)  # others have their turn
            more = len(page) == PAGE
        # what Redis did not take; counted once, also when it comes later
        for at, bucket in self._unsent.items():
            self._hour.add(self._replica, at, bucket)
        self._hour.forget_before(oldest)

    async def _read_longer(self, wanted: Range, until: int) -> None:
        """Read the range's buckets again, as far as they may have grown since they were read last."""
        step, times = wanted.step_ms, wanted.times(until)
        if self._read_until.get(step) == until:
            return

        def old(at: int) -> bool:
            read = self._read_at.get((step, at), 0)
            return read < at + step + SETTLED_MS or read + SETTLED_MS <= until

        again = [at for at in times if old(at)]
        for first in range(0, len(again), READ_AT_ONCE):
            part = again[first : first + READ_AT_ONCE]
            replies = await asyncio.gather(
                *(
                    self._link.command("HGETALL", self._keys("rolled", step=str(step), at=str(at)))
                    for at in part
                )
            )
            for at, flat in zip(part, replies, strict=True):
                told = dict(zip(map(bytes.decode, flat[::2]), flat[1::2], strict=True))
                parts = {source: msgspec.json.decode(text, type=Bucket) for source, text in told.items()}
                if mine := self._rolls.untold(step, at):  # what Redis did not take
                    parts[mine.source] = mine.bucket
                self._shelves[step].put(at, parts.values())
                self._read_at[step, at] = until
                await asyncio.sleep(0)  # others have their turn
        self._shelves[step].forget_before(times[0])
        for key in [key for key in self._read_at if key[0] == step and key[1] < times[0]]:
            del self._read_at[key]
        self._read_until[step] = until
