"""Lines that cannot be submitted now: by what they wait for, and that those which wait for something else pass."""

from fairlane.gateway.batches.held import ANYTHING, LEAST_REST_S, MONEY, MOST_REST_S, For, Held
from fairlane.gateway.batches.splitting import Line

MUCH = 1 << 20


def line(number: int, size: int = 10) -> Line:
    return Line(number, number * 100, b"x" * size)


def numbers(found: list[tuple[For, Line]]) -> list[int]:
    return [one.number for _, one in found]


def test_what_does_not_rest_is_taken_in_turns() -> None:
    held = Held()
    for number in range(4):
        held.add(line(number), For("m"))
    held.add(line(9), For("n"))
    held.add(line(7), first=True)
    assert (len(held), held.bytes) == (6, 60)
    assert numbers(held.take(4, MUCH, 0.0)) == [0, 9, 7, 1]
    assert numbers(held.take(9, MUCH, 0.0)) == [2, 3]
    assert (len(held), held.bytes) == (0, 0)


def test_of_a_model_that_rests_nothing_is_taken_and_behind_it_one_tries() -> None:
    held = Held()
    held.rest(For("m"), 5.0, "NO_WORKER", 100.0)
    for number in range(3):
        held.add(line(number), For("m"))
    held.add(line(8), For("n"))
    assert numbers(held.take(9, MUCH, 104.0)) == [8]
    assert numbers(held.take(9, MUCH, 105.0)) == [0]
    assert held.whys == {"NO_WORKER": ["m"]}
    held.goes_on(For("m"), 105.0)
    assert held.whys == {}
    assert numbers(held.take(9, MUCH, 105.0)) == [1, 2]


def test_a_rest_is_neither_too_short_nor_so_long_that_a_raised_limit_is_not_noticed() -> None:
    held = Held()
    held.rest(ANYTHING, 0.0, "QUEUE_FULL", 0.0)
    assert held.rests(ANYTHING, LEAST_REST_S - 0.01)
    assert not held.rests(ANYTHING, LEAST_REST_S)
    held.rest(ANYTHING, 86_400.0, "RATE_LIMITED", 0.0)
    assert held.rests(ANYTHING, MOST_REST_S - 0.01)
    assert not held.rests(ANYTHING, MOST_REST_S)


def test_what_was_taken_before_ends_no_rest() -> None:
    held = Held()
    held.rest(ANYTHING, 5.0, "RATE_LIMITED", 0.0)
    held.goes_on(ANYTHING, 1.0)
    assert held.doubtful
    assert held.whys == {"RATE_LIMITED": []}
    held.goes_on(ANYTHING, 5.0)
    assert not held.doubtful


def test_whys_name_models_of_which_lines_are_held() -> None:
    held = Held()
    for model in ("b", "a", "gone"):
        held.rest(For(model), 5.0, "NO_WORKER", 0.0)
    held.rest(MONEY, 5.0, "INSUFFICIENT_QUOTA", 0.0)
    held.add(line(1), For("b"))
    held.add(line(2), For("a"))
    held.add(line(3), MONEY)
    assert held.whys == {"INSUFFICIENT_QUOTA": [], "NO_WORKER": ["a", "b"]}


def test_long_lines_are_not_taken_together() -> None:
    held = Held()
    for number in range(5):
        held.add(line(number, 1000))
    assert numbers(held.take(5, 1500, 0.0)) == [0, 1]


def test_what_is_held_is_given_up_with_its_places() -> None:
    held = Held()
    held.add(line(3), For("m"))
    held.add(line(1))
    assert sorted(held.clear()) == [(1, 100), (3, 300)]
    assert not held
    assert held.take(5, MUCH, 0.0) == []
