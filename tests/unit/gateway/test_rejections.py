"""Refusals as callers are told them: status, code, sentence, and when to come again."""

import msgspec
import pytest

from fairlane.gateway.core.submit import rejection_error
from fairlane.gateway.errors import native_answer, openai_answer, retry_headers, stopping, store_unavailable
from fairlane.queues.tasks import QuotaShortfall, Rejection, TaskSpec

TASK = TaskSpec(id="t", model="m", queue="free_stream", user="u", payload=b"{}")


@pytest.mark.parametrize(
    ("refused", "known", "expected"),
    [
        (
            Rejection("full", waiting=9, limit=9, retry_ms=4200),
            True,
            (503, "QUEUE_FULL", "Queue is full", 4200),
        ),
        (Rejection("full_bytes", retry_ms=70_000), True, (503, "QUEUE_FULL", "Queue is full", 70_000)),
        (
            Rejection("user_full", waiting=3, limit=3, retry_ms=2500),
            True,
            (429, "USER_QUEUE_FULL", "3 of your tasks already wait for m (limit 3). Retry later.", 2500),
        ),
        (
            Rejection("too_long", waiting=42_400, limit=9500, retry_ms=33_000),
            True,
            (503, "WAIT_TOO_LONG", "The predicted wait of 42 s is longer than the 9.5 s allowed", 33_000),
        ),
        (
            Rejection("outbox_full"),
            True,
            (*(503, "OUTBOX_FULL", "Too many records wait for the database. Retry later."), 10_000),
        ),
        (Rejection("no_worker", retry_ms=7000), False, (503, "NO_WORKER", "No worker available", 7000)),
        (
            Rejection("no_worker", others_offered=True, retry_ms=1),
            True,
            (503, "NO_WORKER", "No worker available", 1000),
        ),
        (
            Rejection("no_worker", others_offered=True, retry_ms=61_000),
            False,
            (503, "NO_WORKER", "No worker available", 10_000),
        ),
    ],
)
def test_a_refusal_says_why_and_when_to_come_again(
    refused: Rejection, known: bool, expected: tuple[int, str, str, int]
) -> None:
    error = rejection_error(refused, TASK, known)
    assert (error.status, error.code, error.message, error.retry_after_ms) == expected


def test_a_quota_that_is_not_enough_is_told_on_each_surface_and_not_to_be_tried_again() -> None:
    error = rejection_error(Rejection("quota", short=QuotaShortfall(1_250_000, 300)), TASK, True)
    message = "You exceeded your current quota: this task may cost 1.25 credits, and 0.0003 are left"
    native, openai = native_answer(error), openai_answer(error)
    assert native.status == openai.status == 429
    assert msgspec.json.decode(native.body) == {
        "error": message,
        "code": "INSUFFICIENT_QUOTA",
        "needed": 1.25,
        "available": 0.0003,
        "docsUrl": "/docs#INSUFFICIENT_QUOTA",
    }
    assert msgspec.json.decode(openai.body) == {
        "error": {
            "message": message,
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
            "docs_url": "/docs#INSUFFICIENT_QUOTA",
        }
    }
    for answer in (native, openai):
        assert dict(answer.headers)[b"x-should-retry"] == b"false"
        assert b"retry-after" not in dict(answer.headers)


def test_where_nobody_knows_what_there_is_the_database_is_to_blame() -> None:
    error = rejection_error(Rejection("no_balance", unknown=("k:a", "")), TASK, True)
    assert (error.status, error.code, error.retry_after_ms) == (503, "DATABASE_UNAVAILABLE", 1000)


def test_a_task_that_was_cancelled_before_it_came_need_not_come_again() -> None:
    error = rejection_error(Rejection("cancelled"), TASK, True)
    assert (error.status, error.code, error.retry_after_ms) == (499, "CANCELLED", None)


@pytest.mark.parametrize(
    ("retry_ms", "seconds", "exact", "hopeless"),
    [
        (0, b"1", b"1", False),
        (1000, b"1", b"1000", False),
        (1001, b"2", b"1001", False),
        (60_000, b"60", b"60000", False),
        (60_001, b"61", b"60001", True),
        (10**9, b"3600", b"3600000", True),
    ],
)
def test_retry_after_is_in_seconds_and_beyond_clients_patience_they_are_told_not_to_retry(
    retry_ms: int, seconds: bytes, exact: bytes, hopeless: bool
) -> None:
    headers = dict(retry_headers(retry_ms))
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (seconds, exact)
    assert headers.get(b"x-should-retry") == (b"false" if hopeless else None)


@pytest.mark.parametrize(("spent", "retry_ms"), [(0, 1000), (5000, 5000), (3_600_000, 60_000)])
def test_where_nobody_knows_the_time_already_spent_counts(spent: int, retry_ms: int) -> None:
    assert store_unavailable(spent).retry_after_ms == retry_ms
    assert stopping(spent).retry_after_ms == retry_ms
