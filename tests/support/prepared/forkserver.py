"""The fork server: imports what its forks need, and forks a process for each connection.

`forkserver.py ADDRESS commands`: what the commands of `fairlane` need; `forkserver.py ADDRESS programs`: what callers' programs
do; `forkserver.py ADDRESS tests TESTS…`: all that these tests do. See `__init__.py`.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

gc.disable()  # what is imported stays
PROCESS = "fairlane.gateway.process"
CLI = "fairlane.gateway.cli.main"
MODULES = (
    "fairlane.gateway.process.start",
    "fairlane.gateway.process.demo",
    "fairlane.gateway.cli.database",
    "fairlane.gateway.cli.status",
    "fairlane.gateway.operator.settings_view",
    "uvloop",
    "httptools",
    "asyncpg",
    "aiosqlite",
)
SDKS = ("openai", "anthropic")
"""They are nearly all that it costs to run a program of a caller."""


def prepare(address: str, kind: str, tests: list[str]) -> None:
    """Import what there is to import. It stays as it is now, but for the workers that gateways start: these are forks, too."""
    if kind == "programs":
        for module in SDKS:
            importlib.import_module(module)
    elif kind == "tests":  # what is wrong with one, the forks say that are to run it
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            importlib.import_module("pytest").main(["--collect-only", "--quiet", *tests])
    else:
        commands = importlib.import_module(CLI).COMMANDS
        for module in sorted({*MODULES, *(module for module, _ in commands.values())}):
            importlib.import_module(module)
        standin = (sys.executable, "-I", "-S", str(Path(__file__).with_name("standin.py")), address)
        importlib.import_module(f"{PROCESS}.workers").COMMAND = (*standin, "-P", "-m", CLI, "worker")
    assert len(os.listdir("/proc/self/task")) == 1, "a thread runs: it would be missing in the forks"
    gc.freeze()


def serve(address: str, kind: str, tests: list[str]) -> tuple[list[Any], list[int]] | None:
    """Fork for whoever connects. Returns in each fork, with what is wanted; and None when standard input is closed.

    Not before somebody connects is anything imported.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, tuple[socket.socket, int]] = {}
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        selector.register(listener, selectors.EVENT_READ, "new")
        selector.register(sys.stdin, selectors.EVENT_READ, "end")
        os.write(1, b"ready\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        prepared = False
        while True:
            for key, _ in selector.select():
                if key.data == "end":
                    for pid in running:
                        os.kill(pid, signal.SIGKILL)
                    shutil.rmtree(Path(address).parent, ignore_errors=True)
                    return None
                if key.data == "new":
                    if not prepared:
                        prepare(address, kind, tests)
                        prepared = True
                    link, _ = listener.accept()
                    try:
                        wanted, descriptors = received(link)
                    except (OSError, ValueError):  # nothing is wanted, or who wanted it has ended meanwhile
                        link.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        # an import that failed may keep these: they would close what has their numbers when they are collected
                        for mine in (link, *(other for other, _ in running.values())):
                            mine.detach()
                        return wanted, descriptors
                    for descriptor in descriptors:
                        os.close(descriptor)
                    watched = os.pidfd_open(pid)
                    running[pid] = (link, watched)
                    selector.register(watched, selectors.EVENT_READ, pid)
                    selector.register(link, selectors.EVENT_READ, (pid,))
                    with contextlib.suppress(OSError):
                        link.sendall(b"%-16d" % pid)
                elif isinstance(key.data, tuple):  # whoever wanted it has gone
                    [pid] = key.data
                    if pid in running:
                        selector.unregister(key.fileobj)
                        os.kill(pid, signal.SIGKILL)
                else:
                    link, watched = running.pop(key.data)
                    _, status = os.waitpid(key.data, 0)
                    selector.unregister(watched)
                    os.close(watched)
                    with contextlib.suppress(KeyError):
                        selector.unregister(link)
                    with contextlib.suppress(OSError):
                        link.sendall(b"%-16d" % os.waitstatus_to_exitcode(status))
                    link.close()


def received(link: socket.socket) -> tuple[list[Any], list[int]]:
    """What is wanted, and standard input, output and error.

    Wanted are arguments, environment, folder, whether in a session of its own, and how many files may be open.
    """
    length, descriptors, _, _ = socket.recv_fds(link, 4, 3)
    link.settimeout(10)
    text = b""
    while len(text) < int.from_bytes(length, "big") and (more := link.recv(1 << 20)):
        text += more
    return json.loads(text), descriptors


def become(wanted: list[Any], descriptors: list[int]) -> list[str]:
    """Have nothing of the fork server but its modules. Returns `-m` and a module, or `-c` and code, and arguments."""
    arguments, environ, folder, own_session, files = wanted
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if own_session:
        os.setsid()
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    folders = [Path.cwd()] if arguments[0] != "-P" else []
    folders += filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = map(str, folders)
    while arguments[0] not in ("-m", "-c"):
        arguments = arguments[1:]
    return arguments


def main() -> None:
    address, purpose, *tests = sys.argv[1:]
    task = serve(address, purpose, tests)
    if task is None:
        return
    kind, what, *arguments = become(*task)
    sys.argv[:] = [what if kind == "-m" else kind, *arguments]
    gc.enable()
    status: object = None
    try:
        if kind == "-c":
            exec(what, {"__name__": "__main__"})
        else:
            sys.modules.pop(what, None)
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    if status is None or isinstance(status, int):
        end(status or 0)
    sys.exit(status)


def end(status: int) -> None:
    """Do what an interpreter does at its end, but for taking apart all that was imported: a tenth of a second each time.

    Returns where something cannot be written any more, which the interpreter tells.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    gc.collect()
    with contextlib.suppress(OSError):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    main()
