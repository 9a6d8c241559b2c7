"""When a reader who waits is told of a new place."""

import pytest

from fairlane.gateway.core.positions import is_news
from fairlane.queues.tasks import Place


@pytest.mark.parametrize(
    ("told", "now", "news"),
    [
        (None, Place(1, 0, 0, 0), True),
        (Place(1, -1, -1, -1), Place(1, -1, -1, -1), False),
        (Place(1, -1, -1, -1), Place(1, 10, 5, 20), True),
        (Place(2, 8000, 0, 60_000), Place(1, 8000, 0, 60_000), True),
        (Place(1, 8000, 0, 60_000), Place(2, 8000, 0, 60_000), True),
        (Place(2, 8000, 0, 60_000), Place(2, 8000, 0, 60_000), False),
        (Place(2, 8000, 0, 60_000), Place(2, 6000, 0, 60_000), False),
        (Place(2, 8000, 0, 60_000), Place(2, 5999, 0, 60_000), True),
        (Place(2, 8000, 0, 60_000), Place(2, 10_001, 0, 60_000), True),
        (Place(2, 8000, 1000, 9000), Place(2, 8000, 2000, 20_000), False),
        (Place(1, 0, 0, 60_000), Place(1, 250, 0, 60_000), False),
        (Place(1, 0, 0, 60_000), Place(1, 251, 0, 60_000), True),
    ],
)
def test_a_new_position_or_a_wait_that_changed_by_more_than_a_quarter_is_news(
    told: Place | None, now: Place, news: bool
) -> None:
    assert is_news(told, now) is news
