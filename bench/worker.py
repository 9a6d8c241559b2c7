"""A process of workers: `python -m bench.worker '<WorkerSpec as JSON>'`. Prints a WorkerCount ten times a second."""

import asyncio
import contextlib
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import uvloop

from bench.specs import WorkerCount, WorkerSpec
from bench.websocket import WebSocket, frame

REPORT_S = 0.1


class Counters:
    """What the workers of this process have done."""

    def __init__(self) -> None:
        self.registered = 0
        self.acknowledged = 0
        self.last_ns = 0


def _task(message: bytes) -> bytes:
    """The member that names a task."""
    at = message.index(b'"taskId":"')
    return message[at : message.index(b'"', at + 10) + 1]


def _key(message: bytes) -> bytes:
    """The two members that name a task's attempt, found without parsing the payload between them."""
    at = message.rindex(b'"attempt":') + 10
    end = at
    while message[end : end + 1].isdigit():
        end += 1
    return b'%b,"attempt":%b' % (_task(message), message[at:end])


class BenchWorker(WebSocket):
    """One connection. What it does with a task is the subclass's."""

    def __init__(self, spec: WorkerSpec, counters: Counters, model: str) -> None:
        super().__init__("127.0.0.1", "/ws", "fairlane.worker.v2" if spec.version == 2 else "", spec.token)
        self.spec = spec
        self.counters = counters
        self.model = model

    def on_open(self) -> None:
        if self.spec.version == 1:
            self.counters.registered += 1
            return
        self.send(
            b'{"type":"register","protocols":[2],"instanceId":"%b","name":"bench","models":["%b"],"slots":%d}'
            % (secrets.token_hex(8).encode(), self.model.encode(), self.spec.slots)
        )

    def on_message(self, data: bytes) -> None:
        if data.startswith(b'{"type":"task"'):
            began = time.monotonic_ns()
            key = _key(data) if self.spec.version == 2 else _task(data)
            if self.spec.acknowledge and self.spec.version == 2:
                self.send(b'{"type":"taskAck",%b}' % key)
            self.on_task(key, began)
        elif data.startswith(b'{"type":"cancel"'):
            self.on_cancel(_key(data))
        elif data.startswith(b'{"type":"resultAck"'):
            self.counters.acknowledged += 1
            self.counters.last_ns = time.monotonic_ns()
        elif data.startswith(b'{"type":"registered"'):
            self.counters.registered += 1

    def on_task(self, key: bytes, began: int) -> None:
        """Run a task; `key` names it in frames, `began` is when it came (monotonic ns)."""

    def on_cancel(self, key: bytes) -> None:
        """End a task early."""
        self.send(b'{"type":"taskResult",%b,"lastSeq":0,"result":null,"error":"cancelled"}' % key)


class Echo(BenchWorker):
    """Answers immediately with the time that it took, which the caller subtracts."""

    def on_task(self, key: bytes, began: int) -> None:
        self.send(
            b'{"type":"taskResult",%b,"lastSeq":0,"result":{"content":"hello","tookNs":%d},"error":null,'
            b'"usage":{"inputTokens":5,"outputTokens":5}}' % (key, time.monotonic_ns() - began)
        )


class Hold(BenchWorker):
    """Begins a task and never ends it."""

    def on_task(self, key: bytes, began: int) -> None:  # noqa: ARG002 (time does not matter here)
        self.send(b'{"type":"taskChunk",%b,"seq":1,"deltas":[{"content":"begun"}]}' % key)


