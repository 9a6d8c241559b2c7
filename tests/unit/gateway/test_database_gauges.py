"""Batches of the database as gauges."""

from fairlane.gateway.batches.feature import MAX_REASONS, rows_of_batches
from fairlane.gateway.batches.models import BlockedOn, blocked_on_json


def blocked(*codes: str) -> str:
    reasons: BlockedOn = {code: [] for code in codes}
    return blocked_on_json(reasons)


def test_batches_are_added_up_by_status_and_by_the_reason_that_blocks_them() -> None:
    rows = rows_of_batches(
        [
            ("in_progress", blocked("NO_WORKER", "RATE_LIMITED"), 3, 2, 10, 1),
            ("in_progress", "", 5, 0, 20, 4),
            ("in_progress", blocked("QUEUE_FULL"), 1, 0, 0, 0),
            ("validating", blocked("NO_WORKER"), 1, 1, 0, 0),
        ]
    )
    unended = {("validating",): 1, ("in_progress",): 9, ("finalizing",): 0, ("cancelling",): 0}
    assert rows["fairlane_batches_unended"] == unended
    assert rows["fairlane_batches_stalled"] == {("NO_WORKER",): 3, ("RATE_LIMITED",): 2}
    assert rows["fairlane_batch_lines_in_progress"] == {("waiting",): 30, ("running",): 5}


def test_reasons_are_bounded() -> None:
    rows = rows_of_batches(("in_progress", blocked(f"C{n}"), 1, 1, 0, 0) for n in range(200))
    stalled = rows["fairlane_batches_stalled"]
    assert len(stalled) == MAX_REASONS + 1
    assert stalled["other",] == 200 - MAX_REASONS
