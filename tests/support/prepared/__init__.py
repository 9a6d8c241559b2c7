"""Processes of `fairlane` that need not import it first, and workers of pytest-xdist that need not import the tests.

A gateway that starts takes a second of a processor, most of it for imports, and the tests start hundreds. So each run of the
tests, on however many processes, has one process, the fork server, that imports what the commands need, and nothing else; it
starts no thread and opens nothing. The processes of the tests are forks of it: each runs the module anew as `python -m` does,
with its own arguments, environment, folder and output, and ends as any process, with what an interpreter does at its end.

To import all tests and their libraries takes nine seconds. So the workers of a run are forks, too, of another fork server, which
has collected the tests once. And the SDKs that callers' programs use take one to two seconds each: a third one has imported them.
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
COMMANDS, PROGRAMS, TESTS = "commands", "programs", "tests"
"""What the forks of a fork server run."""
SHARED = {kind: f"TESTS_FORK_SERVER_OF_{kind.upper()}" for kind in (COMMANDS, PROGRAMS)}
"""The variables with the addresses of fork servers, where the process that began the run of the tests has started them."""
START_S = 60.0
HERE = Path(__file__).parent
FORKS = sys.platform.startswith("linux")
"""Whether there is a fork server: elsewhere forks of a process that has imported much are not safe."""


class Prepared:
    """A fork, with what the tests use of `subprocess.Popen`. It does not outlive this object."""

    def __init__(
        self,
        command: Sequence[str],
        output: int,
        environ: Mapping[str, str],
        folder: Path,
        files: int | None = None,
    ) -> None:
        """`command`: the Python that runs this, `-m`, a module, and its arguments. Begins a session of its own.

        `files`: so many it may have open, where that is not what this process may.
        """
        self.returncode: int | None = None
        wanted = json.dumps([list(command[1:]), dict(environ), str(folder), True, files]).encode()
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(fork_server())
        with open(os.devnull, "rb") as nothing:
            descriptors = [nothing.fileno(), output, output]
            socket.send_fds(self._link, [len(wanted).to_bytes(4, "big")], descriptors)
            self._link.sendall(wanted)
            self.pid = self._told(START_S)

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = START_S) -> int:
        """Its exit status; negative is the signal that ended it. Raises TimeoutError."""
        if self.returncode is None:
            self.returncode = self._told(timeout)
            self._link.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _told(self, timeout: float) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise TimeoutError(f"nothing in {timeout} s")
        told = self._link.recv(16)
        assert told, "the fork server has ended"
        return int(told)


def launch(
    command: Sequence[str], output: int, environ: Mapping[str, str], folder: Path, files: int | None = None
) -> "Prepared | subprocess.Popen[bytes]":
    """Start such a process, with `output` for all that it says; where another program runs Python, a real one."""
    if FORKS and command[0] == sys.executable:
        return Prepared(command, output, environ, folder, files)
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
    return subprocess.Popen(
        command, stdout=output, stderr=output, env=environ, cwd=folder, start_new_session=True
    )


def command(*arguments: str, module: str = MODULE) -> list[str]:
    """What to run for `fairlane` with arguments, or for another module: a small program that is there as long as the fork.

    The fork's process id is another one. Signals are handed on, and it does not outlive the small program.
    """
    here_too = ["-P"] if module == MODULE else []
    return [*_python(COMMANDS), *here_too, "-m", module, *arguments]


def program(text: str) -> list[str]:
    """What to run for a caller's program in Python with this text, likewise."""
    return [*_python(PROGRAMS), "-P", "-c", text]


def _python(kind: str) -> list[str]:
    """What to run in place of Python."""
    return [sys.executable, *(("-I", "-S", str(HERE / "standin.py"), fork_server(kind)) if FORKS else ())]


@functools.cache
def folder() -> Path:
    """A folder for PATH, in which `fairlane` is that small program."""
    place = Path(fork_server()).parent / "bin" if FORKS else Path(tempfile.mkdtemp(prefix="fl-"))
    place.mkdir(exist_ok=True)
    made = place / f"{os.getpid()}"
    made.write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    made.chmod(0o755)
    made.rename(place / "fairlane")  # another process of these tests may run it
    return place


def python_of_workers(tests: Sequence[str]) -> str:
    """What starts in place of Python as a worker that runs some of these tests."""
    server = start_fork_server(TESTS, *tests)
    return shlex.join([sys.executable, "-I", "-S", str(HERE / "standin.py"), server])


@functools.cache
def fork_server(kind: str = COMMANDS) -> str:
    """The address of this run's, or else of one that ends with this process. It has imported what it needs."""
    address = os.environ.get(SHARED[kind]) or start_fork_server(kind)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        link.sendall(bytes(4))  # nothing is wanted
        link.recv(1)
    return address


def start_fork_server(kind: str, *tests: str) -> str:
    """Start one: its address. It ends with this process, and imports nothing before somebody wants a fork."""
    address = f"{tempfile.mkdtemp(prefix='fl-')}/s"
    ours, theirs = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-P", str(HERE / "forkserver.py"), address, kind, *tests],
        stdin=ours,
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy starts threads as soon as it is imported
        start_new_session=True,
    )
    os.close(ours)
    assert child.stdout
    with child.stdout as told:
        assert told.readline() == b"ready\n", "the fork server did not start"

    def end() -> None:
        os.close(theirs)
        child.wait(START_S)

    atexit.register(end)
    return address
