"""How much a worker may send; time is moved by hand."""

import pytest

from fairlane.workers.server.sessions.rates import FrameRate, PerMinute


def test_per_minute_forgets_what_is_older_than_a_minute() -> None:
    events = PerMinute(3)
    assert [events.exceeded(at) for at in (0, 1, 2)] == [False] * 3
    assert events.exceeded(3)
    assert not events.exceeded(62.5)


def count(watch: FrameRate, size: int, now: float) -> float | None:
    """Count a frame as a session does."""
    watch.count += 1
    watch.size += size
    return watch.look(now) if watch.count >= watch.few or watch.size >= watch.little else 0.0


def flood(patience_s: float = 1.0) -> FrameRate:
    return FrameRate(100, 1000, patience_s, 0.0)


def test_what_is_within_the_rate_is_not_paused() -> None:
    watch = flood()
    assert all(count(watch, 10, at / 100) == 0 for at in range(1000))


def test_a_burst_is_paused_until_the_rate_is_kept() -> None:
    watch = flood()
    pauses = [count(watch, 1, 0) for _ in range(108)]  # it is looked at with every fourth
    assert pauses[:107] == [0.0] * 107  # short pauses are saved up
    assert pauses[107] == pytest.approx(0.08)


def test_pauses_add_up_to_a_flood() -> None:
    watch, now, answers = flood(), 0.0, []
    for _ in range(1000):
        answers.append(pause := count(watch, 1, now))
        if pause is None:
            break
        now += pause
    assert answers[-1] is None
    assert sum(answer or 0 for answer in answers) <= 1.0


def test_a_rest_between_forgives() -> None:
    watch = flood()
    for at in range(0, 1000, 10):  # a burst every ten seconds
        for _ in range(108):
            assert count(watch, 1, at) is not None


def test_a_rest_saves_up_no_more_than_a_second() -> None:
    watch = flood()
    assert count(watch, 1500, 1000.0) == pytest.approx(0.5)


def test_bytes_count_too() -> None:
    watch = flood()
    assert count(watch, 1500, 0) == pytest.approx(0.5)
    assert count(watch, 1500, 0.5) is None


def test_slots_multiply_the_allowance() -> None:
    watch = flood()
    watch.set_slots(10)
    assert all(count(watch, 1, 0) == 0 for _ in range(800))
    assert count(watch, 1500, 0) == 0


def test_another_number_of_slots_buys_nothing_new() -> None:
    """A worker that changes it again and again may send no more than one that does not."""
    flood, now = FrameRate(100, 1000, 5.0, 0.0), 0.0
    passed = 0
    for number in range(1000):
        flood.set_slots(1 + number % 2)
        pause = count(flood, 100, now)
        if pause is None:
            break
        passed += 100
        now += pause
    assert passed < 2000 * (now + 2)
    assert now > 4
