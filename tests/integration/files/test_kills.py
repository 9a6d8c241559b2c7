"""A gateway is killed while files come: what was answered is there and whole, and nothing else is left."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select
from tests.support.processes import GatewayProcess
from tests.support.serving import http_client

from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import files as table
from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.files import ARRIVING_MS, Files
from fairlane.gateway.files.settings import FilesSettings

from .uploads import END, PURPOSE, TYPE, part

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
KILLS = 4
PIECE = bytes(range(256)) * 256


async def slowly(number: int, pieces: int) -> AsyncIterator[bytes]:
    head, _, rest = part("file", b"", f"{number}.bin").rpartition(b"\r\n")
    yield head
    for at in range(pieces):
        yield number.to_bytes(4, "big") + at.to_bytes(4, "big") + PIECE
        await asyncio.sleep(0.002)
    yield b"\r\n" + rest + PURPOSE + END


def digest(number: int, pieces: int) -> str:
    whole = b"".join(number.to_bytes(4, "big") + at.to_bytes(4, "big") + PIECE for at in range(pieces))
    return hashlib.sha256(whole).hexdigest()


async def test_a_killed_gateway_keeps_what_it_answered_and_leaves_nothing_else(
    tmp_path: Path, redis_url: str
) -> None:
    gateway, rng = GatewayProcess(tmp_path, redis_url), random.Random(7)
    answered: dict[str, tuple[int, int]] = {}
    numbers = iter(range(1_000_000))

    async def bring(http: httpx2.AsyncClient) -> None:
        while True:
            number, pieces = next(numbers), rng.randrange(1, 40)
            try:
                answer = await http.post("/v1/files", content=slowly(number, pieces), headers=TYPE)
            except httpx2.TransportError:
                return
            assert answer.status_code == 200, answer.text
            answered[answer.json()["id"]] = number, pieces

    try:
        for _ in range(KILLS):
            await gateway.start()
            before = len(answered)
            async with http_client(gateway.url) as http, asyncio.TaskGroup() as group:
                for _caller in range(4):
                    group.create_task(bring(http))
                while len(answered) < before + 3:  # it is at work
                    await asyncio.sleep(0.01)
                await asyncio.sleep(rng.uniform(0, 0.1))
                await gateway.kill()
        await gateway.start()
        async with http_client(gateway.url) as http:
            for file_id, (number, pieces) in answered.items():
                content = (await http.get(f"/v1/files/{file_id}/content")).content
                assert hashlib.sha256(content).hexdigest() == digest(number, pieces)
    finally:
        await gateway.stop()

    data, now = tmp_path / "data", 4_000_000_000_000
    database = Database(parse_address(None, data))
    await database.start()
    files = Files(database, Disk(data / "files"), lambda: FilesSettings(), lambda: now)

    async def states() -> dict[str, str]:
        async with database.reading() as connection:
            return {row.id: row.state for row in await connection.execute(select(table.c.id, table.c.state))}

    found = await states()
    stored = {path.name for path in (data / "files").glob("*/*")}
    assert stored <= found.keys()  # whatever lies there has a row that leads to it
    broken = {file_id for file_id, state in found.items() if state == "arriving"}
    assert broken  # (four were on their way at each kill)
    assert {file_id for file_id, state in found.items() if state == "ready"} >= answered.keys()
    async with database.writing() as connection:
        soon = table.update().where(table.c.state == "arriving").values(due=now - 1)
        keep = table.update().where(table.c.state == "ready").values(due=now + ARRIVING_MS)
        await connection.execute(soon)
        await connection.execute(keep)
    while await files.sweep():
        pass
    left = await states()
    assert left.keys() == found.keys() - broken
    assert {path.name for path in (data / "files").glob("*/*")} == left.keys()
    await database.close()
