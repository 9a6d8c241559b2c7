"""What maintenance sends is bounded: renewals of readers and leases come in batches."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.queues.inspect.presence import MAX_PER_MESSAGE
from fairlane.queues.scheduler import Limits
from fairlane.workers.server.maintenance import Maintenance

pytestmark = pytest.mark.anyio


class Scheduler:
    def __init__(self) -> None:
        self.limits = Limits()
        self.renewals: list[tuple[int, list[str]]] = []

    async def renew(self, held: Any, read: Any = ()) -> list[int]:
        self.renewals.append((len(held), list(read)))
        return [1] * len(held)


def maintenance(attempts: int = 0, readers: int = 0) -> tuple[Maintenance, Any]:
    now = asyncio.get_running_loop().time
    made = SimpleNamespace(
        scheduler=Scheduler(),
        time=lambda: now() + 1000,
        offers=SimpleNamespace(hurry=None),
        hub=SimpleNamespace(keeping_alive=lambda _: [f"t{n}" for n in range(readers)]),
        attempts={
            str(n): SimpleNamespace(
                held=True,
                renewed_at=0.0,
                grant=n,
                worker=SimpleNamespace(id="w"),
                phase="running",
                output_tokens=1,
            )
            for n in range(attempts)
        },
    )
    return Maintenance(made, made.attempts, None, None), made  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempts", "readers"), [(0, 0), (1, 0), (0, 1), (1200, 30), (30, 10_000), (500, 500)]
)
async def test_renewals_come_in_batches(attempts: int, readers: int) -> None:
    replica, made = maintenance(attempts, readers)
    await replica._renew()
    renewals = made.scheduler.renewals
    assert all(held <= MAX_PER_MESSAGE and len(read) <= MAX_PER_MESSAGE for held, read in renewals)
    assert sum(held for held, _ in renewals) == attempts
    assert [task for _, read in renewals for task in read] == [f"t{n}" for n in range(readers)]
    assert len(renewals) == -(-max(attempts, readers) // MAX_PER_MESSAGE)
