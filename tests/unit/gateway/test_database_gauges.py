"""What a survey of the database says, as gauges."""

from fairlane.gateway.metrics.database_gauges import MAX_REASONS, rows_of
from fairlane.gateway.metrics.database_survey import BatchGroup, DatabaseSurvey, Sums


def survey(*groups: BatchGroup, responses: Sums | None = None) -> DatabaseSurvey:
    return DatabaseSurvey(groups, Sums(2, 300), responses)


def test_batches_are_added_up_by_status_and_by_what_they_wait_for() -> None:
    rows = rows_of(
        survey(
            BatchGroup("in_progress", ("NO_WORKER", "RATE_LIMITED"), 3, 2, 10, 1),
            BatchGroup("in_progress", (), 5, 0, 20, 4),
            BatchGroup("in_progress", ("QUEUE_FULL",), 1, 0, 0, 0),
            BatchGroup("validating", ("NO_WORKER",), 1, 1, 0, 0),
            responses=Sums(7, 9000),
        ),
        1000,
    )
    unended = {("validating",): 1, ("in_progress",): 9, ("finalizing",): 0, ("cancelling",): 0}
    assert rows["fairlane_batches_unended"] == unended
    assert rows["fairlane_batches_stalled"] == {("NO_WORKER",): 3, ("RATE_LIMITED",): 2}
    assert rows["fairlane_batch_lines_in_progress"] == {("waiting",): 30, ("running",): 5}
    assert rows["fairlane_files_bytes"] == {(): 300}
    assert rows["fairlane_files_limit_bytes"] == {(): 1000}
    assert rows["fairlane_stored_responses"] == {(): 7}


def test_what_is_not_known_is_missing_and_reasons_are_bounded() -> None:
    rows = rows_of(survey(*(BatchGroup("in_progress", (f"C{n}",), 1, 1, 0, 0) for n in range(200))), 1)
    assert "fairlane_stored_responses" not in rows
    still = rows["fairlane_batches_stalled"]
    assert len(still) == MAX_REASONS + 1
    assert still["other",] == 200 - MAX_REASONS
