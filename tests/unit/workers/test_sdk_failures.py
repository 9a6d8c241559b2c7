"""The lines of a worker's log that say why tasks failed."""

import logging

import pytest

from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.failures import FailureLines

log = logging.getLogger("test.failures")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    "code", ["UPSTREAM_ERROR", "TOTAL_TIMEOUT"], ids=["a worker's code", "the gateway's own"]
)
def test_what_may_quote_the_request_is_not_written(caplog: pytest.LogCaptureFixture, code: str) -> None:
    caplog.set_level(logging.INFO)
    FailureLines().tell(log, TaskError(code, "template failed on input: my secret"))
    assert caplog.messages == [f"failed with {code}: template failed on input"]


def test_of_many_failures_some_have_a_line_and_the_next_line_counts_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    lines = FailureLines(clock)
    error = TaskError("UPSTREAM_ERROR", "The upstream answered 500: out of memory")
    for _ in range(25):
        lines.tell(log, error)
    one = "failed with UPSTREAM_ERROR: The upstream answered 500"
    assert caplog.messages == [one] * 20
    clock.now += 0.5
    lines.tell(log, error)
    lines.tell(log, error)
    assert caplog.messages[20:] == [f"{one} (5 others failed before it)"]
