"""When operators are told that a batch stands still."""

import pytest

from fairlane.gateway.batches.standing import TOLD_AFTER_S, TOLD_AGAIN_S, Standing


def test_a_short_stand_is_not_told() -> None:
    standing = Standing(0.0)
    assert standing.still(TOLD_AFTER_S - 1) is None
    assert not standing.moves(TOLD_AFTER_S)
    assert standing.still(2 * TOLD_AFTER_S - 1) is None


def test_a_long_one_is_told_few_times_and_its_end_once() -> None:
    standing = Standing(0.0)
    told = [at for at in range(1300) if standing.still(float(at)) is not None]
    assert told == [TOLD_AFTER_S, TOLD_AFTER_S + TOLD_AGAIN_S, TOLD_AFTER_S + 2 * TOLD_AGAIN_S]
    assert standing.moves(1300.0)
    assert not standing.moves(1301.0)


def test_who_leads_it_next_tells_it_once_when_it_is_to_be_told() -> None:
    first = Standing(0.0)
    assert first.still(TOLD_AFTER_S - 1) is None
    second = Standing(TOLD_AFTER_S - 1, since=0.0)
    assert second.still(TOLD_AFTER_S) == TOLD_AFTER_S
    assert second.moves(1000.0)


@pytest.mark.parametrize("late_s", [1.0, TOLD_AGAIN_S - 1, TOLD_AGAIN_S, 10 * TOLD_AGAIN_S])
def test_who_leads_it_behind_that_tells_it_at_once_as_nobody_may_have_done_so(late_s: float) -> None:
    began = TOLD_AFTER_S + late_s
    standing = Standing(began, since=0.0)
    told = [at for at in range(700) if standing.still(began + at) is not None]
    assert told == [0, TOLD_AGAIN_S], "and not twice, when the next time comes of those before"
    assert standing.moves(began + 700)
    assert Standing(began, since=0.0).moves(began + 1), "others may have told it"
