"""A model server with a fixed number of slots and a virtual clock. Policies decide whose task a free slot gets.

A task holds one slot from its grant to its end and produces its tokens at a constant pace, the first after one pace. Nothing is
preempted and prompts cost no time: with one constant, 45 ms per token at 20 slots, the model reproduces the figures that the VTC
paper's artifact measured on a GPU (see RESULTS.md). Times are whole microseconds from the beginning of the run.
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

SECOND = 1_000_000
SLOTS = 20
TOKEN_US = 45_000

_END, _STOP, _LOSE_PATIENCE, _ARRIVE, _TICK = range(5)
"""What happens first among events of the same microsecond."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends. `input` and `output` count tokens."""

    at_us: int
    client: str
    input: int
    output: int
    """What the server will produce, which no policy knows before."""
    max_output: int = 0
    """What the client says it will be at most; 0 = nothing."""
    queue: str = "free_batch"
    weight: float = 1.0
    """The client's weight among those of its queue."""
    priority: int = 0
    token_us: int = TOKEN_US
    patience_us: int = 0
    """Cancelled when it still waits after so long; 0 = never."""
    stop_after: int = 0
    """Tokens after which it is cancelled; 0 = never."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated wait at submission, ms."""

    position: int
    wait_ms: int
    low_ms: int
    high_ms: int


@dataclass(slots=True, eq=False)
class Task:
    """A request in a simulation, and what became of it. Times are -1 until they have come."""

    number: int
    request: Request
    granted_us: int = -1
    ended_us: int = -1
    arrived_turn: int = 0
    """How many tasks had been granted when it came."""
    turn: int = -1
    """How many tasks were granted before it."""
    cancelled: bool = False
    estimate: Estimate | None = None

    @property
    def client(self) -> str:
        return self.request.client

    @property
    def wait_us(self) -> int:
        """From submission to the grant; -1 when it was not granted."""
        return self.granted_us - self.request.at_us if self.granted_us >= 0 else -1

    def output_at(self, now_us: int) -> int:
        """Tokens produced until then."""
        if self.granted_us < 0:
            return 0
        end = now_us if self.ended_us < 0 else min(now_us, self.ended_us)
        return max(min((end - self.granted_us) // self.request.token_us, self.request.output), 0)


class Policy(Protocol):
    """Decides which waiting task gets a free slot. One instance sees one run."""

    name: str
    report_us: int
    """Interval in which it learns the output of running tasks; 0: before each decision."""

    def clock(self, now_us: int) -> None:
        """The time of the calls that follow."""

    def submit(self, task: Task, slots: int) -> Sequence[Task]:
        """A task arrives while `slots` slots are free. Returns the tasks that start now, as all of these do."""

    def finish(self, task: Task, output: int, slots: int) -> Sequence[Task]:
        """A running task has produced its last token; `output` is how many there were."""

    def cancel(self, task: Task, output: int, slots: int) -> Sequence[Task]:
        """Its client cancels a task, which waits (`output` -1) or runs and has produced `output` tokens."""

    def renew(self, running: Sequence[tuple[Task, int]]) -> None:
        """What the running tasks have produced so far."""


@dataclass(slots=True)
class Run:
    """What came of a workload under a policy."""

    policy: str
    tasks: list[Task] = field(default_factory=list)
    """In the order of arrival."""
    idle_slot_violations: int = 0
    """How often a slot stayed free while a task waited."""

    def granted(self) -> list[Task]:
        """Those that got a slot, in the order in which they did."""
        return sorted((task for task in self.tasks if task.turn >= 0), key=lambda task: task.turn)


After = Callable[[Task], Iterable[Request]]
"""What a client sends when a task of its own has ended or was cancelled."""


def simulate(
    policy: Policy,
    requests: Iterable[Request],
    *,
    slots: int = SLOTS,
    until_us: int | None = None,
    dispatches: int | None = None,
    after: After | None = None,
) -> Run:
    """Run `requests` to their end, to `until_us`, or until `dispatches` tasks have been granted."""
    return _Server(policy, slots, after).run(requests, until_us, dispatches)


class _Server:
    def __init__(self, policy: Policy, slots: int, after: After | None) -> None:
        self._policy, self._slots, self._after = policy, slots, after
        self._events: list[tuple[int, int, int, Task | Request | None]] = []
        self._sequence = 0
        self._now = 0
        self._waiting: set[Task] = set()
        self._running: dict[Task, None] = {}
        self._turns = 0
        self._out = Run(policy.name)

    def run(self, requests: Iterable[Request], until_us: int | None, dispatches: int | None) -> Run:
        for request in requests:
            self._at(request.at_us, _ARRIVE, request)
        if self._policy.report_us:
            self._at(self._policy.report_us, _TICK, None)
        while self._events and (dispatches is None or self._turns < dispatches):
            at, kind, _, what = heapq.heappop(self._events)
            if until_us is not None and at > until_us:
                break
            self._step(at, kind, what)
        return self._out

    def _at(self, at_us: int, kind: int, what: Task | Request | None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_us, kind, self._sequence, what))

    def _step(self, at: int, kind: int, what: Task | Request | None) -> None:
        self._now = at
        self._policy.clock(at)
        if kind == _TICK:
            self._report()
            if self._events:
                self._at(at + self._policy.report_us, _TICK, None)
        elif isinstance(what, Request):
            self._arrive(what)
        elif isinstance(what, Task) and what.ended_us < 0:
            if kind == _END:
                self._end(what)
            elif kind == _STOP or what.granted_us < 0:
                self._cancel(what)
        if self._waiting and len(self._running) < self._slots:
            self._out.idle_slot_violations += 1

    def _report(self) -> None:
        self._policy.renew([(task, task.output_at(self._now)) for task in self._running])

    def _before_decision(self) -> None:
        if not self._policy.report_us:
            self._report()

    def _arrive(self, request: Request) -> None:
        task = Task(len(self._out.tasks) + 1, request, arrived_turn=self._turns)
        self._out.tasks.append(task)
        self._waiting.add(task)
        if request.patience_us:
            self._at(self._now + request.patience_us, _LOSE_PATIENCE, task)
        self._before_decision()
        self._start(self._policy.submit(task, self._free))

    def _end(self, task: Task) -> None:
        self._before_decision()
        task.ended_us = self._now
        del self._running[task]
        self._start(self._policy.finish(task, task.request.output, self._free))
        self._follow_up(task)

    def _cancel(self, task: Task) -> None:
        self._before_decision()
        output = task.output_at(self._now) if task in self._running else -1
        task.ended_us, task.cancelled = self._now, True
        self._waiting.discard(task)
        self._running.pop(task, None)
        self._start(self._policy.cancel(task, output, self._free))
        self._follow_up(task)

    @property
    def _free(self) -> int:
        return self._slots - len(self._running)

    def _start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._waiting.remove(task)
            self._running[task] = None
            task.granted_us, task.turn = self._now, self._turns
            self._turns += 1
            request = task.request
            self._at(self._now + request.output * request.token_us, _END, task)
            if 0 < request.stop_after < request.output:
                self._at(self._now + request.stop_after * request.token_us, _STOP, task)
        assert len(self._running) <= self._slots

    def _follow_up(self, task: Task) -> None:
        for request in self._after(task) if self._after else ():
            self._at(max(request.at_us, self._now), _ARRIVE, request)
