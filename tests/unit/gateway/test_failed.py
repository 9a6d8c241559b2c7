"""The lines that tell of tasks that failed."""

from typing import Any

from structlog.testing import capture_logs

from fairlane.gateway.watch.failed import FailedTasks
from fairlane.queues.metrics import EndedTask, TaskEnd
from fairlane.queues.tasks import State


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def end(code: str = "WORKER_LOST", sentence: str = "Worker disconnected") -> TaskEnd:
    task = EndedTask("task", "req_1", "alice", "m", "w1", 2, sentence)
    return TaskEnd("q", "line", "openaiLike", State.FAILED, code, 1234.4, task=task)


def lines(failed: FailedTasks, *ends: TaskEnd) -> list[Any]:
    with capture_logs() as logs:
        for each in ends:
            failed.told(each)
        failed.add_up()
    return logs


def test_a_task_that_failed_has_a_line_with_all_that_leads_to_it() -> None:
    assert lines(FailedTasks(Clock()), end()) == [
        {
            "log_level": "info",
            "event": "task failed",
            "code": "WORKER_LOST",
            "category": "worker",
            "task_id": "task",
            "request_id": "req_1",
            "model": "m",
            "queue": "q",
            "user": "alice",
            "worker_id": "w1",
            "attempt": 2,
            "waited_and_ran_ms": 1234,
            "error": "Worker disconnected",
        }
    ]


def test_what_may_quote_a_request_is_left_out() -> None:
    (line,) = lines(FailedTasks(Clock()), end("UPSTREAM_ERROR", "The upstream answered 500: My secret"))
    assert line["error"] == "The upstream answered 500"


def test_where_thousands_fail_there_are_few_lines() -> None:
    clock = Clock()
    failed = FailedTasks(clock)
    assert len(lines(failed, *[end()] * 1000)) == 20
    clock.now += 1
    assert len(lines(failed, *[end("TOTAL_TIMEOUT")] * 1000)) == 2
    clock.now += 9.5
    first, *others = lines(failed, end())
    assert first["event"] == "task failed"
    (summed,) = others
    assert (summed["event"], summed["codes"]) == (
        "more tasks failed",
        {"WORKER_LOST": 980, "TOTAL_TIMEOUT": 998},
    )
    clock.now += 60
    assert lines(failed) == []
