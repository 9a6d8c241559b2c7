"""Who is free, who is next, who may not: the pool of one replica's workers, with time moved by hand."""

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from fairlane.workers.server.pool.pool import Pool
from fairlane.workers.server.pool.worker import Mismatch, Worker


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Pool:
    return Pool(clock)


def make(name: str, *models: str, slots: int = 1, version: int = 2, **fields: Any) -> Worker:
    return Worker(
        name, name, version, models or ("m",), slots, send=lambda _: None, close=lambda *_: None, **fields
    )


def run_a_task(pool: Pool, worker: Worker) -> None:
    """A task begins on a worker, and ends."""
    pool.begin(worker, ("t", 1), None)  # type: ignore[arg-type]
    pool.end(worker, ("t", 1))


@pytest.mark.parametrize("change", [{"draining": True}, {"suspended": True}, {"hold_until": 1001.0}])
def test_a_worker_that_shall_get_nothing_has_no_free_slots(change: dict[str, Any]) -> None:
    worker = make("a", slots=4)
    for name, value in change.items():
        setattr(worker, name, value)
    assert worker.free(1000.0) == 0


def test_a_wildcard_serves_everything_and_swallows_other_names() -> None:
    worker = make("a", "m", "*", "m")
    assert worker.models == ("*",)
    assert worker.serves("anything")
    assert make("b", "m", "n", "m").models == ("m", "n")


def test_the_least_recently_used_free_worker_is_picked(pool: Pool) -> None:
    a, b, c = make("a"), make("b"), make("c", "other")
    for worker in (a, b, c):
        pool.add(worker)
    run_a_task(pool, a)
    assert pool.pick("m") is b  # it was never used
    run_a_task(pool, b)
    assert pool.pick("m") is a
    pool.reserve("m")  # a question alone is no use
    a.reserve(-1)
    assert pool.pick("m") is a
    a.reserve(1)
    b.reserve(1)
    assert pool.pick("m") is None
    assert pool.pick("other") is c


def test_a_task_is_never_given_to_a_worker_that_does_not_take_it(pool: Pool) -> None:
    typed, untyped = make("a", task_types=["chat"]), make("b")
    pool.add(typed)
    pool.add(untyped)
    run_a_task(pool, untyped)
    assert pool.pick("m", "chat", "t") is typed
    assert pool.pick("m", "embed", "t") is untyped
    untyped.refused.put("t", Mismatch.REJECTED)
    assert pool.pick("m", "embed", "t") is None
    assert not pool.any_takes("m", "embed", "t")
    assert pool.any_takes("m", "embed", "another")
    assert typed.mismatch("embed", "t") is Mismatch.TYPE
    assert untyped.mismatch("embed", "t") is Mismatch.REJECTED


def test_a_worker_that_should_avoid_a_task_gets_it_only_if_there_is_no_other(pool: Pool) -> None:
    a, b = make("a"), make("b")
    pool.add(a)
    pool.add(b)
    run_a_task(pool, b)
    a.avoided.put("t", True)
    assert pool.pick("m", "chat", "t") is b
    assert pool.pick("m", "chat", "another") is a
    pool.remove(b)
    assert pool.pick("m", "chat", "t") is a


def test_a_resting_worker_is_not_asked_for_but_may_be_given_what_is_at_hand(pool: Pool) -> None:
    worker = make("a")
    pool.add(worker)
    worker.rest_until = 1001.0
    assert pool.reserve("m") is None
    assert pool.pick("m", "chat", "t") is worker
    worker.reserve(1)
    assert pool.pick("m", "chat", "t") is None


def test_reserving_takes_what_is_free_of_one_worker(pool: Pool) -> None:
    worker = make("a", slots=3)
    pool.add(worker)
    assert pool.reserve("m", 2) == (worker, 2)
    assert pool.reserve("m", 2) == (worker, 1)
    assert pool.reserve("m") is None
    assert worker.reserved == 3


def test_offered_models_are_those_of_workers_that_do_not_drain(pool: Pool) -> None:
    a, b = make("a", "m"), make("b", "n")
    pool.add(a)
    pool.add(b)
    b.draining = True
    assert pool.models() == {"m"}


