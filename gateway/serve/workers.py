"""The workers that a gateway starts itself: ordinary ones, each a child process that is restarted when it dies.

They connect to the gateway like any other worker. The process that runs them (the gateway's own, or the parent of several) does
so in the event loop of its main thread, so that no child outlives it, even after a SIGKILL (`queues/embedded/child.py`).

    new, or changed ──▶ runs ──▶ dies: again, later each time
                          │ ends in order (drained by an operator): stays down until the configuration is read again
                          └ removed, or changed and the next one has connected: SIGTERM, finishes its tasks, or is killed
"""

import asyncio
import contextlib
import logging
import os
import random
import re
import socket
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import structlog

from fairlane.gateway.accounts.upstreams import HTTP_WORKER, UpstreamTokens
from fairlane.gateway.settings import Settings, UpstreamSettings
from fairlane.queues.embedded.child import ChildProcess, child_environ
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.logs.redaction import unquoted
from fairlane.queues.loops import wait_event
from fairlane.workers.adapters.providers import PROVIDERS
from fairlane.workers.sdk.backoff import HEALTHY_S, Backoff

log = structlog.get_logger("fairlane.upstreams")

COMMAND = (sys.executable, "-P", "-m", "fairlane.gateway.cli.main", "worker")
GRACE_S = 5.0
"""How long a worker can take to end after the gateway has drained: it runs nothing."""
OVERLAP_S = 15.0
"""How long a replaced worker continues at most, until the new one has connected."""
MAX_DRAIN_MS = 24 * 3600 * 1000
REST_S = 1.0
"""How long the last output of a child can take to arrive after its end."""
KEPT_LINES = 5
MAX_CHARS = 500
"""Of a line."""

SHARED = ("*_PROXY", "*_proxy", "OTEL_*")
"""Patterns of the environment variables that all workers get in addition to those of every child: proxies and tracing."""
REGISTERED = "registered with "
"""The beginning of a worker's line when it has connected (`workers/sdk/connection.py`)."""
_LINE = re.compile(r"\S+ \S+ (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: (.*)")
"""A line of a worker's log, as `fairlane worker` writes it."""
_FRAME = re.compile(r' *File "[^"]{1,300}", line [0-9]+, in [\w<>.]+')
"""A line of a traceback that names a place."""


@dataclass(frozen=True, slots=True)
class OwnWorker:
    """A worker to run. While it stays equal, its process is not restarted."""

    arguments: tuple[str, ...]
    """Of `fairlane worker`. Other users of the machine can see them."""
    environ: tuple[tuple[str, str], ...] = ()
    """Its own environment variables, including secrets."""

    def __repr__(self) -> str:
        return f"OwnWorker({' '.join(self.arguments)})"


Plan = Callable[[Settings, bool], Mapping[str, OwnWorker]]
"""Return the workers that settings configure, by their names. The second argument: whether there are endpoints."""


def own_plan(
    tokens: UpstreamTokens,
    environ: Mapping[str, str],
    started: Settings,
    extra: Mapping[str, OwnWorker] | None = None,
) -> Plan:
    """Return a plan with one worker for each upstream, one for all endpoints, if there are any, and the `extra` ones.

    `environ` has the keys of upstreams; the other settings are those of the start.
    """

    def worker(name: str, *arguments: str, **own: str) -> OwnWorker:
        own["FAIRLANE_WORKER_TOKEN"] = tokens.token(name)
        if started.otlp_endpoint:
            own["OTEL_EXPORTER_OTLP_ENDPOINT"] = started.otlp_endpoint
        shown = name.strip("()")
        return OwnWorker(
            ("start", f"--name={shown}", f"--drain-ms={drain_ms_of(started)}", *arguments), tuple(own.items())
        )

    def plan(settings: Settings, endpoints: bool) -> dict[str, OwnWorker]:
        found = dict(extra or {})
        for name, upstream in settings.upstreams.items():
            key = upstream.api_key_env
            own = {key: environ.get(key, "")} if key else {}
            found[name] = worker(name, *_arguments(name, upstream), **own)
        if endpoints and settings.http_worker_slots:
            slots = f"--slots={settings.http_worker_slots}"
            found[HTTP_WORKER] = worker(HTTP_WORKER, "--provider=http", slots)
        return found

    return plan


