"""Processes of `fairlane` that need not import it first, and workers of pytest-xdist that need not import the tests.

A gateway takes a second of a processor to start, most of it for imports, and the tests start hundreds. So each run of the
tests has one process, the fork server, that imports what the commands need; it starts no thread and opens nothing. Its forks
run a module as `python -m` does, with their own arguments, environment, folder and output. To import all tests takes nine
seconds, so the workers of a run are forks of another fork server, which has collected the tests once.
"""

import atexit
import contextlib
import functools
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MODULE = "fairlane.gateway.cli.main"
SHARED = "TESTS_FORK_SERVER"
"""The variable with the address of the fork server that the first process of a run has started."""
START_S = 60.0
HERE = Path(__file__).parent
FORKS = sys.platform.startswith("linux")
"""Whether there is a fork server: elsewhere a fork of a process that has imported much is not safe."""


class Prepared:
    """A fork, with the part of `subprocess.Popen` that the tests use. It ends with this object."""

    def __init__(self, command: Sequence[str], output: int, environ: Mapping[str, str], folder: Path) -> None:
        """Run `python -m MODULE …` in a session of its own."""
        self.returncode: int | None = None
        request = json.dumps([list(command[1:]), dict(environ), str(folder), True]).encode()
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(fork_server())
        with open(os.devnull, "rb") as nothing:
            descriptors = [nothing.fileno(), output, output]
            socket.send_fds(self._link, [len(request).to_bytes(4, "big")], descriptors)
            self._link.sendall(request)
            self.pid = self._number(START_S)

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = START_S) -> int:
        """Return the exit status; negative is the signal that ended it. Raise TimeoutError."""
        if self.returncode is None:
            self.returncode = self._number(timeout)
            self._link.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _number(self, timeout: float) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise TimeoutError(f"nothing in {timeout} s")
        data = self._link.recv(16)
        assert data, "the fork server has ended"
        return int(data)


def launch(
    command: Sequence[str], output: int, environ: Mapping[str, str], folder: Path, files: int | None = None
) -> "Prepared | subprocess.Popen[bytes]":
    """Start such a process. `files`: the limit of its open files; then it is no fork."""
    if FORKS and command[0] == sys.executable and files is None:
        return Prepared(command, output, environ, folder)
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    return subprocess.Popen(
        command, stdout=output, stderr=output, env=environ, cwd=folder, start_new_session=True
    )


def command(*arguments: str, module: str = MODULE) -> list[str]:
    """Return the command line for `fairlane` with arguments, or for another module: a small program that waits for the fork.

    The fork has another process id, gets the program's signals, and ends with it.
    """
    stand_in = ("-I", "-S", str(HERE / "standin.py"), fork_server()) if FORKS else ()
    return [sys.executable, *stand_in, *(["-P"] if module == MODULE else []), "-m", module, *arguments]


@functools.cache
def folder() -> Path:
    """Return a folder for PATH, in which `fairlane` is that small program."""
    place = Path(tempfile.mkdtemp(prefix="fl-"))
    (place / "fairlane").write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    (place / "fairlane").chmod(0o755)
    return place


def python_of_workers(tests: Sequence[str]) -> str:
    """Return what xdist starts in place of Python as a worker that runs some of these tests."""
    server = start_fork_server(*tests)
    return shlex.join([sys.executable, "-I", "-S", str(HERE / "standin.py"), server])


@functools.cache
def fork_server() -> str:
    """Return the address of the fork server of this run, which has imported the commands."""
    address = os.environ.get(SHARED) or start_fork_server()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        link.sendall(bytes(4))  # no request: only wait for the imports
        link.recv(1)
    return address


def start_fork_server(*tests: str) -> str:
    """Start one, for these tests or for the commands, and return its address. It ends with this process."""
    address = f"{tempfile.mkdtemp(prefix='fl-')}/s"
    ours, theirs = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "forkserver.py"), address, *tests],
        stdin=ours,
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy starts threads when it is imported
        start_new_session=True,
    )
    os.close(ours)
    assert child.stdout
    with child.stdout as output:
        assert output.readline() == b"ready\n", "the fork server did not start"

    def end() -> None:
        os.close(theirs)
        child.wait(START_S)

    atexit.register(end)
    return address
