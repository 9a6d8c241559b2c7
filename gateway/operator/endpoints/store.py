"""Endpoints that are added at run time, in the SQL database. Each change increments the version of all."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import endpoints, facts
from fairlane.gateway.database.versions import read_version, version_in
from fairlane.gateway.settings import EndpointSettings
from fairlane.queues.clock import now_ms

VERSION = "endpoints_version"
CHANGE_S = 5.0


@dataclass(frozen=True, slots=True)
class StoredEndpoint:
    """A row. Times in ms since 1970."""

    name: str
    values: Mapping[str, Any] = field(repr=False)
    """Its settings, as in an entry of the configuration; others have their defaults."""
    note: str
    created_ms: int
    changed_ms: int
    who: str
    settings: EndpointSettings


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
            rows = (await connection.execute(select(endpoints))).mappings().all()
        found = {row["name"]: _read(dict(row)) for row in rows}
        return StoredEndpoints(version, int(version.partition(" ")[2]), found)

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator["EndpointChange"]:
        """Open a change that is committed at the end of the block, unless that raises. Others wait."""
        async with self._database.writing(CHANGE_S) as connection:
            # written first, so that it is locked until the end
            await connection.execute(update(facts).where(facts.c.name == VERSION).values(value=facts.c.value))
            number, _, last = (await version_in(connection, VERSION)).partition(" ")
            at_ms = max(now_ms(), int(last) + 1)
            yield EndpointChange(connection, at_ms)
            version = f"{int(number) + 1} {at_ms}"
            await connection.execute(update(facts).where(facts.c.name == VERSION).values(value=version))


@dataclass(frozen=True, slots=True)
class EndpointChange:
    """The operations within one change."""

    _connection: AsyncConnection
    _now_ms: int

    async def all(self) -> dict[str, StoredEndpoint]:
        """Return all endpoints by name."""
        rows = (await self._connection.execute(select(endpoints))).mappings().all()
        return {row["name"]: _read(dict(row)) for row in rows}

    async def add(self, name: str, settings: Mapping[str, Any], note: str, who: str) -> None:
        """Add an endpoint."""
        values = {"name": name, "settings": _json(settings), "note": note, "who": who}
        await self._connection.execute(
            insert(endpoints).values(**values, created=self._now_ms, changed=self._now_ms)
        )

    async def set(self, name: str, settings: Mapping[str, Any], note: str, who: str) -> None:
        """Replace the settings of an endpoint."""
        values = {"settings": _json(settings), "note": note, "who": who, "changed": self._now_ms}
        await self._connection.execute(update(endpoints).where(endpoints.c.name == name).values(**values))

    async def remove(self, name: str) -> None:
        """Remove an endpoint."""
        await self._connection.execute(delete(endpoints).where(endpoints.c.name == name))


def _read(row: Mapping[str, Any]) -> StoredEndpoint:
    """Return the endpoint of a row."""
    values = msgspec.json.decode(row["settings"])
    settings = EndpointSettings.model_validate_json(row["settings"], strict=True)
    times = row["created"], row["changed"]
    return StoredEndpoint(row["name"], values, row["note"], *times, row["who"], settings)


def _json(values: Mapping[str, Any]) -> str:
    return msgspec.json.encode(values).decode()
