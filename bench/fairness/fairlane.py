"""Fairlane as a policy: the real scripts on a real Redis, whose clock follows the simulation's.

Everything that the laboratory says to the scheduler stands in this file, in the words of one gateway with one worker. The plain
model of the rule (tests/support/fair_model.py) gets the same tasks, and each grant and charge of the scripts has to be the
model's.
"""

from collections.abc import Mapping, Sequence

from tests.contract.store.store import World, drive
from tests.support import fair_model

from bench.fairness.simulator import SECOND, Estimate, Task
from fairlane.queues.replies import decode_map
from fairlane.queues.rules import Value
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import End, Fragment, Grant, Rejection, State, TaskSpec, Used

MODEL = "m"
QUEUE = "free_batch"
MAINTENANCE_US = SECOND
RENEW_US = 5 * SECOND
"""The gateway's maintenance runs every second, sweeps, and renews what it has not renewed for five."""
LEFT = Fragment(b'"by":"client"', "")


class Disagreement(AssertionError):
    """The scripts granted another task, or charged another cost, than the rule says."""


class Fairlane:
    """The scripts; each task is submitted to them. Takes a `World` for itself and empties it."""

    name = "Fairlane"
    report_us = MAINTENANCE_US

    def __init__(self, world: World, slots: int, queues: Mapping[str, float]) -> None:
        world.empty()
        weights = dict(queues or {QUEUE: 1.0})
        self._world, self._begin_us, self._now_us = world, world.now_us, 0
        self._scheduler: Scheduler = world.scheduler("r1")
        settings: dict[str, dict[str, Value]] = {
            q: {"weight": w, "max_length": 10**6} for q, w in weights.items()
        }
        drive(self._scheduler.configure(settings, {MODEL: {"concurrency": slots, "cost": "tokens"}}))
        self._scheduler.offer([MODEL], [], 10**9, 0)
        self._model = fair_model.FairModel(weights, slots, "tokens")
        self._tasks: dict[str, Task] = {}
        self._grants: dict[Task, Grant] = {}
        self._twins: dict[Task, fair_model.Task] = {}
        """The model's tasks."""
        self._renewed: dict[Task, int] = {}

    def clock(self, now_us: int) -> None:
        if now_us != self._now_us:
            self._now_us = now_us
            self._world.now_us = self._begin_us + now_us
            self._world.advance(0)

    def submit(self, task: Task, slots: int) -> Sequence[Task]:
        request, scheduler = task.request, self._scheduler
        spec = TaskSpec(
            _id(task),
            MODEL,
            request.queue,
            request.client,
            b"{}",
            priority=request.priority,
            weight=request.weight,
            estimated_input=request.input,
            max_output=request.max_output,
        )
        self._tasks[spec.id] = task
        twin = fair_model.Task(
            spec.id,
            request.queue,
            request.client,
            round(self._world.now_us / 1000 - 2000 * request.priority, 3),
            request.input,
            request.max_output,
            request.weight,
        )
        self._twins[task] = twin
        self._model.submit(twin)
        reply = scheduler.parse_submit(scheduler.submit(spec, slots, scheduler.nonce()).result())
        assert not isinstance(reply, Rejection), reply
        if reply.state is State.QUEUED:
            task.estimate = Estimate(*reply.place)
        return self._granted(reply.grants, slots)

    def finish(self, task: Task, output: int, slots: int) -> Sequence[Task]:
        return self._end(task, output, slots, completed=True)

    def cancel(self, task: Task, output: int, slots: int) -> Sequence[Task]:
        drive(
            self._scheduler.cancel(_id(task), state=State.CANCELLED, kind="cancelled", end=LEFT, why="client")
        )
        if output >= 0:
            return self._end(task, output, slots, completed=False)
        del self._tasks[_id(task)]
        self._model.cancel(self._twins.pop(task))
        return []

    def renew(self, running: Sequence[tuple[Task, int]]) -> None:
        due = [
            (task, output)
            for task, output in running
            if self._now_us - self._renewed.get(task, -RENEW_US) >= RENEW_US
        ]
        if due:
            held = [(self._grants[task], "w", True, output) for task, output in due]
            assert set(drive(self._scheduler.renew(held))) == {1}
            for task, output in due:
                self._model.renew(self._twins[task], output, self._ran_ms(task))
                self._compare_charge(task)
            self._renewed.update((task, self._now_us) for task, _ in due)
        drive(self._scheduler.sweep())

    def _end(self, task: Task, output: int, slots: int, *, completed: bool) -> Sequence[Task]:
        """The worker says that a task has ended, or stopped after it was cancelled."""
        self._renewed.pop(task, None)
        self._model.end(
            self._twins.pop(task), task.request.input, output, completed=completed, ran_ms=self._ran_ms(task)
        )
        reply = self._scheduler.finish(
            self._grants.pop(task),
            2,
            [],
            End(
                State.COMPLETED,
                "",
                ("done", b"{}"),
                Used(task.request.input, output),
                self._scheduler.nonce(),
                slots,
                [MODEL],
            ),
        )
        return self._granted(self._scheduler.parse_finish(reply.result()).grants, slots)

    def _granted(self, grants: Sequence[Grant], slots: int) -> list[Task]:
        expected = [twin.id for twin in (self._model.grant() for _ in range(slots)) if twin]
        granted = [grant.task_id for grant in grants]
        if granted != expected:
            raise Disagreement(f"after {self._now_us} us the scripts granted {granted}, the rule {expected}")
        tasks = [self._tasks.pop(task_id) for task_id in granted]
        self._grants.update(zip(tasks, grants, strict=True))
        for task in tasks:
            self._compare_charge(task)
        return tasks

    def _ran_ms(self, task: Task) -> int:
        return self._world.now_ms - self._grants[task].granted_ms

    def _compare_charge(self, task: Task) -> None:
        run = decode_map(self._world.call("HGET", self._world.keys("task", id=_id(task)), "run"))
        charged, due = run["account"]["cost"], self._twins[task].charged
        if charged != due:
            raise Disagreement(f"after {self._now_us} us {_id(task)} was charged {charged}, the rule {due}")


def _id(task: Task) -> str:
    return f"t{task.number:07d}"
