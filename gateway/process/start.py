"""`fairlane serve`: from settings to a gateway that serves, alone or in several processes, and its exit code."""

import contextlib
import errno
import socket
import sys
from collections.abc import Callable

import structlog

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.accounts.secrets import with_first_start_keys
from fairlane.gateway.connections.sockets import TooFewFiles, connection_limits, open_files, raise_open_files
from fairlane.gateway.process.logs import configure_logging
from fairlane.gateway.process.server import Reload, run_loop, serve, store
from fairlane.gateway.process.supervisor import Supervisor
from fairlane.gateway.settings import Settings, SettingsError
from fairlane.queues.embedded.server import DataDirInUseError, EmbeddedRedisError
from fairlane.queues.errors import StoreRefused, StoreUnavailable

log = structlog.get_logger("fairlane.gateway")

ReadSettings = Callable[[], Settings]


def run(
    settings: Settings,
    reload: ReadSettings | None = None,
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


def _fresh(reload: ReadSettings | None) -> Reload | None:
    if reload is None:
        return None

    def fresh() -> tuple[Settings, Callers]:
        settings = _with_keys(reload())
        return settings, Callers(settings)

    return fresh


async def _serve_alone(
    settings: Settings, callers: Callers, listener: socket.socket, reload: Reload | None
) -> None:
    async with store(settings) as redis_url:
        await serve(settings, callers, redis_url, sockets=[listener], reload=reload)


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
