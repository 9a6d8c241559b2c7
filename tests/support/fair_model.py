"""Two-level start-time fair queueing in plain Python: the oracle for the order in which the scripts grant one model's tasks.

Written from the rule (docs/concepts.md), not from the scripts: no Redis, no keys. Only what decides is shared: tags are whole
4,096ths, and ties go to the smaller name.

Rules other than weights and the limit are attributes of model and lanes; whoever sets one calls `rules_changed`.

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
    """What counts of a later charge or refund, after lifts of `lifted` (less than 0: lowerings)."""
    if lifted > 0:
        return max(change - lifted, 0)
    return min(change - lifted, 0) if change < 0 else change


def forgiven(change: int, lifted: int) -> int:
    """What lifts of `lifted` have forgiven of a charge."""
    return max(min(change, lifted), 0)


@dataclass(eq=False)
class Task:
    id: str
    lane: str
    user: str
    order: float
    cost_in: int
    max_output: int
    weight: float
    charged: int = 0
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
    parked: bool = False
    """Its user runs as many tasks as one may: out of the line."""


@dataclass
class Lane:
    weight: float
    tag: int = 0
    lifts: int = 0
    virtual: int = 0
    flows: dict[str, Flow] = field(default_factory=dict)
    paused: bool = False
    max_running: int = 0
    reserved: int = 0
    stood_back: bool = False
    """It was passed over for a rule."""

    @property
    def floor(self) -> int:
        """Where a flow begins that returns from idle: at the virtual time, or behind the first that waits and as many as do."""
        tags = [flow.tag for flow in self.waiting().values()]
        return min(self.virtual, min(tags) + len(tags)) if tags else self.virtual

    def waiting(self) -> dict[str, Flow]:
        """Flows in line."""
        return {user: flow for user, flow in self.flows.items() if flow.waiting and not flow.parked}

    def lift(self, virtual: int) -> None:
        self.lifts += max(virtual - self.tag, 0)
        self.tag = max(self.tag, virtual)

    @property
    def running(self) -> int:
        return sum(flow.running for flow in self.flows.values())

    @property
    def blocked(self) -> bool:
        return self.paused or 0 < self.max_running <= self.running


class FairModel:
    """One model's queues. `limit` 0: none; `unit`: tokens, requests or slot_seconds."""

    def __init__(self, weights: dict[str, float], limit: int, unit: str) -> None:
        self.lanes = {name: Lane(weight) for name, weight in weights.items()}
        self.limit, self.unit = limit, unit
        self.virtual = 0
        self.running: dict[str, Task] = {}
        self.pace = 0.0
        self.user_means: dict[tuple[str, str], float] = {}
        self.mean_ms = 0.0
        self.user_ms: dict[tuple[str, str], float] = {}
        self.paused = False
        self.user_cap = 0

    def submit(self, task: Task) -> None:
        lane = self.lanes[task.lane]
        flow = lane.flows.get(task.user)
        if flow is None:
            flow = lane.flows[task.user] = Flow(lane.floor)
        if not flow.waiting:
            self.comes(lane, flow)
        insort(flow.waiting, task, key=attrgetter("order", "id"))

    def comes(self, lane: Lane, flow: Flow) -> None:
        """A flow comes into line, and its lane if that was idle."""
        if not lane.waiting():
            lane.lift(self.floor())
        floor = lane.floor
        if flow.tag <= floor:
            if flow.running:
                flow.lifts += floor - flow.tag
            flow.tag = floor
            lane.virtual += floor == lane.virtual
        flow.parked = False

    def floor(self) -> int:
        """Where a lane begins that returns from idle."""
        return min([self.virtual, *(lane.tag for lane in self.lanes.values() if lane.waiting())])

    def cancel(self, task: Task) -> None:
        """A task that waits is cancelled."""
        flow = self.lanes[task.lane].flows[task.user]
        flow.waiting.remove(task)
        flow.parked = flow.parked and bool(flow.waiting)

    def grant(self) -> Task | None:
        """The task that runs next, if one may."""
        while True:
            turn = self.turn()
            if turn is None:
                return None
            lane, tag, moves_to = turn
            user = min((flow.tag, user.encode()) for user, flow in lane.waiting().items())[1].decode()
            flow = lane.flows[user]
            if self.user_cap and self.running_of(user) >= self.user_cap:
                flow.parked = True
            else:
                break
        task = flow.waiting.pop(0)
        self.virtual = max(self.virtual, moves_to)
        lane.virtual = max(lane.virtual, flow.tag)
        lane.lifts -= lane.tag - tag
        task.charged, task.lane_weight = self.first_charge(task), lane.weight
        task.lane_lifts, task.flow_lifts = lane.lifts, flow.lifts
        lane.tag = tag + step(task.charged, lane.weight)
        flow.tag += step(task.charged, task.weight)
        flow.running += 1
        self.running[task.id] = task
        return task

    def turn(self) -> tuple[Lane, int, int] | None:
        """The lane whose turn it is, the tag at which it is served, and where the virtual time moves."""
        line = sorted((lane.tag, name) for name, lane in self.lanes.items() if lane.waiting())
        if not line or self.paused or (self.limit and len(self.running) >= self.limit):
            return None
        waiting = [self.lanes[name] for _, name in line]
        open_lanes = [lane for lane in waiting if not lane.blocked]
        if not open_lanes:
            return None
        for lane in waiting:
            lane.stood_back = lane.stood_back or lane.blocked
        first = open_lanes[0].tag
        owed = [lane for lane in open_lanes if self.limit and lane.running < lane.reserved]
        lane = (owed or open_lanes)[0]
        if lane.stood_back:
            lane.stood_back = False
            lane.lift(self.virtual)
            first = max(first, lane.tag)
        return lane, min(lane.tag, max(first, self.virtual)), first

    def running_of(self, user: str) -> int:
        return sum(lane.flows[user].running for lane in self.lanes.values() if user in lane.flows)

    def unpark(self, user: str) -> None:
        if self.user_cap and self.running_of(user) >= self.user_cap:
            return
        for lane in self.lanes.values():
            flow = lane.flows.get(user)
            if flow and flow.parked:
                self.comes(lane, flow)

    def rules_changed(self) -> None:
        users = {user for lane in self.lanes.values() for user, flow in lane.flows.items() if flow.parked}
        for user in sorted(users, key=str.encode):
            self.unpark(user)

    def set_unit(self, unit: str) -> None:
        """Another unit of cost: virtual time begins anew, all flows are in line, and running tasks pay in it when they end."""
        if unit == self.unit:
            return
        self.unit, self.virtual = unit, 0
        for lane in self.lanes.values():
            lane.tag = lane.lifts = lane.virtual = 0
            for flow in lane.flows.values():
                flow.tag = flow.lifts = 0
            for _, flow in sorted(lane.flows.items(), key=lambda named: named[0].encode()):
                if flow.parked:
                    self.comes(lane, flow)
        for task in self.running.values():
            task.charged, task.lane_lifts, task.flow_lifts = 0, 0, 0

    def due(self, task: Task, output: int, ran_ms: int) -> int:
        """What a running task has to have paid when it has produced so many tokens."""
        if self.unit == "requests":
            return 1
        if self.unit == "slot_seconds":
            return ran_ms
        ahead = 15 * self.pace or 256
        likely = min(self.user_means.get((task.lane, task.user), 0) or math.inf, task.max_output or math.inf)
        paid = min(output + ahead, likely) if output <= likely else output + ahead / 2
        return max(math.floor(task.cost_in + 2 * paid + 0.5), 1)

    def first_charge(self, task: Task) -> int:
        """What a task is charged at its grant."""
        if self.unit != "slot_seconds":
            return self.due(task, 0, 0)
        output = self.user_means.get((task.lane, task.user)) or min(task.max_output, 4096) or 256
        if task.max_output:
            output = min(output, task.max_output)
        ms = self.user_ms.get((task.lane, task.user)) or self.mean_ms or 20 * output
        return max(math.floor(ms + 0.5), 1)

    def end(
        self, task: Task, used_in: int, used_out: int, *, completed: bool = True, ran_ms: int = 0
    ) -> None:
        """A running task has ended, or (not `completed`) was stopped."""
        lane, flow = self.release(task)
        used = {"tokens": used_in + 2 * used_out, "slot_seconds": ran_ms, "requests": 1}[self.unit]
        self.settle(lane, flow, task, used - task.charged)
        if completed:
            self.user_means[task.lane, task.user] = _mean(
                self.user_means.get((task.lane, task.user), 0), used_out, 0.3
            )
            self.pace = _mean(self.pace, min(used_out * 1000 / max(ran_ms, 1), 1000), 0.1)
        if completed and self.unit == "slot_seconds":
            self.user_ms[task.lane, task.user] = _mean(
                self.user_ms.get((task.lane, task.user), 0), ran_ms, 0.3
            )
        if completed:
            self.mean_ms = _mean(self.mean_ms, ran_ms, 0.1)
        if not flow.running:
            flow.lifts = 0
        self.unpark(task.user)

    def release(self, task: Task) -> tuple[Lane, Flow]:
        """The slot of a task is free."""
        lane = self.lanes[task.lane]
        flow = lane.flows[task.user]
        del self.running[task.id]
        flow.running -= 1
        return lane, flow

    def requeue(self, task: Task) -> None:
        """A running task waits again, and was not charged."""
        lane, flow = self.release(task)
        self.settle(lane, flow, task, -task.charged)
        if not flow.running:
            flow.lifts = 0
        self.unpark(task.user)
        self.submit(task)

    def renew(self, task: Task, output: int, ran_ms: int) -> None:
        """A running task is charged what it should have paid by now; a lift forgives each charge once."""
        more = self.due(task, output, ran_ms) - task.charged
        if more > 0 and self.unit != "requests":
            lane = self.lanes[task.lane]
            flow = lane.flows[task.user]
            self.settle(lane, flow, task, more)
            task.charged += more
            task.lane_lifts += forgiven(step(more, task.lane_weight), lane.lifts - task.lane_lifts)
            task.flow_lifts += forgiven(step(more, task.weight), flow.lifts - task.flow_lifts)

    def settle(self, lane: Lane, flow: Flow, task: Task, more: float) -> None:
        if more:
            lane.tag += beyond(step(more, task.lane_weight), lane.lifts - task.lane_lifts)
            flow.tag += beyond(step(more, task.weight), flow.lifts - task.flow_lifts)


def _mean(mean: float, value: float, share: float) -> float:
    """A running mean."""
    return mean + share * (value - mean) if mean else max(value, 1)
