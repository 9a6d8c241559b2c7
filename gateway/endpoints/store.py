"""Endpoints that are added at run time, in the SQL database. Each change increments the version of all."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.database.tables import endpoints, facts
from fairlane.gateway.database.versions import read_version, version_in
from fairlane.gateway.endpoints.settings import EndpointSettings
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import Periodic

VERSION = "endpoints_version"
CHANGE_S = 5.0


@dataclass(frozen=True)
class StoredEndpoint:
    """A row. Times in ms since 1970."""

    name: str
    values: Mapping[str, Any] = field(repr=False)
    """Its settings, as in an entry of the configuration; others have their defaults."""
    note: str
    created_ms: int
    changed_ms: int
    who: str

    @property
    def row(self) -> dict[str, Any]:
        """Its row of the table."""
        settings = msgspec.json.encode(self.values).decode()
        times = {"created": self.created_ms, "changed": self.changed_ms}
        return {"name": self.name, "settings": settings, "note": self.note, "who": self.who, **times}

    @functools.cached_property
    def settings(self) -> EndpointSettings:
        """Its settings, with defaults. Raise ValidationError."""
        return EndpointSettings.model_validate_json(msgspec.json.encode(self.values), strict=True)


@dataclass(frozen=True, slots=True)
class StoredEndpoints:
    """All added endpoints by name, and the time of the last change, ms."""

    version: str = ""
    changed_ms: int = 0
    endpoints: Mapping[str, StoredEndpoint] = field(default_factory=dict)


class EndpointStore:
    """The endpoints of one database. All raise DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def version(self) -> str:
        """Return the version, which each change increments."""
        return await read_version(self._database, VERSION)

    async def all(self) -> StoredEndpoints:
        """Return all of them."""
        async with self._database.reading(CHANGE_S) as connection:
            version = await version_in(connection, VERSION)
            found = await _all(connection)
        return StoredEndpoints(version, int(version.partition(" ")[2]), found)

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[tuple[dict[str, StoredEndpoint], int]]:
        """Open a change; others wait. Yield all endpoints by name, and the time of the change, ms. At the end of the block, write
        what it changed in them, unless it raised."""
        async with self._database.writing(CHANGE_S) as connection:
            # written first, so that it is locked until the end
            await connection.execute(update(facts).where(facts.c.name == VERSION).values(value=facts.c.value))
            number, _, last = (await version_in(connection, VERSION)).partition(" ")
            at_ms = max(now_ms(), int(last) + 1)
            before = await _all(connection)
            known = dict(before)
            yield known, at_ms
            for name in before.keys() | known.keys():
                one = known.get(name)
                if one != before.get(name):
                    await connection.execute(delete(endpoints).where(endpoints.c.name == name))
                    if one is not None:
                        await connection.execute(insert(endpoints).values(one.row))
            version = f"{int(number) + 1} {at_ms}"
            await connection.execute(update(facts).where(facts.c.name == VERSION).values(value=version))


async def _all(connection: AsyncConnection) -> dict[str, StoredEndpoint]:
    rows = (await connection.execute(select(endpoints))).mappings().all()
    return {
        row["name"]: StoredEndpoint(
            row["name"],
            msgspec.json.decode(row["settings"]),
            row["note"],
            row["created"],
            row["changed"],
            row["who"],
        )
        for row in rows
    }


LOOK_S = 0.3
LAST_S = 1.0
"""How long `close` waits for a read under way."""


class EndpointMonitor(Periodic):
    """See the module. `start` it, `close` it."""

    name = "endpoints"
    interval_s = delay_s = LOOK_S
    expected = (DatabaseUnavailable,)

    def __init__(self, store: EndpointStore, take: Callable[[StoredEndpoints], Awaitable[None]]) -> None:
        """`take`: applies all endpoints here, whenever one has changed."""
        self._store = store
        self._take = take
        self.known = StoredEndpoints()
        """The endpoints that this process applies."""
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Read them, and begin to check. Raise DatabaseUnavailable."""
        await self.read()
        super().start()

    async def close(self) -> None:
        """Stop. A read under way has LAST_S to finish: a cancelled one may leave a connection behind."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self._turn.acquire()  # never released: nothing is read any more
        await super().close()

    async def read(self) -> StoredEndpoints:
        """Apply what has changed; return all endpoints as they are now. Raise DatabaseUnavailable."""
        async with self._turn:  # so that no older answer arrives after a newer one
            if not self.known.version or await self._store.version() != self.known.version:
                known = await self._store.all()
                await self._take(known)
                self.known = known  # not before: a take that failed is repeated
            return self.known

    async def step(self) -> None:
        """Apply what has changed."""
        await self.read()
