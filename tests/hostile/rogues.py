"""The attacker who is a worker: breaks the protocol every way, with tasks that its own callers submit. A process by itself."""

import asyncio
import contextlib
import json
import random
import time
from typing import Any

import httpx2
from tests.hostile.cast import ROGUE, ROGUE_WORKER, secret
from tests.hostile.frames import BREAKING, about, frame, odd_frames, register
from tests.hostile.report import Part
from tests.hostile.spec import Spec, main
from tests.support.serving import http_client

OPEN_S = 15.0
LISTEN_S = 0.05
WAIT_FOR_TASK_S = 0.3
MAX_READ = 4 << 20
CALLERS = 4


class _Socket:
    """One connection to /ws: what came is cut into frames, as far as a rogue cares."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""
        self.tasks: list[dict[str, Any]] = []
        self.ended = False

    async def write(self, data: bytes) -> bool:
        """False: the gateway has closed."""
        with contextlib.suppress(OSError, TimeoutError):
            self._writer.write(data)
            async with asyncio.timeout(OPEN_S):  # a gateway that pauses reading closes after five seconds
                await self._writer.drain()
            return not self.ended
        self.ended = True
        return False

    async def listen(self, seconds: float) -> None:
        """Read what comes within so long; tasks are kept."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(seconds):
                data = await self._reader.read(65_536)
                if not data:
                    self.ended = True
                self._buffer += data
        while len(self._buffer) >= 2:
            size, start = self._buffer[1] & 0x7F, 2
            if size == 126:
                size, start = int.from_bytes(self._buffer[2:4], "big"), 4
            elif size == 127:
                size, start = int.from_bytes(self._buffer[2:10], "big"), 10
            if len(self._buffer) < start + size:
                break
            text, opcode = self._buffer[start : start + size], self._buffer[0] & 0x0F
            self._buffer = self._buffer[start + size :]
            if opcode == 8:
                self.ended = True
            elif opcode == 1:
                message = json.loads(text)
                if message.get("type") == "task":
                    self.tasks.append(message)

    async def wait_for_task(self) -> None:
        end = time.monotonic() + WAIT_FOR_TASK_S
        while not self.tasks and not self.ended and time.monotonic() < end:
            await self.listen(LISTEN_S)

    def close(self, *, hard: bool) -> None:
        if hard:
            self._writer.transport.abort()
        else:
            self._writer.close()


async def _connect(port: int, version: int) -> _Socket | None:
    """A connection that the gateway has accepted; None: it has not."""
    protocol = "Sec-WebSocket-Protocol: fairlane.worker.v2\r\n" if version == 2 else ""
    head = (
        "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{protocol}Authorization: Bearer {secret(ROGUE_WORKER)}\r\n\r\n"
    )
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(OPEN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_READ)
            with contextlib.ExitStack() as stack:
                stack.callback(writer.close)
                writer.write(head.encode())
                answer = await reader.readuntil(b"\r\n\r\n")
                if answer.startswith(b"HTTP/1.1 101"):
                    stack.pop_all()
                    return _Socket(reader, writer)
    return None


async def _life(spec: Spec, part: Part, number: int) -> None:
    """One rogue, from its connection until it is thrown out or leaves."""
    rng = random.Random(f"{spec.seed}/rogues/{number}")
    version = rng.choice((1, 2, 2, 2))
    socket = await _connect(spec.port, version)
    part.sent("hand-shakes")
    part.answered(101 if socket else 0)
    if socket is None:
        return
    try:
        if version == 2 and rng.random() < 0.95:
            await socket.write(frame(json.dumps(register(rng)).encode()))
            part.sent("messages")
        await socket.listen(LISTEN_S)
        for _ in range(rng.choice((1, 5, 20, 60))):
            if socket.ended:
                break
            if rng.random() < 0.3:
                await socket.wait_for_task()
            task = rng.choice(socket.tasks[-8:]) if socket.tasks else {}
            if task and rng.random() < 0.3:  # so far as one should
                good = [
                    about(rng, task, kind)
                    for kind in (
                        "taskAck",
                        rng.choice(("taskSent", "taskProgress", "taskChunk", "taskResult")),
                    )
                ]
                kind, data = "messages", b"".join(frame(json.dumps(message).encode()) for message in good)
            else:
                kind, data = odd_frames(rng, task)
            part.sent(kind)
            if not await socket.write(data):
                break
            await socket.listen(0.2 if kind in BREAKING else rng.choice((0.001, 0.001, LISTEN_S)))
            if kind in BREAKING and rng.random() < 0.8:
                break
    finally:
        socket.close(hard=rng.random() < 0.5)


async def _call(port: int, seed: int, number: int, part: Part) -> None:
    """A caller who gives rogues their tasks and takes any documented answer."""
    rng = random.Random(f"{seed}/rogues/caller/{number}")
    head = {"Authorization": f"Bearer {secret('mallory')}"}
    async with http_client(f"http://127.0.0.1:{port}", timeout=30, headers=head) as http:
        while True:
            path = rng.choice(("/api/openai", "/api/openai", "/v1/chat/completions"))
            body: dict[str, Any] = {
                "model": ROGUE,
                "messages": [{"role": "user", "content": "x"}],
                "stream": rng.random() < 0.4,
            }
            if path == "/api/openai" and rng.random() < 0.4:
                body["async"] = True
            try:
                answer = await http.post(path, json=body)
            except httpx2.HTTPError:
                await asyncio.sleep(0.2)
                continue
            part.answered(answer.status_code, _code(answer) if answer.status_code >= 500 else "")
            part.sent("calls")
            await asyncio.sleep(0.02 if answer.status_code < 500 else 0.1)


def _code(answer: httpx2.Response) -> str:
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        body = answer.json()
        error = body["error"]
        return str(error["code"] if isinstance(error, dict) else body["code"])
    return "?"


async def attack(spec: Spec, part: Part) -> None:
    """One rogue after the other, some at a time, until enough frames were sent."""
    end = time.monotonic() + spec.seconds
    number = 0

    async def rogue() -> None:
        nonlocal number
        while part.total < spec.requests and time.monotonic() < end:
            mine, number = number, number + 1
            await _life(spec, part, mine)

    callers = [asyncio.create_task(_call(spec.port, spec.seed, n, part)) for n in range(CALLERS)]
    try:
        await asyncio.gather(*(rogue() for _ in range(spec.sockets)))
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


if __name__ == "__main__":
    main("rogues", attack)
