"""Adaptive concurrency: the limit of a model follows the time to the first output. The server here is simulated: its first output
takes 0.2 s while it runs up to `knee` tasks, and longer with each further one."""

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.contract.store.store import Grant, Store, World

pytestmark = pytest.mark.feature("adaptive")

TARGET_MS = 2000
BASE_MS = 200


def adapt(store: Store, low: int = 1, high: int = 64, **more: int) -> None:
    """Configure the model `m` with an adapted limit."""
    adapted = {"auto_target_ms": TARGET_MS, "auto_min": low, "auto_max": high}
    store.apply(queues={"free": {"weight": 1.0}}, models={"m": adapted | more})


@dataclass
class Server:
    """A simulated server, and the replicas that send it every task that they are granted."""

    stores: list[Store]
    knee: int = 8
    slope_ms: int = 1000
    """Additional time of a first output for each running task above the knee."""
    stream: bool = True
    output_ms: int = 1500
    """Time from the first output to the end, about."""
    waiting: int = 5
    """Tasks that wait."""
    arrived: int = 0
    granted: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    events: list[tuple[int, int, bool, Store, Grant]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    running: int = 0

    @property
    def world(self) -> World:
        return self.stores[0].world

    def fill(self) -> None:
        """Let tasks arrive, and each replica take what it can."""
        while self.arrived < self.granted + self.waiting:
            self.stores[0].accept(f"t{self.arrived}", user=f"u{self.arrived % 5}")
            self.arrived += 1
        for store in self.chance.sample(self.stores, len(self.stores)):
            for grant in store.take(want=8):
                self.granted += 1
                self.running += 1
                over = max(self.running - self.knee, 0)
                took = (BASE_MS + over * self.slope_ms) * self.chance.uniform(0.8, 1.2)
                self.plan(round(took), self.stream, store, grant)

    def plan(self, ms: int, first: bool, store: Store, grant: Grant) -> None:
        """Plan the first output of a task, or its end."""
        heapq.heappush(self.events, (self.world.now_ms + ms, next(self.numbers), first, store, grant))

    def work(self, seconds: int) -> list[int]:
        """Run for a time. Return the limit of each second of the second half."""
        limits = []
        for _ in range(seconds):
            self.fill()
            self.until(self.world.now_ms + 1000)
            for store in self.stores:
                store.renew(*(grant for *_, owner, grant in self.events if owner is store))
            self.stores[0].sweep()
            limits.append(self.stores[0].inspect().get("adaptive", {}).get("limit", 0))
        return limits[seconds // 2 :]

    def until(self, instant_ms: int) -> None:
        """Let first outputs and ends happen until an instant."""
        while self.events and self.events[0][0] <= instant_ms:
            at, _, first, store, grant = heapq.heappop(self.events)
            self.world.advance(at - self.world.now_ms)
            if first:
                assert store.append(grant, 2, b'{"text":"a"}')[0] == "ok"
                self.plan(round(self.output_ms * self.chance.uniform(0.5, 1.5)), False, store, grant)
            else:
                self.running -= 1
                assert store.finish(grant, 3 if self.stream else 2).outcome == "ok"
            self.fill()
        self.world.advance(instant_ms - self.world.now_ms)


def replicas(store: Store) -> list[Store]:
    """Three replicas with workers for the model, for a long time."""
    found = [store, store.replica("r2"), store.replica("r3")]
    for one in found:
        one.offer("m", hold_ms=10**7)
    return found


def adaptive_of(store: Store) -> dict[str, int]:
    found: dict[str, int] = store.inspect()["adaptive"]
    return found


def first_output(store: Store, task_id: str, after_ms: int) -> int:
    """Grant a task, whose first output comes after this time. Return the limit then."""
    grant = store.run(task_id)
    store.world.advance(after_ms)
    store.append(grant, 2)
    limit = adaptive_of(store)["limit"]
    store.finish(grant, 3)
    return limit


@pytest.mark.parametrize("stream", [True, False], ids=["streams", "whole answers"])
@pytest.mark.parametrize("slope_ms", [1500, 4000])
def test_the_limit_settles_near_the_knee_and_follows_it(store: Store, slope_ms: int, stream: bool) -> None:
    adapt(store)
    server = Server(replicas(store), slope_ms=slope_ms, stream=stream)
    for knee in (8, 4, 12):
        server.knee = knee
        limits = server.work(60)
        mean = sum(limits) / len(limits)
        assert 0.6 * knee <= mean <= 1.4 * knee, (knee, mean, limits)
    assert adaptive_of(store)["decreases"] > 3


def test_the_limit_stays_within_its_bounds(store: Store) -> None:
    adapt(store, high=6)
    server = Server(replicas(store), knee=50)
    assert set(server.work(30)) == {6}
    adapt(store, low=3, high=6)
    server.knee = -10
    assert set(server.work(60)) == {3}
    adapt(store, low=4, high=5)
    assert adaptive_of(store)["limit"] == 4, "new bounds hold immediately"


def test_the_limit_does_not_grow_while_it_is_not_in_use(store: Store) -> None:
    adapt(store, low=4)
    for n in range(50):
        assert first_output(store, f"t{n}", 200) == 4
    busy = [store.run(f"b{n}") for n in range(4)]
    store.world.advance(200)
    store.append(busy[0], 2)
    assert adaptive_of(store)["limit"] == 4, "it was granted a free slot"
    store.append(busy[3], 2)
    assert adaptive_of(store)["limit"] == 8, "it was granted the last one"


def test_one_late_output_is_no_reason_and_three_are(store: Store) -> None:
    adapt(store)
    assert first_output(store, "a", 200) == 2
    store.world.advance(1)
    late = [first_output(store, f"l{n}", TARGET_MS + 1) for n in range(3)]
    assert late == [2, 2, 1]
    assert adaptive_of(store)["decreases"] == 1


def test_late_attempts_count_before_their_output(store: Store) -> None:
    adapt(store, low=8)
    assert first_output(store, "first", 200) == 8
    grants = [store.run(f"t{n}") for n in range(4)]
    adapt(store)
    store.world.advance(TARGET_MS + 1)
    store.renew(*grants)
    store.submit("waiting")
    store.sweep()
    assert adaptive_of(store)["limit"] == 6
    for grant in grants:
        store.append(grant, 2)
    assert adaptive_of(store)["decreases"] == 1, "each counts once"


def test_tasks_from_before_a_decrease_cause_no_other_and_growth_pauses(store: Store) -> None:
    adapt(store, low=16)
    assert first_output(store, "first", 200) == 16
    grants = [store.run(f"t{n}") for n in range(16)]
    adapt(store, low=1)
    store.world.advance(TARGET_MS + 1)
    for grant in grants:
        store.append(grant, 2)
    assert adaptive_of(store) == {"limit": 12, "min": 1, "max": 64, "target_ms": TARGET_MS, "decreases": 1}
    for grant in grants[:5]:
        store.finish(grant, 3)
    next_one = store.run("next")
    store.world.advance(200)
    store.append(next_one, 2)
    assert adaptive_of(store)["limit"] == 12, "one target time must pass"
    store.finish(grants[5], 3)
    store.world.advance(TARGET_MS)
    later = store.run("later")
    store.world.advance(200)
    store.append(later, 2)
    assert adaptive_of(store)["limit"] == 13


@pytest.mark.parametrize("what", ["failed", "returned", "cancelled"])
def test_an_attempt_without_output_that_ends_early_says_nothing(store: Store, what: str) -> None:
    adapt(store, low=1)
    grant = store.run("a")
    store.world.advance(100)
    if what == "failed":
        store.fail(grant)
    elif what == "returned":
        store.requeue(grant)
    else:
        store.cancel("a")
        store.finish(grant)
    assert adaptive_of(store)["limit"] == 1


def test_a_larger_limit_wakes_a_replica_with_free_slots(store: Store) -> None:
    adapt(store)
    other = store.replica("r2")
    other.offer("m")
    grant = store.run("a")
    store.submit("b")
    assert other.take() == []
    other.heard()
    store.world.advance(100)
    store.append(grant, 2)
    assert other.heard() == [("wake", "m")]
    assert other.taken() == ["b"]


def test_a_number_that_an_operator_sets_is_the_limit_until_it_is_removed(store: Store) -> None:
    adapt(store, low=2)
    store.set_model(concurrency=5)
    assert "adaptive" not in store.inspect()
    for n in range(10):
        store.submit(f"t{n}")
    grants = store.take(want=10)
    assert len(grants) == 5
    store.world.advance(60_000)
    for grant in grants:
        store.append(grant, 2)
        store.finish(grant, 3)
    store.set_model(concurrency=None)
    assert adaptive_of(store) == {"limit": 2, "min": 2, "max": 64, "target_ms": TARGET_MS, "decreases": 0}
    assert len(store.take(want=10)) == 2


def test_a_model_without_the_setting_has_no_adapted_limit(store: Store) -> None:
    server = Server(replicas(store), waiting=20)
    store.set_model(concurrency=20)
    server.work(20)
    assert server.running == 20
    assert "adaptive" not in store.inspect()
    assert store.record("t5").keys().isdisjoint({"extras", "granted_in"})
