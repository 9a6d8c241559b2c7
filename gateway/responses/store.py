"""Stored responses in SQL: their rows, queries and deletion."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, String, bindparam, delete, func, literal, select

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import response_logs, responses
from fairlane.streaming.views.responses import response_id
from fairlane.streaming.views.task import TaskInfo

TASK_TYPE = "openaiLike"
CONTINUED = frozenset({"completed", "incomplete"})
"""The statuses of responses that others can continue."""


class Row(NamedTuple):
    """A stored response; times in ms since 1970."""

    task_id: str
    key_id: str
    user: str
    """With `key_id` the owner, as of a task."""
    created: int
    expires: int
    background: bool
    model: str
    """The model at submission."""
    falls: bool
    """Another model may have run; the log has its name."""
    previous: str
    """The task of the response that it continues; '' = none."""
    echo: bytes
    """The members of its object that repeat the request, JSON."""
    ended: int | None = None
    """None: SQL does not have its log yet."""
    status: str = ""
    """The status of the response object, once it has ended."""

    @property
    def id(self) -> str:
        """The response's id."""
        return response_id(self.task_id)

    @property
    def owner(self) -> Owner:
        """The key and user that it belongs to."""
        return Owner(self.key_id, self.user)

    @property
    def info(self) -> TaskInfo:
        """The task info for views: the same in all reads."""
        return TaskInfo(
            self.task_id, self.model, self.created // 1000, TASK_TYPE, user=self.user, has_fallback=self.falls
        )


class New(NamedTuple):
    """A response to be stored."""

    row: Row
    input_items: bytes
    """JSON, a list of items."""

    @property
    def size(self) -> int:
        """The bytes of its content so far."""
        return len(self.row.echo) + len(self.input_items)


class Turn(NamedTuple):
    """One response of a conversation."""

    row: Row
    size: int


_c = responses.c
_ROW = (
    *(_c.task, _c.key_id, _c.user_name, _c.created, _c.expires, _c.background, _c.model, _c.falls),
    *(_c.previous, _c.echo, _c.ended, _c.status),
)
"""The columns of a `Row`."""
_BARE = tuple(literal(b"").label("echo") if column is _c.echo else column for column in _ROW)
"""The same without `echo`."""


def _line() -> Select[Any]:
    """Return the query of `ResponseStore.line`, with the parameters `task`, `most` and `now`."""
    first = bindparam("task", type_=String()).label("task")
    line = select(first, literal(0).label("depth")).cte("line", recursive=True)
    before = select(_c.previous, line.c.depth + 1).join_from(line, responses, _c.task == line.c.task)
    line = line.union_all(before.where(_c.previous != "", line.c.depth + 1 < bindparam("most")))
    wanted = select(*_BARE, _c.size).join_from(line, responses, _c.task == line.c.task)
    return wanted.where(_c.expires > bindparam("now")).order_by(line.c.depth)


_wanted_tasks = _c.task.in_(bindparam("tasks", expanding=True))
_there = _c.expires > bindparam("now")
_output = select(_c.output).where(_c.task == bindparam("task"))

_LINE = _line()
_ONE = select(*_ROW).where(_c.task == bindparam("task"), _there)
_SOME, _SOME_BARE = (select(*columns).where(_wanted_tasks, _there) for columns in (_ROW, _BARE))
_CONTENT = select(_c.task, _c.input, _c.output).where(_wanted_tasks)
_OUTPUT = _output.where(func.length(_c.output) <= bindparam("most"))
_PART = select(response_logs.c.events).where(
    response_logs.c.task == bindparam("task"), response_logs.c.part == bindparam("part")
)
_DELETE = delete(responses).where(_c.task == bindparam("task"))
"""Built once: statements contain reference cycles, which would be garbage after each request."""


class ResponseStore:
    """The stored responses; expired ones are not found. All methods raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def row(self, task_id: str, now_ms: int) -> Row | None:
        """Return a response, or None."""
        async with self._database.reporting() as connection:
            found = await connection.execute(_ONE, {"task": task_id, "now": now_ms})
            row = found.one_or_none()
        return None if row is None else Row(*row)

    async def rows(self, task_ids: Collection[str], now_ms: int, *, bare: bool = False) -> list[Row]:
        """Return those of these tasks that are stored; `bare`: without `echo`."""
        wanted = _SOME_BARE if bare else _SOME
        async with self._database.reporting() as connection:
            found = await connection.execute(wanted, {"tasks": [*task_ids], "now": now_ms})
            return [Row(*row) for row in found]

    async def line(self, task_id: str, most: int, now_ms: int) -> list[Turn]:
        """Return the conversation that ends with a response, that one first, each followed by the one that it continues; at most
        `most`, up to the first missing one, without `echo`, which can be large in each."""
        async with self._database.reporting() as connection:
            found = await connection.execute(_LINE, {"task": task_id, "most": most, "now": now_ms})
            rows = found.all()
        return [Turn(Row(*row[:-1]), row[-1]) for row in rows]

    async def items(self, task_ids: Sequence[str]) -> dict[str, tuple[bytes, bytes | None]]:
        """Return input and output of responses, JSON lists. None: SQL does not have the output yet."""
        async with self._database.reporting() as connection:
            rows = (await connection.execute(_CONTENT, {"tasks": [*task_ids]})).all()
        return {task: (asked, answered) for task, asked, answered in rows}

    async def output(self, task_id: str, most: int) -> bytes | None:
        """Return the output of a response that has ended, a JSON list; None if it has more than `most` bytes, or is missing."""
        async with self._database.reporting() as connection:
            found: bytes | None = await connection.scalar(_OUTPUT, {"task": task_id, "most": most})
        return found

    async def part(self, task_id: str, part: int) -> bytes | None:
        """Return a part of the log of a response that has ended; None after the last one."""
        async with self._database.reporting() as connection:
            found: bytes | None = await connection.scalar(_PART, {"task": task_id, "part": part})
        return found

    async def delete(self, task_id: str) -> bool:
        """Delete a response with its log. Return whether it was stored."""
        async with self._database.writing() as connection:
            gone = await connection.execute(_DELETE, {"task": task_id})
        return gone.rowcount > 0
