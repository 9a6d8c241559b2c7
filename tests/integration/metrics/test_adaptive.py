"""The adapted concurrency limit of a model on real gateways: where it is shown, and that tasks follow it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk

from .scraping import scrape_when

pytestmark = pytest.mark.anyio

AUTO = {"auto": True, "target_first_token": "10m", "max": 3}


async def row_of(talk: Talk) -> dict[str, Any]:
    models = (await talk.http.get("/api/admin/overview")).json()["models"]
    return next(row for row in models if row["model"] == "m")


async def outputs(worker: RawWorker, number: int) -> list[dict[str, Any]]:
    """Take tasks, and write the first output of the last one, which got the last slot."""
    tasks = [await worker.take() for _ in range(number)]
    await worker.chunk(tasks[-1], "one")
    return tasks


async def test_the_limit_grows_over_two_gateways_and_is_shown(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]],
) -> None:
    models = {"m": {"concurrency": AUTO}}
    async with (
        gateway(models=models) as here,
        gateway(models=models) as there,
        there.worker2(["m"], slots=8) as worker,
    ):
        for _ in range(8):
            body = {"model": "m", "async": True}
            assert (await here.http.post("/api/openai", json=body)).status_code == 202
        await outputs(worker, 1)
        await outputs(worker, 1)
        (third,) = await outputs(worker, 1)
        seen = await scrape_when(here.http, 3, "fairlane_model_slots_limit", model="m")
        assert seen.value("fairlane_model_limit_decreases", model="m") == 0
        assert seen.value("fairlane_model_slots_used", model="m") == 3
        row = await row_of(there)
        assert (row["limit"], row["running"], row["waiting"]) == (3, 3, 5)
        assert row["adaptive"] | {"limit": 3, "min": 1, "max": 3, "targetMs": 600_000} == row["adaptive"]

        changed = await here.http.patch("/api/admin/models/m", json={"concurrency": 2})
        assert changed.status_code == 200, changed.text
        await scrape_when(there.http, 2, "fairlane_model_slots_limit", model="m")
        assert (await row_of(there))["adaptive"] is None
        await worker.answer(third, {"content": "one"})
        assert (await here.http.patch("/api/admin/models/m", json={"concurrency": None})).status_code == 200
        await worker.take()
        await scrape_when(there.http, 3, "fairlane_model_slots_limit", model="m")
