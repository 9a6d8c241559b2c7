"""The process around a gateway: its Redis, its sockets, its signals, and the way down.

SIGTERM and SIGINT drain, a second one ends at once. SIGHUP reads keys and limits again. With several processes the parent owns
the embedded Redis and the listening socket, starts the others anew when they die, and hands signals on.
"""

import asyncio
import contextlib
import multiprocessing
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import structlog
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from fairlane.gateway.app import App, with_cors
from fairlane.gateway.callers import Callers
from fairlane.gateway.runtime import Gateway, open_gateway
from fairlane.gateway.settings import Settings, SettingsError
from fairlane.queues.embedded import EmbeddedRedis
from fairlane.queues.errors import StoreError

log = structlog.get_logger("fairlane.gateway")

Reload = Callable[[], Settings]


class WorkerProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, cut off when the peer is silent: waiting for its buffer to drain would take for ever."""

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        if hasattr(self.transport, "abort"):
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn with our way down: first drain, while sockets still work, then close them."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would raise them again before Redis has been stopped."""
        yield

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
        http="httptools",
        ws=WorkerProtocol,
        ws_max_size=settings.max_worker_message_bytes,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
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
    on_ready: Callable[[Gateway], None] | None = None,
) -> None:
    """Serve until a signal says stop."""
    loop = asyncio.get_running_loop()
    async with open_gateway(settings, callers, redis_url) as gateway:
        server = make_server(gateway, settings)

        def stop() -> None:
            if server.should_exit:
                server.force_exit = True
            server.should_exit = True

        def reread() -> None:
            if reload is None:
                return
            try:
                new_settings, new_callers = reload()
            except SettingsError as error:
                log.error("the new configuration is not taken over", error=str(error))
                return
            background.add(task := asyncio.ensure_future(gateway.reconfigure(new_settings, new_callers)))
            task.add_done_callback(background.discard)
            log.info("keys and limits read again")

        background: set[asyncio.Future[None]] = set()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, stop)
        loop.add_signal_handler(signal.SIGHUP, reread)
        if on_ready:
            on_ready(gateway)
        await server.serve(sockets=sockets)


def bind(settings: Settings) -> socket.socket:
    """The listening socket. Raises OSError with a sentence."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
    listener.listen(4096)
    listener.set_inheritable(True)
    return listener


def run_loop(main: Any) -> None:
    """Run a coroutine on uvloop where there is one."""
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


__all__ = ["StoreError", "bind", "make_server", "run_loop", "serve", "store", "sys", "multiprocessing", "time"]
