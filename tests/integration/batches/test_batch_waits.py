"""What lines of batches wait for: it is told, holds up no other lines, fails nothing, and is none of their caller's refusals."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.serving import until

from fairlane.queues.metrics import TASKS_ACCEPTED, TASKS_REJECTED

from .crew import Caller, line, stage, waits

pytestmark = pytest.mark.anyio


def refused(caller: Caller) -> float:
    return sum(caller.served.gateway.metrics.values[TASKS_REJECTED.name].values())


async def test_a_model_without_a_worker_is_told_and_holds_up_no_other_ones_lines(
    redis_url: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"models": {"echo": {}, "lonely": {}}, "batches": {"window": 3}}
    async with stage(redis_url, tmp_path, **settings) as (caller, crew):
        first = [line(number, model="lonely") for number in range(20)]
        made = await caller.batch([*first, *(line(number) for number in range(20, 25))])
        await until(lambda: len(crew.runs) == 5, "lines of the other model to run")
        told = await waits(caller, made["id"], "NO_WORKER")
        assert told["waitsFor"] == [{"code": "NO_WORKER", "models": ["lonely"]}]

        async def ended() -> bool:
            shown = await caller.show(made["id"])
            return bool(shown["request_counts"]["completed"] == 5 and shown["fairlane"]["linesRunning"] == 0)

        await until(ended, "the other lines to be answered")
        [row] = (await caller.http.get("/api/admin/batches")).json()["batches"]
        assert row["waitsFor"] == told["waitsFor"]
        assert (row["linesWaiting"], row["linesRunning"], row["counts"]["completed"]) == (0, 0, 5)
        assert refused(caller) == 0
        assert sum(caller.served.gateway.metrics.values[TASKS_ACCEPTED.name].values()) == 5
        await caller.http.post(f"/v1/batches/{made['id']}/cancel")
        over = await caller.reaches(made["id"])
        assert over["request_counts"] == {"total": 25, "completed": 5, "failed": 0}
        assert over["fairlane"]["waitsFor"] == []


async def test_a_line_may_wait_for_longer_than_its_queue_lets_others(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=1, queues={"free_batch": {"max_wait_ms": 100}}) as (
        caller,
        crew,
    ):
        crew.go.clear()
        made = await caller.batch([line(number, model="patient") for number in range(3)])
        body = {"model": "patient", "messages": [{"role": "user", "content": "later"}], "async": True}
        await until(lambda: crew.running == 1, "the first line to run")
        other = (await caller.http.post("/api/openai", json=body)).json()["taskId"]

        async def failed() -> bool:
            return bool((await caller.http.get(f"/api/task/{other}")).json()["status"] == "failed")

        await until(failed, "a task of the same queue to have waited for too long")
        crew.go.set()
        ended = await caller.reaches(made["id"])
        assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