def _arguments(name: str, upstream: UpstreamSettings) -> tuple[str, ...]:
    models = upstream.models
    return (
        f"--provider={PROVIDERS[upstream.provider].name}",
        f"--upstream={name}",
        f"--slots={upstream.slots}",
        f"--base-url={upstream.address}",
        *(f"--model={model}" for model in models),
        *(f"--task-type={task_type}" for task_type in upstream.task_types),
        *(f"--quirk={name}={value}" for name, value in upstream.quirks.items()),
        *(f"--upstream-model={other}" for other in models.values() if list(models) != list(models.values())),
        *([f"--api-key-env={upstream.api_key_env}"] if upstream.api_key_env else []),
    )


def drain_ms_of(settings: Settings) -> int:
    """Return how long a removed worker can finish its tasks: no task runs longer."""
    return min(settings.max_task_timeout_ms, MAX_DRAIN_MS)


def loopback_url(listener: socket.socket) -> str:
    """Return the URL of a listener for processes of this machine: loopback, unless it is bound to one address."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (compared, not bound)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(eq=False)
class OwnWorkers:
    """Runs the configured workers. Entered once; at its end all have ended."""

    _plan: Plan
    _gateway: str
    """The URL that they connect to."""
    _environ: Mapping[str, str]
    _drain_s: float
    """How long a removed one can finish its tasks."""
    _endpoints: bool = field(default=False, init=False)
    """Whether there are endpoints that the settings do not name."""
    _settings: Settings | None = field(default=None, init=False)
    _keepers: "dict[str, _Keeper]" = field(default_factory=dict, init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _stopping: bool = field(default=False, init=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all: SIGTERM, and SIGKILL after GRACE_S. The gateway has drained before."""
        self.stay_down()
        for keeper in self._keepers.values():
            keeper.end(GRACE_S)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=GRACE_S + REST_S + 1)
        for task in self._tasks:
            task.cancel()  # a worker that was removed before and still finishes its tasks
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stay_down(self) -> None:
        """Stop restarting workers, and log their output at debug level: the gateway is shutting down."""
        self._stopping = True
        for keeper in self._keepers.values():
            keeper.stopping = True

    def follow(self, settings: Settings) -> None:
        """Run the workers of these settings. Unchanged ones continue, or start if they had been drained."""
        self._settings = settings
        self._update(drained=True)

    def endpoints(self, exist: bool) -> None:
        """Note whether there are endpoints that the settings do not name."""
        self._endpoints = exist
        self._update(drained=False)

    def _update(self, *, drained: bool) -> None:
        """Run the planned workers, and end the others. `drained`: also start those that were drained."""
        if self._stopping or self._settings is None:
            return
        wanted = self._plan(self._settings, self._endpoints or bool(self._settings.endpoints))
        shared = child_environ(self._environ, *SHARED)
        for name in self._keepers.keys() - wanted.keys():
            self._keepers.pop(name).end(self._drain_s + GRACE_S)
        for name, worker in wanted.items():
            before = self._keepers.get(name)
            if before is not None and before.worker == worker and not (before.over and drained):
                continue
            environ = {**shared, **dict(worker.environ), "FAIRLANE_GATEWAY": self._gateway}
            self._keepers[name] = keeper = _Keeper(name, worker, environ)
            self._begin(keeper.run())
            if before is not None:
                self._begin(_hand_over(before, keeper, self._drain_s + GRACE_S))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._tasks.discard)


async def _hand_over(before: "_Keeper", after: "_Keeper", drain_s: float) -> None:
    """End a worker when its replacement has connected, so that its models are always served."""
    try:
        await wait_event(after.connected, OVERLAP_S)
    finally:
        before.end(drain_s)


