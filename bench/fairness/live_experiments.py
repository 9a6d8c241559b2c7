"""The isolation and share experiments, in two ways: by the simulator, and by gateways, workers and callers.

Both get the same requests: the same in number, time, size and slots. A live task is turned into the simulator's, from what its
worker wrote down, and from there on both are measured by the same functions.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.contract.store.store import World

from bench.fairness.checks import ONE_QUEUE, TIERS
from bench.fairness.fairlane import Fairlane
from bench.fairness.live_clients import Again, Call, Reading, clients
from bench.fairness.live_stack import Key, Stack
from bench.fairness.live_watch import Ledger, Slots, closed_ledger, slots_watched
from bench.fairness.live_worker import Record
from bench.fairness.measures import jain, percentile, service
from bench.fairness.shares import lognormal
from bench.fairness.simulator import SECOND, Request, Run, Task, simulate

DRAIN_S = 60
"""How long after the last arrival victims' tasks may take to end."""

OFF_MS = 10

Arrival = tuple[Request, Reading]


@dataclass(frozen=True)
class Scale:
    """How large an experiment is: service times are long compared with the delays of a busy machine."""

    slots: int = 20
    """The model's concurrency. The workers have a few more, so that it is the limit that binds."""
    token_us: int = 20_000
    length_s: float = 240
    warm_up_s: float = 10
    """Service is counted from then on."""


@dataclass(frozen=True)
class Experiment:
    """The requests of an experiment, their users, and the values that are compared."""

    name: str
    about: str
    scale: Scale
    arrivals: Sequence[Arrival]
    queues: Mapping[str, float]
    mean_service_s: float
    awaited: Callable[[Request], bool] = lambda request: False  # noqa: ARG005
    """Users whose tasks run to their end after the last arrival; tasks of other users are cancelled."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By client, the users that its calls say they are for."""
    again: Again | None = None
    """What is sent when a call has ended."""
    queue_length: int | None = 100_000
    """Tasks that may wait in a queue; None: the product's default."""
    flooder: str | None = None
    """A client that may be refused."""
    expire_s: float = 0
    """Timeout of tasks without a reader, s; 0: they are cancelled at the end."""

    @property
    def keys(self) -> dict[str, Key]:
        """The callers' keys, by client."""
        return {
            request.client: Key(request.client, request.queue.partition("_")[0])
            for request, _ in self.arrivals
        }

    @property
    def requests(self) -> list[Request]:
        return [request for request, _ in self.arrivals]

    @property
    def end_us(self) -> int:
        return round(self.scale.length_s * SECOND)


# ---- what is asked for ----------

VICTIMS = 9
FLOODER = "flooder"
LOAD, FLOOD = 0.57, 5.0
TOKENS_IN, TOKENS_OUT = 64, 150
WAITING = (Reading.SYNC, Reading.STREAM, Reading.LATER)


def isolation(scale: Scale, *, flooded: bool, seed: int = 5) -> Experiment:
    """Nine users who use 57 % of the slots and wait for their answers; `flooded`: next to one who requests five times the
    capacity."""
    rng = random.Random(seed)
    service_s = TOKENS_OUT * scale.token_us / SECOND
    capacity = scale.slots / service_s

    def request(at_s: float, client: str) -> Request:
        length = lognormal(rng, TOKENS_OUT)
        return Request(round(at_s * SECOND), client, TOKENS_IN, length, token_us=scale.token_us)

    arrivals: list[Arrival] = []
    for n in range(VICTIMS):
        at = 0.0
        while (at := at + rng.expovariate(LOAD * capacity / VICTIMS)) < scale.length_s:
            arrivals.append((request(at, f"victim-{n + 1}"), rng.choice(WAITING)))
    if flooded:
        for n in range(int(scale.length_s * FLOOD * capacity)):
            arrivals.append((request(n / (FLOOD * capacity), FLOODER), Reading.UNREAD))
    arrivals.sort(key=lambda arrival: arrival[0].at_us)
    return Experiment(
        "isolation-flooded" if flooded else "isolation-alone",
        "nine users at 57 % load" + (" next to a flooder at five times the capacity" if flooded else ""),
        scale,
        arrivals,
        ONE_QUEUE,
        service_s,
        awaited=lambda request: request.client != FLOODER,
        expire_s=scale.length_s + DRAIN_S / 2,
        queue_length=None,
        flooder=FLOODER if flooded else None,
    )


