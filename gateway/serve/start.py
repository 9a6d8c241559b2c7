"""`fairlane serve`: from settings to a gateway that serves, alone or in several processes, and its exit code."""

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable, Mapping

import structlog

from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.accounts.no_auth import KeyPresence, access_warnings
from fairlane.gateway.accounts.secrets import with_first_start_keys
from fairlane.gateway.accounts.upstreams import UpstreamTokens
from fairlane.gateway.connections.sockets import TooFewFiles, connection_limit, open_files, raise_open_files
from fairlane.gateway.database.database import opened
from fairlane.gateway.database.errors import DatabaseError
from fairlane.gateway.serve.logs import configure_logging
from fairlane.gateway.serve.server import Reload, run_loop, serve, store
from fairlane.gateway.serve.supervisor import Supervisor
from fairlane.gateway.serve.workers import OwnWorker, OwnWorkers, drain_ms_of, loopback_url, own_plan
from fairlane.gateway.settings import Settings, SettingsError
from fairlane.queues.embedded.server import DataDirInUseError, EmbeddedRedisError
from fairlane.queues.errors import StoreRefused, StoreUnavailable

log = structlog.get_logger("fairlane.gateway")

ReadSettings = Callable[[], Settings]


def run(
    settings: Settings,
    reload: ReadSettings | None = None,
    *,
    bound: Callable[[], None] | None = None,
    extra: Mapping[str, OwnWorker] | None = None,
    port_option: str = "--port",
) -> int:
    """Serve until asked to stop. Return the exit code. Print to standard error, in a sentence, why it cannot.

    `reload` reads the settings again, for SIGHUP. `bound` is called once the port is this process's own: clients that connect
    from then on wait until the gateway answers. `extra`: workers that the gateway starts in addition to those that settings
    configure. `port_option`: how a user says another port.
    """
    configure_logging(settings.log_format, settings.log_level)
    try:
        raise_open_files()
        connection_limit(settings.tuning.max_connections, open_files())
        with bind(settings, port_option) as listener:  # before a key is created, which is shown once
            presence = asyncio.run(_prepare_database(settings))
            if reload is not None:  # (what is never read again is the demo, open on purpose)
                for sentence in access_warnings(settings, presence):
                    log.warning(sentence)
            configured, settings = settings, _with_keys(settings, presence)
            if settings.redis_url and settings is not configured:
                log.warning(
                    "keys were made for this gateway alone: configure keys and workers, or create them (fairlane key create), "
                    "to run several on one Redis"
                )
            if bound is not None:
                bound()
            again = None if reload is None else _fresh(reload, configured, presence)
            tokens, environ = UpstreamTokens(), dict(os.environ)  # the supervisor drops a part of it
            plan = own_plan(tokens, environ, settings, extra)
            workers = OwnWorkers(plan, loopback_url(listener), environ, drain_ms_of(settings) / 1000)
            if settings.processes > 1:
                return Supervisor(settings, listener, again, tokens, workers).run()
            run_loop(_serve_alone(settings, listener, again, tokens, workers))
    except (
        OSError,
        TooFewFiles,
        SettingsError,
        StoreRefused,
        StoreUnavailable,
        DatabaseError,
        DataDirInUseError,
        EmbeddedRedisError,
    ) as error:
        print(f"fairlane: {error}", file=sys.stderr)
        return 1
    return 0


async def _prepare_database(settings: Settings) -> KeyPresence:
    """Upgrade the database, once for all processes; return its keys. Raise DatabaseError."""
    async with opened(settings.database_url, settings.data_dir) as database:
        await database.start()
        return await KeyStore(database).presence()


async def _look_again(settings: Settings, before: KeyPresence) -> KeyPresence:
    """Return what the database has now, as far as it is available. That there were keys is never forgotten."""
    try:
        async with opened(settings.database_url, settings.data_dir) as database:
            presence = await KeyStore(database).presence()
    except DatabaseError:
        return before
    return KeyPresence(presence.exist or before.exist, presence.keys or before.keys, presence.tokens)


def _with_keys(settings: Settings, presence: KeyPresence) -> Settings:
    """Return the settings with first keys, if neither they nor the database have any. Raise SettingsError."""
    settings, created = with_first_start_keys(settings, presence)
    for secret in created:
        what = "admin's key" if secret.kind == "key" else "worker token"
        log.warning(f"a new {what} is in a file: read it, then delete the file", file=str(secret.path))
    return settings


def _fresh(reload: ReadSettings, started: Settings, presence: KeyPresence) -> Reload:
    async def read() -> tuple[Settings, bool]:
        nonlocal presence
        presence = await _look_again(started, presence)
        settings = reload()  # behind what takes time: of two at the same time, the later one applies
        return _with_keys(settings, presence), presence.exist

    return read


async def _serve_alone(
    settings: Settings,
    listener: socket.socket,
    reload: Reload | None,
    tokens: UpstreamTokens,
    workers: OwnWorkers,
) -> None:
    async with workers, store(settings) as redis_urls:
        workers.follow(settings)
        await serve(
            settings, redis_urls, sockets=[listener], reload=reload, own_tokens=tokens, own_workers=workers
        )


def bind(settings: Settings, port_option: str) -> socket.socket:
    """Return the listening socket. Raise OSError with a sentence."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # with the protocol named: asyncio sets TCP_NODELAY only then
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        hint = f"; choose another one with {port_option}" if error.errno == errno.EADDRINUSE else ""
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}{hint}") from None
    listener.listen(4096)
    return listener
