"""Who may be sent to next: nobody takes the seats of others."""

from fairlane.gateway.webhooks.owed import Candidate
from fairlane.gateway.webhooks.turns import Turns


def some(number: int, key: str = "k", user: str = "", *, doubtful: bool = False) -> list[Candidate]:
    return [Candidate(f"{key}-{user}-{at}", key, user or f"u{at}", doubtful) for at in range(number)]


def seated(turns: Turns, candidates: list[Candidate]) -> list[Candidate]:
    chosen = turns.choose(candidates)
    for one in chosen:
        turns.take(one)
    return chosen


def test_seats_go_to_those_who_wait_longest() -> None:
    turns = Turns(32)
    candidates = [*some(20, "a"), *some(20, "b")]
    assert seated(turns, candidates) == candidates[:32]
    assert turns.full
    turns.leave(candidates[0].id)
    assert seated(turns, candidates[32:]) == [candidates[32]]


def test_one_key_leaves_a_quarter_to_others() -> None:
    turns = Turns(32)
    assert len(seated(turns, some(100, "a"))) == 24
    assert turns.full_keys == ["a"]
    assert len(seated(turns, some(100, "b"))) == 8


def test_one_owner_has_an_eighth() -> None:
    turns = Turns(32)
    assert len(seated(turns, some(10, "a", "ann"))) == 4
    assert turns.choose(some(10, "a", "ann")) == []


def test_doubtful_ones_leave_half_of_the_seats_to_others() -> None:
    turns = Turns(32)
    doubtful = [one for key in "abcdefgh" for one in some(4, key, doubtful=True)]
    assert len(seated(turns, doubtful)) == 16
    assert not turns.may_doubt
    assert len(seated(turns, some(10, "z"))) == 10


def test_who_has_a_seat_gets_no_second_one() -> None:
    turns = Turns(32)
    [one] = seated(turns, some(1))
    assert turns.choose([one]) == []


def test_with_one_seat_everybody_may_have_it() -> None:
    turns = Turns(1)
    assert len(seated(turns, some(3, doubtful=True))) == 1
    assert turns.full
