"""One gateway at a time in a data directory.

The lock is a flock on a file in the directory. It belongs to an open descriptor, not to a process: the Redis
server inherits the descriptor, so that a server which outlives its gateway keeps others out until its last
write is on disk. The kernel releases the lock when the last holder ends, however it ends; nothing is ever
stale.
"""

import asyncio
import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

LOCK_FILE = "lock"

_POLL_S = 0.05
_ALIVE_GRACE_S = 1.0
"""A holder that is being killed right now may still look alive for so long."""


class DataDirInUseError(Exception):
    """Another gateway, or what is left of one, uses the directory."""

    def __init__(self, data_dir: Path, gateway: int | None, server: int | None, gateway_alive: bool) -> None:
        self.data_dir, self.gateway, self.server = data_dir, gateway, server
        if gateway_alive or server is None:
            who = f"another gateway (process {gateway})" if gateway else "another gateway"
            message = (
                f"the data directory {data_dir} is in use by {who}: stop it or choose another --data-dir"
            )
        else:
            message = (
                f"the data directory {data_dir} is still in use by the Redis server (process {server}) of a "
                f"gateway that has ended: end that server or choose another --data-dir"
            )
        super().__init__(message)


class DataLock:
    """The held lock. `left` is what the last holder noted in it, {} for a new directory."""

    def __init__(self, fd: int, left: dict[str, Any]) -> None:
        self.fd = fd
        self.left = left

    @classmethod
    async def acquire(cls, data_dir: Path, timeout_s: float) -> "DataLock":
        """Lock `data_dir`, which must exist, and note this process in it.

        Waits up to `timeout_s` for the server of a gateway that has ended, and only a second for a gateway
        that lives. Raises DataDirInUseError.
        """
        path = data_dir / LOCK_FILE
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            loop = asyncio.get_running_loop()
            started = loop.time()
            while not _try_lock(fd):
                noted = _read(fd)
                gateway, server = _pid(noted, "gateway"), _pid(noted, "server")
                alive = gateway is not None and _is_alive(gateway)
                waited = loop.time() - started
                if waited >= (min(_ALIVE_GRACE_S, timeout_s) if alive else timeout_s):
                    raise DataDirInUseError(data_dir, gateway, server, alive)
                await asyncio.sleep(_POLL_S)
        except BaseException:
            os.close(fd)
            raise
        lock = cls(fd, _read(fd))
        lock.note(gateway=os.getpid())
        return lock

    def note(self, **facts: Any) -> None:
        """Replace what the file says about the holder: `gateway` and `server` (process ids), `run_dir`."""
        text = (
            json.dumps(facts).encode().ljust(os.fstat(self.fd).st_size)
        )  # one write: who reads now finds it whole
        os.pwrite(self.fd, text, 0)

    def release(self) -> None:
        """Give the lock back; it stays taken while a process that inherited it lives. May be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(fd: int) -> dict[str, Any]:
    noted: Any = None
    with contextlib.suppress(ValueError):
        noted = json.loads(os.pread(fd, 4096, 0))
    return noted if isinstance(noted, dict) else {}


def _pid(noted: dict[str, Any], who: str) -> int | None:
    pid = noted.get(who)
    return pid if isinstance(pid, int) and pid > 0 else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
