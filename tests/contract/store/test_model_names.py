"""Model names that no worker offers and that are not configured share one lane, so that inventing names gains nothing."""

from collections import Counter

import pytest
from tests.contract.store.store import ANY_MODEL, Store


@pytest.fixture
def any_model(bare: Store) -> Store:
    """A replica with a worker that serves every model; nothing is configured."""
    bare.offer(ANY_MODEL)
    return bare


def test_a_name_without_a_worker_shares_one_line_and_is_still_reported(any_model: Store) -> None:
    answer = any_model.accept("a", "never:heard/of é", want=1)
    assert (answer.state, answer.line, answer.model) == ("executing", ANY_MODEL, "never:heard/of é")
    (grant,) = answer.grants
    assert (grant.model, grant.asked) == (ANY_MODEL, "never:heard/of é")
    assert '"model":"never:heard\\/of é"' in grant.start
    assert any_model.task("a").model == "never:heard/of é"
    assert any_model.slots(ANY_MODEL) == {"a": 3000}


def test_a_name_that_a_worker_offers_or_that_is_configured_has_its_own_line(any_model: Store) -> None:
    any_model.apply(models={"configured": {"concurrency": 3}})
    any_model.set_model("changed", concurrency=2)
    any_model.replica("r2").offer("offered")
    for name in ("configured", "changed", "offered", "invented"):
        line = any_model.accept(name, name).line
        assert line == (ANY_MODEL if name == "invented" else name)
    any_model.apply()
    assert any_model.accept("later", "configured").line == ANY_MODEL


def test_a_slot_of_a_worker_that_names_the_model_is_never_given_a_task_of_every_model(
    any_model: Store,
) -> None:
    """Its offer may have expired, or not have arrived yet: the slot itself proves that a worker serves the name."""
    any_model.submit("other", "invented")
    answer = any_model.replica("r2").accept("a", "x", want=1, named=True)
    assert [(grant.task_id, grant.model) for grant in answer.grants] == [("a", "x")]


def test_a_user_gets_no_more_with_invented_names_than_with_one_name(any_model: Store) -> None:
    shares = []
    for invents in (False, True):
        any_model.world.empty()
        any_model.offer(ANY_MODEL)
        any_model.apply(queues={"paid": {"weight": 8.0}, "free": {"weight": 1.0}})
        for n in range(60):
            any_model.submit(f"m{n}", f"name{n}" if invents else "name", queue="free", user="mallory")
            any_model.submit(f"a{n}", "real", queue="paid", user="alice")
        shares.append(Counter(grant.user for grant in any_model.take(ANY_MODEL, want=45))["alice"])
    assert shares == [40, 40]


def test_invented_names_leave_nothing_that_grows(any_model: Store) -> None:
    for n in range(50):
        any_model.submit(f"t{n}", f"invented{n}", user=f"u{n % 3}")
    for grant in any_model.take(ANY_MODEL, want=50):
        any_model.finish(grant, want=1, models=[ANY_MODEL])
    assert not [name for name in any_model.world.names() if "invented" in name]


def test_the_shared_line_has_settings_of_its_own(any_model: Store) -> None:
    any_model.apply(models={ANY_MODEL: {"concurrency": 2}})
    for n in range(4):
        any_model.submit(f"t{n}", f"invented{n}")
    assert len(any_model.take(ANY_MODEL, want=4)) == 2
    any_model.set_model(ANY_MODEL, concurrency=3)
    assert len(any_model.take(ANY_MODEL, want=4)) == 1


def test_tasks_move_to_the_line_of_their_model_when_the_worker_of_every_model_has_left(
    any_model: Store,
) -> None:
    for n in range(150):
        any_model.submit(f"x{n}", "x", user=f"u{n % 7}")
    any_model.submit("y", "y")
    any_model.offer(withdrawn=[ANY_MODEL])
    named = any_model.replica("r2")
    for _ in range(5):
        named.offer("x")
        named.pass_time(1000)
        named.world.check()
    assert {named.task(f"x{n}").line for n in range(150)} == {"x"}
    assert (named.task("y").line, named.state("y")) == (ANY_MODEL, "queued"), "no worker offers it: it waits"
    assert all(grant.asked == grant.model == "x" for grant in named.take("x", want=64))


def test_tasks_are_found_by_the_name_that_was_asked_for_and_by_the_shared_line(any_model: Store) -> None:
    any_model.submit("a", "invented")
    any_model.submit("b", "other")
    assert any_model.search(model="invented") == ["a"]
    assert any_model.search(model=ANY_MODEL) == ["b", "a"]


@pytest.mark.feature("pacing")
def test_a_cooldown_of_one_name_does_not_hold_others_of_the_shared_line(any_model: Store) -> None:
    any_model.submit("a", "busy", user="mallory")
    (grant,) = any_model.take(ANY_MODEL)
    assert any_model.requeue(grant, "declined", hold_ms=3000).outcome == "queued"
    any_model.submit("b", "busy", user="bob")
    any_model.submit("c", "fine", user="carol")
    answer = any_model.accept("d", "busy", user="dave", want=1)
    assert answer.granted == ["c"], "tasks that ask for the busy one stand aside"
    any_model.finish(answer.grants[0])
    assert any_model.take(ANY_MODEL) == []
    for task in "abd":
        place = any_model.place(task)
        assert place.position == 1
        assert 0 < place.wait_ms <= 3000
    any_model.world.check()
    any_model.pass_time(3000)
    assert sorted(any_model.taken(ANY_MODEL, want=4)) == ["a", "b", "d"]


def test_tasks_that_stand_aside_count_among_those_of_their_user(any_model: Store) -> None:
    any_model.configure(max_length=4)
    accepted = 0
    for n in range(8):
        accepted += bool(getattr(any_model.submit(f"m{n}", "busy", user="mallory"), "state", ""))
        for grant in any_model.take(ANY_MODEL):
            any_model.requeue(grant, "declined", hold_ms=60_000)
    assert accepted == 4
    any_model.accept("b", "other", user="bob")


def test_the_pool_knows_a_bounded_number_of_names_and_takes_others_after_some_have_expired(
    store: Store,
) -> None:
    for at in range(0, 20_100, 500):
        store.offer(*(f"name-{number}" for number in range(at, min(at + 500, 20_100))))
    assert store.offer("new", "name-0", withdrawn=["unknown"]) == 1
    store.accept("a", "name-0")
    store.world.advance(80_000)
    store.sweep()
    assert store.offer("new") == 0
    store.accept("b", "new")
