"""Two-level start-time fair queueing in plain Python: the oracle for the order in which the scripts grant one model's tasks.

Written from the rule (DESIGN.md §3), not from the scripts: no Redis, no keys. Only what decides is shared: tags are whole
4,096ths, ties go to the smaller name, and idle flows are forgotten four at a time when a task is settled.

The random steps of test_grant_order.py and every simulation of bench/fairness compare each grant with it.
"""

import math
from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter


def step(cost: float, weight: float) -> int:
    """How far a tag advances."""
    return math.floor(cost * 4096 / weight + 0.5)


def beyond(change: int, lifted: int) -> int:
    """What counts of a later charge or refund, after lifts of `lifted`."""
    return change if lifted <= 0 else max(change - lifted, 0)


@dataclass(eq=False)
class Task:
    id: str
    lane: str
    user: str
    order: float
    cost_in: int
    max_output: int
    weight: float
    charged: float = 0.0
    lane_weight: float = 1.0
    lane_lifts: int = 0
    flow_lifts: int = 0


@dataclass
class Flow:
    tag: int
    lifts: int = 0
    waiting: list[Task] = field(default_factory=list)
    """In their order."""
    running: int = 0


@dataclass
class Lane:
    weight: float
    tag: int = 0
    lifts: int = 0
    virtual: int = 0
    flows: dict[str, Flow] = field(default_factory=dict)

    def waiting(self) -> dict[str, Flow]:
        return {user: flow for user, flow in self.flows.items() if flow.waiting}


class FairModel:
    """One model's queues. `limit` 0: none; `unit`: tokens or requests."""

    def __init__(self, weights: dict[str, float], limit: int, unit: str) -> None:
        self.lanes = {name: Lane(weight) for name, weight in weights.items()}
        self.limit, self.unit = limit, unit
        self.virtual = 0
        self.running: dict[str, Task] = {}
        self.mean_output = 0.0
        self.user_means: dict[str, float] = {}

    def submit(self, task: Task) -> None:
        lane = self.lanes[task.lane]
        if not lane.waiting():
            lane.lifts += max(self.virtual - lane.tag, 0)
            lane.tag = max(lane.tag, self.virtual)
        flow = lane.flows.get(task.user)
        if flow is None:
            flow = lane.flows[task.user] = Flow(lane.virtual)
        if not flow.waiting and flow.tag <= lane.virtual:
            if flow.running:
                flow.lifts += lane.virtual - flow.tag
            flow.tag = lane.virtual
            lane.virtual += 1
        insort(flow.waiting, task, key=attrgetter("order", "id"))

    def cancel(self, task: Task) -> None:
        """A task that waits is cancelled."""
        self.lanes[task.lane].flows[task.user].waiting.remove(task)

    def grant(self) -> Task | None:
        """The task that runs next, if one may."""
        lanes = [(lane.tag, name) for name, lane in self.lanes.items() if lane.waiting()]
        if not lanes or (self.limit and len(self.running) >= self.limit):
            return None
        lane = self.lanes[min(lanes)[1]]
        user = min((flow.tag, user.encode()) for user, flow in lane.waiting().items())[1].decode()
        flow = lane.flows[user]
        task = flow.waiting.pop(0)
        self.virtual = max(self.virtual, lane.tag)
        lane.virtual = max(lane.virtual, flow.tag)
        task.charged, task.lane_weight = self.expected(task), lane.weight
        task.lane_lifts, task.flow_lifts = lane.lifts, flow.lifts
        lane.tag += step(task.charged, lane.weight)
        flow.tag += step(task.charged, task.weight)
        flow.running += 1
        self.running[task.id] = task
        return task

    def expected(self, task: Task) -> float:
        if self.unit == "requests":
            return 1
        output = self.user_means.get(task.user) or self.mean_output or min(task.max_output, 4096) or 256
        if task.max_output:
            output = min(output, task.max_output)
        return max(math.floor(task.cost_in + 2 * output + 0.5), 1)

    def end(self, task: Task, used_in: int, used_out: int, *, completed: bool = True) -> None:
        """A running task has ended, or (not `completed`) was stopped."""
        lane = self.lanes[task.lane]
        flow = lane.flows[task.user]
        del self.running[task.id]
        flow.running -= 1
        if self.unit == "tokens":
            self.settle(lane, flow, task, used_in + 2 * used_out - task.charged)
        if self.unit == "tokens" and completed:
            own, mean = self.user_means.get(task.user, 0), self.mean_output
            self.user_means[task.user] = _stored(own + 0.3 * (used_out - own) if own else max(used_out, 1))
            self.mean_output = _stored(mean + 0.05 * (used_out - mean) if mean else max(used_out, 1))
        if not flow.running:
            flow.lifts = 0
        self.forget(lane)

    def settle(self, lane: Lane, flow: Flow, task: Task, more: float) -> None:
        if more:
            lane.tag += beyond(step(more, task.lane_weight), lane.lifts - task.lane_lifts)
            flow.tag += beyond(step(more, task.weight), flow.lifts - task.flow_lifts)

    def forget(self, lane: Lane) -> None:
        idle = sorted(
            (flow.tag, user.encode())
            for user, flow in lane.flows.items()
            if not flow.waiting and flow.tag < lane.virtual
        )
        for tag, name in idle[:4]:
            flow = lane.flows[name.decode()]
            if flow.running:
                flow.lifts += lane.virtual - tag
                flow.tag = lane.virtual
            else:
                del lane.flows[name.decode()]


def _stored(mean: float) -> float:
    return math.floor(mean * 100 + 0.5) / 100
