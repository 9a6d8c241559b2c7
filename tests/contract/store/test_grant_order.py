"""Every grant of the scripts is the one that the plain model of the rule makes."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.contract.store.store import Grant, Store, World
from tests.support.fair_model import FairModel, Task
from tests.support.servers import Server

from fairlane.queues.replies import decode_map

Value = str | int | float | bool | None
LONG = os.environ.get("FAIRLANE_LONG") == "1"
WEIGHTS = {"paid_stream": 3.0, "free_batch": 1.0}
USERS = ("ann", "ü:b", "zoe")

SUBMIT = st.tuples(
    st.just("submit"),
    st.sampled_from(sorted(WEIGHTS)),
    st.sampled_from(USERS),
    st.integers(0, 5),
    st.sampled_from((0, 10, 3000)),
    st.sampled_from((0, 50, 100_000)),
    st.sampled_from((1.0, 2.5)),
    st.booleans(),
)
FINISH = st.tuples(st.just("finish"), st.integers(0, 9), st.sampled_from((0, 7, 200, 9000)), st.booleans())
TAKE = st.tuples(st.just("take"), st.integers(1, 3))
CANCEL = st.tuples(st.just("cancel"), st.integers(0, 9))
WAIT = st.tuples(st.just("wait"), st.sampled_from((1, 1500)))
REQUEUE = st.tuples(st.just("requeue"), st.integers(0, 9))
RENEW = st.tuples(st.just("renew"), st.integers(0, 9), st.sampled_from((0, 30, 20_000)))
SET_QUEUE = st.tuples(
    st.just("set_queue"),
    st.sampled_from(sorted(WEIGHTS)),
    st.one_of(
        st.tuples(st.just("weight"), st.sampled_from((1.0, 5.0, 0.5))),
        st.tuples(st.just("paused"), st.booleans()),
        st.tuples(st.just("max_running"), st.sampled_from((None, 1, 2))),
        st.tuples(st.just("reserved"), st.sampled_from((None, 1, 2))),
    ),
)
SET_MODEL = st.tuples(
    st.just("set_model"),
    st.one_of(
        st.tuples(st.just("concurrency"), st.sampled_from((0, 1, 2, 4))),
        st.tuples(st.just("cost"), st.sampled_from(("tokens", "requests", "slot_seconds"))),
        st.tuples(st.just("paused"), st.booleans()),
        st.tuples(st.just("max_running_per_user"), st.sampled_from((None, 1, 2))),
    ),
)
PLAIN = (SUBMIT, SUBMIT, SUBMIT, FINISH, FINISH, TAKE, CANCEL, WAIT)
STEPS = st.lists(st.one_of(*PLAIN), min_size=5, max_size=90)
RULED_STEPS = st.lists(
    st.one_of(*PLAIN, FINISH, TAKE, TAKE, REQUEUE, RENEW, SET_QUEUE, SET_MODEL), min_size=40, max_size=90
)
RULES = st.fixed_dictionaries(
    {
        queue: st.fixed_dictionaries(
            {
                "reserved": st.sampled_from((None, None, 1, 2)),
                "max_running": st.sampled_from((None, None, 1, 2)),
            }
        )
        for queue in WEIGHTS
    }
)
"""What holds from the beginning."""


class Both:
    """The scripts and the model, told the same."""

    def __init__(self, world: World, limit: int, unit: str) -> None:
        self.world, self.store = world, Store(world, set_up=False)
        self.model = FairModel(WEIGHTS, limit, unit)
        self.store.apply(
            queues={q: {"weight": w} for q, w in WEIGHTS.items()},
            models={"m": {"concurrency": limit or None, "cost": unit}},
        )
        order = [queue.decode() for queue in world.call("SMEMBERS", world.keys("queues"))]
        self.model.lanes = {queue: self.model.lanes[queue] for queue in order}
        self.store.offer("m", hold_ms=10**9)
        self.running: list[tuple[Grant, Task]] = []
        self.waiting: list[Task] = []
        self.number = 0

    def compare(self, grants: list[Grant], want: int) -> None:
        expected = [task for task in (self.model.grant() for _ in range(want)) if task]
        assert [grant.task_id for grant in grants] == [task.id for task in expected]
        for grant, task in zip(grants, expected, strict=True):
            self.waiting.remove(task)
            self.running.append((grant, task))

    def submit(self, q: str, u: str, priority: int, size: int, most: int, weight: float, take: bool) -> None:
        self.number += 1
        task_id, want = f"t{self.number:06d}", int(take)
        order = round(self.world.now_us / 1000 - 2000 * priority, 3)
        task = Task(task_id, q, u, order, size, most, weight)
        answer = self.store.accept(
            task_id, queue=q, user=u, want=want, priority=priority, weight=weight,
            estimated_input=size, max_output=most,
        )  # fmt: skip
        self.model.submit(task)
        self.waiting.append(task)
        self.compare(answer.grants, want)

    def take(self, want: int) -> None:
        self.compare(self.store.take(want=want), want)

    def finish(self, which: int, used: int, take: bool) -> None:
        if not self.running:
            return
        grant, task = self.running.pop(which % len(self.running))
        grants = self.store.finish(grant, used=(task.cost_in, used), want=int(take)).grants
        self.model.end(task, task.cost_in, used, ran_ms=self.world.now_ms - grant.granted_ms)
        self.compare(grants, int(take))

    def cancel(self, which: int) -> None:
        if self.waiting:
            task = self.waiting.pop(which % len(self.waiting))
            self.store.cancel(task.id)
            self.model.cancel(task)

    def wait(self, ms: int) -> None:
        self.world.advance(ms)

    def requeue(self, which: int) -> None:
        if self.running:
            grant, task = self.running.pop(which % len(self.running))
            self.store.requeue(grant, "declined")
            self.model.requeue(task)
            self.waiting.append(task)

    def renew(self, which: int, output: int) -> None:
        if self.running:
            grant, task = self.running[which % len(self.running)]
            assert self.store.renew(grant, output=output) == [1]
            self.model.renew(task, output, self.world.now_ms - grant.granted_ms)

    def set_queue(self, queue: str, change: tuple[str, Value]) -> None:
        self.store.set_queue(queue, **dict([change]))
        name, value = change
        counts = name in ("max_running", "reserved")
        setattr(self.model.lanes[queue], name, (value or 0) if counts else value)
        self.model.rules_changed()

    def set_model(self, change: tuple[str, Value]) -> None:
        self.store.set_model(**dict([change]))
        match change:
            case "concurrency", limit:
                self.model.limit = int(limit or 0)
            case "cost", unit:
                self.model.set_unit(str(unit))
            case "paused", paused:
                self.model.paused = bool(paused)
            case _, cap:
                self.model.user_cap = int(cap or 0)
        self.model.rules_changed()

    def compare_charges(self) -> None:
        """What each running task was charged so far."""
        for grant, task in self.running:
            run = self.world.call("HGET", self.world.keys("task", id=grant.task_id), "run")
            assert decode_map(run)["account"]["cost"] == task.charged


@pytest.fixture(scope="module")
def order_world(redis_server: Server) -> Any:
    world = World(redis_server.socket_path)
    yield world
    world.close()


ORDER = settings(
    max_examples=3000 if LONG else 120,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink] if LONG else [Phase.generate],
    print_blob=True,
)


@pytest.mark.timeout(0)
@ORDER
@given(
    steps=STEPS, limit=st.sampled_from((0, 1, 2, 5)), unit=st.sampled_from(("tokens", "tokens", "requests"))
)
def test_the_scripts_grant_in_the_order_of_the_model(
    order_world: World, steps: list[Any], limit: int, unit: str
) -> None:
    order_world.empty()
    both = Both(order_world, limit, unit)
    for name, *args in steps:
        getattr(both, name)(*args)
    while both.running or both.waiting:
        both.take(50)
        both.finish(0, 100, True)


@pytest.mark.feature("limits", "overrides")
@pytest.mark.timeout(0)
@ORDER
@given(
    steps=RULED_STEPS,
    rules=RULES,
    limit=st.sampled_from((0, 1, 2, 3, 5)),
    unit=st.sampled_from(("tokens", "requests", "slot_seconds")),
)
def test_they_do_so_whatever_rules_are_set_while_they_run(
    order_world: World, steps: list[Any], rules: dict[str, dict[str, Value]], limit: int, unit: str
) -> None:
    order_world.empty()
    both = Both(order_world, limit, unit)
    for queue, values in rules.items():
        for change in values.items():
            both.set_queue(queue, change)
    for number in range(24):
        both.submit(sorted(WEIGHTS)[number % 2], USERS[number % 3], 0, 10, 50, 1.0, False)
    for name, *args in steps:
        getattr(both, name)(*args)
        both.compare_charges()
    for queue in WEIGHTS:
        for setting in ("paused", "max_running", "reserved"):
            both.set_queue(queue, (setting, None))
    for setting in ("paused", "max_running_per_user"):
        both.set_model((setting, None))
    while both.running or both.waiting:
        both.take(50)
        both.finish(0, 100, True)
