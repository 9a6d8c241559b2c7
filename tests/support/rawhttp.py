"""A caller that speaks HTTP byte by byte, with blocking sockets: run it beside a gateway's loop by `asyncio.to_thread`."""

import socket
import time
from collections.abc import Mapping
from typing import Self

PATIENCE_S = 15.0


def request(
    method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """A request's bytes; a body is JSON."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


HEALTH = request("GET", "/livez")
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


class Caller:
    """One connection."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        """`url` as a gateway's. `receive_buffer`: bytes that the system takes for a caller who does not read."""
        self._socket = socket.socket()
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.settimeout(PATIENCE_S)
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket.connect((host, int(port)))
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def half_close(self) -> None:
        """Say that nothing more comes."""
        self._socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> bool:
        """False when the gateway has broken the connection off."""
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return False
        return True

    def some(self, size: int = 65_536) -> bytes:
        """What comes next, at most `size`; empty at the end of the connection."""
        try:
            return self._socket.recv(size)
        except ConnectionError:
            return b""

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        parts = [self._rest]
        self._rest = b""
        while part := self.some():
            parts.append(part)
        return b"".join(parts)

    def until(self, mark: bytes) -> bytes:
        """Everything up to and with `mark`. EOFError when the connection ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while mark not in self._rest:
            if time.monotonic() > deadline:
                raise TimeoutError(self._rest)
            part = self.some()
            if not part:
                raise EOFError(self._rest)
            self._rest += part
        found, _, self._rest = self._rest.partition(mark)
        return found + mark

    def answer(self) -> tuple[int, bytes, bytes]:
        """The next answer that has a content-length: status, head, body."""
        head = self.until(b"\r\n\r\n")
        (size,) = (
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        while len(self._rest) < size:
            part = self.some()
            if not part:
                raise EOFError(head)
            self._rest += part
        body, self._rest = self._rest[:size], self._rest[size:]
        return int(head.split(b" ", 2)[1]), head, body

    def ask(self, data: bytes) -> tuple[int, bytes, bytes]:
        """Send a request and read its answer."""
        self.send(data)
        return self.answer()

    def open(self) -> bool:
        """Whether the gateway has not closed the connection; drops what it has sent."""
        self._socket.setblocking(False)
        try:
            while self._socket.recv(65_536):
                pass
            return False
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        finally:
            self._socket.settimeout(PATIENCE_S)
