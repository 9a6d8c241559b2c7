"""The target, as a process of its own: answers every request after a while, and notes when it came and for whom.

It notes the time at which the system had the request (`SO_TIMESTAMPNS`), not that at which this process came to read it: on a
busy machine that is later, and would say nothing of who sent it. `python -m tests.windows.target ANSWER_MS` prints its port; what
came it tells on `GET /seen`: a list of [monotonic time in us, user].
"""

import contextlib
import heapq
import json
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator

SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_USER = re.compile(rb"(?i)\r\nx-user: ?([^\r]*)\r\n")
_STAMP = struct.Struct("@qq")


class Target:
    """See the module. One thread; each connection has one request at a time under way."""

    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._listener.setsockopt(
            socket.SOL_SOCKET, SO_TIMESTAMPNS, 1
        )  # connections have it of it, from their first byte on
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._due: list[tuple[float, int, socket.socket]] = []
        self._number = 0
        self._seen: list[tuple[int, str]] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def run(self) -> None:
        """Serve until the process is ended."""
        while True:
            wait = max(self._due[0][0] - time.monotonic(), 0) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)
            self._answer()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        """Requests are so small that each comes in one piece."""
        try:
            data, notes, _, _ = connection.recvmsg(1 << 16, 256)
        except OSError:
            data, notes = b"", []
        if not data:
            self._selector.unregister(connection)
            connection.close()
        elif data.startswith(b"GET /seen "):
            self._send(connection, json.dumps(self._seen).encode())
        else:
            user = _USER.search(data)
            assert user is not None, data
            self._seen.append((_came_at(notes), user[1].decode()))
            self._number += 1
            heapq.heappush(self._due, (time.monotonic() + self._answer_s, self._number, connection))

    def _answer(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            self._send(heapq.heappop(self._due)[2], b"done")

    @staticmethod
    def _send(connection: socket.socket, body: bytes) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone: it is noted all the same
            connection.setblocking(True)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            connection.setblocking(False)


def _came_at(notes: list[tuple[int, int, bytes]]) -> int:
    """When the system had what was read, in us of the monotonic clock."""
    (seconds, nanoseconds) = next(_stamps(notes))
    ago_ns = time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)
    return (time.monotonic_ns() - ago_ns) // 1000


def _stamps(notes: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, int]]:
    for level, kind, data in notes:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
            yield _STAMP.unpack(data[: _STAMP.size])


if __name__ == "__main__":
    target = Target(float(sys.argv[1]) / 1000)
    print(target.port, flush=True)
    target.run()
