"""Gateways as processes of their own, which a test can kill, and workers that connect again after that."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import psutil
import redis
from tests.support.databases import place_database
from tests.support.prepared import MODULE, Prepared, command, launch
from tests.support.servers import free_port
from tests.support.serving import http_client, until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from fairlane.gateway.settings import external, external_name
from fairlane.gateway.settings.parts import TuningSettings

START_S = 40.0
NO_PROXIES = {"NO_PROXY": "*", "no_proxy": "*"}
"""For what a process calls on this machine."""
CHILD_S = 60.0
TUNING = frozenset(map(external_name, TuningSettings.model_fields))


def written(settings: Any) -> Any:
    """Return settings, with the names that code has, as files have them."""
    if isinstance(settings, list):
        return [written(entry) for entry in settings]
    if not isinstance(settings, dict):
        return settings
    return {name: written(value) for name, value in external(settings).items()}


class GatewayProcess:
    """`fairlane serve` on one port: started, killed and started again."""

    files: int | None = None
    """So many it may have open, where that is not what this process may."""

    def __init__(self, folder: Path, redis_url: str | None = None, **settings: Any) -> None:
        """`settings` as in the configuration. Without `redis_url` the gateway brings its own Redis."""
        place_database(folder / "data")
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ws = f"ws://127.0.0.1:{self.port}/ws"
        self._log = folder / "gateway.log"
        self._command = [sys.executable, "-m", "fairlane.gateway.cli.main", "serve", "--port", str(self.port)]
        self._command += ["--data-dir", str(folder / "data"), "--log-format", "json"]
        self._command += ["--redis-url", redis_url] if redis_url else []
        self._environ = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLANE_")}
        in_file: dict[str, Any] = {}
        for name, value in written(settings).items():
            if isinstance(value, dict | list):
                in_file[name] = value
            else:
                place = f"TUNING__{name}" if name in TUNING else name
                self._environ[f"FAIRLANE_{place.upper()}"] = str(value)
        if in_file:
            with (folder / "fairlane.yaml").open("x", encoding="utf-8") as file:
                json.dump(in_file, file)
        self._process: Prepared | subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def log(self) -> str:
        """What it said, over all its lives."""
        return self._log.read_text() if self._log.exists() else ""

    def launch(self) -> "Prepared | subprocess.Popen[bytes]":
        """Start it."""
        with self._log.open("ab") as output:
            self._process = launch(self._command, output.fileno(), self._environ, self.folder, self.files)
        return self._process

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        process = self.launch()
        async with http_client(timeout=5) as http:

            async def ready() -> bool:
                assert process.poll() is None, f"the gateway ended at once: {self.log[-2000:]}"
                with contextlib.suppress(httpx2.TransportError):
                    return (await http.get(f"{self.url}/readyz")).status_code == 200
                return False

            await until(ready, "the gateway to be ready", START_S)

    def signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self, deadline_s: float = START_S) -> int:
        """Its exit status, once it has ended."""
        process = self._process
        assert process
        await until(lambda: process.poll() is not None, "the gateway to end", deadline_s)
        return process.returncode

    async def stop(self) -> None:
        """End it in order, or by force when it does not; nothing remains."""
        if self._process and self._process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                await self.ended(20)
            except AssertionError:
                self._process.kill()
                self._process.wait()
                raise
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)  # only this gateway's own processes are in its group

    # ---- its own Redis ----------

    @property
    def _noted(self) -> dict[str, Any]:
        noted: dict[str, Any] = json.loads((self.folder / "data" / "lock").read_text())
        return noted

    @property
    def redis_pid(self) -> int:
        """The process id of its Redis."""
        return int(self._noted["server"])

    def store(self) -> Any:
        """A client of its Redis, to be closed by whoever asks."""
        return redis.Redis(unix_socket_path=f"{self._noted['run_dir']}/s")


@contextlib.asynccontextmanager
async def gateway_process(
    folder: Path, redis_url: str | None = None, **settings: Any
) -> AsyncIterator[GatewayProcess]:
    """A running gateway; at the end neither it nor its Redis is there any more."""
    gateway = GatewayProcess(folder, redis_url, **settings)
    redis_pid = None
    try:
        await gateway.start()
        yield gateway
    finally:
        if redis_url is None:
            redis_pid = gateway.redis_pid
        await gateway.stop()
        if redis_pid is not None:
            await until(lambda: not runs(redis_pid), "the embedded Redis to end")


def runs(pid: int) -> bool:
    """Whether a process runs (one that waits for its parent to take note of its end does not)."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@contextlib.asynccontextmanager
async def process(
    *arguments: str,
    program: str = sys.executable,
    cwd: Path | None = None,
    stderr: int | None = asyncio.subprocess.PIPE,
    **environment: str,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child process with piped input and output, which sees no settings; killed at the end if it still runs."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLANE_", "OPENAI_"))}
    if program == sys.executable and arguments[:2] == ("-m", MODULE):
        program, *arguments = command(*arguments[2:])  # type: ignore[assignment]
    child = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=cwd,
        env=known | environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def output_of(
    *arguments: str, program: str = sys.executable, cwd: Path | None = None, **environment: str
) -> str:
    """What a process prints; fails with what it complains of."""
    async with process(*arguments, program=program, cwd=cwd, **environment) as child:
        async with asyncio.timeout(CHILD_S):
            out, err = await child.communicate()
        assert child.returncode == 0, (out + err).decode()
        return out.decode()


class Tireless:
    """A version 1 worker that connects again whenever its connection breaks, and does what `work` says.

    `work(send, task)`: a coroutine that answers; it is cancelled with the connection. Counts what it received.
    """

    def __init__(self, url: Callable[[], str], work: Callable[..., Any], token: str = "") -> None:
        self._url = url
        self._work = work
        self._headers = {"Authorization": f"Bearer {token}"} if token else None
        self._loop: asyncio.Task[None] | None = None
        self.received: list[str] = []
        self.connections = 0
        self.busy = False

    async def __aenter__(self) -> "Tireless":
        self._loop = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._loop
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(
                OSError, ConnectionClosed, InvalidHandshake, InvalidMessage, TimeoutError
            ):
                async with connect(
                    self._url(), proxy=None, open_timeout=5, additional_headers=self._headers
                ) as connection:
                    self.connections += 1
                    await self._serve(connection)
            await asyncio.sleep(0.1)

    async def _serve(self, connection: ClientConnection) -> None:
        async def send(**frame: Any) -> None:
            await connection.send(json.dumps(frame))

        worker: asyncio.Task[Any] | None = None
        try:
            async for message in connection:
                task = json.loads(message)
                assert worker is None or worker.done(), "two tasks at a time for a version 1 worker"
                self.received.append(task["taskId"])
                worker = asyncio.create_task(self._one(send, task))
        finally:
            if worker:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)

    async def _one(self, send: Callable[..., Any], task: dict[str, Any]) -> None:
        self.busy = True
        try:
            await self._work(send, task)
        finally:
            self.busy = False


@contextlib.asynccontextmanager
async def tireless(
    count: int, url: Callable[[], str], work: Callable[..., Any], token: str = ""
) -> AsyncIterator[list[Tireless]]:
    """Several such workers; returns when all have been connected once."""
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(Tireless(url, work, token)) for _ in range(count)]
        await until(lambda: all(worker.connections for worker in workers), "workers to connect", START_S)
        yield workers
