"""How much a worker may send; time is moved by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.protocol import CLOSE_FLOOD
from fairlane.workers.server.pool import Worker
from fairlane.workers.server.sessions.rates import Bucket, FrameRate, NewNames, PerMinute, Unfinished
from fairlane.workers.server.sessions.session import PART, Session, SessionSettings


def test_a_bucket_gives_a_seconds_worth_at_once_and_then_its_rate() -> None:
    bucket = Bucket(10, 0)
    assert [bucket.take(1, 0) for _ in range(10)] == [0] * 10
    assert bucket.take(1, 0) == pytest.approx(0.1)
    assert bucket.take(1, 0.1) == pytest.approx(0.1)
    assert bucket.take(1, 100) == 0


def test_a_bucket_is_never_fuller_than_a_second() -> None:
    bucket = Bucket(10, 0)
    assert bucket.take(11, 1000) == pytest.approx(0.1)


def test_per_minute_forgets_what_is_older_than_a_minute() -> None:
    count = PerMinute(3)
    assert [count.exceeded(at) for at in (0, 1, 2)] == [False] * 3
    assert count.exceeded(3)
    assert not count.exceeded(62.5)


def with_events(rate: FrameRate, size: int, now: float, events: int) -> float | None:
    """Count a frame that made so many events."""
    rate.pieces += events
    return rate.pause(size, now)


def flood(patience_s: float = 1.0) -> FrameRate:
    return FrameRate(100, 1000, patience_s, 0.0)


def test_what_is_within_the_rate_is_not_paused() -> None:
    watch = flood()
    assert all(watch.pause(10, at / 100) == 0 for at in range(1000))


def test_a_burst_is_paused_until_the_rate_is_kept() -> None:
    watch = flood()
    pauses = [watch.pause(1, 0) for _ in range(108)]  # it is looked at with every fourth
    assert pauses[:107] == [0.0] * 107  # short pauses are saved up
    assert pauses[107] == pytest.approx(0.08)


def test_pauses_add_up_to_a_flood() -> None:
    watch, now, answers = flood(), 0.0, []
    for _ in range(1000):
        answers.append(pause := watch.pause(1, now))
        if pause is None:
            break
        now += pause
    assert answers[-1] is None
    assert sum(answer or 0 for answer in answers) <= 1.0


def test_a_rest_between_forgives() -> None:
    watch = flood()
    for at in range(0, 1000, 10):  # a burst every ten seconds
        for _ in range(108):
            assert watch.pause(1, at) is not None


def test_bytes_count_too() -> None:
    watch = flood()
    assert watch.pause(1500, 0) == pytest.approx(0.5)
    assert watch.pause(1500, 0.5) is None


def test_slots_multiply_the_allowance() -> None:
    watch = flood()
    watch.set_slots(10, 0)
    assert all(watch.pause(1, 0) == 0 for _ in range(1000))
    assert watch.pause(1500, 0) == 0


def test_events_pause_the_reading_and_are_no_flood() -> None:
    flood = FrameRate(frames=10, volume=1e9, patience_s=5, now=0.0)
    now = 0.0
    assert with_events(flood, 1, now, 80) == 0.0
    for _ in range(100):
        pause = with_events(flood, 1, now, 80)
        assert pause == pytest.approx(1.0)
        now += 1.0
    flood = FrameRate(frames=10, volume=1e9, patience_s=5, now=0.0)
    flood.set_slots(10, 0.0)
    now = 1.0  # by then a second's worth is there
    assert with_events(flood, 1, now, 800) == 0.0
    assert with_events(flood, 1, now, 800) == pytest.approx(1.0)


def test_slots_buy_more_bytes_and_events_up_to_sixteen() -> None:
    flood = FrameRate(frames=10, volume=1000, patience_s=5, now=0.0)
    flood.set_slots(1024, 0.0)
    assert with_events(flood, 16_000, 0.0, 16 * 80) == 0.0
    assert flood.pause(16_000, 0.0) == pytest.approx(1.0)
    assert with_events(flood, 16_000, 2.0, 2 * 16 * 80) == pytest.approx(1.0)
    assert flood.pause(0, 4.0, 10_000) == 0.0


def test_another_number_of_slots_buys_nothing_new() -> None:
    """A worker that changes it again and again may send no more than one that does not."""
    flood, now = FrameRate(100, 1000, 5.0, 0.0), 0.0
    passed = 0
    for number in range(1000):
        flood.set_slots(1 + number % 2, now)
        pause = flood.pause(100, now)
        if pause is None:
            break
        passed += 100
        now += pause
    assert passed < 2000 * (now + 2)
    assert now > 4


CHUNK = '{"type":"taskChunk","taskId":"t","attempt":1,"seq":1,"deltas":[]}'
gaps = st.sampled_from([0.0, 0.001, 0.05, 0.5, 10.0])
sizes = st.sampled_from([1, 20, 400, 3000])
frames = st.tuples(st.just("frame"), gaps, sizes, st.sampled_from([0, 1, 30, 900]))
parts = st.tuples(st.just("parts"), gaps, sizes, st.integers(1, 100))


@given(st.lists(frames | parts, max_size=200), st.integers(1, 20))
def test_a_session_pauses_its_frames_as_their_rate_says(came: list[Any], slots: int) -> None:
    now, closed, written = 0.0, list[int](), SimpleNamespace(pieces=0)
    registry: Any = SimpleNamespace(pool=SimpleNamespace(time=lambda: now))
    connection: Any = SimpleNamespace(say=None, hang_up=lambda code, _: closed.append(code))
    settings = SessionSettings(flood_frames=100, flood_bytes=1000, flood_ms=1000)
    session = Session(registry, SimpleNamespace(id=""), settings, connection, 2, NewNames(1), Unfinished(1))  # type: ignore[arg-type]
    session.worker = Worker("w", "w", 2, ["m"], slots, send=lambda _: None, close=lambda *_: None)
    session._frame_rate.set_slots(slots, now)
    rate = FrameRate(100, 1000, 1.0, now)
    rate.set_slots(slots, now)
    for kind, gap, size, count in came:
        now += gap
        if kind == "parts":
            paused, expected = session.parts(count, size), rate.pause(size, now, count * PART)
        else:

            def chunk(*_: Any, more: int = count, **__: Any) -> None:
                written.pieces += more

            session.worker.attempts["t", 1] = SimpleNamespace(answered=False, writer=written, chunk=chunk)
            paused, expected = session.received(CHUNK, size), with_events(rate, size, now, count)
        assert closed == ([CLOSE_FLOOD] if expected is None else [])
        if expected is None:
            break
        assert paused == expected
        now += paused