class Streamer(BenchWorker):
    """Sends tokens at a rate. A token is `@<monotonic ns when it was sent>;`, so that its reader knows its age.

    Before the first token of a task stands `^<ns this worker took to it>;`.
    """

    def __init__(self, spec: WorkerSpec, counters: Counters, model: str, clock: "Clock") -> None:
        super().__init__(spec, counters, model)
        self._clock = clock
        self._wanted: set[bytes] = set()

    def on_task(self, key: bytes, began: int) -> None:
        self._wanted.add(key)
        self._clock.begin(self, self._run(key, began))

    def on_cancel(self, key: bytes) -> None:
        self._wanted.discard(key)

    def _run(self, key: bytes, began: int) -> Iterator[tuple[int, bytes]]:
        """(the instant of the next frame, the frames to send now). Waits while the connection is blocked."""
        spec = self.spec
        gap_ns = int(1e9 / spec.tokens_per_s)
        head = b'{"type":"taskChunk",%b,' % key
        sent = seq = 0
        due = time.monotonic_ns()
        while sent < spec.tokens and key in self._wanted:
            if self.paused:
                yield time.monotonic_ns() + gap_ns, b""
                continue
            count = min(spec.tokens_per_frame if seq else 1, spec.tokens - sent)
            now = time.monotonic_ns()
            text = b"@%d;" % now
            if not seq:
                text = b"^%d;%b" % (now - began, text)
            seq += 1
            sent += count
            due += count * gap_ns
            if spec.version == 1:
                yield due, frame(b'%b"delta":"%b"}' % (head, text * count))
            else:
                deltas = b",".join([b'{"content":"%b"}' % text] * count)
                yield due, frame(b'%b"seq":%d,"deltas":[%b]}' % (head, seq, deltas))
        error = b"null" if key in self._wanted else b'"cancelled"'
        self._wanted.discard(key)
        result = b'{"type":"taskResult",%b,"lastSeq":%d,"result":null,"error":%b,' % (key, seq, error)
        yield 0, frame(result + b'"usage":{"inputTokens":5,"outputTokens":%d}}' % sent)


class Writes(Protocol):
    """An object with a connection to write to."""

    transport: asyncio.Transport


class Clock:
    """Runs all streams of this process: one wake-up a millisecond at most, whatever their number."""

    def __init__(self, together: bool) -> None:
        self._together = together
        self._loop = asyncio.get_running_loop()
        self._slots: dict[int, list[tuple[Writes, Iterator[tuple[int, bytes]]]]] = {}

    def begin(self, worker: "Writes", run: Iterator[tuple[int, bytes]]) -> None:
        """Take a stream; its first frame leaves now."""
        self._step(worker, run, worker.transport.write)

    def _step(
        self, worker: "Writes", run: Iterator[tuple[int, bytes]], write: Callable[[bytes], object]
    ) -> None:
        due, data = next(run)
        if data:
            write(data)
        if due:
            slot = due // 1_000_000 + 1
            waiting = self._slots.get(slot)
            if waiting is None:
                waiting = self._slots[slot] = []
                self._loop.call_later(max(slot / 1000 - time.monotonic(), 0), self._tick, slot)
            waiting.append((worker, run))

    def _tick(self, slot: int) -> None:
        out: dict[Writes, list[bytes]] = {}
        for worker, run in self._slots.pop(slot):
            if self._together:
                self._step(worker, run, out.setdefault(worker, []).append)
            else:
                self._step(worker, run, worker.transport.write)
        for worker, frames in out.items():
            if frames:
                worker.transport.write(b"".join(frames))


async def main(spec: WorkerSpec) -> None:
    """Serve until this process is ended, or a connection ends: then with a message on stderr."""
    loop = asyncio.get_running_loop()
    counters = Counters()
    clock = Clock(spec.write_together)
    models = itertools.cycle(spec.models)

    def make() -> BenchWorker:
        if spec.kind == "echo":
            return Echo(spec, counters, next(models))
        if spec.kind == "hold":
            return Hold(spec, counters, next(models))
        return Streamer(spec, counters, next(models), clock)

    workers = [
        (await loop.create_connection(make, "127.0.0.1", spec.port))[1] for _ in range(spec.connections)
    ]
    closed = [worker.closed for worker in workers]
    while not any(future.done() for future in closed):
        await asyncio.wait(closed, timeout=REPORT_S)
        count = WorkerCount(counters.registered, counters.acknowledged, counters.last_ns)
        print(msgspec.json.encode(count).decode(), flush=True)
    print(next(future.result() for future in closed if future.done()), file=sys.stderr)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        uvloop.run(main(msgspec.json.decode(sys.argv[1], type=WorkerSpec)))
