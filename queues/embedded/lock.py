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


class DataLock:
    """The held lock. `left` is what the last holder noted in it, {} for a new directory."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.left = _read(fd)
        self.note()

    @classmethod
    async def acquire(cls, data_dir: Path, timeout_s: float) -> "DataLock":
        """Lock `data_dir`, which must exist, and note this process in it.

        Waits up to `timeout_s` for the server of a gateway that has ended, and only a second for a gateway
        that lives. Raises DataDirInUseError.
        """
        fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return cls(fd)
                noted = _read(fd)
                alive = _is_alive(noted.get("gateway"))
                if loop.time() - started >= (min(_ALIVE_GRACE_S, timeout_s) if alive else timeout_s):
                    raise DataDirInUseError(_in_use(data_dir, noted, alive))
                await asyncio.sleep(_POLL_S)
        except BaseException:
            os.close(fd)
            raise

    def note(self, **facts: Any) -> None:
        """Replace what the file says about the holder: the process id of its `server`, and its `run_dir`."""
        text = json.dumps({"gateway": os.getpid(), **facts}).encode()
        os.pwrite(self.fd, text.ljust(os.fstat(self.fd).st_size), 0)  # one write: a reader finds it whole

    def release(self) -> None:
        """Give the lock back; it stays taken while a process that inherited it lives. May be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _in_use(data_dir: Path, noted: dict[str, Any], alive: bool) -> str:
    if alive or "server" not in noted:
        gateway = f"another gateway (process {noted.get('gateway', 'unknown')})"
        return f"the data directory {data_dir} is in use by {gateway}: stop it or choose another --data-dir"
    return (
        f"the data directory {data_dir} is still in use by the Redis server (process {noted['server']}) of a "
        f"gateway that has ended: end that server or choose another --data-dir"
    )


def _read(fd: int) -> dict[str, Any]:
    noted: Any = None
    with contextlib.suppress(ValueError):
        noted = json.loads(os.pread(fd, 4096, 0))
    return noted if isinstance(noted, dict) else {}


def _is_alive(pid: Any) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, TypeError):
        return False
    except PermissionError:
        return True
    return True