class _Keeper:
    """Keeps one worker running until it is asked to end it."""

    def __init__(self, name: str, worker: OwnWorker, environ: Mapping[str, str]) -> None:
        self.worker = worker
        self.connected = asyncio.Event()
        """Set when a process of it has connected, and when there will be none."""
        self.over = False
        self.stopping = False
        """Whether the gateway is shutting down."""
        self._what = "the HTTP worker" if name == HTTP_WORKER else "an upstream's worker"
        self._who = {} if name == HTTP_WORKER else {"upstream": name}
        """For the log."""
        self._environ = environ
        self._backoff = Backoff(random.Random())  # noqa: S311 (spreads restarts, guards nothing)
        self._ends = 0
        """Its deaths since it last ran for HEALTHY_S."""
        self._logger = RateLimitedLogger()
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        """Its last lines, without content of requests."""
        self._registered = False
        """Whether its process has connected, and can have seen requests."""
        self._ending: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """Done when it has to end; the result is how long this can take, s."""

    def end(self, patience_s: float) -> None:
        """Let it finish its tasks within this time. Its `run` returns when its process has ended."""
        if not self._ending.done():
            self._ending.set_result(patience_s)

    async def run(self) -> None:
        """Run until `end`, or until the worker has exited with status 0. Cancelling kills the process."""
        loop = asyncio.get_running_loop()
        try:
            while not self._ending.done():
                began = loop.time()
                try:
                    status = await self._once()
                except OSError as problem:  # no more processes or files
                    status = -1
                    self._said.append(str(problem))
                if self._ending.done() or self.stopping:
                    return
                if status == 0:
                    log.warning(
                        f"{self._what} was drained, or asked to end: it stays down until SIGHUP or a restart",
                        **self._who,
                    )
                    return
                await self._rest(status, loop.time() - began)
        finally:
            self.over = True
            self.connected.set()

    async def _rest(self, status: int, lived_s: float) -> None:
        """Wait before a restart, longer each time. Log the 1st, 2nd, 4th, 8th … death."""
        self._ends = 1 if lived_s >= HEALTHY_S else self._ends + 1
        pause_s = self._backoff.after(lived_s)
        if self._ends & (self._ends - 1) == 0:
            log.error(
                f"{self._what} has died and is started again",
                **self._who,
                exit_code=status,
                times=self._ends,
                after_s=round(lived_s, 1),
                pause_s=round(pause_s, 1),
                said=[*self._said],
            )
        await asyncio.wait([self._ending], timeout=pause_s)

    async def _once(self) -> int:
        """Run one process; return its exit status."""
        self._registered = False
        self._said.clear()
        output = asyncio.StreamReader()
        read_end, write_end = os.pipe()
        with contextlib.ExitStack() as ours:
            writer = ours.enter_context(os.fdopen(write_end, "wb", 0))
            transport, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", 0)
            )
            ours.callback(transport.close)
            child = ChildProcess([*COMMAND, *self.worker.arguments], output=writer, env=self._environ)
            ours.callback(child.kill)
            writer.close()
            reading, ended = asyncio.ensure_future(self._read(output)), asyncio.ensure_future(child.wait())
            ours.callback(reading.cancel)
            ours.callback(ended.cancel)
            either: list[asyncio.Future[Any]] = [ended, self._ending]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await child.stop(self._ending.result())
            await asyncio.wait([reading], timeout=REST_S)
            return child.status or 0

    async def _read(self, output: asyncio.StreamReader) -> None:
        """Take the lines of the worker. Of a line that does not fit into the buffer only the end is left."""
        while not output.at_eof():
            with contextlib.suppress(ValueError):
                text = (await output.readline())[: 4 * MAX_CHARS].decode(errors="replace")
                text = "".join(char for char in text if char.isprintable())[:MAX_CHARS].rstrip()
                if text:
                    self._heard(text)

    def _heard(self, line: str) -> None:
        """Log a line of the worker. A line that is not of its own log, such as the end of a traceback, can quote a request once
        it has connected: then it is unquoted like an error message."""
        if parts := _LINE.fullmatch(line):
            level, text = getattr(logging, parts[1]), parts[2]
        else:
            level = logging.WARNING
            text = line if not self._registered or _FRAME.fullmatch(line) else unquoted(line)
        self._said.append(text)
        if text.startswith(REGISTERED):
            self.connected.set()
            self._registered = True
        if self._ends >= 2 and not self._registered:
            return  # it dies repeatedly: its last lines are logged with its end
        if self.stopping:
            level = min(level, logging.DEBUG)
        write = {logging.DEBUG: log.debug, logging.INFO: log.info, logging.WARNING: log.warning}
        self._logger.log(write.get(level, log.error), f"{self._what} says", **self._who, line=text)
