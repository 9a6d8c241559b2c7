"""Rules about which tasks may start: pause, running tasks of a queue, reserved slots. Each holds from the next decision on."""

from typing import Any

import pytest
from tests.contract.store.store import Grant, Store


def backlog(store: Store, queue: str, number: int, *, user: str = "", model: str = "m") -> None:
    """Waiting tasks of a queue, of one user each unless `user` is given, which ask for what `serve` says they use."""
    for n in range(number):
        task = f"{queue}{model}{user}{n:03d}"
        store.submit(task, model, queue=queue, user=user or task, max_output=128)


def serve(store: Store, running: list[Grant], number: int) -> list[str]:
    """So many times the oldest of `running` ends and the next starts. Return the queues of the tasks that started."""
    started = []
    for _ in range(number):
        store.world.advance(10)
        grants = store.finish(running.pop(0), used=(0, 128), want=1).grants
        running.extend(grants)
        started.extend(grant.queue for grant in grants)
    return started


def test_a_paused_queue_starts_nothing_and_others_do(store: Store) -> None:
    store.submit("a", queue="paid")
    store.submit("b", queue="free")
    store.set_queue("paid", paused=True)
    assert store.taken(want=2) == ["b"]
    store.set_queue("paid", paused=False)
    assert store.taken(want=2) == ["a"]


def test_a_queue_runs_a_number_of_tasks_over_all_models(store: Store) -> None:
    other = store.replica("r2")
    store.offer("m", "m2")
    store.set_queue("free", max_running=2)
    for task, model in (("a", "m"), ("b", "m2"), ("c", "m"), ("d", "m2")):
        store.submit(task, model)
    store.submit("p", "m", queue="paid")
    grants = {grant.task_id: grant for grant in store.take("m", "m2", want=5)}
    assert sorted(grants) == ["a", "b", "p"]
    assert store.take("m", "m2", want=5) == []
    assert other.take("m2") == []
    other.heard()
    store.finish(grants["a"])
    assert ("wake", "m2") in other.heard() or store.taken("m", "m2", want=5) == ["c"]


def test_tasks_that_ran_before_a_rule_was_set_count_for_it(store: Store) -> None:
    first = store.run("a")
    store.submit("b")
    store.set_queue("free", max_running=1)
    assert store.take() == []
    store.world.check()
    store.finish(first)
    assert store.taken() == ["b"]


@pytest.mark.parametrize(
    ("kind", "rule", "lifted"),
    [
        ("queue", {"paused": True}, {"paused": None}),
        ("model", {"paused": True}, {"paused": None}),
        ("queue", {"max_running": 1}, {"max_running": 2}),
        ("model", {"concurrency": 1}, {"concurrency": 2}),
        ("model", {"max_running_per_user": 1}, {"max_running_per_user": None}),
    ],
)
def test_lifting_a_rule_wakes_an_idle_replica_and_setting_it_does_not(
    store: Store, kind: str, rule: dict[str, Any], lifted: dict[str, Any]
) -> None:
    store.configure(2)
    other = store.replica("r2")
    other.offer("m")
    change, name = (store.set_queue, "free") if kind == "queue" else (store.set_model, "m")
    store.run("runs")
    change(name, **rule)
    store.submit("waits")
    assert other.take() == []
    assert other.heard() == []
    change(name, **lifted)
    assert other.heard() == [("wake", "m")]
    assert other.taken() == ["waits"]


@pytest.mark.parametrize(
    ("rule", "during", "after"),
    [
        ({"paused": True}, (0, 1), (19, 21)),
        ({"max_running": 1}, (9, 14), (18, 24)),
        ({"reserved": 3}, (29, 31), (18, 22)),
    ],
)
def test_a_queue_neither_saves_turns_under_a_rule_nor_pays_for_them_later(
    store: Store, rule: dict[str, Any], during: tuple[int, int], after: tuple[int, int]
) -> None:
    """Two queues of one weight. `paid` is held back or preferred for a while; afterwards it gets half."""
    store.configure(4)
    store.set_queue("paid", weight=1.0)
    backlog(store, "paid", 120)
    backlog(store, "free", 160)
    running = store.take(want=4)
    serve(store, running, 10)
    store.set_queue("paid", **rule)
    serve(store, running, 4)
    assert during[0] <= serve(store, running, 40).count("paid") <= during[1]
    store.set_queue("paid", **dict.fromkeys(rule))
    assert after[0] <= serve(store, running, 40).count("paid") <= after[1]


def test_a_queue_whose_slots_are_on_another_model_saves_no_turns(store: Store) -> None:
    store.configure(4)
    store.offer("m", "m2")
    store.set_queue("paid", weight=1.0, max_running=3)
    backlog(store, "paid", 3, model="m2")
    elsewhere = store.take("m2", want=3)
    backlog(store, "paid", 80)
    backlog(store, "free", 160)
    running = store.take(want=4)
    assert set(serve(store, running, 40)) == {"free"}
    for grant in elsewhere:
        store.finish(grant)
    assert 18 <= serve(store, running, 40).count("paid") <= 22


def test_turns_out_of_a_reserve_push_no_other_queue_back(store: Store) -> None:
    """A queue that comes later starts where the others are, not where the reserved one is."""
    store.configure(4)
    store.set_queue("paid", weight=1.0, reserved=2)
    backlog(store, "paid", 100, user="x")
    running = store.take(want=4)
    serve(store, running, 20)
    backlog(store, "free", 100)
    assert 15 <= serve(store, running, 40).count("free") <= 25
