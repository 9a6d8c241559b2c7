"""Values from the database as gauges. Every replica reports the same: query them with `max`, not with `sum`."""

from collections import Counter

from fairlane.gateway.batches.models import UNENDED
from fairlane.gateway.metrics.database_survey import DatabaseSurvey
from fairlane.gateway.metrics.store_gauges import Rows, StoreGauge
from fairlane.queues.metrics import OTHER

MAX_REASONS = 50

DATABASE_GAUGES = (
    StoreGauge("fairlane_batches_unended", ("status",), "Batches that have not ended"),
    StoreGauge(
        "fairlane_batches_stalled",
        ("reason",),
        "Batches without a waiting or running line because lines are blocked, by the code of the reason",
    ),
    StoreGauge(
        "fairlane_batch_lines_in_progress",
        ("status",),
        "Lines of batches that are submitted: waiting, running",
    ),
    StoreGauge("fairlane_files", (), "Files, also those that arrive or are still to be removed"),
    StoreGauge("fairlane_files_bytes", (), "Bytes that they take, or are set aside for them"),
    StoreGauge("fairlane_files_limit_bytes", (), "Bytes that they may take (files.max_size)"),
    StoreGauge("fairlane_stored_responses", (), "Responses that are kept; counted every ten minutes"),
    StoreGauge("fairlane_stored_response_bytes", (), "Bytes of them"),
)


def rows_of(survey: DatabaseSurvey, most_file_bytes: int) -> Rows:
    """Return the values by metric and labels."""
    unended, still, lines = Counter(dict.fromkeys(UNENDED, 0)), Counter[str](), Counter(waiting=0, running=0)
    for group in survey.batches:
        unended[group.status] += group.number
        lines["waiting"] += group.waiting
        lines["running"] += group.running
        for code in group.codes if group.still else ():
            still[code if code in still or len(still) < MAX_REASONS else OTHER] += group.still
    rows: Rows = {
        "fairlane_batches_unended": {(status,): number for status, number in unended.items()},
        "fairlane_batches_stalled": {(code,): number for code, number in still.items()},
        "fairlane_batch_lines_in_progress": {(state,): number for state, number in lines.items()},
        "fairlane_files": {(): survey.files.number},
        "fairlane_files_bytes": {(): survey.files.bytes},
        "fairlane_files_limit_bytes": {(): most_file_bytes},
    }
    if survey.responses is not None:
        rows["fairlane_stored_responses"] = {(): survey.responses.number}
        rows["fairlane_stored_response_bytes"] = {(): survey.responses.bytes}
    return rows
