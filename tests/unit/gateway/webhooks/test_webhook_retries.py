"""When a failed delivery is retried, and the health of its webhook afterwards."""

import pytest

from fairlane.gateway.webhooks.delivery import Attempt, error_of
from fairlane.gateway.webhooks.delivery_queue import (
    DISABLE_DAYS,
    MAX_BACKOFF_MS,
    MAX_PAUSE_MS,
    Health,
    Policy,
    health_after,
    next_attempt,
)

HOUR_MS = 3_600_000
POLICY = Policy(retry_ms=5000, give_up_ms=72 * HOUR_MS)


def failed(at: int = 0, status: int | None = 500, retry_after_ms: int = 0) -> Attempt:
    return Attempt(at, 0, status, "It did not work.", retry_after_ms)


def succeeded(at: int = 0) -> Attempt:
    return Attempt(at, 0, 200, "")


def test_pauses_grow_to_a_day_and_the_last_attempt_is_at_the_very_end() -> None:
    now, attempts, pauses = 0, 0, []
    while True:
        attempts += 1
        due = next_attempt(failed(now), attempts, 0, POLICY, 0.5)
        if due is None:
            break
        pauses.append(due - now)
        now = due
    assert pauses[:4] == [5000, 15_000, 45_000, 135_000]
    assert max(pauses) <= MAX_PAUSE_MS
    assert now == POLICY.give_up_ms
    assert 10 <= attempts <= 14


@pytest.mark.parametrize(
    ("attempt", "attempts", "chance", "due"),
    [
        (failed(), 1, 0.0, 4000),
        (failed(), 1, 1.0, 6000),
        (failed(), 100_000, 0.5, MAX_PAUSE_MS),
        (failed(retry_after_ms=60_000), 1, 0.5, 60_000),
        (failed(retry_after_ms=1), 1, 0.5, 5000),
        (failed(71 * HOUR_MS, retry_after_ms=20 * HOUR_MS), 1, 0.5, 72 * HOUR_MS),
    ],
)
def test_a_pause_has_jitter_and_follows_retry_after(
    attempt: Attempt, attempts: int, chance: float, due: int
) -> None:
    assert next_attempt(attempt, attempts, 0, POLICY, chance) == due


def test_a_webhook_backs_off_after_three_failures_and_longer_with_each_one() -> None:
    health, pauses = Health(), []
    for number in range(20):
        health = health_after(health, [failed(1000)], POLICY, 0.5)
        pauses.append(health.not_before - 1000 if health.not_before else 0)
        assert health.backs_off == (number >= 2)
    assert pauses[:5] == [0, 0, 5000, 10_000, 20_000]
    assert pauses[-1] == MAX_BACKOFF_MS


def test_one_success_resets_its_failures_and_no_attempt_changes_nothing() -> None:
    before = Health(9, 5, "before", 100)
    assert health_after(before, [failed(1000), succeeded(1000)], POLICY, 0.5) == Health()
    assert health_after(before, [], POLICY, 0.5) == before


def test_it_is_disabled_after_days_of_failures_and_immediately_at_410() -> None:
    end = DISABLE_DAYS * 24 * HOUR_MS
    first = health_after(Health(), [failed(0)], POLICY, 0.5)
    assert not health_after(first, [failed(end - 1)], POLICY, 0.5).off_why
    assert health_after(first, [failed(end)], POLICY, 0.5).off_why == "It failed for 5 days: It did not work."
    assert "410" in health_after(Health(), [failed(0, 410)], POLICY, 0.5).off_why
    assert not health_after(Health(), [failed(0, 410), succeeded(0)], POLICY, 0.5).off_why


def test_retry_after_delays_the_whole_webhook_for_an_hour_at_most() -> None:
    after = health_after(Health(), [failed(1000, 429, 30_000)], POLICY, 0.5)
    assert (after.fails, after.not_before) == (1, 31_000)
    longest = health_after(Health(), [failed(1000, 503, 99 * HOUR_MS)], POLICY, 0.5)
    assert longest.not_before == 1000 + MAX_BACKOFF_MS


@pytest.mark.parametrize(
    ("status", "wrong"), [(200, False), (204, False), (299, False), (301, True), (404, True)]
)
def test_only_2xx_is_a_success(status: int, wrong: bool) -> None:
    assert bool(error_of(status)) is wrong
