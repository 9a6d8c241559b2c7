"""Corners of the fair queues, on the scripts: standing in line, settlement, forgetting. What users get: test_fairness_gates."""

from collections import Counter

from tests.contract.store.store import Grant, Store, World

WEIGHTS = {"paid_stream": 8.0, "paid_batch": 4.0, "free_stream": 2.0, "free_batch": 1.0}


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
    lanes = world.call("ZRANGE", world.keys("debts", queue="free_batch", model="m"), 0, -1, "WITHSCORES")
    assert float(lanes[-1]) <= 4096 * 20_000_000


def test_idle_flows_are_forgotten(world: World) -> None:
    service = Service(world, 4, {"free_batch": 1.0}, "requests")
    for n in range(1500):
        service.submit("free_batch", f"once{n}", 1)
        service.running += service.fill(1)[:0]
        service.turn()
    debts = world.keys("debts", queue="free_batch", model="m")
    assert world.call("ZCARD", debts) >= 1000
    service.store.sweep()
    assert world.call("ZCARD", debts) == 1000
    for _ in range(1500):
        service.submit("free_batch", "steady", 1)
        service.submit("free_batch", "steady", 1)
        service.running += service.fill(2)[:0]
        service.turn()
        service.turn()
    assert world.call("ZCARD", debts) <= 1
