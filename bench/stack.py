"""One gateway with its Redis, workers and load, each a process of its own, all ended when the block ends.

The gateway gets a core for itself; Redis, workers and load share the others. With a single core they all share it, and
the figures say little.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from redis.asyncio import Redis

from bench import procstat
from bench.httpclient import authorization
from bench.specs import LoadResult, LoadSpec, UpstreamSpec, WorkerCount, WorkerSpec
from fairlane.queues.embedded.server import EmbeddedRedis

ROOT = Path(__file__).resolve().parent.parent
SERVE = ("-m", "fairlane.gateway.cli.main", "serve")
# a Redis that is slow on a loaded machine is measured, and does not end the run
SETTINGS = {"FAIRLANE_LOG_LEVEL": "warning", "FAIRLANE_DRAIN": "0", "FAIRLANE_TUNING__REDIS_TIMEOUT": "5s"}
READY_S = 30.0
END_S = 15.0
POLL_S = 0.02
LINE_LIMIT = 1 << 20


class BenchError(Exception):
    """The benchmark cannot continue; the message says what was seen."""


@dataclass(frozen=True)
class Cores:
    """The cores of each process."""

    gateway: int
    others: frozenset[int]

    @classmethod
    def split(cls) -> "Cores":
        """The first core for the gateway, out of those this process may use, the rest for everything else."""
        cores = sorted(os.sched_getaffinity(0))
        return cls(cores[0], frozenset(cores[1:]) or frozenset(cores))


def raise_file_limit() -> int:
    """Permit as many open files as the system lets us; inherited by what is started here. Returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@dataclass
class Child:
    """A process of ours."""

    process: asyncio.subprocess.Process
    log: Path

    def ended(self, what: str) -> BenchError:
        """What to say when it ended and should not have."""
        said = self.log.read_text("utf-8", "replace")[-1500:]
        return BenchError(f"{what} ended with status {self.process.returncode}: {said or 'it said nothing'}")


async def end(child: Child) -> None:
    """Ask a process to end, and kill it when it does not."""
    if child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_S):
                await child.process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.process.kill()
            await child.process.wait()


@dataclass
class Workers:
    """A process of workers."""

    child: Child
    count: WorkerCount = field(default_factory=lambda: WorkerCount(0, 0, 0))

    async def follow(self) -> None:
        """Read what it says until it ends."""
        assert self.child.process.stdout is not None
        while line := await self.child.process.stdout.readline():
            self.count = msgspec.json.decode(line, type=WorkerCount)


@dataclass(frozen=True)
class Target:
    """What a load is aimed at. `watch`: the processes whose CPU time counts; the one under test is `gateway`."""

    port: int
    watch: dict[str, int]
    key: str = ""

    def aim(self, spec: LoadSpec) -> LoadSpec:
        """The same load, at this one."""
        return msgspec.structs.replace(spec, port=self.port, watch=self.watch, key=self.key)


