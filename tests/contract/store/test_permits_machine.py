"""Random lives of an endpoint's line: permits and calls are mixed, replicas die at any moment, and callers do as they like."""

import random
from itertools import pairwise
from typing import Any

import pytest
from tests.contract.store.store import TERMINAL, Accepted, Grant, Rejected, Store, World
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
        self.calls: list[Grant] = []
        self.entered: dict[str, int] = {}
        """Task -> when it was let in, ms."""
        self.left: set[str] = set()
        self.arrivals: list[int] = []

    @property
    def store(self) -> Store:
        return self.chance.choice(self.replicas)

    @property
    def permits(self) -> list[str]:
        """All that were ever asked for."""
        return [task for task in self.world.accepted if task.startswith("permit")]

    # ---- what may happen ----------

    def come(self) -> None:
        self.number += 1
        more: dict[str, Any] = self.chance.choice(
            ({}, {"timeout_ms": 6000}, {"linger_ms": 3000}, {"wait_ms": 5000})
        )
        more = more | {"user": self.chance.choice("uvw"), "queue": self.chance.choice(("paid", "free"))}
        if self.chance.random() < 0.6:
            task_id = f"permit{self.number:03d}"
            self.store.ask_permit(task_id, IMAGE, unused_ms=UNUSED_MS, used_ms=USED_MS, **more)
            return
        answer = self.store.submit(f"call{self.number:03d}", IMAGE, task_type="http", **more)
        assert isinstance(answer, Accepted) or (isinstance(answer, Rejected) and answer.reason == "too_long")

    def use(self, task: str) -> None:
        issued = self.store.permit(task)
        outcome = self.store.use_permit(task)
        if outcome == "in":
            assert issued
            assert issued["expiresAt"] > self.world.now_ms
            assert task not in self.entered, "twice"
            self.entered[task] = self.world.now_ms
            self.arrivals.append(self.world.now_ms)

    def release(self, task: str) -> None:
        outcome = self.store.release_permit(task)
        assert outcome != "ended" or task in self.entered
        if task in self.entered:
            self.left.add(task)

    def enter(self) -> None:
        if self.permits:
            self.use(self.chance.choice(self.permits[-8:]))

    def leave(self) -> None:
        if self.permits:
            self.release(self.chance.choice(self.permits[-8:]))

    def cancel(self) -> None:
        if self.world.accepted and self.chance.random() < 0.4:
            self.store.cancel(self.chance.choice(self.world.accepted[-8:]))

    def call(self) -> None:
        grants = self.store.take(IMAGE, want=self.chance.choice((1, 2)))
        assert all(grant.task_type == "http" for grant in grants)
        self.calls += grants

    def finish(self) -> None:
        if self.calls:
            grant = self.calls.pop(self.chance.randrange(len(self.calls)))
            state = self.chance.choice(("completed", "failed"))
            done = self.store.finish(grant, state=state, want=1, models=(IMAGE,))
            if done.outcome == "ok":
                self.arrivals.append(self.world.now_ms)
            self.calls += done.grants

    def die(self) -> None:
        """A replica dies with its workers."""
        if self.calls and self.chance.random() < 0.2:
            self.calls.pop()

    def wait(self) -> None:
        for replica in self.replicas:
            replica.offer(IMAGE)
        if self.calls:
            self.store.renew(*self.calls)
        self.replicas[0].pass_time(self.chance.choice((1, 100, 1000, 3000)))

    # ---- what always holds ----------

    def look(self) -> None:
        self.world.check()
        slots = self.replicas[0].slots(IMAGE)
        assert len(slots) <= LIMIT
        for task, since in self.entered.items():
            if task not in self.left and self.world.now_ms < since + USED_MS:
                assert task in slots, (task, "its call may be under way")

    def live(self) -> None:
        acts = [self.come] * 5 + [self.enter] * 6 + [self.leave] * 4
        acts += [self.call] * 2 + [self.finish] * 3 + [self.cancel, self.die] + [self.wait] * 4
        for step in range(STEPS):
            self.chance.choice(acts)()
            if step % 4 == 0:
                self.look()
        for _ in range(200):  # everybody behaves from now on
            self.call()
            for task in self.permits:
                self.use(task)
                self.release(task)
            while self.calls:
                self.finish()
            self.wait()
            states = [self.replicas[0].state(task) for task in self.world.accepted]
            if not self.replicas[0].slots(IMAGE) and TERMINAL.issuperset(states):
                break
        self.look()
        assert TERMINAL.issuperset(states)
        assert not self.replicas[0].slots(IMAGE)
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
