"""A model's time limits shrink while its queue is long, and return as it drains. The load is read by hand."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.metrics.scraping import scrape
from tests.support.talk import Talk

from fairlane.queues.inspect.load import ModelLoad
from fairlane.workers.server.hooks.congestion import ModelLimits, limits_at
from fairlane.workers.server.settings import OutputLimits

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


@pytest.mark.parametrize(
    ("stopped", "wait_ms", "limits"),
    [
        ("", 0, ModelLimits(30_000, None, "short_queue", 0)),
        ("", 2_000, ModelLimits(30_000, None, "short_queue", 2_000)),
        ("", 11_000, ModelLimits(18_750, None, "long_queue", 11_000)),
        ("", 90_000, ModelLimits(7_500, None, "long_queue", 90_000)),
        ("", None, ModelLimits(30_000, None, "unknown", None)),
        ("paused", 90_000, ModelLimits(30_000, None, "paused", 90_000)),
    ],
)
def test_a_limit_falls_in_a_straight_line_to_a_quarter(
    stopped: str, wait_ms: int | None, limits: ModelLimits
) -> None:
    assert limits_at(OutputLimits(30_000, None, adaptive=True), ModelLoad(stopped, wait_ms)) == limits


async def test_the_first_output_limit_shrinks_with_the_queue_and_returns_as_it_drains(
    gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SHORT_MS": 0, "LONG_MS": 1, "LEAST": 1 / 150}.items():
        monkeypatch.setattr(f"fairlane.workers.server.hooks.congestion.{name}", value)
    models = {"m": {"adaptive_timeouts": True, "first_output_ms": 30_000}}

    async def look(talk: Talk) -> dict[str, Any]:
        await talk.served.gateway.dispatcher.congestion.step()
        (row,) = (row for row in (await talk.state())["models"] if row["model"] == "m")
        limits: dict[str, Any] = row["outputLimits"]
        return limits

    async with gateway(models=models) as talk, talk.worker2(["m"]) as worker:
        await talk.warm(worker, "m")
        short = {"firstOutputMs": 30_000, "silenceMs": None, "reason": "short_queue", "waitMs": 0}
        assert await look(talk) == short
        running = await talk.submit(model="m")
        first = await worker.take()
        late, *rest = [await talk.submit(model="m") for _ in range(3)]
        limits = await look(talk)
        assert (limits["firstOutputMs"], limits["reason"], limits["waitMs"] > 0) == (200, "long_queue", True)
        seen = await scrape(talk.http)
        assert seen.value("fairlane_output_limit_seconds", model="m", limit="first_output") == 0.2
        await worker.answer(first, {})
        await talk.reaches(running, "completed")
        slow = await worker.take()
        failed = await talk.reaches(late, "failed")
        assert failed["code"] == "FIRST_TOKEN_TIMEOUT"
        assert "200 ms, reduced as the queue is long" in failed["error"]
        assert (await worker.skip_to("cancel"))["taskId"] == slow["taskId"]
        for task_id in rest:
            await talk.http.post(f"/api/task/{task_id}/cancel")
        assert await look(talk) == short
