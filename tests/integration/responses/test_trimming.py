"""Callers who have more kept than they may: their oldest responses go soon, and who has little costs nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.serving import until

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.database import Database
from fairlane.gateway.records.forgetting import Forgotten
from fairlane.gateway.responses import trimming as module
from fairlane.gateway.responses.keeping import Keeping
from fairlane.gateway.responses.trimming import PARTS, Trimming, Written

from .test_keeping import NOON, new, tasks_in

pytestmark = pytest.mark.anyio
ANN, BOB = Owner("site", "ann"), Owner("site", "bob")


class Limit:
    """What callers may have."""

    most = 1_000_000

    def __call__(self) -> int:
        return self.most


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    monkeypatch.setattr(module, "SPREAD_S", 0.0)
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    return Limit()


@pytest.fixture
async def trimming(database: Database, limit: Limit) -> AsyncIterator[Trimming]:
    trimming = Trimming(database, limit)
    yield trimming
    await trimming.close()


@pytest.fixture
async def keeping(database: Database, trimming: Trimming) -> AsyncIterator[Keeping]:
    keeping = Keeping(database, Forgotten(database).of, trimming.wrote)
    keeping.start()
    yield keeping
    await keeping.close()


def of(owner: Owner, n: int, size: int = 1000) -> Any:
    return new(f"{owner.user}-{n}", key_id=owner.key_id, user=owner.user, created=NOON + n, size=size)


async def reaches(database: Database, tasks: list[str]) -> None:
    async def there() -> bool:
        return await tasks_in(database) == sorted(tasks)

    await until(there, f"{tasks} to be left")


async def test_who_writes_beyond_it_loses_the_oldest_at_once(
    keeping: Keeping, trimming: Trimming, database: Database, limit: Limit
) -> None:
    limit.most = 3500
    trimming.start()
    for n in range(5):
        await keeping.keep(of(ANN, n))
        await keeping.keep(of(BOB, n, size=10))
    await reaches(database, ["ann-2", "ann-3", "ann-4", *(f"bob-{n}" for n in range(5))])
    await asyncio.gather(*(keeping.keep(of(ANN, n)) for n in range(5, 200)))
    await reaches(database, ["ann-197", "ann-198", "ann-199", *(f"bob-{n}" for n in range(5))])


async def test_all_are_looked_at_after_a_start_and_when_they_may_have_less(
    keeping: Keeping, trimming: Trimming, database: Database, limit: Limit, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        for owner in (ANN, BOB):
            await keeping.keep(of(owner, n))
    monkeypatch.setattr(module, "OVER_AT_ONCE", 1)
    limit.most = 3500
    trimming.start()
    await reaches(database, [f"{owner.user}-{n}" for owner in (ANN, BOB) for n in range(1, 4)])
    limit.most = 1500
    await reaches(database, ["ann-3", "bob-3"])


async def test_who_has_little_is_not_looked_at(
    keeping: Keeping, trimming: Trimming, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But once after a start."""
    looks = []
    reporting = database.reporting

    def counted(*args: Any) -> Any:
        looks.append(args)
        return reporting(*args)

    monkeypatch.setattr(database, "reporting", counted)
    trimming.start()
    await until(lambda: len(looks) == 1, "the look at all")
    for n in range(20):
        await keeping.keep(of(ANN, n))
    await trimming.trim()
    assert len(looks) == 1
    await keeping.keep(of(ANN, 20, size=20_000))
    await until(lambda: len(looks) == 2, "the look at one")


def test_a_caller_is_looked_at_after_a_part_of_what_he_may_have() -> None:
    written = Written()
    most = 100 * PARTS
    assert not written.add(ANN, 99, most)
    assert not written.add(BOB, 99, most)
    assert written.add(ANN, 1, most)
    assert list(written.due) == [ANN]
    assert not written.add(ANN, 99, most)
    assert written.add(BOB, 500, most)
    assert list(written.due) == [ANN, BOB]
    assert written.add(ANN, 1, 0), "nothing may be kept"


def test_of_very_many_callers_the_ones_that_wrote_first_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NOTED", 2)
    written, most = Written(), 100 * PARTS
    others = [Owner("site", f"{n}") for n in range(2)]
    assert not written.add(ANN, 99, most)
    for other in others:
        assert not written.add(other, 99, most)
    assert not written.add(ANN, 1, most)
