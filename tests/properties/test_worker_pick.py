"""The pool finds the same worker as whoever looks at all of them, whatever has happened to them before."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.lives import live

from fairlane.workers.server.pool.pool import Pool
from fairlane.workers.server.pool.worker import ANY, Mismatch, Worker

MODELS = ["m", "n", "o"]
TYPES = [None, ("chat",), ("embed",), ("chat", "embed")]
offers = st.one_of(st.just([ANY]), st.lists(st.sampled_from(MODELS), min_size=1, max_size=3, unique=True))
tasks = st.sampled_from(["t1", "t2"])
seconds = st.sampled_from([0.0, 0.5, 1.0, 3.0])


def plain_pick(workers: list[Worker], now: float, model: str, task_type: str, task_id: str) -> Worker | None:
    """The rule as it is written down: of all that are free for it the least recently used."""
    able = [
        worker
        for worker in workers
        if (worker.spare(now) if task_id else worker.free(now)) > 0
        and worker.serves(model)
        and (not task_type or worker.task_types is None or task_type in worker.task_types)
        and task_id not in worker.refused
    ]
    best = [worker for worker in able if task_id not in worker.avoided]
    return next(iter(best or able), None)


class Picking(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.pool = Pool(lambda: self.now)
        self.unused: list[Worker] = []
        self.used: list[Worker] = []
        self.count = 0

    @property
    def workers(self) -> list[Worker]:
        return [*self.unused, *self.used]

    def one(self, data: Any) -> Worker:
        worker: Worker = data.draw(st.sampled_from(self.workers))
        return worker

    @rule(models=offers, types=st.sampled_from(TYPES), slots=st.integers(1, 3), version=st.integers(1, 2))
    def connects(self, models: list[str], types: Any, slots: int, version: int) -> None:
        self.count += 1
        worker = Worker(
            f"w{self.count}", "w", version, models, slots, task_types=types, instance_id=f"i{self.count % 3}",
            send=lambda _: None, close=lambda *_: None,
        )  # fmt: skip
        self.unused.append(worker)
        self.pool.add(worker)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def leaves(self, data: Any) -> None:
        worker = self.one(data)
        (self.unused if worker in self.unused else self.used).remove(worker)
        assert self.pool.remove(worker)
        worker.reserve(1)  # what comes late changes nothing

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), models=offers, types=st.sampled_from(TYPES), slots=st.integers(1, 3))
    def registers_again(self, data: Any, models: list[str], types: Any, slots: int) -> None:
        worker = self.one(data)
        worker.set_models(models, types)
        worker.slots = slots

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), task=tasks)
    def begins(self, data: Any, task: str) -> None:
        worker = self.one(data)
        self.pool.begin(worker, (task, 1), None)  # type: ignore[arg-type]
        (self.unused if worker in self.unused else self.used).remove(worker)
        self.used.append(worker)

    @precondition(lambda self: any(worker.attempts for worker in self.workers))
    @rule(data=st.data())
    def ends(self, data: Any) -> None:
        worker = data.draw(st.sampled_from([w for w in self.workers if w.attempts]))
        self.pool.end(worker, next(iter(worker.attempts)))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), count=st.integers(0, 2))
    def reserves(self, data: Any, count: int) -> None:
        worker = self.one(data)
        worker.reserve(-worker.reserved)
        worker.reserve(count)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), cap=st.sampled_from([None, 0, 1]))
    def is_capped(self, data: Any, cap: int | None) -> None:
        self.one(data).cap = cap

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), name=st.sampled_from(["draining", "suspended"]), yes=st.booleans())
    def is_set_aside(self, data: Any, name: str, yes: bool) -> None:
        setattr(self.one(data), name, yes)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), name=st.sampled_from(["hold_until", "rest_until"]), length=seconds)
    def rests(self, data: Any, name: str, length: float) -> None:
        setattr(self.one(data), name, self.now + length)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), task=tasks, refuses=st.booleans())
    def rather_not(self, data: Any, task: str, refuses: bool) -> None:
        worker = self.one(data)
        if refuses:
            worker.refused.put(task, Mismatch.REJECTED)
        else:
            worker.avoided.put(task, True)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def loses(self, data: Any) -> None:
        self.pool.count_loss(self.one(data))

    @rule(length=seconds)
    def time_passes(self, length: float) -> None:
        self.now += length

    @invariant()
    def the_same_is_picked(self) -> None:
        for model in (*MODELS, "unknown"):
            for task_type, task_id in (
                ("", ""),
                ("chat", ""),
                ("chat", "t1"),
                ("embed", "t2"),
                ("other", "t3"),
            ):
                picked = self.pool.pick(model, task_type, task_id)
                assert picked is plain_pick(self.workers, self.now, model, task_type, task_id)
                if picked is not None and task_id:  # then nothing else is asked before it begins
                    assert picked in self.pool
                    assert not picked.draining
                    assert picked.serves(model)
                    assert picked.mismatch(task_type, task_id) is None
                    assert picked.cap is None or len(picked.attempts) < picked.cap

    @invariant()
    def as_many_are_reserved_as_are_free(self) -> None:
        for model in MODELS:
            worker = plain_pick(self.workers, self.now, model, "chat", "")
            expected = None if worker is None else (worker, min(worker.free(self.now), 2))
            assert self.pool.reserve(model, 2, "chat") == expected
            if expected is not None:
                expected[0].reserve(-expected[1])

    @invariant()
    def another_task_is_wanted_where_one_would_be_free(self) -> None:
        for worker in self.workers:
            assert self.pool.wanted(worker) == min(worker.free(self.now), 1)

    @invariant()
    def what_is_offered_is_known(self) -> None:
        ready = [worker for worker in self.workers if not worker.draining]
        assert self.pool.models() == {model for worker in ready for model in worker.models}
        for model in MODELS:
            takers = [w for w in ready if w.serves(model) and w.mismatch("chat", "t1") is None]
            assert self.pool.any_takes(model, "chat", "t1") == bool(takers)


def test_the_pool_picks_as_the_rule_says(request: pytest.FixtureRequest) -> None:
    live(Picking, request.config, short=60, long=1000)
