"""A process of callers: `python -m bench.load '<LoadSpec as JSON>'`. Prints `go` when it begins and a LoadResult at the end."""

import asyncio
import itertools
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import uvloop

from bench import procstat
from bench.httpclient import Calls, Stream, get, post
from bench.specs import MODEL, LoadResult, LoadSpec, spread

C = TypeVar("C", bound=asyncio.Protocol)

STAMP = re.compile(rb"@(\d+);")
FIRST = re.compile(rb"\^(\d+);")
TOOK = re.compile(rb'"tookNs":(\d+)')
TASK_ID = re.compile(rb'"taskId":"([^"]+)"')
LONGEST_STAMP = 32
HOST = "127.0.0.1"
MESSAGES = b'"messages":[{"role":"user","content":"hello"}]'
RETRY_S = 0.002
MAX_CONCURRENT_OPENING = 100
IDLE_DEADLINE_S = 20.0
SETTLE_S = 2.0


def body(stream: bool = False, asynchronous: bool = False, model: str = MODEL) -> bytes:
    """A small request for a model."""
    flags = (b',"stream":true' if stream else b"") + (b',"async":true' if asynchronous else b"")
    return b'{"model":"%b",%b%b}' % (model.encode(), MESSAGES, flags)


class Window:
    """The time in which things count, and what had been used by others when it began."""

    def __init__(self, spec: LoadSpec) -> None:
        self.spec = spec
        self._pids = {**spec.watch, "load": os.getpid()}
        self.result = LoadResult(0.0)
        self.open = False
        self.over = False
        self.task_ns: list[int] = []
        self.first_ns: list[int] = []
        self.token_ns: list[int] = []
        self.late_ns: list[int] = []

    def begin(self) -> None:
        """Count from now on."""
        self._cpu = {name: procstat.cpu_s(pid) for name, pid in self._pids.items()}
        self._cores = procstat.core_busy_s()
        self.result.begun_ns = time.monotonic_ns()
        self.open = True

    def end(self) -> None:
        """Count no more."""
        result = self.result
        self.open, self.over = False, True
        result.seconds = (time.monotonic_ns() - result.begun_ns) / 1e9
        result.cpu_s = {name: procstat.cpu_s(pid) - self._cpu[name] for name, pid in self._pids.items()}
        result.core_busy_s = {name: busy - self._cores[name] for name, busy in procstat.core_busy_s().items()}

    def failed(self, error: str) -> None:
        """Something went wrong; the first message is kept."""
        if not self.over:
            self.result.errors += 1
            self.result.error = self.result.error or error[:600]

    async def run(self) -> None:
        """Warm up, count, end."""
        await asyncio.sleep(self.spec.warm_up_s)
        self.begin()
        await asyncio.sleep(self.spec.seconds)
        self.end()


# ---- tasks that are waited for ----------


class Closed(Calls):
    """The next call as soon as the last one is answered."""

    def __init__(self, window: Window, model: str) -> None:
        super().__init__()
        self._window = window
        self._request = post(window.spec.path, body(model=model), window.spec.key)
        self._sent = 0

    def begin(self) -> None:
        """Send the first."""
        self._next()

    def _next(self) -> None:
        self._sent = time.monotonic_ns()
        self.transport.write(self._request)

    def on_lost(self, why: str) -> None:
        self._window.failed(why)

    def on_answer(self, status: int, body: bytes) -> None:
        window = self._window
        if status != 200:
            window.failed(f"{status} {body[:300].decode('utf-8', 'replace')}")
        elif window.open:
            window.result.tasks += 1
            window.task_ns.append(time.monotonic_ns() - self._sent)
        if not window.over:
            self._next()


class OneByOne(Calls):
    """Calls on request; measures the time of a task beyond its worker's own time."""

    def __init__(self, window: Window, free: list["OneByOne"]) -> None:
        super().__init__()
        self._window = window
        self._free = free
        self._request = post(window.spec.path, body(), window.spec.key)
        self._sent = 0

    def call(self) -> None:
        """Send one."""
        self._sent = time.monotonic_ns()
        self.transport.write(self._request)

    def on_lost(self, why: str) -> None:
        self._window.failed(why)

    def on_answer(self, status: int, body: bytes) -> None:
        now = time.monotonic_ns()
        took = TOOK.search(body)
        if status != 200 or took is None:
            self._window.failed(f"{status} {body[:300].decode('utf-8', 'replace')}")
        elif self._window.open:
            self._window.result.tasks += 1
            self._window.task_ns.append(now - self._sent - int(took[1]))
        self._free.append(self)


async def _closed(window: Window) -> None:
    models = itertools.cycle(window.spec.models)
    callers = await _connect(window, lambda: Closed(window, next(models)))
    for caller in callers:
        caller.begin()
    await window.run()
    for caller in callers:
        caller.close()


