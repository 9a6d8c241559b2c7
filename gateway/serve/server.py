"""Serves a gateway in this process: its Redis, its sockets, its signals, and its shutdown.

SIGTERM and SIGINT drain, a second one ends immediately. SIGHUP reads keys and limits again.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from multiprocessing.connection import Connection
from typing import Any

import structlog
import uvicorn

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.upstreams import UpstreamTokens
from fairlane.gateway.app import App, with_cors
from fairlane.gateway.connections.http import HttpConnection
from fairlane.gateway.connections.sockets import notice_vanished_peers
from fairlane.gateway.connections.workers import WorkerProtocol
from fairlane.gateway.features import needed_by_settings
from fairlane.gateway.metrics.siblings import Siblings
from fairlane.gateway.runtime import Gateway, open_gateway
from fairlane.gateway.serve.workers import OwnWorkers
from fairlane.gateway.settings import Settings, SettingsError
from fairlane.queues.clock import now_ms
from fairlane.queues.embedded.server import EmbeddedRedis
from fairlane.queues.inspect.inspector import ReloadError
from fairlane.queues.logs.redaction import MAX_CHARS
from fairlane.queues.loops import cancel_and_wait

log = structlog.get_logger("fairlane.gateway")

M_MMAP_THRESHOLD = -3
"""As in malloc.h."""
MAPPED_BYTES = 128 * 1024
"""The size with which glibc begins."""

Reload = Callable[[], Awaitable[tuple[Settings, bool]]]
"""Reads the configuration again, and whether the database has or had keys, so that a gateway whose configuration has none stays
closed. Raise SettingsError, OSError."""


class Server(uvicorn.Server):
    """uvicorn with our shutdown: first drain, while sockets still work, then close them."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._ending = asyncio.Event()
        self.announces = False
        """Whether it logs its address and what to do next."""
        gateway.connections.open = self.server_state.connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again before Redis has been stopped."""
        yield

    def end(self) -> None:
        """Begin the shutdown, now."""
        self.should_exit = True
        self._ending.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        dates = asyncio.create_task(self._update_date(), name="date")
        try:
            await super().serve(sockets)
        finally:
            await cancel_and_wait(dates)

    async def _update_date(self) -> None:
        """Update the `date` header of answers, during the shutdown, too."""
        while True:
            await self.on_tick(0)
            await asyncio.sleep(1.0)

    async def main_loop(self) -> None:
        """Wait for `end`. (uvicorn's own polls ten times a second.)"""
        await self._ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            notice_vanished_peers(listener)
        await super().startup(sockets=sockets)
        if self.announces and self.started:
            self._announce()

    def _announce(self) -> None:
        settings = self._gateway.current.settings
        host = "localhost" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104 - shown, not bound
        url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
        callers = self._gateway.current.callers
        token = "" if callers.workers_open else ", its token in FAIRLANE_WORKER_TOKEN"
        connect = f"connect a worker{token}: fairlane worker start --provider echo --gateway {url}; then "
        log.info(
            "Fairlane serves",
            url=url,
            callers="anybody on this machine, without a key" if callers.open else "with a key",
            store=("Redis at " if settings.redis_url else "") + self._gateway.store.address,
            **({"upstreams": [*settings.upstreams]} if settings.upstreams else {}),
            next=f"{'' if settings.upstreams else connect}open {url}",
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.force_exit:
            drain = asyncio.create_task(self._gateway.drain())
            while not drain.done() and not self.force_exit:
                await asyncio.wait({drain}, timeout=0.1)
            drain.cancel()
        await super().shutdown(sockets=sockets)


def make_server(gateway: Gateway, settings: Settings) -> Server:
    """Return a server for a gateway, not yet serving."""
    config = uvicorn.Config(
        with_cors(App(gateway, frozenset(settings.disabled_features)), settings.cors_origins),
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
async def store(settings: Settings) -> AsyncIterator[list[str]]:
    """Yield the URL of each pool; without configured ones, of private servers for the time of this block."""
    if settings.redis_url:
        yield settings.redis_urls
        return
    async with contextlib.AsyncExitStack() as stack:
        folders = [settings.data_dir, *(settings.data_dir / name for name in settings.pools[1:])]
        servers = [await stack.enter_async_context(EmbeddedRedis(folder)) for folder in folders]
        yield [server.url for server in servers]


async def serve(
    settings: Settings,
    redis_urls: list[str],
    *,
    sockets: list[socket.socket] | None = None,
    reload: Reload | None = None,
    updates: Connection | None = None,
    parent: int | None = None,
    siblings: Siblings | None = None,
    own_tokens: UpstreamTokens | None = None,
    own_workers: OwnWorkers | None = None,
) -> None:
    """Serve until a signal says stop, or immediately when `parent` (a sentinel) says that the supervisor is gone.

    New settings come from `reload` on SIGHUP, or through `updates` from the supervisor, which has read them. Workers of our own
    are let in with `own_tokens`; `own_workers` runs them, where that is not the supervisor's to do.
    """
    loop = asyncio.get_running_loop()
    async with open_gateway(settings, redis_urls, siblings, own_tokens) as gateway:
        server = make_server(gateway, settings)
        server.announces = siblings is None or siblings.index == 0
        background: set[asyncio.Future[None]] = set()

        def stop() -> None:
            server.force_exit = server.should_exit
            server.end()
            if own_workers is not None:
                own_workers.stay_down()

        async def reread() -> None:
            if reload is not None:
                await take_over(await read_again(reload, gateway.current.settings))

        async def take_over(fresh: Settings | ReloadError) -> None:
            if isinstance(fresh, ReloadError):
                gateway.current.reload_error = fresh
                return
            if own_workers is not None:
                own_workers.follow(fresh)  # whose new ones come later than the next line, which lets them in
            await gateway.reconfigure(fresh)

        def begin(work: Coroutine[Any, Any, None]) -> None:
            background.add(task := asyncio.ensure_future(work))
            task.add_done_callback(background.discard)

        def orphaned(parent: int) -> None:
            loop.remove_reader(parent)
            server.force_exit = True
            server.end()

        def endpoints_are(exist: bool) -> None:
            if own_workers is not None:
                own_workers.endpoints(exist)
            elif updates is not None:
                with contextlib.suppress(OSError):  # the supervisor is gone
                    updates.send(exist)

        gateway.on_endpoints(endpoints_are)
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: begin(reread()))
        if parent is not None:
            loop.add_reader(parent, orphaned, parent)
        if updates is not None:
            loop.add_reader(updates.fileno(), lambda: begin(take_over(updates.recv())))
        settle_memory()
        await server.serve(sockets=sockets)


async def read_again(reload: Reload, before: Settings) -> Settings | ReloadError:
    """Return the configuration as it is now, or why it is invalid, which is logged, too."""
    try:
        settings, exist = await reload()
    except (SettingsError, OSError) as error:
        why = str(error)
        log.error("the new configuration was rejected", error=why)
    else:
        had, has = Callers(before), Callers(settings)
        needed = [sentence for _, sentence in needed_by_settings(settings, before.disabled_features)]
        opens = (has.open and not had.open) or (has.workers_open and not had.workers_open)
        if not needed and (not opens or exist):
            return settings
        why = "the new configuration has no keys and would open the gateway"
        if needed:
            why = f"the new configuration needs a feature that is disabled until a restart: {needed[0]}"
        log.error(f"{why}: it is not taken over")
    return ReloadError(now_ms(), why[:MAX_CHARS])


def run_loop(main: Any) -> None:
    """Run a coroutine, on uvloop if it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def settle_memory() -> None:
    """Exclude the objects of the start from garbage collection, and collect rarely: tasks leave few cycles, and each collection
    delays all streams. Map large blocks: glibc would soon put them on the heap, where freed ones stay with the process."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
