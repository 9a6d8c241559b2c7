"""A worker process of the live experiments: `python -m bench.fairness.live_worker '<WorkerSpec as JSON>'`.

Fairlane's own SDK with a handler that does what the simulator's server does: it holds its slot for `output` times `token_us`,
writes the tokens evenly, and reports their true number, also when it is stopped. What it has run it writes to a file,
one line for each attempt: the truth that what gateways say is compared with.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from fairlane import Context, Task, Usage, Worker

PIECE_US = 500_000
"""Tokens are sent every half second: how the text is cut is not what is measured."""


class WorkerSpec(msgspec.Struct):
    """The arguments of the process."""

    gateway: str
    token: str
    name: str
    slots: int
    records: str
    """The file for its records."""


class Order(msgspec.Struct):
    """What the handler reads of a payload."""

    number: int
    """Of the request, among all of its experiment."""
    input: int
    output: int
    token_us: int


class Record(msgspec.Struct):
    """One attempt. Times are of the machine's monotonic clock, ns."""

    model: str
    number: int
    worker: str
    attempt: int
    begun_ns: int
    ended_ns: int
    output: int
    """Tokens written."""


def make(spec: WorkerSpec) -> Worker:
    """The worker; its records are complete when its process has ended, and up to date whenever one of its tasks has."""
    worker = Worker(spec.name, gateway=spec.gateway, token=spec.token, slots=spec.slots)
    records = Path(spec.records).open("ab", buffering=0)  # noqa: SIM115 (as long as the process)

    @worker.handler(models=["*"])
    async def write(task: Task, context: Context) -> AsyncIterator[str]:
        begun_ns = time.monotonic_ns()
        order = msgspec.json.decode(task.payload_bytes, type=Order)
        piece = max(PIECE_US // order.token_us, 1)
        written = 0
        try:
            while written < order.output:
                now = 1 if written == 0 else min(piece, order.output - written)
                await _until(begun_ns + (written + now) * order.token_us * 1000)
                for _ in range(now):  # one delta each: so the gateway, too, knows how many there were
                    written += 1
                    yield "t "
        finally:
            ended_ns = time.monotonic_ns()
            by_now = (ended_ns - begun_ns) // (order.token_us * 1000)
            written = max(written, min(by_now, order.output))
            context.set_usage(Usage(order.input, written))
            record = Record(context.model, order.number, spec.name, task.attempt, begun_ns, ended_ns, written)
            records.write(msgspec.json.encode(record) + b"\n")

    return worker


async def _until(at_ns: int) -> None:
    await asyncio.sleep(max(at_ns - time.monotonic_ns(), 0) / 1e9)


if __name__ == "__main__":
    make(msgspec.json.decode(sys.argv[1], type=WorkerSpec)).run()