async def _open_loop(window: Window) -> None:
    """A call at each instant of a fixed beat, whether or not the earlier ones have been answered."""
    loop = asyncio.get_running_loop()
    free: list[OneByOne] = []
    callers = await _connect(window, lambda: OneByOne(window, free))
    free.extend(callers)
    measuring = asyncio.create_task(window.run())
    gap = 1 / window.spec.per_s
    due = loop.time()
    while not measuring.done():
        due += gap
        await asyncio.sleep(max(due - loop.time(), 0))
        if window.open:
            window.late_ns.append(int((loop.time() - due) * 1e9))
        if free:
            free.pop().call()
        else:
            window.failed(f"none of {len(callers)} connections was free")
    await measuring
    for caller in callers:
        caller.close()


# ---- streams ----------


class Tokens(Stream):
    """Reads one stream after the other and notes the age of each token."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self._request = post(window.spec.path, body(stream=True), window.spec.key)
        self._sent = 0
        self._begun = False
        self._tail = b""
        self._complete = False

    def begin(self) -> None:
        """Ask for the first stream."""
        self._begun = self._complete = False
        self._tail = b""
        self._sent = time.monotonic_ns()
        self.ask(self._request)

    def on_bytes(self, data: bytes) -> None:
        now = time.monotonic_ns()
        window = self._window
        if self._tail:
            data = self._tail + data
        native_end = data.find(b"event: done")
        if native_end >= 0:  # it repeats the whole text
            data = data[:native_end]
        stamps = STAMP.findall(data)
        result = window.result
        if stamps:
            result.tokens_in_all += len(stamps)
            if not self._begun:
                self._begun = True
                own = FIRST.search(data)
                if window.open and own is not None:
                    window.first_ns.append(now - self._sent - int(own[1]))
            if window.open:
                result.tokens += len(stamps)
                result.events += data.count(b"data:")
                window.token_ns.extend([now - int(stamp) for stamp in stamps])
        if native_end >= 0 or b"[DONE]" in data:
            self._complete = True
        at = max(data.rfind(b"^"), data.rfind(b"@"))
        self._tail = (
            data[at:] if at >= 0 and data.find(b";", at) < 0 and len(data) - at < LONGEST_STAMP else b""
        )

    def on_end(self, error: str) -> None:
        window = self._window
        if error or not self._complete:
            window.failed(error or "a stream ended without its end")
        elif not window.over:
            window.result.tasks += window.open
            self.begin()


async def _streams(window: Window) -> None:
    loop = asyncio.get_running_loop()
    readers = await _connect(window, lambda: Tokens(window))
    for number, reader in enumerate(readers):
        loop.call_later(window.spec.spread_s * number / len(readers), reader.begin)
    await window.run()
    for reader in readers:
        reader.close()


# ---- tasks without a waiting client ----------


class Submits(Calls):
    """Submits async tasks as long as there are any left."""

    def __init__(self, window: Window, left: list[int], done: asyncio.Event) -> None:
        super().__init__()
        self._window = window
        self._left = left
        self._done = done
        self._request = post(window.spec.path, body(asynchronous=True), window.spec.key)

    def next(self) -> None:
        """Submit one, if any is left."""
        if self._left[0] > 0:
            self._left[0] -= 1
            self.transport.write(self._request)

    def on_lost(self, why: str) -> None:
        self._window.failed(why)
        self._done.set()

    def on_answer(self, status: int, body: bytes) -> None:
        result = self._window.result
        if status == 503:  # the queue is full: that is its right, try again
            result.polls += 1
            self._left[0] += 1
            asyncio.get_running_loop().call_later(RETRY_S, self.next)
            return
        if status != 202:
            self._window.failed(f"{status} {body[:300].decode('utf-8', 'replace')}")
        result.tasks += 1
        if result.tasks >= self._window.spec.tasks:
            self._done.set()
        self.next()


async def _submit(window: Window) -> None:
    """Submit a number of tasks; the window ends when all have been accepted, not when they have run."""
    done = asyncio.Event()
    left = [window.spec.tasks]
    callers = await _connect(window, lambda: Submits(window, left, done))
    window.begin()
    for caller in callers:
        caller.next()
    await done.wait()
    window.end()
    for caller in callers:
        caller.close()


class Polls(Calls):
    """Submits a window of tasks, then asks for each until it has its result."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self._request = post(window.spec.path, body(asynchronous=True), window.spec.key)
        self._ids: list[bytes] = []
        self._polling = False

    def begin(self) -> None:
        """Submit the first."""
        self.transport.write(self._request)

    def on_lost(self, why: str) -> None:
        self._window.failed(why)

    def on_answer(self, status: int, body: bytes) -> None:
        window = self._window
        if status == 503 and not self._polling:
            asyncio.get_running_loop().call_later(RETRY_S, self.begin)
            return
        if status not in (200, 202):
            window.failed(f"{status} {body[:300].decode('utf-8', 'replace')}")
        elif self._polling:
            window.result.polls += window.open
            asked = self._ids.pop()
            if b'"status":"completed"' in body:
                window.result.tasks += window.open
            else:
                self._ids.insert(0, asked)
            self._polling = bool(self._ids)
        elif found := TASK_ID.search(body):
            self._ids.append(found[1])
            self._polling = len(self._ids) >= window.spec.window
        if not window.over:
            self.transport.write(
                get("/api/task/" + self._ids[-1].decode(), window.spec.key)
                if self._polling
                else self._request
            )