def test_the_same_instance_counts_only_with_the_same_token(pool: Pool) -> None:
    first = make("a", instance_id="i", key_id="k")
    stranger = make("b", instance_id="i", key_id="other")
    again = make("c", instance_id="i", key_id="k")
    nameless = make("d", version=1, key_id="k")
    for worker in (first, stranger, again, nameless, make("e", version=1, key_id="k")):
        pool.add(worker)
    assert pool.same_instance(again) == [first]
    assert pool.same_instance(nameless) == []


def test_the_fifth_loss_in_ten_minutes_begins_a_minutes_rest(pool: Pool, clock: Clock) -> None:
    worker = make("a", instance_id="i")
    pool.add(worker)
    for _ in range(4):
        pool.count_loss(worker)
        clock.now += 100
    assert worker.free(clock.now) == 1
    pool.count_loss(worker)
    assert worker.free(clock.now) == 0
    assert worker.free(clock.now + 60) == 1


def test_losses_spread_over_more_than_ten_minutes_do_not_count(pool: Pool, clock: Clock) -> None:
    worker = make("a")
    pool.add(worker)
    for _ in range(20):
        pool.count_loss(worker)
        clock.now += 151
    assert worker.free(clock.now) == 1


def test_the_rest_goes_on_when_the_same_process_connects_again(pool: Pool, clock: Clock) -> None:
    for number in range(5):
        worker = make(f"connection {number}", instance_id="i")
        pool.add(worker)
        pool.count_loss(worker)
        pool.remove(worker)
    again, other = make("again", instance_id="i"), make("other", instance_id="another")
    pool.add(again)
    pool.add(other)
    assert again.free(clock.now) == 0
    assert other.free(clock.now) == 1


# ---- many workers ----------


def instructions(call: Callable[[], Any]) -> int:
    """How many Python instructions of the pool a call takes. (What the collector calls meanwhile is nobody's.)"""
    count, product = 0, inspect.getsourcefile(Pool)

    def step(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != product:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("busy", [True, False], ids=["all busy", "all free"])
@pytest.mark.parametrize("models", [("m",), ("*",), ("m", "n")], ids=str)
def test_a_task_costs_the_same_with_ten_workers_and_with_1600(busy: bool, models: tuple[str, ...]) -> None:
    def task(pool: Pool) -> None:
        reserved = pool.reserve("m", 1, "chat")
        assert (reserved is None) == busy
        pool.any_takes("m", "chat", "t")
        if reserved is not None:
            worker, count = reserved
            worker.reserve(-count)
            assert pool.pick("m", "chat", "t") is worker
            run_a_task(pool, worker)

    costs = []
    for count in (10, 1600):
        pool = Pool(Clock())
        for number in range(count):
            worker = make(f"w{number}", *models)
            pool.add(worker)
            worker.reserve(int(busy))
        costs.append(instructions(lambda pool=pool: task(pool)))  # type: ignore[misc]
    assert costs[0] == costs[1] < 1500


def test_workers_that_are_to_get_nothing_for_a_while_cost_nothing_until_then(clock: Clock) -> None:
    costs = []
    for count in (10, 1600):
        pool = Pool(clock)
        workers = [make(f"w{number}") for number in range(count)]
        for worker in workers:
            pool.add(worker)
            worker.hold_until = clock.now + 60
        costs.append(instructions(lambda pool=pool: pool.pick("m", "chat", "t")))  # type: ignore[misc]
        assert pool.pick("m") is None
        clock.now += 60
        assert pool.pick("m") is workers[0]
    assert costs[0] == costs[1]


def test_thousands_of_the_same_kind_are_one_offer(pool: Pool) -> None:
    workers = [make(f"w{number}", "m", "n") for number in range(1000)]
    pool.add(workers[0])
    assert pool.pop_offer_changes() == {"m": True, "n": True}
    assert pool.groups_changed
    pool.groups_changed = False
    for worker in workers[1:]:
        pool.add(worker)
        pool.remove(worker)
    assert not pool.groups_changed
    assert pool.pop_offer_changes() == {}
    workers[0].draining = True
    assert pool.groups_changed
    assert pool.pop_offer_changes() == {"m": False, "n": False}
    assert workers[5].models is workers[0].models
