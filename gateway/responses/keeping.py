"""Writes down responses whose tasks were accepted: those of all who come at the same time in one transaction."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from sqlalchemy import bindparam, delete
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import responses
from fairlane.gateway.responses.rows import New
from fairlane.queues.loops import end_tasks, set_within

log = structlog.get_logger("fairlane.gateway")

KEEP_S = 5.0
"""How long a request waits for it."""
AT_ONCE = 200
BYTES_AT_ONCE = 32 << 20
"""Of one transaction, and a response more."""
MOST_HELD = 256 << 20
"""Bytes that wait; what comes beyond them is refused at once: nothing else bounds it while SQL is slow."""
AGAIN_S = 2.0
CLOSE_S = 1.0
MOST_TAKEN_BACK = 10_000
"""Rows that wait to be removed while SQL is away; those of more go when their time is over. Nobody knows their ids."""

_INSERT: Final[Mapping[str, Any]] = {
    "sqlite": sqlite.insert(responses).on_conflict_do_nothing(index_elements=["task"]),
    "postgresql": postgresql.insert(responses).on_conflict_do_nothing(index_elements=["task"]),
}
_DELETE = delete(responses).where(responses.c.task.in_(bindparam("tasks", expanding=True)))

Waiting = tuple[New, asyncio.Future[None]]
"""Something to be written, and who is told that it was."""


class Keeping:
    """`start` begins, `close` ends."""

    def __init__(
        self,
        database: Database,
        forgotten: Callable[[AsyncConnection, Collection[str]], Awaitable[Mapping[str, int]]],
        wrote: Callable[[Owner], None],
        told: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`forgotten`: `ErasedUsers.of`. `wrote`: `StorageQuota.wrote`;
        `told` counts responses by their size, 0 if one could not be stored."""
        self._database = database
        self._forgotten = forgotten
        self._wrote = wrote
        self._told = told
        self._new: deque[Waiting] = deque()
        self._taken_back: deque[str] = deque(maxlen=MOST_TAKEN_BACK)
        self.refuses = False
        """SQL did not take what was to be written last. (A full disk takes short records, and no response.)"""
        self._held = 0
        """Bytes of what waits."""
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="keep-responses")

    async def close(self) -> None:
        """Write what waits, and remove what was taken back, as long as that takes no time, and end. Whoever waits still is
        refused."""
        await end_tasks(self._task)
        with contextlib.suppress(DatabaseUnavailable, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                while self._new:
                    await self._insert(self._take())
                while self._taken_back:
                    await self._remove()
        while self._new:
            _refuse([self._new.popleft()], DatabaseUnavailable("the gateway stops"))

    async def keep(self, new: New) -> None:
        """Write a response down; once this has returned, it is there for every replica. Whoever stops to wait before that changes
        nothing. Raises DatabaseUnavailable: then it is taken back, as it may be there all the same."""
        try:
            await self.keep_earlier(new)
        except DatabaseUnavailable:
            self._told(0)
            self.take_back(new.row.task_id)
            raise
        self._told(new.size)

    async def keep_earlier(self, new: New) -> None:
        """The same of one that may be there already, and then stays as it is. Raises DatabaseUnavailable."""
        if self._held + new.size > MOST_HELD:
            raise DatabaseUnavailable(
                f"{self._database.address}: {self._held} bytes of responses wait to be written"
            )
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held += new.size
        kept.add_done_callback(partial(self._let_go, new.size))
        waiting = new, kept
        self._new.append(waiting)
        self._wanted.set()
        await asyncio.wait((kept,), timeout=KEEP_S)
        if not kept.done():
            kept.cancel()
            with contextlib.suppress(ValueError):  # it is being written
                self._new.remove(waiting)
            raise DatabaseUnavailable(f"{self._database.address}: nothing written within {KEEP_S:.0f} s")
        kept.result()

    def _let_go(self, size: int, _: object) -> None:
        self._held -= size

    def take_back(self, task_id: str) -> None:
        """Remove a response of which nobody is told, without anybody waiting for it; tried until SQL answers."""
        self._taken_back.append(task_id)
        self._wanted.set()

    async def _run(self) -> None:
        while True:
            pause: float | None = None
            try:
                while self._new:
                    await self._insert(self._take())
                while self._taken_back:
                    await self._remove()
            except DatabaseUnavailable:  # which the outbox tells
                pause = AGAIN_S
            except Exception:  # what is not removed goes with its time; whoever waits has been told
                log.exception("cannot remove responses that are not kept")
                pause = AGAIN_S
            await set_within(self._wanted, pause)
            self._wanted.clear()

    def _take(self) -> list[Waiting]:
        """The next ones, but those that have been given up."""
        page: list[Waiting] = []
        size = 0
        while self._new and len(page) < AT_ONCE and size < BYTES_AT_ONCE:
            new, kept = self._new.popleft()
            if not kept.done():
                page.append((new, kept))
                size += new.size
        return page

    async def _insert(self, page: Sequence[Waiting]) -> None:
        """Write a page. Raises DatabaseUnavailable, which those who wait are told, too."""
        if not page:
            return
        try:
            await self._commit([new for new, _ in page])
        except DatabaseUnavailable as error:
            self.refuses = True
            _refuse(page, error)
            raise
        except Exception as error:
            if len(page) == 1:
                [(new, _)] = page
                log.exception("a response cannot be kept", task_id=new.row.task_id)
                _refuse(page, DatabaseUnavailable(f"a response cannot be kept: {type(error).__name__}"))
                return
            for at, one in enumerate(page):  # so that one that is to blame holds up no other
                try:
                    await self._insert([one])
                except DatabaseUnavailable as away:
                    _refuse(page[at:], away)
                    raise
        except BaseException:  # it ends: `close` writes once more
            self._new.extendleft(reversed(page))
            raise
        else:
            self.refuses = False
            for _, kept in page:
                if not kept.done():
                    kept.set_result(None)

    async def _commit(self, page: Sequence[New]) -> None:
        async with self._database.writing() as connection:
            known = await self._forgotten(connection, {new.row.user for new in page})
            wanted = [new for new in page if new.row.created > known.get(new.row.user, -1)]
            wanted.sort(
                key=lambda new: new.row.task_id
            )  # in one order everywhere: else two may wait for each other
            if wanted:
                insert = _INSERT[connection.dialect.name]
                await connection.execute(insert, [_values(new) for new in wanted])
        for new in wanted:
            self._wrote(new.row.owner)

    async def _remove(self) -> None:
        page = [self._taken_back[at] for at in range(min(len(self._taken_back), AT_ONCE))]
        async with self._database.writing() as connection:
            await connection.execute(_DELETE, {"tasks": page})
        while self._taken_back and self._taken_back[0] in page:
            self._taken_back.popleft()


def _refuse(page: Sequence[Waiting], error: DatabaseUnavailable) -> None:
    for _, kept in page:
        if not kept.done():
            kept.set_exception(error)
            kept.exception()  # its caller may have left


def _values(new: New) -> dict[str, object]:
    row = new.row
    return {
        "task": row.task_id,
        "key_id": row.key_id,
        "user_name": row.user,
        "created": row.created,
        "expires": row.expires,
        "background": row.background,
        "model": row.model,
        "falls": row.falls,
        "previous": row.previous,
        "size": new.size,
        "ended": None,
        "status": "",
        "echo": row.echo,
        "input": new.input_items,
        "output": None,
    }
