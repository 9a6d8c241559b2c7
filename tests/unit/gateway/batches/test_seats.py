"""Who is led, where more batches wait than one process leads."""

from fairlane.gateway.batches.batch import Status
from fairlane.gateway.batches.seats import LEAVE_AT_ONCE, TURN_S, Seat, next_of, who_leaves
from fairlane.gateway.batches.store import Waiting
from fairlane.gateway.webhooks.announcing import Owner


def waiting(number: int, key: str, user: str) -> Waiting:
    return Waiting(f"batch_{number}", Owner(key, user), Status.IN_PROGRESS, "", 0, 1)


def seat(number: int, key: str, user: str, since: float, may_leave: bool = True) -> Seat:
    return Seat(f"batch_{number}", Owner(key, user), since, may_leave)


def ids(*numbers: int) -> list[str]:
    return [f"batch_{number}" for number in numbers]


def test_keys_then_their_users_have_seats_in_turns() -> None:
    many = [waiting(number, "big", f"user{number % 2}") for number in range(6)]
    few = [waiting(10, "small", "ann")]
    chosen = [one.id for one in next_of([*many, *few], [], {}, 4)]
    assert chosen == ids(0, 10, 1, 2)
    led = [Owner("small", "ann")] * 2
    assert [one.id for one in next_of([*few, *many], led, {}, 2)] == ids(0, 1)
    assert next_of(many, [], {}, 0) == []


def test_who_was_led_longest_ago_comes_first() -> None:
    found = [waiting(number, "key", "ann") for number in range(4)]
    last = {"batch_0": 7.0, "batch_1": 5.0, "batch_3": 6.0}
    assert [one.id for one in next_of(found, [], last, 4)] == ids(2, 1, 3, 0)


def test_those_who_have_most_seats_give_them_up() -> None:
    now = 1000.0
    of_many = [seat(number, "big", f"user{number}", now - TURN_S - number) for number in range(20)]
    of_few = [seat(30, "small", "ann", 0.0)]
    leaving = who_leaves([*of_many, *of_few], 100, now)
    assert leaving == ids(*range(19, 19 - LEAVE_AT_ONCE, -1))
    assert who_leaves([*of_many, *of_few], 2, now) == ids(19, 18)


def test_a_turn_that_is_not_over_or_cannot_end_stays() -> None:
    now = 1000.0
    seats = [seat(1, "key", "ann", now - TURN_S + 1), seat(2, "key", "ann", 0.0, may_leave=False)]
    assert who_leaves(seats, 5, now) == []
