"""What is told of a run, by tables."""

import pytest
from tests.windows.report import Report, Seen

from fairlane.queues.windows import read_windows

SECOND = 1_000_000


def report(instants: list[float], windows: str = "2/1s", users: str = "ab") -> Report:
    """Of requests at these seconds, of users in turn."""
    seen = [Seen(round(at * SECOND), users[n % len(users)]) for n, at in enumerate(instants)]
    return Report(read_windows(windows), seen, seen, [])


@pytest.mark.parametrize(
    ("instants", "most"),
    [([], 0), ([0], 1), ([0, 0.5, 1.0], 2), ([0, 0.5, 0.999999], 3), ([0, 1, 1.2, 1.4, 3], 3)],
)
def test_the_most_requests_within_any_window_are_found(instants: list[float], most: int) -> None:
    seen = report(instants)
    assert seen.most_within(seen.windows[0]) == most
    assert bool(seen.passed()) == (most > 2)
    assert seen.over(seen.windows[0]) == max(most - 2, 0)


def test_what_is_used_is_told_by_whole_windows() -> None:
    bursts = [at for second in range(10) for at in (second, second)]
    assert report(bursts).used(report([]).windows[0]) == pytest.approx(1)
    late = [at * 1.05 for at in bursts]
    assert report(late).used(report([]).windows[0]) == pytest.approx(1 / 1.05)
    assert report(late).wasted() == ["95.2% of the windows were used"]
    assert report([0]).used(report([]).windows[0]) == 0


def test_of_several_windows_the_one_that_is_used_most_counts() -> None:
    minute = [at for start in (0, 60) for at in range(start, start + 30)]
    assert not report(minute, "2/1s, 30/1m").wasted()


def test_users_who_get_less_are_told() -> None:
    even = [at for second in range(10) for at in (second, second)]
    assert not report(even).wasted()
    assert report(even, users="aab").unevenness == pytest.approx(0.8)
    assert "users differ by 80.0%" in report(even, users="aab").wasted()[0]
    assert "a: 14" in report(even, users="aab").render()
