"""Rounds of the limits that follow a queue: what they do while the store is away, and as they are configured anew."""

from collections import Counter
from collections.abc import Mapping
from typing import cast

import pytest

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.inspect.load import ModelLoad
from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.limits.answers import name_of
from fairlane.workers.server.limits.congestion import Congestion
from fairlane.workers.server.limits.tightening import Why
from fairlane.workers.server.settings import DispatchSettings, OutputLimits

pytestmark = pytest.mark.anyio


class Store:
    """Tells of one model what it is told; None: it is away."""

    def __init__(self) -> None:
        self.wait_ms: int | None = 60_000
        self.up = True
        self.told: Counter[str] = Counter({name_of("first", 10): 100, name_of("gap", 10): 100})

    async def model_load(self, model: str, period_ms: int, seen: Mapping[str, int]) -> ModelLoad:
        if not self.up:
            raise StoreUnavailable("away", sent=False)
        self.told.update(seen)
        return ModelLoad("", self.wait_ms, self.told)


LIMITS = OutputLimits(30_000, 10_000, 2000, None, 1000, 2000)


def made(limits: OutputLimits = LIMITS) -> tuple[Store, DispatchSettings, Congestion]:
    store, settings = Store(), DispatchSettings(output_limits={"m": limits})
    return store, settings, Congestion(cast(Scheduler, store), settings)


def first(congestion: Congestion) -> tuple[int, Why]:
    limit = congestion.effective_limits()["m"].first_output
    assert limit is not None
    return round(limit.ms), limit.why


async def rounds(congestion: Congestion, number: int) -> None:
    for _ in range(number):
        await congestion.look()


async def test_limits_relax_while_the_store_is_away_and_what_was_measured_is_told_when_it_is_back() -> None:
    store, _, congestion = made()
    await rounds(congestion, 20)
    assert first(congestion) == (2000, Why.LONG_QUEUE)
    store.up = False
    congestion.took("m", "first", 500)
    await congestion.look()
    assert first(congestion) == (2400, Why.UNKNOWN)
    await rounds(congestion, 20)
    assert first(congestion) == (30_000, Why.UNKNOWN)
    store.up = True
    congestion.took("m", "first", 500)
    await congestion.look()
    assert store.told[name_of("first", 500)] == 2
    await congestion.look()
    assert store.told[name_of("first", 500)] == 2


async def test_limits_that_are_configured_anew_go_on_from_where_they_are() -> None:
    store, settings, congestion = made()
    await rounds(congestion, 20)
    settings.output_limits = {"m": OutputLimits(20_000, 10_000, 1000, 500, 1000, 2000)}
    store.wait_ms = 0
    await congestion.look()
    assert first(congestion) == (2400, Why.SHORT_QUEUE)
    settings.output_limits = {"m": OutputLimits(30_000, 10_000)}
    await congestion.look()
    assert (congestion.held("m"), first(congestion)) == (None, (30_000, Why.FIXED))
    settings.output_limits = {}
    await congestion.look()
    assert congestion.effective_limits() == {}


async def test_answers_of_a_model_whose_limits_are_fixed_are_not_counted() -> None:
    store, _, congestion = made(OutputLimits(30_000))
    congestion.took("m", "first", 500)
    await congestion.look()
    assert name_of("first", 500) not in store.told