class Stack:
    """What `running` made: ports and process ids, and ways to add workers and load."""

    def __init__(self, directory: Path, cores: Cores, port: int, redis: Redis | None = None) -> None:
        """`redis`: its commands are counted, if given."""
        self._directory = directory
        self._exits = contextlib.AsyncExitStack()
        self._started = 0
        self.cores = cores
        self.port = port
        self.redis = redis
        self.gateway: Child
        self.watch: dict[str, int] = {}
        """The processes whose CPU time counts."""
        self.key = self._token = ""
        """Of a caller, and of workers; empty as long as none is needed."""

    @property
    def pid(self) -> int:
        """The gateway's process id."""
        return self.gateway.process.pid

    async def start(
        self,
        arguments: Sequence[str],
        *,
        cores: Iterable[int],
        environ: Mapping[str, str] = {},
        lines: bool = True,
    ) -> Child:
        """Start a Python process that ends with the stack; `lines`: its output is read by line."""
        self._started += 1
        log = self._directory / f"{self._started}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if lines else output,
                stderr=output,
                cwd=ROOT if lines else self._directory,  # a gateway reads ./fairlane.yaml
                env={**os.environ, **environ},
                limit=LINE_LIMIT,
            )
        child = Child(process, log)
        self._exits.push_async_callback(end, child)
        os.sched_setaffinity(process.pid, cores)
        return child

    async def ready(self) -> bool:
        """Return whether the gateway accepts tasks. Raise BenchError if it has ended."""
        if self.gateway.process.returncode is not None:
            raise self.gateway.ended("the gateway")
        return (await call(self.port, "GET", "/readyz")).startswith(b"HTTP/1.1 200")

    async def close_gateway(self, limits: Mapping[str, int]) -> None:
        """Make keys in the gateway's database: from now on callers and workers show one, and the callers' has these limits."""
        admin = await self._new_key({"id": "admin", "scopes": ["admin"]}, "")
        self._token = await self._new_key({"id": "workers", "kind": "worker"}, admin)
        self.key = await self._new_key({"id": "bench", "limits": limits}, admin)

    async def _new_key(self, said: Mapping[str, object], admin: str) -> str:
        answer = await call(self.port, "POST", "/api/admin/keys", msgspec.json.encode(said), admin)
        if not answer.startswith(b"HTTP/1.1 201"):
            raise BenchError(f"the gateway made no key: {answer[-600:].decode('utf-8', 'replace')}")
        secret: str = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["secret"]
        return secret

    async def workers(self, spec: WorkerSpec) -> Workers:
        """Start workers; on return the gateway offers their models."""
        spec = msgspec.structs.replace(spec, token=self._token)
        child = await self.start(["-m", "bench.worker", text(spec)], cores=self.cores.others)
        self.watch["workers"] = child.process.pid
        workers = Workers(child)
        follower = asyncio.create_task(workers.follow())
        self._exits.callback(follower.cancel)

        async def offered() -> bool:
            if child.process.returncode is not None:
                raise child.ended("a worker")
            if workers.count.registered < spec.connections:
                return False
            # (a worker of version 1 names no model: it is connected when its handshake is done)
            if spec.version == 1:
                return True
            offers = await call(self.port, "GET", "/v1/models", key=self.key)
            return all(model.encode() in offers for model in spec.models)

        await until(offered, "the workers to be offered")
        return workers

    async def yardstick(self, tokens: int = 100, tokens_per_s: float = 50.0) -> "Target":
        """Start a bare pass-through on the gateway's core, with an upstream that answers as the workers do."""
        target, behind = free_port(), free_port()
        upstream = UpstreamSpec(behind, tokens, tokens_per_s)
        model = await self.start(["-m", "bench.upstream", text(upstream)], cores=self.cores.others)
        proxy = await self.start(
            ["-m", "bench.passthrough", str(target), str(behind)], cores={self.cores.gateway}
        )

        async def ready() -> bool:
            for child, what in ((model, "the upstream"), (proxy, "the yardstick")):
                if child.process.returncode is not None:
                    raise child.ended(what)
            return (await call(target, "GET", "/")).startswith(b"HTTP/1.1 200")

        await until(ready, "the yardstick to be ready")
        watch = {"gateway": proxy.process.pid, "workers": model.process.pid, "redis": self.watch["redis"]}
        return Target(target, watch)

    @property
    def target(self) -> "Target":
        """The gateway, for a load."""
        return Target(self.port, self.watch, self.key)

    async def load(self, spec: LoadSpec) -> LoadResult:
        """Run one measurement to its end."""
        before = await self._calls()
        child = await self.start(["-m", "bench.load", text(spec)], cores=self.cores.others)
        assert child.process.stdout is not None
        line = b""
        while following := await child.process.stdout.readline():
            line = following
        await child.process.wait()
        if child.process.returncode != 0 or not line.startswith(b"{"):
            raise child.ended(f"the load {spec.kind!r}")
        if self.gateway.process.returncode is not None:
            raise self.gateway.ended("the gateway")
        result = msgspec.json.decode(line, type=LoadResult)
        after = await self._calls()
        result.redis_calls = {name: count - before.get(name, 0) for name, count in after.items()}
        return result

    async def _calls(self) -> dict[str, int]:
        if self.redis is None:
            return {}
        stats = await self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(value["calls"]) for name, value in stats.items()}

    async def close(self) -> None:
        """End what was started, the newest first."""
        await self._exits.aclose()


@contextlib.asynccontextmanager
async def running(
    cores: Cores, settings: Mapping[str, str] = {}, wrapper: Sequence[str] = ()
) -> AsyncIterator[Stack]:
    """A gateway with default settings but for `settings` (environment), and a Redis as it would start for itself.

    `wrapper`: arguments of the interpreter before the gateway's own, for a profiler.
    """
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        os.sched_setaffinity(0, cores.others)  # inherited by Redis
        async with EmbeddedRedis(directory / "redis") as embedded:
            redis = Redis.from_url(embedded.url)
            stack = Stack(directory, cores, free_port(), redis)
            try:
                arguments = [*wrapper, *SERVE, "--port", str(stack.port), "--redis-url", embedded.url]
                stack.gateway = await stack.start(
                    [*arguments, "--data-dir", str(directory / "gateway")],
                    cores={cores.gateway},
                    environ={**SETTINGS, **settings},
                    lines=False,
                )
                stack.watch |= {"gateway": stack.pid, "redis": embedded.pid}
                await until(stack.ready, "the gateway to be ready")
                if "FAIRLANE_PROCESSES" in settings:
                    own = enumerate(procstat.children(stack.pid), 1)
                    stack.watch |= {f"gateway {number}": pid for number, pid in own}
                yield stack
            finally:
                await stack.close()
                await redis.aclose()


async def until(condition: Callable[[], Awaitable[bool]], what: str, deadline_s: float = READY_S) -> None:
    """Wait for a state. Raises BenchError after the deadline."""
    end_at = time.monotonic() + deadline_s
    while not await condition():
        if time.monotonic() > end_at:
            raise BenchError(f"waited {deadline_s:.0f} s without success for {what}")
        await asyncio.sleep(POLL_S)


async def call(port: int, method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
    """The whole answer to a call, empty when no server listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    try:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n".encode()
            + authorization(key)
        )
        if body:
            head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        writer.write(head + b"\r\n" + body)
        async with asyncio.timeout(READY_S):
            return await reader.read()
    except OSError:
        return b""
    finally:
        writer.close()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def text(spec: msgspec.Struct) -> str:
    """A specification as an argument."""
    return msgspec.json.encode(spec).decode()
