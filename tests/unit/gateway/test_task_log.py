"""The lines of tasks that failed, and of fallbacks."""

from typing import Any

from structlog.testing import capture_logs

from fairlane.gateway.watch.task_log import LoggingRecorder
from fairlane.queues.metrics import FALLBACKS, EndedTask, TaskEnd
from fairlane.queues.tasks import State


def lines(code: str, sentence: str) -> list[Any]:
    task = EndedTask("task", "req_1", "alice", "m", "w1", 2, sentence)
    with capture_logs() as logs:
        LoggingRecorder().failed(TaskEnd("q", "line", "openaiLike", State.FAILED, code, 1234.4, task=task))
    return logs


def test_a_task_that_failed_has_a_line_with_all_that_leads_to_it() -> None:
    assert lines("WORKER_LOST", "Worker disconnected") == [
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
    (line,) = lines("UPSTREAM_ERROR", "The upstream answered 500: My secret")
    assert line["error"] == "The upstream answered 500"


def test_fallbacks_are_counted_and_few_of_thousands_are_logged() -> None:
    metrics = LoggingRecorder(["a", "b"])
    with capture_logs() as logs:
        for _ in range(1000):
            metrics.fell_back("a", "b", "unavailable", 3)
    assert metrics.values[FALLBACKS.name] == {("a", "b", "unavailable"): 3000}
    assert len(logs) == 10
    line = {
        "event": "tasks fall back to another model",
        "model": "a",
        "to": "b",
        "cause": "unavailable",
        "tasks": 3,
    }
    assert logs[0] == {"log_level": "warning", **line}
