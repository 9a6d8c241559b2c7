"""Several processes of one gateway on one socket.

The parent owns the embedded Redis, the listening socket and the workers of `upstreams`. It restarts processes that die, and
forwards signals.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from fairlane.gateway.accounts.upstreams import UpstreamTokens
from fairlane.gateway.connections.sockets import raise_open_files
from fairlane.gateway.metrics.siblings import Siblings
from fairlane.gateway.serve.logs import configure_logging
from fairlane.gateway.serve.server import Reload, read_again, run_loop, serve, store
from fairlane.gateway.serve.workers import SHARED, OwnWorkers
from fairlane.gateway.settings import Settings
from fairlane.queues.embedded.child import child_environ
from fairlane.queues.inspect.inspector import ReloadError

ENVIRONMENT = (*SHARED, "AWS_*", "PG*")
"""Patterns of the environment variables that gateway processes get in addition to those of every child: those of all workers, and
credentials of the bucket and of the database."""
log = structlog.get_logger("fairlane.gateway")


@dataclass(eq=False)
class Supervisor:
    """Runs `processes` gateways on one socket. Its main thread owns the embedded Redis."""

    _settings: Settings
    _listener: socket.socket
    _reload: Reload | None
    _tokens: UpstreamTokens
    """They authorize the workers, at each process."""
    _workers: OwnWorkers
    _children: dict[Any, Connection] = field(default_factory=dict, init=False)
    """The processes, each with the pipe for new settings, and for whether it has endpoints."""
    _endpoints: set[Any] = field(default_factory=set, init=False)
    """Processes that have endpoints."""
    _stopping: bool = field(default=False, init=False)

    def run(self) -> int:
        """Supervise until a signal says stop. The environment of this process becomes that of its children."""
        for name in os.environ.keys() - child_environ(os.environ, *ENVIRONMENT):
            del os.environ[name]
        with tempfile.TemporaryDirectory(prefix="fairlane-") as folder:
            asyncio.run(self._supervise(Path(folder)))
        return 0

    async def _supervise(self, folder: Path) -> None:
        loop, stop, hangup = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stop.set)
        loop.add_signal_handler(signal.SIGHUP, hangup.set)
        size = self._settings.processes
        async with self._workers as workers, store(self._settings) as redis_urls:
            workers.follow(self._settings)
            reading = asyncio.create_task(self._read_again(hangup))
            keepers = [
                asyncio.create_task(self._keep(redis_urls, Siblings(folder, index, size)))
                for index in range(size)
            ]
            try:
                await stop.wait()
            finally:
                self._stopping = True
                reading.cancel()
                workers.stay_down()
                for child in self._children:
                    child.terminate()
                await asyncio.wait(keepers, timeout=self._settings.drain_ms / 1000 + 15)
                for child in self._children:
                    child.kill()
                await asyncio.gather(*keepers)
                self._listener.close()  # clients and our workers need not wait for answers

    async def _keep(self, redis_urls: list[str], siblings: Siblings) -> None:
        """Keep one process running; a short-lived one is restarted after longer and longer pauses."""
        spawn, pause = multiprocessing.get_context("spawn"), 0.1
        while not self._stopping:
            theirs, ours = spawn.Pipe()
            child = spawn.Process(
                target=_child_main,
                args=(self._settings, redis_urls, self._listener, theirs, siblings, self._tokens),
                daemon=False,
            )
            child.start()
            theirs.close()
            self._children[child] = ours
            began = time.monotonic()
            while child.is_alive():
                await asyncio.sleep(0.1)
                with contextlib.suppress(OSError, EOFError):  # it has just died
                    while ours.poll():
                        (self._endpoints.add if ours.recv() else self._endpoints.discard)(child)
                        self._workers.endpoints(bool(self._endpoints))
            self._children.pop(child).close()
            self._endpoints.discard(child)
            child.join()
            if not self._stopping:
                log.error("a gateway process died and is started again", exit_code=child.exitcode)
                pause = 0.1 if time.monotonic() - began > 30 else min(pause * 2, 5.0)
                await asyncio.sleep(pause)

    async def _read_again(self, hangup: asyncio.Event) -> None:
        """Read the configuration after each SIGHUP, for the processes that run and those that will."""
        while self._reload is not None:
            await hangup.wait()
            hangup.clear()
            fresh = await read_again(self._reload, self._settings)
            if not isinstance(fresh, ReloadError):
                self._settings = fresh
            for update in self._children.values():
                with contextlib.suppress(
                    OSError
                ):  # it has just died; the next one begins with these settings
                    update.send(fresh)
            if not isinstance(fresh, ReloadError):
                self._workers.follow(fresh)


def _child_main(
    settings: Settings,
    redis_urls: list[str],
    listener: socket.socket,
    updates: Connection,
    siblings: Siblings,
    own_tokens: UpstreamTokens,
) -> None:
    configure_logging(settings.log_format, settings.log_level)
    raise_open_files()
    parent = multiprocessing.parent_process()
    assert parent is not None
    run_loop(
        serve(
            settings,
            redis_urls,
            sockets=[listener],
            updates=updates,
            parent=parent.sentinel,
            siblings=siblings,
            own_tokens=own_tokens,
        )
    )