async def _poll(window: Window) -> None:
    callers = await _connect(window, lambda: Polls(window))
    for caller in callers:
        caller.begin()
    await window.run()
    for caller in callers:
        caller.close()


# ---- readers that wait ----------


class Idle(Stream):
    """Opens a stream and listens."""

    def __init__(self, window: Window, opened: Callable[[], None]) -> None:
        super().__init__()
        self._window = window
        self._opened: Callable[[], None] | None = opened

    def on_bytes(self, data: bytes) -> None:  # noqa: ARG002 (that something came is enough)
        if self._opened is not None:
            self._opened()
            self._opened = None

    def on_end(self, error: str) -> None:
        self._window.failed(error or "an idle stream ended")


async def _idle(window: Window) -> None:
    """Open the streams, a hundred at a time, and compare the gateway's memory before and after."""
    spec, result = window.spec, window.result
    loop = asyncio.get_running_loop()
    request = post(spec.path, body(stream=True), spec.key)
    if spec.read_task:
        request = get(f"/api/task/{await _task_that_runs(window)}/events", spec.key)
    streams: list[Idle] = []

    async def open_streams(count: int) -> None:
        for at in range(0, count, MAX_CONCURRENT_OPENING):
            opened = asyncio.Event()
            missing = min(MAX_CONCURRENT_OPENING, count - at)

            def one_more(opened: asyncio.Event = opened) -> None:
                nonlocal missing
                missing -= 1
                if not missing:
                    opened.set()

            for _ in range(missing):
                _, stream = await loop.create_connection(lambda: Idle(window, one_more), HOST, spec.port)
                streams.append(stream)
                stream.ask(request)
            try:
                async with asyncio.timeout(IDLE_DEADLINE_S):
                    await opened.wait()
            except TimeoutError:
                raise RuntimeError(f"{missing} streams were not opened: {result.error}") from None

    await open_streams(MAX_CONCURRENT_OPENING)  # what the first ones load and allocate is not theirs
    await asyncio.sleep(SETTLE_S)
    result.rss_before = procstat.rss_bytes(spec.watch["gateway"])
    await open_streams(spec.connections)
    await asyncio.sleep(SETTLE_S)
    result.rss_after = procstat.rss_bytes(spec.watch["gateway"])
    result.tasks = spec.connections
    window.begin()
    await asyncio.sleep(spec.seconds)
    window.end()
    for stream in streams:
        stream.close()


async def _task_that_runs(window: Window) -> str:
    class Once(Calls):
        def on_answer(self, status: int, body: bytes) -> None:
            answer.set_result((status, body))

        def on_lost(self, why: str) -> None:
            window.failed(why)

    answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
    caller = (await _connect(window, Once, 1))[0]
    caller.transport.write(post(window.spec.path, body(asynchronous=True), window.spec.key))
    async with asyncio.timeout(IDLE_DEADLINE_S):
        _, content = await answer
    caller.close()
    found = TASK_ID.search(content)
    if found is None:
        raise RuntimeError(f"no task was accepted: {content[:300]!r}")
    return found[1].decode()


# ---- the process ----------


async def _connect(window: Window, make: Callable[[], C], count: int = 0) -> list[C]:
    loop = asyncio.get_running_loop()
    port = window.spec.port
    return [
        (await loop.create_connection(make, HOST, port))[1] for _ in range(count or window.spec.connections)
    ]


KINDS: dict[str, Callable[[Window], Awaitable[None]]] = {
    "closed": _closed,
    "open": _open_loop,
    "streams": _streams,
    "submit": _submit,
    "poll": _poll,
    "idle": _idle,
}


async def main(spec: LoadSpec) -> None:
    """Run one measurement."""
    window = Window(spec)
    print("go", flush=True)
    await KINDS[spec.kind](window)
    result = window.result
    result.task, result.first_token = spread(window.task_ns), spread(window.first_ns)
    result.token, result.late = spread(window.token_ns), spread(window.late_ns)
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(msgspec.json.decode(sys.argv[1], type=LoadSpec)))
