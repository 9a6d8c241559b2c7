"""The process around a gateway: its Redis, its sockets, its signals, and the way down.

SIGTERM and SIGINT drain, a second one ends at once. SIGHUP reads keys and limits again. With several processes the parent owns
the embedded Redis and the listening socket, starts the others anew when they die, and hands signals on.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
import uvicorn

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.secrets import with_first_start_keys
from fairlane.gateway.app import App, with_cors
from fairlane.gateway.connections.http import HttpConnection
from fairlane.gateway.connections.sockets import (
    TooFewFiles,
    connection_limits,
    notice_vanished_peers,
    open_files,
    raise_open_files,
)
from fairlane.gateway.connections.workers import WorkerProtocol
from fairlane.gateway.metrics.family import Family
from fairlane.gateway.process.logs import configure_logging
from fairlane.gateway.process.memory import give_back_peaks
from fairlane.gateway.runtime import Gateway, open_gateway
from fairlane.gateway.settings import Settings, SettingsError
from fairlane.queues.embedded.server import DataDirInUseError, EmbeddedRedis, EmbeddedRedisError
from fairlane.queues.errors import StoreRefused, StoreUnavailable

log = structlog.get_logger("fairlane.gateway")

Reload = Callable[[], Settings]
Fresh = Callable[[], tuple[Settings, Callers]]


class Server(uvicorn.Server):
    """uvicorn with our way down: first drain, while sockets still work, then close them."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        gateway.connections.open = self.server_state.connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again before Redis has been stopped."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            notice_vanished_peers(listener)
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.force_exit:
            drain = asyncio.create_task(self._gateway.drain())
            while not drain.done() and not self.force_exit:
                await asyncio.wait({drain}, timeout=0.1)
            drain.cancel()
        await super().shutdown(sockets=sockets)


def make_server(gateway: Gateway, settings: Settings) -> Server:
    """A server for a gateway, not yet serving."""
    config = uvicorn.Config(
        with_cors(App(gateway), settings.cors_origins),
        host=settings.host,
        port=settings.port,
        http=functools.partial(HttpConnection, gateway.connections),  # type: ignore[arg-type]
        ws=WorkerProtocol,
        ws_max_size=settings.max_worker_message_bytes,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        headers=[("x-content-type-options", "nosniff")],
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        backlog=4096,
    )
    return Server(config, gateway)


@contextlib.asynccontextmanager
async def store(settings: Settings) -> AsyncIterator[str]:
    """The URL of the Redis to use; without one configured, of a private server that lives as long as this block."""
    if settings.redis_url:
        yield settings.redis_url
        return
    async with EmbeddedRedis(settings.data_dir) as embedded:
        yield embedded.url


async def serve(
    settings: Settings,
    callers: Callers,
    redis_url: str,
    *,
    sockets: list[socket.socket] | None = None,
    reload: Callable[[], tuple[Settings, Callers]] | None = None,
    updates: Connection | None = None,
    parent: int | None = None,
    family: Family | None = None,
) -> None:
    """Serve until a signal says stop, or at once when `parent` (a sentinel) says that the supervisor is gone.

    New settings come from `reload` on SIGHUP, or through `updates` from the supervisor, which has read them.
    """
    loop = asyncio.get_running_loop()
    async with open_gateway(settings, callers, redis_url, family) as gateway:
        server = make_server(gateway, settings)

        def stop() -> None:
            if server.should_exit:
                server.force_exit = True
            server.should_exit = True

        def reread() -> None:
            if reload is not None and (fresh := read_again(reload, gateway.callers)):
                take_over(*fresh)

        def updated() -> None:
            assert updates is not None
            take_over(*updates.recv())

        def take_over(new_settings: Settings, new_callers: Callers) -> None:
            background.add(task := asyncio.ensure_future(gateway.reconfigure(new_settings, new_callers)))
            task.add_done_callback(background.discard)

        def orphaned() -> None:
            assert parent is not None
            loop.remove_reader(parent)
            server.should_exit = server.force_exit = True

        background: set[asyncio.Future[None]] = set()
        if parent is not None:
            loop.add_reader(parent, orphaned)
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stop)
        loop.add_signal_handler(signal.SIGHUP, reread)
        if updates is not None:
            loop.add_reader(updates.fileno(), updated)
        settle_memory()
        await server.serve(sockets=sockets)


def read_again(
    reload: Callable[[], tuple[Settings, Callers]], before: Callers
) -> tuple[Settings, Callers] | None:
    """The configuration as it is now; None, with a line in the log, when it is not to be taken over."""
    try:
        settings, callers = reload()
    except (SettingsError, OSError) as error:
        log.error("the new configuration is not taken over", error=str(error))
        return None
    if (callers.open and not before.open) or (callers.workers_open and not before.workers_open):
        log.error("the new configuration has no keys and would open the gateway: it is not taken over")
        return None
    return settings, callers


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises OSError with a sentence."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # with the protocol named: asyncio sets TCP_NODELAY only then
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        hint = "; choose another one with --port" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}{hint}") from None
    listener.listen(4096)
    listener.set_inheritable(True)
    return listener


