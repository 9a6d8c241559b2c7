"""The fork server: imports what its forks need, and forks a process for each connection.

`forkserver.py ADDRESS`: what the commands of `fairlane` need; `forkserver.py ADDRESS TESTS…`: these tests. See `__init__.py`.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

gc.disable()  # imported modules stay
SERVE = "fairlane.gateway.serve"
CLI = "fairlane.gateway.cli.main"
MODULES = (
    *(f"{SERVE}.start", f"{SERVE}.demo", "fairlane.workers.cli"),
    *(f"fairlane.gateway.cli.{name}" for name in ("commands", "database", "serve", "status")),
    *("fairlane.gateway.admin.settings_view", "uvloop", "httptools", "asyncpg", "aiosqlite"),
)


def prepare(address: str, tests: list[str]) -> None:
    """Import everything. The workers that gateways start are forks, too."""
    if tests:  # the forks that run them report errors in them
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            importlib.import_module("pytest").main(["--collect-only", "--quiet", *tests])
    else:
        for module in MODULES:
            importlib.import_module(module)
        standin = (sys.executable, "-I", "-S", str(Path(__file__).with_name("standin.py")), address)
        importlib.import_module(f"{SERVE}.workers").COMMAND = (*standin, "-P", "-m", CLI, "worker")
    assert len(os.listdir("/proc/self/task")) == 1, "a thread runs: the forks would lack it"
    gc.freeze()


def serve(address: str, tests: list[str]) -> tuple[list[Any], list[int]] | None:
    """Fork for each connection. Return the request in each fork, and None when standard input is closed.

    The first connection starts the imports.
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
                        prepare(address, tests)
                        prepared = True
                    link, _ = listener.accept()
                    try:
                        request, descriptors = received(link)
                    except (OSError, ValueError):  # no request, or its client has ended
                        link.close()
                        continue
                    pid = os.fork()
                    if pid == 0:
                        for mine in (link, *(other for other, _ in running.values())):
                            mine.detach()  # garbage collection must not close other descriptors of the same number
                        return request, descriptors
                    for descriptor in descriptors:
                        os.close(descriptor)
                    watched = os.pidfd_open(pid)
                    running[pid] = (link, watched)
                    selector.register(watched, selectors.EVENT_READ, pid)
                    selector.register(link, selectors.EVENT_READ, (pid,))
                    with contextlib.suppress(OSError):
                        link.sendall(b"%-16d" % pid)
                elif isinstance(key.data, tuple):  # the client has gone
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
    """Return arguments, environment, folder and whether in a session of its own; and standard input, output and error."""
    length, descriptors, _, _ = socket.recv_fds(link, 4, 3)
    link.settimeout(10)
    text = b""
    while len(text) < int.from_bytes(length, "big") and (more := link.recv(1 << 20)):
        text += more
    return json.loads(text), descriptors


def become(request: list[Any], descriptors: list[int]) -> list[str]:
    """Keep only the modules of the fork server. Return a module (or "-c" and code, for xdist) and arguments."""
    arguments, environ, folder, own_session = request
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if own_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    folders = [Path.cwd()] if arguments[0] != "-P" else []
    folders += filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = map(str, folders)
    while arguments[0] not in ("-m", "-c"):
        arguments = arguments[1:]
    return arguments[1:] if arguments[0] == "-m" else arguments


def main() -> None:
    address, *tests = sys.argv[1:]
    task = serve(address, tests)
    if task is None:
        return
    what, *arguments = become(*task)
    sys.argv[:] = [what, *arguments]
    gc.enable()
    status: object = None
    try:
        if what == "-c":
            exec(sys.argv.pop(1), {"__name__": "__main__"})
        else:
            sys.modules.pop(what, None)
            runpy.run_module(what, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    if status is None or isinstance(status, int):
        end(status or 0)
    sys.exit(status)


def end(status: int) -> None:
    """End as an interpreter does, without freeing all modules: a tenth of a second each time.

    Return where output cannot be written any more; the interpreter reports that.
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
