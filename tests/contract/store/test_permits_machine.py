"""Random lives of an endpoint's line: permits and calls are mixed, replicas die at any moment, and callers do as they like."""

import random
from itertools import pairwise

import pytest
from tests.contract.store.store import TERMINAL, Accepted, Grant, Rejected, Store, World
from tests.support.audit import Snapshot, audit
from tests.support.servers import Server

IMAGE = "http:image"
UNUSED_MS, USED_MS = 4000, 9000
WINDOW = (4, 3000)
STEPS = 120
LIMIT = 3


class Life:
    """One endpoint, two replicas, and everybody who may do something."""

    def __init__(self, world: World, chance: random.Random, *, windows: bool) -> None:
        self.world, self.chance = world, chance
        self.replicas = [Store(world, name, set_up=False) for name in ("r1", "r2")]
        self.replicas[0].configure(LIMIT, chance.choice(("requests", "slot_seconds")), model=IMAGE)
        if windows:
            self.replicas[0].set_model(IMAGE, windows=f"{WINDOW[0]}/{WINDOW[1]}ms")
        for replica in self.replicas:
            replica.offer(IMAGE)
        self.windows = windows
        self.number = 0
        self.accepted: list[str] = []
        self.taken: list[Grant] = []
        """Permits that a replica was granted, and has not given out (yet)."""
        self.out: list[Grant] = []
        """All that were given out, ever."""
        self.calls: list[Grant] = []
        self.entered: dict[str, int] = {}
        """Task -> when it was let in, ms."""
        self.left: set[str] = set()
        self.arrivals: list[int] = []

    @property
    def pool(self) -> Store:
        return self.chance.choice(self.replicas)

    # ---- what may happen ----------

    def come(self) -> None:
        self.number += 1
        task_id = f"t{self.number:03d}"
        permit = self.chance.random() < 2 / 3
        more = self.chance.choice(({}, {"timeout_ms": 6000}, {"linger_ms": 3000}, {"wait_ms": 5000}))
        user = self.chance.choice("uvw")
        queue = self.chance.choice(("paid", "free"))
        if permit:
            answer = self.pool.ask_permit(task_id, IMAGE, user=user, queue=queue, **more)
        else:
            answer = self.pool.submit(task_id, IMAGE, task_type="http", user=user, queue=queue, **more)
        if isinstance(answer, Accepted):
            self.accepted.append(task_id)
        else:
            assert isinstance(answer, Rejected)
            assert answer.reason == "too_long", answer

    def hold(self) -> None:
        self.taken += self.pool.take_permits(IMAGE, want=self.chance.choice((1, 64)))

    def give_out(self) -> None:
        if self.taken:
            grant = self.taken.pop(self.chance.randrange(len(self.taken)))
            if self.pool.issue_permit(grant, UNUSED_MS, USED_MS) is not None:
                self.out.append(grant)
                if self.chance.random() < 0.2:  # the reply was lost
                    self.taken.append(grant)

    def die(self) -> None:
        """A replica dies with what it was granted."""
        if self.taken and self.chance.random() < 0.5:
            self.taken.clear()

    def enter(self) -> None:
        if self.out:
            grant = self.chance.choice(self.out)
            if self.pool.use_permit(grant)[0] == "in":
                assert grant.task_id not in self.entered, "twice"
                self.entered[grant.task_id] = self.world.now_ms
                self.arrivals.append(self.world.now_ms)

    def leave(self) -> None:
        if self.out:
            grant = self.chance.choice(self.out)
            outcome = self.pool.release_permit(grant)
            assert outcome != "ended" or grant.task_id in self.entered
            if grant.task_id in self.entered:
                self.left.add(grant.task_id)

    def cancel(self) -> None:
        if self.accepted and self.chance.random() < 0.4:
            self.pool.cancel(self.chance.choice(self.accepted[-8:]))

    def call(self) -> None:
        grants = self.pool.take(IMAGE, want=self.chance.choice((1, 2)))
        assert all(grant.task_type == "http" for grant in grants)
        self.calls += grants

    def finish(self) -> None:
        if self.calls:
            grant = self.calls.pop(self.chance.randrange(len(self.calls)))
            done = self.pool.finish(
                grant, state=self.chance.choice(("completed", "failed")), want=1, models=(IMAGE,)
            )
            if done.outcome == "ok":
                self.arrivals.append(self.world.now_ms)
            self.calls += done.grants

    def wait(self) -> None:
        self.replicas[0].offer(IMAGE)
        self.replicas[1].offer(IMAGE)
        if self.calls:
            self.pool.renew(*self.calls)
        self.replicas[0].pass_time(self.chance.choice((1, 100, 1000, 3000)))

    # ---- what always holds ----------

    def look(self) -> Snapshot:
        shot = audit(self.world, self.accepted)
        slots = set(shot.one("slots", IMAGE))
        assert len(slots) <= LIMIT
        for task, since in self.entered.items():
            if task not in self.left and self.world.now_ms < since + USED_MS:
                assert task in slots, (task, "its call may be under way")
        return shot

    def live(self) -> None:
        acts = [self.come] * 4 + [self.hold] * 4 + [self.give_out] * 6 + [self.enter] * 5 + [self.leave] * 3
        acts += [self.call] * 2 + [self.finish] * 3 + [self.cancel, self.die] + [self.wait] * 4
        for step in range(STEPS):
            self.chance.choice(acts)()
            if step % 4 == 0:
                self.look()
        for _ in range(200):  # everybody behaves from now on
            self.hold()
            while self.taken:
                self.give_out()
            self.call()
            for grant in list(self.out):
                if self.pool.use_permit(grant, "end")[0] == "in" and grant.task_id not in self.entered:
                    self.entered[grant.task_id] = self.world.now_ms
                    self.arrivals.append(self.world.now_ms)
                self.pool.release_permit(grant)
                if grant.task_id in self.entered:
                    self.left.add(grant.task_id)
            while self.calls:
                self.finish()
            self.replicas[0].offer(IMAGE)
            self.replicas[0].pass_time(1000)
            over = all(self.replicas[0].state(task) in TERMINAL for task in self.accepted)
            if over and not self.replicas[0].slots(IMAGE):
                break
        shot = self.look()
        assert {shot.one("task", task)["state"] for task in self.accepted} <= {
            "completed",
            "failed",
            "cancelled",
        }
        assert not shot.one("slots", IMAGE)
        if self.windows:
            most, ms = WINDOW
            arrivals = sorted(self.arrivals)
            for first, last in zip(arrivals, arrivals[most:], strict=False):
                assert last - first >= ms, (first, last)
        assert all(before <= after for before, after in pairwise(self.arrivals))


@pytest.mark.feature("permits", "endpoints", "pacing")
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_any_life_of_a_line_with_permits_keeps_the_promises(
    any_server: Server, seed: int, windows: bool
) -> None:
    world = World(any_server.socket_path)
    try:
        world.empty()
        Life(world, random.Random(seed), windows=windows).live()
    finally:
        world.close()
