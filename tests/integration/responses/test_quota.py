"""Callers that store more than they can: their oldest responses are deleted."""

import asyncio
from typing import Any

import pytest

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.responses.quota import StorageQuota
from fairlane.gateway.responses.writer import ResponseWriter

from .test_store import NOON, new, tasks_in

pytestmark = pytest.mark.anyio
ANN, BOB = Owner("site", "ann"), Owner("site", "bob")


def of(owner: Owner, n: int, size: int = 1000) -> Any:
    return new(f"{owner.user}-{n}", key_id=owner.key_id, user=owner.user, created=NOON + n, size=size)


async def test_a_caller_above_the_limit_loses_the_oldest(database: Database) -> None:
    quota = StorageQuota(database, lambda: 3500)
    writer = ResponseWriter(database, ErasedUsers(database).of, quota.wrote)
    writer.start()
    await asyncio.gather(*(writer.write(of(ANN, n)) for n in range(200)))
    for n in range(5):
        await writer.write(of(BOB, n, size=10))
    await quota.step()
    left = ["ann-197", "ann-198", "ann-199", *(f"bob-{n}" for n in range(5))]
    assert await tasks_in(database) == sorted(left)
    await writer.close()