USERS = 5
BASE_IN, BASE_OUT = 64, 25
SIZES = (1, 2, 4, 8)
HEAD_START_S = 5.0
"""Backlog: the part of each queue's service that is requested at the start,"""
HEAD_START = 20
"""plus this number of requests;"""
EXCESS = 1.1
"""then this multiple of the queue's service."""


def shares(scale: Scale, *, large_where_heavy: bool, seed: int = 7) -> Experiment:
    """Four queues with weights 8:4:2:1 and requests of 1, 2, 4 and 8 times a size, which always wait, of five users each."""
    rng = random.Random(seed)
    sizes = dict(zip(TIERS, SIZES[::-1] if large_where_heavy else SIZES, strict=True))
    arrivals: list[Arrival] = []
    for queue, size in sizes.items():
        service_s = size * BASE_OUT * scale.token_us / SECOND
        rate = scale.slots * TIERS[queue] / sum(TIERS.values()) / service_s
        first = round(HEAD_START + HEAD_START_S * rate)
        for n in range(first + int(scale.length_s * EXCESS * rate)):
            at_s = 2 * n / first if n < first else (n - first) / (EXCESS * rate)
            request = Request(
                round(at_s * SECOND),
                f"{queue.replace('_', '-')}-{n % USERS + 1}",
                size * BASE_IN,
                lognormal(rng, size * BASE_OUT),
                queue=queue,
                token_us=scale.token_us,
            )
            arrivals.append((request, Reading.LATER if n < first else rng.choice(WAITING)))
    arrivals.sort(key=lambda arrival: arrival[0].at_us)
    return Experiment(
        "shares-large-heavy" if large_where_heavy else "shares-large-light",
        f"weights 8:4:2:1, the largest requests where the weight is {'largest' if large_where_heavy else 'smallest'}",
        scale,
        arrivals,
        TIERS,
        BASE_OUT * scale.token_us / SECOND * sum(sizes.values()) / len(sizes),
    )


# ---- the two ways to run it ----------


def simulated(experiment: Experiment, world: World, requests: Iterable[Request] | None = None) -> Run:
    """The simulation of an experiment, as it is planned or with `requests` as they came."""
    policy = Fairlane(world, experiment.scale.slots, experiment.queues)
    until_us = experiment.end_us + DRAIN_S * SECOND
    given = experiment.requests if requests is None else requests
    return simulate(policy, given, slots=experiment.scale.slots, until_us=until_us)


@dataclass(frozen=True)
class Live:
    """What came of an experiment end to end."""

    run: Run
    slots: Slots
    ledger: Ledger


async def carry_out(stack: Stack, experiment: Experiment, *, together: bool = False) -> Live:
    """Run an experiment on gateways, workers and clients, to the last task's end.

    `together`: the model is paused until everything has been sent; its time begins then.
    """
    model = experiment.name
    await stack.set(model, concurrency=experiment.scale.slots, paused=together or None)
    for queue in experiment.queues:
        await stack.set_queue(queue, max_length=experiment.queue_length)
    async with (
        clients(stack.urls, experiment.keys, model, experiment.names, experiment.expire_s) as callers,
        slots_watched(stack, model, experiment.scale.slots) as slots,
    ):
        await callers.send(experiment.arrivals, experiment.again)
        if together:
            await callers.accepted()
            callers.began_ns = time.monotonic_ns()
            await stack.set(model, paused=None)
        await callers.until_s(experiment.scale.length_s)
        awaited = [call for call in callers.calls if experiment.awaited(call.request)]
        await callers.answered(awaited, DRAIN_S)
        await callers.end()
        ledger = await closed_ledger(stack, model, callers.calls)
        ledger.flooder = experiment.flooder
        run = as_run(callers.calls, ledger.records, callers.began_ns)
    return Live(run, slots, ledger)


