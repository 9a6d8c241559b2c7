"""When operators are told that a batch stands still."""

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


def test_who_leads_it_next_tells_it_when_it_is_to_be_told_and_not_at_once_again() -> None:
    first = Standing(0.0)
    assert first.still(TOLD_AFTER_S - 1) is None
    second = Standing(TOLD_AFTER_S - 1, since=0.0)
    assert second.still(TOLD_AFTER_S) == TOLD_AFTER_S
    third = Standing(TOLD_AFTER_S + 1, since=0.0)
    assert third.still(TOLD_AFTER_S + TOLD_AGAIN_S - 1) is None
    assert third.still(TOLD_AFTER_S + TOLD_AGAIN_S) == TOLD_AFTER_S + TOLD_AGAIN_S
    assert third.moves(1000.0)
    fourth = Standing(TOLD_AFTER_S + 1, since=0.0)
    assert fourth.moves(TOLD_AFTER_S + 2), "others have told it"
