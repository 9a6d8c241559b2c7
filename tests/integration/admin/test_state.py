"""What an operator sees of queues and models is what Redis and the configuration say."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.talk import Talk

from fairlane.queues.inspect import inspector

from .operating import change, row

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


async def submit(talk: Talk, tier: str, user: str) -> str:
    headers = {"X-Fairlane-Tier": tier, "X-Fairlane-User": user}
    answer = await talk.http.post("/api/openai", json={"model": "m", "async": True}, headers=headers)
    assert answer.status_code == 202
    return str(answer.json()["taskId"])


async def test_the_limits_that_hold_are_shown_and_which_were_changed(gateway: Start) -> None:
    settings = {
        "max_queue_length": 70,
        "models": {"m": {"concurrency": 4, "max_waiting_per_user": 9}},
        "queues": {"paid_stream": {"reserved": 2, "max_wait_ms": 30_000}},
    }
    async with gateway(**settings) as talk:
        await change(talk, "queue", "paid_stream", weight=3, admission="adaptive", paused=True)
        await change(talk, "model", "m", concurrency=2, requests_per_minute=6, cost="slot_seconds")
        queue, model = await row(talk, "queue", "paid_stream"), await row(talk, "model", "m")
        shown = {
            "weight": 3,
            "maxLength": 70,
            "maxWaitMs": 30_000,
            "maxRunning": None,
            "reserved": 2,
            "admission": "adaptive",
            "paused": True,
            "overrides": {"weight": 3, "admission": "adaptive", "paused": True},
        }
        assert {name: queue[name] for name in shown} == shown
        shown = {
            "limit": 2,
            "cost": "slot_seconds",
            "requestsPerMinute": 6,
            "tokensPerMinute": None,
            "windows": None,
            "maxRunningPerUser": None,
            "maxWaitingPerUser": 9,
            "paused": False,
            "overrides": {"concurrency": 2, "requests_per_minute": 6, "cost": "slot_seconds"},
        }
        assert {name: model[name] for name in shown} == shown
        assert (await row(talk, "queue", "free_batch"))["overrides"] == {}


@pytest.mark.parametrize("most", [2000, 2])
async def test_queues_show_what_runs_waits_and_how_long_the_oldest_has(
    here: Talk, there: Talk, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(inspector, "MAX_TASKS", most)
    monkeypatch.setattr(inspector, "MAX_USERS", min(most, 32))
    async with there.worker2(["m"], slots=4) as worker:
        for user in "abcd":
            await submit(here, "paid", user)
        for _ in range(4):
            await worker.take()
        oldest = await submit(here, "free", "a")
        for user in "aaab":
            await submit(here, "free", user)
        for talk in (here, there):
            paid, free = await row(talk, "queue", "paid_batch"), await row(talk, "queue", "free_batch")
            assert (paid["running"], paid["waiting"], paid["oldestWaitMs"]) == (4, 0, None)
            assert (free["running"], free["waiting"]) == (0, 5)
            state = await talk.state()
            [first] = [task for task in state["tasks"] if task["taskId"] == oldest]
            assert free["oldestWaitMs"] <= state["now"] - first["enqueuedAt"]
            assert (await row(talk, "queue", "free_batch"))["oldestWaitMs"] >= state["now"] - first[
                "enqueuedAt"
            ]
            model = await row(talk, "model", "m")
            assert (model["running"], model["waiting"], model["slots"]) == (4, 5, 4)


async def test_a_paced_model_shows_when_it_may_begin_again(here: Talk, there: Talk) -> None:
    await change(here, "model", "m", requests_per_minute=1)
    async with there.worker2(["m"], slots=2) as worker:
        await submit(here, "free", "u")
        await worker.take()
        await submit(here, "free", "u")
        state = await here.state()
        model = await row(here, "model", "m")
        assert 0 < model["nextStartAt"] - state["now"] <= 60_000
        assert (model["running"], model["waiting"], model["cooldownUntil"]) == (1, 1, None)
        await change(here, "model", "m", requests_per_minute=None)
        await worker.take()
        assert (await row(here, "model", "m"))["nextStartAt"] is None


@pytest.mark.parametrize(
    "path",
    [
        *("overview?tasks=x", "overview?tasks=501", "overview?tasks=-1"),
        *("tasks?limit=0", "tasks?limit=201", "tasks?after=x", "tasks?status=lost"),
        f"tasks?user={'x' * 257}",
        *("audit?limit=1001", "audit?after=0-0", "tasks?from=yesterday"),
    ],
)
async def test_a_wrong_parameter_is_a_400_that_names_it(shared_gateway: Start, path: str) -> None:
    async with shared_gateway() as talk:
        answer = await talk.http.get(f"/api/admin/{path}")
        body = answer.json()
        assert (answer.status_code, set(body), body["code"]) == (
            400,
            {"error", "code", "docsUrl"},
            "INVALID_REQUEST",
        )
        assert body["error"].startswith(path.partition("?")[2].partition("=")[0])
        assert answer.headers["x-request-id"].startswith("req_")


async def test_a_task_that_failed_after_three_tries_lists_three_attempts(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        submitted = await talk.submit(model="m")
        for _ in range(3):
            task = await worker.take()
            info = {"code": "UPSTREAM_ERROR", "retryable": True}
            await worker.answer(task, None, error="It fell over", errorInfo=info, lastSeq=0)
        await talk.reaches(submitted, "failed")
        shown = (await talk.http.get(f"/api/admin/tasks/{submitted}")).json()
        assert shown["attempt"] == 3
        assert [attempt["outcome"] for attempt in shown["attempts"]] == ["UPSTREAM_ERROR"] * 3
        assert all(attempt["grantedAt"] <= attempt["endedAt"] for attempt in shown["attempts"])
