"""What the store says of an experiment, read directly, without the gateways: slots in use while it runs, every log when it
is over."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.contract.store.store import World
from tests.support.audit import audit
from tests.support.ledger import nothing_left

from bench.fairness.checks import Check, at_most
from bench.fairness.live_clients import Call, Reading
from bench.fairness.live_stack import KEYS, Stack
from bench.fairness.live_worker import Record

EVERY_S = 0.02
ENDING_S = 120.0
TIMED_OUT = ("TOTAL_TIMEOUT", "QUEUE_TIMEOUT")
GATE = "6 end to end"


@dataclass
class Slots:
    """Samples of how many slots of a model are in use: the size of its set of leases."""

    limit: int
    most: int = 0
    samples: int = 0
    total: int = 0
    above: int = 0
    """Samples above the limit."""

    def add(self, used: int) -> None:
        self.samples += 1
        self.total += used
        self.most = max(self.most, used)
        self.above += used > self.limit


@contextlib.asynccontextmanager
async def slots_watched(stack: Stack, model: str, limit: int) -> AsyncIterator[Slots]:
    """Sample while the block runs."""
    slots = Slots(limit)

    async def sample() -> None:
        while True:
            slots.add(stack.store.zcard(KEYS("slots", model=model)))
            await asyncio.sleep(EVERY_S)

    watching = asyncio.create_task(sample())
    try:
        yield slots
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


class Times(NamedTuple):
    """When a task came, was granted and ended, by the store's clock, ms; 0: never."""

    enqueued: int
    granted: int
    ended: int


@dataclass
class Ledger:
    """What the clients saw, what the workers ran and what the store knows of one model's tasks, after all have ended."""

    calls: Sequence[Call]
    records: Sequence[Record]
    states: Mapping[str, int]
    """Tasks of the model by their state in the store; those out of time apart from the failed ones."""
    times: Mapping[int, Times]
    """By number of the call."""
    completed: frozenset[int]
    """Numbers of the calls whose task completed, whether its result was read or not."""
    tasks: Mapping[int, int]
    """By number of the call: how many tasks the store has of it. One that hung up early may have none."""
    flooder: str | None = None
    """A client whose calls may be refused: its queue is full."""

    def checks(self, what: str, slots: Slots) -> Iterator[Check]:
        """Limit, conservation, and that nothing ended or ran twice."""
        yield at_most(
            GATE, f"{what}: slots in use, most of {slots.samples:,} samples", slots.most, slots.limit
        )
        calls = [call for call in self.calls if call.request.client != self.flooder]
        refused = [call.status for call in calls if call.status.startswith("HTTP")]
        how = f": {', '.join(sorted(set(refused))[:5])}" if refused else ""
        yield at_most(GATE, f"{what}: calls refused or failed, of {len(calls):,}{how}", len(refused), 0)
        stored, told = sum(self.states.values()), {call.number for call in self.calls if call.task_id}
        lost = len(told - self.tasks.keys())
        yield at_most(GATE, f"{what}: of {len(told):,} accepted tasks, unknown to the store", lost, 0)
        twice = sum(count > 1 for count in self.tasks.values())
        yield at_most(GATE, f"{what}: calls that became two tasks", twice, 0)
        unended = stored - sum(self.states.get(state, 0) for state in ("completed", "cancelled", "expired"))
        yield at_most(GATE, f"{what}: tasks neither completed nor cancelled nor out of time", unended, 0)
        written = {record.number: record.output for record in self.records}
        torn = sum(
            written.get(call.number) != call.request.output
            for call in self.calls
            if call.status == "completed"
        )
        yield at_most(GATE, f"{what}: tasks called completed that no worker wrote to the end", torn, 0)
        ran = {record.number for record in self.records}
        yield at_most(GATE, f"{what}: tasks that ran more than once", len(self.records) - len(ran), 0)
        ends = [call.ends for call in self.calls if call.reading is Reading.STREAM]
        yield at_most(
            GATE, f"{what}: of {len(ends):,} streams, without exactly one end", sum(n != 1 for n in ends), 0
        )


async def closed_ledger(stack: Stack, model: str, calls: Sequence[Call]) -> Ledger:
    """Wait until nothing of any task is left in the store, and read it whole. Fails with what is wrong with it.

    The audit holds all invariants of the scheduler that the store shows: among them that each log has one end.
    """
    await nothing_left(stack.store, ENDING_S)
    for taken in stack.store.scan_iter(KEYS("taken", nonce="*"), 1000):
        stack.store.delete(
            taken
        )  # what remembers the last grants would go by itself, but maybe under the audit's eyes
    world = World(stack.server.socket_path, real_clock=True)
    try:
        world.now_us = time.time_ns() // 1000
        ids = [key.decode().rpartition(":")[2] for key in stack.store.scan_iter(KEYS("task", id="*"), 1000)]
        shot = await asyncio.to_thread(lambda: audit(world, ids, carried=True))
    finally:
        world.close()
    tasks = {parts[0]: record for parts, record in shot.by_kind["task"].items() if record["model"] == model}
    times = {
        int(record["metadata"]): Times(
            *(int(record.get(name, 0)) for name in ("enqueued_at", "granted_at", "ended_at"))
        )
        for record in tasks.values()
    }
    completed = frozenset(
        int(record["metadata"]) for record in tasks.values() if record["state"] == "completed"
    )
    counts = Counter(int(record["metadata"]) for record in tasks.values())
    states = Counter(
        "expired" if record.get("code") in TIMED_OUT else record["state"] for record in tasks.values()
    )
    return Ledger(calls, stack.records(model), states, times, completed, counts)
