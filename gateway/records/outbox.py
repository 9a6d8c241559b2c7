"""Carries what has happened from the outbox in Redis to SQL.

Every replica does, a page at a time: entries that nobody has yet come to one of them, are written in one transaction, and
only then forgotten in Redis. Who dies or is cut off in between leaves them to the others, who take them once they have been
idle for longer than any transaction lasts; they may then be written twice, so whatever is written bears that: an entry's row
is known by its task. All replicas read as one consumer of one group: whose an entry is matters to nobody, and none is left
over of a replica that is gone. While SQL is unavailable entries wait; beyond `outbox_max_entries` no task is accepted.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from redis.exceptions import ResponseError
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import DEADLINE_S, Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import cancel_and_wait, wait_event
from fairlane.queues.metrics import RECORDS_WRITTEN, Recorder
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

GROUP, CONSUMER = "sql", "replicas"
PAGE = 500
LOOK_S = 1.0
"""How often somebody looks for new entries: so late are records."""
LEFT_MS = round(DEADLINE_S * 4000)
"""An entry that was taken and not recorded for so long is left: no transaction lasts as long."""
LOOK_FOR_LEFT_S = 10.0
CATCH_UP_S = 1.0
AGAIN_S = 2.0
"""How often it is tried again while SQL does not answer."""


class Entry(NamedTuple):
    """One entry of the outbox."""

    id: bytes
    kind: str
    packed: bytes


class Table(Protocol):
    """Where entries of one kind go."""

    async def write(self, connection: AsyncConnection, packed: Sequence[bytes]) -> int:
        """Write entries in this transaction; how many were not there before. Raises anything for what cannot be written."""
        ...


class Outbox:
    """See the module. `start` begins, `close` ends; what waits then is left to others, or to the next start."""

    stream = "outbox"
    page = PAGE
    look_s = LOOK_S

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        database: Database,
        tables: Mapping[str, Table],
        metrics: Recorder,
        replica: str,
    ) -> None:
        """`tables`: by kind. An entry of another kind is a newer release's, and left to that."""
        self._link = link
        self._outbox = keys(self.stream)
        self._database = database
        self._tables = tables
        self._metrics = metrics
        self._replica = replica
        self._now = asyncio.get_running_loop().time
        self._page: list[Entry] = []
        """What was taken and is not recorded yet."""
        self._made_group = False
        """There was none: what is in the outbox is still to be looked at."""
        self._left_from = b"0-0"
        self._look_for_left_at = 0.0
        self._hurry = asyncio.Event()
        self._caught_up: set[asyncio.Future[None]] = set()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to carry."""
        self._task = asyncio.create_task(self._run(), name="outbox")

    async def close(self) -> None:
        """End. The page under way is carried first, for CATCH_UP_S at most: others would take it LEFT_MS later."""
        self._closing = True
        self._hurry.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CATCH_UP_S)
        await cancel_and_wait(self._task)

    async def catch_up(self) -> None:
        """Wait until what is in the outbox now is in SQL, also what other replicas have taken; for CATCH_UP_S at most."""
        if self._task is None or self._database.trouble is not None:
            return
        caught_up = asyncio.get_running_loop().create_future()
        self._caught_up.add(caught_up)
        self._hurry.set()
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await caught_up
                while await self._others_write():
                    await asyncio.sleep(CATCH_UP_S / 20)
        except (TimeoutError, StoreError, ResponseError):
            pass
        finally:
            self._caught_up.discard(caught_up)

    async def _others_write(self) -> bool:
        """Whether entries were taken just now and are not written yet. (What cannot be written lies for longer.)"""
        taken = await self._link.command("XPENDING", self._outbox, GROUP, "-", "+", self.page)
        return any(idle_ms < CATCH_UP_S * 1000 for _, _, idle_ms, _ in taken)

    async def _run(self) -> None:
        while not self._closing:
            pause = self.look_s
            self._hurry.clear()
            waiting = list(self._caught_up)
            try:
                if await self.carry() or self._made_group:
                    pause = 0
            except StoreError:
                pass  # which is told elsewhere
            except DatabaseUnavailable:
                pause = AGAIN_S
            except Exception:  # entries stay where they are, and are tried again
                log.exception("cannot carry records to SQL", replica=self._replica)
                pause = AGAIN_S
            if pause:
                _answer(waiting)
            await wait_event(self._hurry, pause)

    async def carry(self) -> bool:
        """Carry one page; whether there may be more. Raises StoreError, DatabaseUnavailable: call again, nothing is lost."""
        if not self._page:
            self._page = await self._take()
        page = self._page
        if not page:
            return False
        recorded = await self._record(page)
        if recorded:
            await self._forget(page, recorded)
        self._page = []
        return len(page) >= self.page

    async def _forget(self, page: Sequence[Entry], recorded: Sequence[bytes]) -> None:  # noqa: ARG002 - for others
        """SQL has these entries of a page."""
        await self._link.run("confirm_recorded", GROUP, *recorded)

    async def _take(self) -> list[Entry]:
        """What others have left, else what is new."""
        self._made_group = False
        try:
            return await self._take_left() or await self._take_new()
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
        try:  # the first entry ever, or Redis was emptied
            await self._link.command("XGROUP", "CREATE", self._outbox, GROUP, "0", "MKSTREAM")
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
        self._made_group = True
        return []

    async def _take_left(self) -> list[Entry]:
        if self._now() < self._look_for_left_at:
            return []
        reply = await self._link.command(
            "XAUTOCLAIM", self._outbox, GROUP, CONSUMER, LEFT_MS, self._left_from, "COUNT", self.page
        )
        self._left_from = reply[0]
        if self._left_from == b"0-0":
            self._look_for_left_at = self._now() + LOOK_FOR_LEFT_S
        return _entries(reply[1])

    async def _take_new(self) -> list[Entry]:
        reply = await self._link.command(
            "XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", self.page, "STREAMS", self._outbox, ">"
        )
        return _entries(reply[0][1]) if reply else []

    async def _record(self, page: Sequence[Entry]) -> list[bytes]:
        """Write a page; the ids of what SQL has now. What cannot be written stays in the outbox, and does not hold up others."""
        known = [entry for entry in page if entry.kind in self._tables]
        try:
            await self._commit(known)
            return [entry.id for entry in known]
        except DatabaseUnavailable:
            raise
        except (
            Exception
        ):  # one of them is to blame, and nothing is written: each by itself, so that it holds up no other
            recorded = []
            for entry in known:
                try:
                    await self._commit([entry])
                    recorded.append(entry.id)
                except DatabaseUnavailable:
                    raise
                except (
                    Exception
                ):  # it stays where it is, and is taken again when it has been idle for LEFT_MS
                    log.exception(
                        "a record cannot be written: it stays in the outbox", entry=entry.id.decode()
                    )
            return recorded

    async def _commit(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        written = 0
        async with self._database.writing() as connection:
            for kind, table in self._tables.items():
                packed = [entry.packed for entry in entries if entry.kind == kind]
                if packed:
                    written += await table.write(connection, packed)
        if written:
            self._metrics.count(RECORDS_WRITTEN, number=written)


def _answer(waiting: Sequence[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)


def _entries(raw: Sequence[Any]) -> list[Entry]:
    return [Entry(entry_id, fields[0].decode(), fields[1]) for entry_id, fields in raw if fields]
