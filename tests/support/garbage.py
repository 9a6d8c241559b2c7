"""What a stretch of work leaves for the collector of cycles, and plain sockets that leave nothing themselves."""

import asyncio
import gc
import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from types import FunctionType
from urllib.parse import urlsplit

from tests.support.serving import DEADLINE_S


async def garbage_of(work: Callable[[], Awaitable[None]]) -> Counter[str]:
    """The types of the objects that only the collector could free after `work`, functions with their names, and how many there
    are of each. Of those that were there before, none counts: on a busy machine a gateway of an earlier test may become garbage
    only now. They are frozen until `thaw`: to look through all of them takes the collector 0.3 s."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Counter(_named(found) for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _named(found: object) -> str:
    kind = type(found)  # of a proxy, too
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} {getattr(found, '__qualname__', '')}" if kind is FunctionType else name


def thaw() -> None:
    """Collect what has become garbage since it was frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


async def growth(work: Callable[[int], Awaitable[None]], few: int, many: int) -> Counter[str]:
    """What `many` pieces of work leave more than `few`, by type. What the very first ones leave is not counted."""
    await work(few)
    after_few = await garbage_of(lambda: work(few))
    after_many = await garbage_of(lambda: work(many))
    return after_many - after_few


class PlainCaller:
    """One keep-alive connection to a gateway; a call under way at a time. Bodies are read whole, also those of streams."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (str(parts.hostname), parts.port)
        self._socket: socket.socket | None = None

    async def call(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, bytes]:
        """Status and body of an answer."""
        async with asyncio.timeout(DEADLINE_S):
            await self.send(method, path, body, **headers)
            return await self._answer()

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> None:
        """Send a request and read nothing."""
        if self._socket is None:
            self._socket = socket.socket()
            self._socket.setblocking(False)
            await asyncio.get_running_loop().sock_connect(self._socket, self._address)
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(data)}"]
        lines += ["Content-Type: application/json"] if data else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await asyncio.get_running_loop().sock_sendall(
            self._socket, "\r\n".join([*lines, "", ""]).encode() + data
        )

    async def _answer(self) -> tuple[int, bytes]:
        text = b""
        while b"\r\n\r\n" not in text:
            text += await self.receive()
        head, _, body = text.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if b"content-length" in fields:
            while len(body) < int(fields[b"content-length"]):
                body += await self.receive()
        else:
            while not body.endswith(b"0\r\n\r\n"):
                body += await self.receive()
        return int(head[9:12]), body

    async def receive(self) -> bytes:
        """The next bytes."""
        assert self._socket is not None
        data = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 16)
        assert data, "the gateway closed the connection"
        return data

    def close(self) -> None:
        """Leave."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