def as_they_came(experiment: Experiment, live: Live) -> list[Request]:
    """An experiment's requests at the instants at which the store had them, each with the time that it held its slot.

    What a machine that is busy with other things did to arrivals and services is in them; what is left is the scheduler's.
    """
    times = live.ledger.times
    begin_us = 1000 * min(at.enqueued for at in times.values()) - experiment.requests[0].at_us
    requests = []
    for call in live.ledger.calls:
        if at := times.get(call.number):
            ran = call.number in live.ledger.completed
            held_us = 1000 * (at.ended - at.granted) if ran else 0
            token_us = held_us // call.request.output or call.request.token_us
            requests.append(replace(call.request, at_us=1000 * at.enqueued - begin_us, token_us=token_us))
    requests.sort(key=lambda request: request.at_us)
    return requests


def a_little_off(requests: Sequence[Request], seed: int) -> list[Request]:
    """The same requests up to `OFF_MS` later, each by itself: what an instant more or less makes of an experiment's figures."""
    rng = random.Random(seed)
    moved = [replace(request, at_us=request.at_us + rng.randrange(1000 * OFF_MS)) for request in requests]
    return sorted(moved, key=lambda request: request.at_us)


def as_run(calls: Iterable[Call], records: Iterable[Record], began_ns: int) -> Run:
    """A live run in the simulator's terms: a task begins and ends when its worker says so, on the machine's one clock."""
    ran = {record.number: record for record in records}
    run = Run("live")
    for call in calls:
        task = Task(call.number, replace(call.request, at_us=(call.sent_ns - began_ns) // 1000))
        task.estimate = call.told
        if record := ran.get(call.number):
            task.granted_us = (record.begun_ns - began_ns) // 1000
            task.ended_us = (record.ended_ns - began_ns) // 1000
            if record.output == call.request.output:  # its service is spread over the time that it took
                token_us = (task.ended_us - task.granted_us) // record.output
                task.request = replace(task.request, token_us=token_us)
            task.cancelled = call.status != "completed"
        run.tasks.append(task)
    begun = sorted((task for task in run.tasks if task.granted_us >= 0), key=lambda task: task.granted_us)
    for turn, task in enumerate(begun):
        task.turn = turn
    return run


# ---- what is compared ----------


class Figure(NamedTuple):
    """One figure of a run. `scale`: what 5 % are of; None: of the figure itself."""

    name: str
    value: float
    unit: str
    scale: float | None = None


def figures(experiment: Experiment, run: Run, waited_s: Sequence[float]) -> Iterator[Figure]:
    """The figures of a run, in the same order for all runs of an experiment.

    1 Waits of the victims, `waited_s`: 5 % of them are 5 % of the mean service time, as most are near zero. 2 Shares of the
    service after the warm-up, by queue where there are several, else by user. 3 With several queues also Jain's index over the
    service of all users, by the weight of their queue.
    """
    several = len(experiment.queues) > 1
    if not several:
        for q in (0.5, 0.99):  # 1
            yield Figure(
                f"victims' wait, p{100 * q:g}", percentile(waited_s, q), "s", experiment.mean_service_s
            )
    served = service(run, experiment.scale.warm_up_s * SECOND, experiment.end_us)
    queue_of = {request.client: request.queue for request in experiment.requests}
    groups: dict[str, float] = {}
    for client, got in sorted(served.items()):
        group = queue_of[client] if several else client
        groups[group] = groups.get(group, 0.0) + got
    for name in experiment.queues if several else groups:  # 2
        yield Figure(f"share of {name}", 100 * groups[name] / sum(groups.values()), "%")
    if several:  # 3
        weighted = [got / experiment.queues[queue_of[client]] for client, got in served.items()]
        yield Figure("Jain's index over the users, by weight", jain(weighted), "")


def waited(run: Run) -> list[float]:
    """How long the victims waited in a run, s."""
    return [task.wait_us / SECOND for task in run.granted() if task.client != FLOODER]


def waited_in_store(live: Live) -> list[float]:
    """How long they waited from acceptance to the grant, on the store's clock, s."""
    victims = [call.number for call in live.ledger.calls if call.request.client != FLOODER]
    times = [live.ledger.times[number] for number in victims]
    return [(at.granted - at.enqueued) / 1000 for at in times]
