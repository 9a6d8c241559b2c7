"""A model's time limits tighten while its queue is long, and relax as it drains. Rounds are made by hand."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.metrics.scraping import scrape
from tests.support.talk import Talk

from fairlane.workers.server.limits.answers import Measure, name_of
from fairlane.workers.server.limits.congestion import PERIOD_MS

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
MANY = 40
"""Rounds in which a limit makes its way from one bound to the other."""


@pytest.fixture(autouse=True)
def tighten_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have limits of 30 s become 200 ms as soon as a task waits."""
    monkeypatch.setattr("fairlane.gateway.dispatching.TIGHTENS_BY", 150)
    monkeypatch.setattr("fairlane.gateway.dispatching.TIGHTENS_MS", (0, 1))


def following(**limits: int) -> dict[str, Any]:
    """Adaptive limits of the model `m`."""
    return {"m": {"adaptive_timeouts": True, **limits}}


async def look(talk: Talk, rounds: int = 1) -> dict[str, Any]:
    """What an operator sees of the model's limits after so many rounds."""
    for _ in range(rounds):
        await talk.served.gateway.dispatcher.congestion.look()
    (row,) = (row for row in (await talk.state())["models"] if row["model"] == "m")
    limits: dict[str, Any] = row["outputLimits"]
    return limits


async def answered_quickly(talk: Talk, measure: Measure) -> None:
    """So many answers have taken 10 ms that those of this test, on a busy machine, count for nothing."""
    await talk.served.gateway.scheduler.model_load("m", PERIOD_MS, {name_of(measure, 10): 5000})


async def failure_of(talk: Talk, task_id: str) -> tuple[str, str]:
    """Wait for the end of a task that fails; return the client's error message and its code."""
    failed = await talk.reaches(task_id, "failed")
    return failed["error"], failed["code"]


async def test_the_first_output_limit_tightens_with_the_queue_and_relaxes_as_it_drains(
    gateway: Start,
) -> None:
    models = following(first_output_ms=30_000)
    async with gateway(models=models) as talk, talk.worker2(["m"]) as worker:
        await talk.warm(worker, "m")
        limits = await look(talk)
        assert (limits["firstOutput"]["ms"], limits["firstOutput"]["reason"]) == (30_000, "short_queue")
        assert (limits["firstOutput"]["answers"], limits["silence"], limits["waitMs"]) == (1, None, 0)

        running = await talk.submit(model="m")
        first = await worker.take()
        late, *rest = [await talk.submit(model="m") for _ in range(3)]
        assert (await look(talk))["firstOutput"]["reason"] == "few_answers"
        await answered_quickly(talk, "first")
        one_round = (await look(talk))["firstOutput"]
        assert 200 < one_round["ms"] <= 24_000
        assert (one_round["targetMs"], one_round["reason"]) == (200, "long_queue")
        limits = await look(talk, MANY)
        assert (limits["firstOutput"]["ms"], limits["waitMs"] > 0) == (200, True)
        seen = await scrape(talk.http)
        assert seen.value("fairlane_output_limit_seconds", model="m", limit="first_output") == 0.2

        (attempt,) = talk.served.gateway.dispatcher.attempts.values()
        assert attempt.limits is not None
        assert attempt.limits.first_output_ms == 30_000, "it keeps what held at its grant"
        await worker.answer(first, {})
        await talk.reaches(running, "completed")
        slow = await worker.take()
        text = "The model did not begin to answer within 200 ms, tightened from 30000 ms"
        assert await failure_of(talk, late) == (text, "FIRST_TOKEN_TIMEOUT")
        assert (await worker.skip_to("cancel"))["taskId"] == slow["taskId"]

        for task_id in rest:
            await talk.http.post(f"/api/task/{task_id}/cancel")
        limits = await look(talk)
        assert (limits["firstOutput"]["ms"] > 200, limits["firstOutput"]["reason"]) == (True, "short_queue")
        assert (await look(talk, MANY))["firstOutput"]["ms"] == 30_000


async def test_replicas_come_to_the_same_limits(gateway: Start) -> None:
    models = following(first_output_ms=30_000)
    async with (
        gateway(models=models) as here,
        gateway(models=models) as there,
        there.worker2(["m"]) as worker,
    ):
        await there.warm(worker, "m")
        await here.submit(model="m")
        await worker.take()
        await here.submit(model="m")
        await look(there)
        await answered_quickly(here, "first")
        assert (await look(there))["firstOutput"]["answers"] == 5001
        for talk in (here, there):
            assert (await look(talk, MANY))["firstOutput"]["ms"] == 200
