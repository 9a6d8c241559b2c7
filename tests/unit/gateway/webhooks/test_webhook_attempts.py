"""When what was not taken is sent again, and how a webhook stands after it."""

import json

import pytest

from fairlane.gateway.webhooks.attempts import (
    LOGGED,
    LONGEST_REST_MS,
    LONGEST_WAIT_MS,
    Attempt,
    Policy,
    WebhookHealth,
    error_of,
    health_after,
    logged,
    next_try,
)

HOUR_MS = 3_600_000
POLICY = Policy(retry_ms=5000, give_up_ms=72 * HOUR_MS, off_after_ms=120 * HOUR_MS)


def failed(at: int = 0, status: int | None = 500, retry_after_ms: int = 0) -> Attempt:
    return Attempt(at, 0, status, "It did not work.", retry_after_ms)


def taken(at: int = 0) -> Attempt:
    return Attempt(at, 0, 200, "")


def test_waits_grow_to_a_day_and_the_last_try_is_at_the_very_end() -> None:
    now, tries, waits = 0, 0, []
    while True:
        tries += 1
        due = next_try(failed(now), tries, 0, POLICY, 0.5)
        if due is None:
            break
        waits.append(due - now)
        now = due
    assert waits[:4] == [5000, 15_000, 45_000, 135_000]
    assert max(waits) <= LONGEST_WAIT_MS
    assert now == POLICY.give_up_ms
    assert 10 <= tries <= 14


def test_chance_spreads_waits_by_a_fifth() -> None:
    assert next_try(failed(), 1, 0, POLICY, 0.0) == 4000
    assert next_try(failed(), 1, 0, POLICY, 1.0) == 6000


def test_a_receiver_may_ask_for_a_longer_wait_and_not_for_one_behind_the_end() -> None:
    assert next_try(failed(retry_after_ms=60_000), 1, 0, POLICY, 0.5) == 60_000
    assert next_try(failed(retry_after_ms=1), 1, 0, POLICY, 0.5) == 5000
    late = failed(71 * HOUR_MS, retry_after_ms=20 * HOUR_MS)
    assert next_try(late, 1, 0, POLICY, 0.5) == 72 * HOUR_MS


def test_many_tries_by_hand_do_not_overflow() -> None:
    assert next_try(failed(), 100_000, 0, POLICY, 0.5) == LONGEST_WAIT_MS


def test_three_failures_make_it_rest_and_longer_with_each_more() -> None:
    standing, rests = WebhookHealth(), []
    for number in range(20):
        standing = health_after(standing, [failed(1000)], POLICY, 0.5)
        rests.append(standing.not_before - 1000 if standing.not_before else 0)
        assert standing.rests == (number >= 2)
    assert rests[:5] == [0, 0, 5000, 10_000, 20_000]
    assert rests[-1] == LONGEST_REST_MS


def test_one_that_is_taken_among_others_makes_it_well() -> None:
    before = WebhookHealth(9, 5, "before", 100)
    after = health_after(before, [failed(1000), taken(1000)], POLICY, 0.5)
    assert (after.fails, after.failing_since, after.not_before) == (0, None, 0)
    assert health_after(before, [taken(1000)], POLICY, 0.5) == WebhookHealth()


def test_nothing_that_was_tried_changes_nothing() -> None:
    before = WebhookHealth(9, 5, "before", 100)
    assert health_after(before, [], POLICY, 0.5) == before


def test_it_is_switched_off_when_it_has_failed_for_days_and_at_once_when_it_is_gone() -> None:
    since = health_after(WebhookHealth(), [failed(0)], POLICY, 0.5)
    assert not health_after(since, [failed(POLICY.off_after_ms - 1)], POLICY, 0.5).off_why
    off = health_after(since, [failed(POLICY.off_after_ms)], POLICY, 0.5)
    assert off.off_why == "It failed for 5 days: It did not work."
    assert "410" in health_after(WebhookHealth(), [failed(0, 410)], POLICY, 0.5).off_why
    assert not health_after(WebhookHealth(), [failed(0, 410), taken(0)], POLICY, 0.5).off_why


def test_a_receiver_that_wants_to_be_left_alone_is() -> None:
    after = health_after(WebhookHealth(), [failed(1000, 429, 30_000)], POLICY, 0.5)
    assert (after.fails, after.not_before) == (1, 31_000)
    longest = health_after(WebhookHealth(), [failed(1000, 503, 99 * HOUR_MS)], POLICY, 0.5)
    assert longest.not_before == 1000 + LONGEST_REST_MS


@pytest.mark.parametrize(
    ("status", "wrong"), [(200, False), (204, False), (299, False), (301, True), (404, True)]
)
def test_only_a_success_is_one(status: int, wrong: bool) -> None:
    assert bool(error_of(status)) is wrong


def test_the_log_keeps_the_last_attempts() -> None:
    log = ""
    for number in range(LOGGED + 5):
        log = logged(log, failed(number))
    assert [entry["at"] for entry in json.loads(log)] == list(range(5, LOGGED + 5))
