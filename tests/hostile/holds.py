"""Sockets that are held: each takes a place at the gateway and asks for nothing whole, so the gateway must close it in time."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

from tests.hostile.cast import ROGUE_WORKER, secret

EACH = 4
GET = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = (
    b"POST /api/openai HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAuthorization: Bearer %b\r\n"
    % (secret("mallory").encode())
)
UPGRADE = (
    b"GET /ws%b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer "
    + secret(ROGUE_WORKER).encode()
    + b"\r\n%b\r\n%b"
)
V2 = b"Sec-WebSocket-Protocol: fairlane.worker.v2\r\n"
HEAD_S, WORKER_S, BODY_S, IDLE_S = 15.0, 25.0, 40.0, 90.0
"""By then a gateway has closed what has not sent its head, its `register`, its body, its next request. Its own limits are 10, 5
(and 10 for the closing hand-shake), 30 and 75 s."""

KINDS: dict[str, tuple[tuple[bytes, ...], float]] = {
    "nothing": ((), HEAD_S),
    "half a head": ((b"GET /livez HTTP/1.1\r\nHo",), HEAD_S),
    "a head that never ends": ((b"GET /livez HTTP/1.1\r\n", *[b"X: y\r\n"] * 200), HEAD_S),
    "a body that never comes": ((POST + b"Content-Length: 100\r\n\r\n{",), BODY_S),
    "trailers that never end": (
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", *[b"X: y\r\n"] * 200),
        BODY_S,
    ),
    "an answered request": ((GET,), IDLE_S),
    "an answered request and a byte": ((GET, b"G"), IDLE_S),
    "an answered request and an empty line": ((GET, b"\r\n"), IDLE_S),
    "a hand-shake with a long header": ((UPGRADE % (b"", b"X: " + b"y" * 9000 + b"\r\n", b""),), HEAD_S),
    "a hand-shake with a long path": ((UPGRADE % (b"?" + b"a" * 9000, b"", b""),), HEAD_S),
    "a hand-shake with a body": ((UPGRADE % (b"", b"Content-Length: 50000\r\n", b"{}"),), HEAD_S),
    "a worker that does not register": ((UPGRADE % (b"", V2, b""),), WORKER_S),
}
"""What is sent, with a second between, and how long the gateway may take to close."""


@dataclass
class Hold:
    """One socket."""

    kind: str
    began: float
    ended: float | None = None


class Holds:
    """EACH sockets of every kind."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self.all: list[Hold] = []

    def start(self) -> None:
        self._tasks += [asyncio.create_task(self._hold(kind)) for kind in KINDS for _ in range(EACH)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def too_long(self) -> dict[str, int]:
        """How many of each kind are held longer than they may be."""
        found: dict[str, int] = {}
        for hold in self.all:
            if (hold.ended or time.monotonic()) - hold.began > KINDS[hold.kind][1]:
                found[hold.kind] = found.get(hold.kind, 0) + 1
        return found

    def judged(self) -> int:
        """How many have ended, or had their time."""
        now = time.monotonic()
        return sum(hold.ended is not None or now - hold.began > KINDS[hold.kind][1] for hold in self.all)

    async def _hold(self, kind: str) -> None:
        hold = Hold(kind, time.monotonic())
        self.all.append(hold)
        writes = KINDS[kind][0]
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            sending = asyncio.create_task(self._send(writer, writes))
            try:
                while await reader.read(65_536):
                    pass
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                writer.transport.abort()
        hold.ended = time.monotonic()

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, writes: tuple[bytes, ...]) -> None:
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(1)
