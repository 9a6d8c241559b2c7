"""Corners of the fair queues, on the scripts: standing in line, settlement, forgetting. What users get: test_fairness_gates."""

from collections import Counter
from typing import Any

from tests.contract.store.store import Grant, Store, World
from tests.support.audit import Snapshot

WEIGHTS = {"paid_stream": 8.0, "paid_batch": 4.0, "free_stream": 2.0, "free_batch": 1.0}


HOUR_MS = 3_600_000


def users_of(world: World, queue: str = "free_batch") -> dict[str, Any]:
    """What is known of the users of a lane, by name."""
    models = Snapshot(world).by_kind["model"].values()
    found = [item for model in models for item in model["users_by_lane"].items()]
    return {name: user for (q, name), user in found if q == queue}


class Service:
    """One model with a number of slots; the world's clock moves a little with every dispatch."""

    def __init__(self, world: World, slots: int, weights: dict[str, float], unit: str = "tokens") -> None:
        self.world = world
        self.store = Store(world, set_up=False)
        self.store.apply(
            queues={q: {"weight": w, "max_length": 10**6} for q, w in weights.items()},
            models={"m": {"concurrency": slots, "cost": unit}},
        )
        self.store.offer("m", hold_ms=10**9)
        self.running: list[Grant] = []
        self.number = 0
        self.tokens: dict[str, int] = {}

    def submit(self, queue: str, user: str, output: int, priority: int = 0, max_output: int = 0) -> None:
        self.number += 1
        task_id = f"t{self.number:07d}"
        self.tokens[task_id] = output
        self.store.submit(task_id, queue=queue, user=user, priority=priority, max_output=max_output)

    def fill(self, slots: int) -> list[Grant]:
        grants = self.store.take(want=slots)
        self.running += grants
        return grants

    def turn(self) -> Grant | None:
        """End the task that has run longest. Return the grant for its slot."""
        grant = self.running.pop(0)
        grants = self.store.finish(grant, used=(0, self.tokens[grant.task_id]), want=1).grants
        self.running += grants
        return grants[0] if grants else None


def test_settlement_reaches_a_flow_that_went_idle_and_a_lift_forgives_once(world: World) -> None:
    """A user whose task was far longer than estimated pays for it later, unless the others had caught up meanwhile."""

    def run(others: int) -> int:
        world.empty()
        service = Service(world, 2, {"free_batch": 1.0})
        service.submit("free_batch", "teacher", 100)
        service.fill(1)
        service.turn()
        service.submit("free_batch", "long", 5000)
        long = service.fill(1)
        for _ in range(300):
            service.submit("free_batch", "other", 100)
        service.running = service.fill(1)
        for _ in range(others):
            service.turn()
        service.running.insert(0, long[0])
        service.turn()
        for _ in range(3):
            service.submit("free_batch", "long", 100)
        passed = 0
        while (grant := service.turn()) and grant.user != "long":
            passed += 1
        return passed

    assert 40 <= run(1) <= 50, "5,000 tokens are 50 tasks of 100"
    assert run(60) <= 1


def test_a_task_that_ran_for_hours_is_paid_for_later(world: World) -> None:
    service = Service(world, 2, {"free_batch": 1.0})
    service.submit("free_batch", "long", 5000)
    long = service.fill(1)
    world.advance(2 * HOUR_MS)
    for _ in range(100):
        service.submit("free_batch", "other", 100)
    service.running = [*service.fill(1), *long]
    service.turn()
    service.turn()
    world.advance(1000)
    service.store.renew(*service.running)
    service.store.sweep()
    service.submit("free_batch", "long", 100)
    served = [grant.user for grant in (service.turn() for _ in range(40)) if grant]
    assert served == ["other"] * 40, "5,000 tokens are 50 tasks of 100"


def test_a_refund_gives_no_credit_that_a_lift_had_forgiven(world: World) -> None:
    """A user overestimated by 8,000 tokens, whom the others passed meanwhile, was harmed by nothing and gets nothing."""
    service = Service(world, 2, {"free_batch": 1.0})
    service.submit("free_batch", "asks for much", 1, max_output=4000)
    much = service.fill(1)
    for _ in range(300):
        service.submit("free_batch", "other", 100)
    service.running = service.fill(1)
    for _ in range(100):
        service.turn()
    for _ in range(40):
        service.submit("free_batch", "asks for much", 100)
    service.running.insert(0, much[0])
    served = Counter(grant.user for grant in (service.turn() for _ in range(40)) if grant)
    assert abs(served["other"] - 20) <= 2, served


def test_a_lying_usage_does_not_starve_its_lane(world: World) -> None:
    service = Service(world, 1, WEIGHTS)
    service.submit("free_batch", "liar", 10**30)
    service.fill(1)
    service.submit("free_batch", "honest", 100)
    assert service.turn()
    lane = Snapshot(world).lanes["free_batch", "m"]
    assert 0 < users_of(world)["liar"].tag <= 4096 * 20_000_000
    assert 0 < lane.tag <= 4096 * 20_000_000


def test_idle_flows_are_forgotten(world: World) -> None:
    service = Service(world, 4, {"free_batch": 1.0}, "requests")
    for n in range(1500):
        service.submit("free_batch", f"once{n}", 1)
        service.running += service.fill(1)[:0]
        service.turn()
    assert len(users_of(world)) == 1500, "tag and means of a user count for an hour"
    world.advance(HOUR_MS)
    service.submit("free_batch", "steady", 1)
    service.running += service.fill(2)[:0]
    service.turn()
    service.store.pass_time(100_000)
    assert set(users_of(world)) == {"steady"}


def test_users_of_about_an_hour_are_kept_however_many_come(world: World) -> None:
    service = Service(world, 1, {"free_batch": 1.0})
    service.submit("free_batch", "first", 1)
    service.fill(1)
    service.turn()
    key = world.keys("model", model="m")
    learned = world.call("HGET", key, "user:free_batch:first")
    for part in range(60):
        fields = [f"user:free_batch:{part}.{n}" for n in range(1000)]
        world.call("HSET", key, *[text for field in fields for text in (field, learned)])
    world.advance(HOUR_MS + 1000)
    service.store.pass_time(900_000)
    assert world.call("HLEN", key) < 20_000
