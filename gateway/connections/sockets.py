"""What connections take of the operating system: open files, and its word when a peer has vanished."""

import contextlib
import resource
import socket
from typing import Any

OWN_FILES = 64
"""Open files that the process needs in addition to connections: the store, the loop, logs, pages, sockets about to be closed."""
DEFAULT_MAX_CONNECTIONS = 50_000
"""Connections of a process that sets no `max_connections`, however many files it may open: each costs some kilobytes."""

SILENT_S = 30
PROBES = 3
PROBE_S = 10
VANISHED_S = SILENT_S + PROBES * PROBE_S
"""A peer whose system does not answer for this long is gone, whether or not data is being sent to it."""

_ENOUGH_FILES = 1 << 20


class TooFewFiles(Exception):
    """The process may not open enough files; the message explains what the operator can do."""


def raise_open_files() -> None:
    """Raise the process's limit of open files to its maximum. If the system refuses, the limit stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """How many files the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH_FILES if soft == resource.RLIM_INFINITY else soft


def connection_limit(most: int | None, files: int) -> int:
    """Return the maximum number of connections of a process that may open `files` files; `most`: as configured.

    Raise TooFewFiles.
    """
    room = files - OWN_FILES
    if room < 1:
        raise TooFewFiles(f"the limit of open files is {files}: raise it to 1024 or more (ulimit -n)")
    if most is not None and most > room:
        raise TooFewFiles(
            f"max_connections is {most}, but the process may open {files} files and needs {OWN_FILES} for itself: "
            f"raise the limit of open files (ulimit -n) or set max_connections to {room} at most"
        )
    return most or min(room, DEFAULT_MAX_CONNECTIONS)


def notice_vanished_peers(listener: socket.socket) -> None:
    """End connections of a listening TCP socket when their peer's system no longer answers; they inherit the option."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PROBES),
        ("TCP_USER_TIMEOUT", VANISHED_S * 1000),
    ):
        if hasattr(socket, name):  # not on every platform
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def address_of(name: Any) -> tuple[str, int] | None:
    """Return host and port of a socket's name; None if it has none."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None
