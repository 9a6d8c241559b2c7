"""Who may be sent to next: nobody takes the seats of others."""

from fairlane.gateway.webhooks.owed import Candidate
from fairlane.gateway.webhooks.seats import Seats


def some(number: int, key: str = "k", user: str = "", *, doubtful: bool = False) -> list[Candidate]:
    return [Candidate(f"{key}-{user}-{at}", key, user or f"u{at}", doubtful) for at in range(number)]


def seated(seats: Seats, candidates: list[Candidate]) -> list[Candidate]:
    chosen = seats.choose(candidates)
    for one in chosen:
        seats.take(one)
    return chosen


def test_seats_go_to_those_who_wait_longest() -> None:
    seats = Seats(32)
    candidates = [*some(20, "a"), *some(20, "b")]
    assert seated(seats, candidates) == candidates[:32]
    assert seats.full
    seats.leave(candidates[0].id)
    assert seated(seats, candidates[32:]) == [candidates[32]]


def test_one_key_leaves_a_quarter_to_others() -> None:
    seats = Seats(32)
    assert len(seated(seats, some(100, "a"))) == 24
    assert seats.full_keys == ["a"]
    assert len(seated(seats, some(100, "b"))) == 8


def test_one_owner_has_an_eighth() -> None:
    seats = Seats(32)
    assert len(seated(seats, some(10, "a", "ann"))) == 4
    assert seats.choose(some(10, "a", "ann")) == []


def test_doubtful_ones_leave_half_of_the_seats_to_others() -> None:
    seats = Seats(32)
    doubtful = [one for key in "abcdefgh" for one in some(4, key, doubtful=True)]
    assert len(seated(seats, doubtful)) == 16
    assert not seats.may_doubt
    assert len(seated(seats, some(10, "z"))) == 10


def test_who_has_a_seat_gets_no_second_one() -> None:
    seats = Seats(32)
    [one] = seated(seats, some(1))
    assert seats.choose([one]) == []


def test_with_one_seat_everybody_may_have_it() -> None:
    seats = Seats(1)
    assert len(seated(seats, some(3, doubtful=True))) == 1
    assert seats.full
