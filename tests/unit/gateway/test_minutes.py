"""What the log says of each minute."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from fairlane.gateway.watch import minutes
from fairlane.gateway.watch.minutes import Minutes
from fairlane.queues.errors import StoreError
from fairlane.queues.metrics import Recorder, TaskEnd
from fairlane.queues.rules import EffectiveSettings
from fairlane.queues.survey.survey import Blocked, Lane, Model, Queue, Survey
from fairlane.queues.tasks import State

SETTLED: Any = EffectiveSettings({}, {})


class Stage:
    """A minute's facts, put there by the test."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.metrics = Recorder()
        self.running: list[Any] = []
        surveyor: Any = None
        self.minutes = Minutes("r", self.metrics, surveyor, lambda: self.running, lambda: self.now)

    def fail(self, code: str) -> None:
        self.metrics.ended(TaskEnd("q", "m", "openaiLike", State.FAILED, code, 10))

    def lines(self, *models: Model, waiting: int = 0, workers: int = 0) -> list[Any]:
        survey = Survey(
            0,
            [Queue("q", SETTLED, waiting, oldest_wait_ms=90_000 if waiting else None)],
            list(models),
            [Lane("q", model.model, model.waiting, oldest_wait_ms=90_000) for model in models],
            [{}] * workers,
            {},
            {},
        )
        with capture_logs() as logs:
            self.minutes.note(survey)
        return logs


def test_a_minute_in_which_nothing_was_is_not_told() -> None:
    assert Stage().lines(workers=3) == []


def test_a_minute_is_told_in_numbers_which_count_once() -> None:
    stage = Stage()
    stage.fail("WORKER_ERROR")
    stage.fail("WORKER_ERROR")
    stage.metrics.ended(TaskEnd("q", "m", "openaiLike", State.COMPLETED, "", 10))
    stage.metrics.rejected("q", "m", "full")
    (line,) = stage.lines(Model("m", SETTLED, running=1, waiting=5, workers=1), waiting=5, workers=1)
    assert line["event"] == "the last minute"
    assert (line["waiting"], line["running"], line["oldest_wait_s"], line["workers"]) == (5, 1, 90, 1)
    assert (line["ended"], line["failed"]) == ({"failed": 2, "completed": 1}, {"WORKER_ERROR": 2})
    assert line["refused"] == {"full": 1}
    (line,) = stage.lines(Model("m", SETTLED, running=1, workers=1), workers=1)
    assert (line["ended"], line["failed"], line["refused"]) == ({}, {}, {})


def test_users_who_are_refused_most_are_named() -> None:
    stage = Stage()
    stage.metrics.rejected("q", "m", "full")
    for number in range(5000):
        stage.minutes.refused(f"user-{number}")
    for user, times in (("mallory", 50), ("user-1", 3), ("user-2", 2), ("user-3", 1)):
        for _ in range(times):
            stage.minutes.refused(user)
    (line,) = stage.lines()
    assert line["refused_most"] == {"user-1": 4, "user-2": 3, "user-3": 2}, (
        "mallory came after a thousand others"
    )
    stage.metrics.rejected("q", "m", "full")
    stage.minutes.refused("mallory")
    (line,) = stage.lines()
    assert line["refused_most"] == {"mallory": 1}


def test_the_task_that_runs_longest_is_named_and_the_one_that_gives_no_sign_for_longest() -> None:
    stage = Stage()
    for number, (began, sign) in enumerate([(990.0, 990.0), (700.0, 999.0), (900.0, 905.0), (800.0, None)]):
        grant, worker = SimpleNamespace(task_id=f"t{number}"), SimpleNamespace(id=f"w{number}")
        attempt = SimpleNamespace(grant=grant, worker=worker, started_at=began, silent_since=sign)
        stage.running.append(attempt)
    (line,) = stage.lines(Model("m", SETTLED, running=3, workers=1))
    assert (line["longest_task"], line["longest_worker"], line["longest_s"]) == ("t1", "w1", 300)
    assert (line["silent_task"], line["silent_worker"], line["silent_s"]) == ("t2", "w2", 95)
    stage.now -= 50
    (line,) = stage.lines(Model("m", SETTLED, running=3, workers=1))
    assert line["longest_s"] == 250
    assert "silent_s" not in line, "that is not long"


def test_a_model_that_nobody_offers_is_told_every_ten_minutes() -> None:
    stage = Stage()
    lost = Model("lost", SETTLED, waiting=7)

    def told() -> list[Any]:
        return [line for line in stage.lines(lost, waiting=7) if line["log_level"] == "warning"]

    (line,) = told()
    assert (line["model"], line["waiting"], line["oldest_wait_s"]) == ("lost", 7, 90)
    assert told() == []
    stage.now += 600
    assert len(told()) == 1


def test_permits_that_wait_miss_no_worker() -> None:
    permits = Model("http:image", SETTLED, waiting=7)
    calls = Model("http:search", SETTLED, waiting=1, blocked={"q": Blocked.NO_WORKER})
    told = [line["model"] for line in Stage().lines(permits, calls) if line["log_level"] == "warning"]
    assert (told, permits.unserved, calls.unserved) == (["http:search"], False, True)


def test_of_many_such_models_five_are_told_at_a_time() -> None:
    stage = Stage()
    models = [Model(f"m{number}", SETTLED, waiting=number + 1) for number in range(12)]
    numbers = [sum(line["log_level"] == "warning" for line in stage.lines(*models)) for _ in range(4)]
    assert numbers == [5, 5, 2, 0]


def test_tasks_that_cannot_start_are_counted_by_the_reason() -> None:
    lanes = [
        Lane("paid", "m", 3, blocked=Blocked.MODEL_PAUSED),
        Lane("free", "m", 2, blocked=Blocked.MODEL_PAUSED),
        Lane("free", "n", 1),
    ]
    with capture_logs() as logs:
        Stage().minutes.note(Survey(0, [Queue("q", SETTLED, 6)], [], lanes, [], {}, {}))
    assert logs[0]["blocked"] == {"model_paused": 5}


@pytest.mark.anyio
async def test_what_else_there_is_to_tell_is_told_also_while_redis_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def recent() -> Survey:
        raise StoreError("away")

    monkeypatch.setattr(minutes, "MINUTE_S", 0.0)
    surveyor: Any = SimpleNamespace(recent=recent)
    told = asyncio.Event()
    writer = Minutes("r", Recorder(), surveyor, list, also=told.set)
    writer.start()
    await asyncio.wait_for(told.wait(), 30)
    await writer.close()
