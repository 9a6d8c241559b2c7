"""What a replica tells the store of its workers' models and upstreams: all of it, in calls of a bounded size."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest

from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.pool.offers import MAX_PAIRS, Offers
from fairlane.workers.server.pool.pool import MAX_UPSTREAMS, Pool
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.settings import DispatchSettings

pytestmark = pytest.mark.anyio

Pairs = Sequence[tuple[str, str]]


class Store:
    """Takes what is told."""

    replica = "r1"

    def __init__(self) -> None:
        self.calls: list[tuple[Sequence[str], Sequence[str], Pairs]] = []

    def offer(
        self, models: Sequence[str], withdrawn: Sequence[str], _hold: int, _grace: int, upstreams: Pairs
    ) -> "asyncio.Future[int]":
        self.calls.append((models, withdrawn, upstreams))
        return self._done(0)

    def update_presence(self, _news: Any, _hold: int) -> "asyncio.Future[int]":
        return self._done(-1)

    @staticmethod
    def parse_offer(reply: int) -> int:
        return reply

    parse_presence = parse_offer

    def _done(self, value: int) -> "asyncio.Future[int]":
        reply = asyncio.get_running_loop().create_future()
        reply.set_result(value)
        return reply


def connect(pool: Pool, models: Sequence[str], upstream: str) -> Worker:
    def nothing(*_: Any) -> None: ...

    worker = Worker(f"w-{upstream}", "w", 2, models, 1, upstream=upstream, send=nothing, close=nothing)
    pool.add(worker)
    return worker


async def test_many_upstreams_of_many_models_are_told_in_portions() -> None:
    store, pool = Store(), Pool(lambda: 0.0)
    offers = Offers(cast(Scheduler, store), pool, DispatchSettings())
    models = [f"m{n}" for n in range(60)]
    for n in range(40):
        connect(pool, models, f"up{n}")
    connect(pool, ["plain"], "")
    await offers.report_if_due()
    offers.close()
    told = Counter(pair for _, _, pairs in store.calls for pair in pairs)
    assert told == Counter((model, f"up{n}") for model in models for n in range(40))
    assert Counter(model for names, _, _ in store.calls for model in names) == Counter([*models, "plain"])
    for names, _, pairs in store.calls:
        assert len(pairs) <= MAX_PAIRS
        assert {model for model, _ in pairs} <= set(names), "a model's upstreams are told at once"


async def test_of_one_model_so_many_are_told_that_some_of_them_are_not_shut() -> None:
    store, pool = Store(), Pool(lambda: 0.0)
    offers = Offers(cast(Scheduler, store), pool, DispatchSettings())
    for n in range(MAX_UPSTREAMS + 20):
        connect(pool, ["m"], f"up{n}")
    await offers.report_if_due()
    offers.close()
    ((names, withdrawn, pairs),) = store.calls
    assert (names, withdrawn, len(pairs)) == (["m"], [], MAX_UPSTREAMS)
