"""A child process that does not outlive this one, even when this one is killed with SIGKILL.

The child is started through `launcher.py`, which arranges its end and then becomes the command:

* `prctl` (Linux): the kernel sends the child SIGTERM when the *thread* that started it ends. So this is used
  only from the main thread, whose end is the end of the process.
* `watch` (elsewhere): a watcher process next to the child reads a pipe that only this process can write to.
  The pipe ends with this process, and the watcher then sends the child SIGTERM.

The child has a session of its own: Ctrl-C at a terminal reaches this process alone, which ends the child
when it is done with it. It gets listed environment variables only, and no descriptor but those that are passed.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Literal

Guard = Literal["prctl", "watch"]

_LAUNCHER = Path(__file__).with_name("launcher.py")
_EVERY_CHILD = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TZ", "LANG", "LC_*", "LD_LIBRARY_PATH", "SSL_CERT_*"),
    *("PYTHONPATH", "PYTHONUTF8", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
)
"""The environment variables that every child gets, as patterns. None holds a secret."""


def child_environ(environ: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return the part of an environment that a child gets. `more`: patterns of names that it needs in addition."""
    names = (*_EVERY_CHILD, *more)
    return {name: value for name, value in environ.items() if any(fnmatchcase(name, each) for each in names)}


class ChildProcess:
    """A running child process. The owner must `stop` it, or `kill` it where nothing can be awaited."""

    def __init__(
        self,
        argv: Iterable[str],
        *,
        output: IO[bytes] | int,
        dialogue: int | None = None,
        keep_fds: Iterable[int] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Start `argv` (its first word is a path) with stdout and stderr to `output`.

        `dialogue` is the descriptor of its stdin and stdout, if given. `keep_fds` are other descriptors that the
        child inherits. `env` None is the part of this process's that every child gets. Files that it makes are its
        user's alone. `guard` None takes what the platform and thread allow. The child may end immediately, with
        status 127 when the command cannot be run.
        """
        mark_read, self._write_end = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 (the caller's command, no shell)
                [
                    *(sys.executable, "-I", "-S", str(_LAUNCHER)),
                    *(guard or _best_guard(), str(os.getpid()), str(mark_read)),
                    *argv,
                ],
                stdin=subprocess.DEVNULL if dialogue is None else dialogue,
                stdout=output if dialogue is None else dialogue,
                stderr=output,
                pass_fds=[mark_read, *keep_fds],
                cwd=cwd,
                env=child_environ(os.environ) if env is None else env,
                start_new_session=True,
                umask=0o077,
            )
        except BaseException:
            os.close(self._write_end)
            raise
        finally:
            os.close(mark_read)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, minus the signal that ended it, or None while it runs."""
        return self._process.poll() if self._process.returncode is None else self._process.returncode

    async def wait(self) -> int:
        """Wait for its end; returns the exit status. May be cancelled and called again.

        A thread of its own waits, because event loops differ in how they learn of a child's end.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()

        def settle(status: int) -> None:
            if not ended.done():
                ended.set_result(status)

        def watch() -> None:
            status = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(settle, status)

        threading.Thread(target=watch, name=f"wait for {self.pid}", daemon=True).start()
        return await ended

    async def stop(self, grace_s: float) -> int:
        """Ask it to end (SIGTERM), kill it after `grace_s` or when cancelled; it is gone on return."""
        try:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.wait()
        finally:
            self.kill()
        return self._process.wait()

    def kill(self) -> None:
        """Kill it, if it still runs, and release what it holds here. A second call does nothing."""
        if self._process.returncode is None:
            self._process.kill()
        self._process.wait()
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1


def _best_guard() -> Guard:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return "prctl" if sys.platform == "linux" and in_main_thread else "watch"