def settle_memory() -> None:
    """Leave what start-up made out of garbage collection, and collect seldom: tasks leave few cycles behind, and each collection
    holds up every stream. What a peak took is given back."""
    give_back_peaks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run_loop(main: Any) -> None:
    """Run a coroutine on uvloop where there is one."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def run(
    settings: Settings,
    reload: Reload | None = None,
    *,
    beside: contextlib.AbstractContextManager[None] | None = None,
) -> int:
    """Serve until told to stop; the exit code. Says on standard error, in a sentence, why it cannot.

    `reload` reads the settings again, for SIGHUP. `beside` is entered once the port is this process's own (whoever connects
    from then on waits until the gateway answers), and left when it has stopped.
    """
    configure_logging(settings.log_format, settings.log_level)
    try:
        configured, settings = settings, _with_keys(settings)
        if settings.redis_url and settings is not configured:
            log.warning(
                "keys were made for this gateway alone: configure keys and workers to run several on one Redis"
            )
        raise_open_files()
        connection_limits(settings.max_connections, settings.max_connections_per_address, open_files())
        listener = bind(settings)
        with listener, beside or contextlib.nullcontext():
            callers = Callers(settings)
            if settings.processes > 1:
                return Supervisor(settings, callers, listener, _fresh(reload)).run()
            run_loop(_serve_alone(settings, callers, listener, _fresh(reload)))
    except (
        OSError,
        TooFewFiles,
        SettingsError,
        StoreRefused,
        StoreUnavailable,
        DataDirInUseError,
        EmbeddedRedisError,
    ) as error:
        print(f"fairlane: {error}", file=sys.stderr)
        return 1
    return 0


def _with_keys(settings: Settings) -> Settings:
    """The settings with the keys that they lack; those made now are shown. Raises SettingsError."""
    settings, created = with_first_start_keys(settings)
    for secret in created:
        what = "key" if secret.kind == "key" else "worker token"
        print(f"fairlane: new {what}, shown this once: {secret.secret}", flush=True)
    return settings


def _fresh(reload: Reload | None) -> Fresh | None:
    if reload is None:
        return None

    def fresh() -> tuple[Settings, Callers]:
        settings = _with_keys(reload())
        return settings, Callers(settings)

    return fresh


async def _serve_alone(
    settings: Settings, callers: Callers, listener: socket.socket, reload: Fresh | None
) -> None:
    async with store(settings) as redis_url:
        await serve(settings, callers, redis_url, sockets=[listener], reload=reload)


# ---- several processes ----------


class Supervisor:
    """Runs `processes` gateways on one socket. Its main thread owns the embedded Redis, as long as any of them lives."""

    def __init__(
        self, settings: Settings, callers: Callers, listener: socket.socket, reload: Fresh | None
    ) -> None:
        self._settings = settings
        self._callers = callers
        self._listener = listener
        self._reload = reload
        self._updates: list[Connection] = []
        self._context = multiprocessing.get_context("spawn")
        self._children: list[Any] = []
        self._stopping = False

    def run(self) -> int:
        """Supervise until a signal says stop."""
        asyncio.run(self._supervise())
        return 0

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reread)
        with tempfile.TemporaryDirectory(prefix="fairlane-") as folder:
            await self._supervise_in(Path(folder), stop)

    async def _supervise_in(self, folder: Path, stop: asyncio.Event) -> None:
        size = self._settings.processes
        async with store(self._settings) as redis_url:
            keepers = [
                asyncio.create_task(self._keep(redis_url, Family(folder, index, size)))
                for index in range(size)
            ]
            try:
                await stop.wait()
            finally:
                self._stopping = True
                self._signal(signal.SIGTERM)
                patience = self._settings.drain_ms / 1000 + 15
                await asyncio.wait(keepers, timeout=patience)
                for child in self._children:
                    if child.is_alive():
                        child.kill()
                await asyncio.gather(*keepers)

    async def _keep(self, redis_url: str, family: Family) -> None:
        """Keep one process running; a short-lived one is started again later and later."""
        pause = 0.1
        while not self._stopping:
            theirs, ours = self._context.Pipe(duplex=False)
            child = self._context.Process(
                target=_child_main,
                args=(self._settings, self._callers, redis_url, self._listener, theirs, family),
                daemon=False,
            )
            child.start()
            theirs.close()
            self._children.append(child)
            self._updates.append(ours)
            began = time.monotonic()
            while child.is_alive():
                await asyncio.sleep(0.1)
            self._children.remove(child)
            self._updates.remove(ours)
            ours.close()
            child.join()
            if not self._stopping:
                log.error("a gateway process died and is started again", exit_code=child.exitcode)
                pause = 0.1 if time.monotonic() - began > 30 else min(pause * 2, 5.0)
                await asyncio.sleep(pause)

    def _reread(self) -> None:
        """SIGHUP: read the configuration once, for the processes that run and those that will."""
        if self._reload is None or not (fresh := read_again(self._reload, self._callers)):
            return
        self._settings, self._callers = fresh
        for update in self._updates:
            with contextlib.suppress(OSError):  # it has just died; the next one begins with these settings
                update.send(fresh)

    def _signal(self, sig: int) -> None:
        for child in self._children:
            if child.pid is not None and child.is_alive():
                os.kill(child.pid, sig)


def _child_main(
    settings: Settings,
    callers: Callers,
    redis_url: str,
    listener: socket.socket,
    updates: Connection,
    family: Family,
) -> None:
    configure_logging(settings.log_format, settings.log_level)
    raise_open_files()
    parent = multiprocessing.parent_process()
    assert parent is not None
    run_loop(
        serve(
            settings,
            callers,
            redis_url,
            sockets=[listener],
            updates=updates,
            parent=parent.sentinel,
            family=family,
        )
    )
