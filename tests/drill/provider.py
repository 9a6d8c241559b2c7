"""Providers: HTTP servers that speak OpenAI, and that a drill breaks and repairs while they run."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any

LONGEST_S = 60.0
"""No connection waits for longer."""
PAUSE_S = "1"
"""What a busy one asks for in its `Retry-After`."""


class Mode(StrEnum):
    """How a provider is."""

    HEALTHY = "healthy"
    GONE = "gone"
    """It takes no connections, and those that it had are cut."""
    FAILING = "failing"
    """500."""
    SLOW = "slow"
    """Nothing comes before its caller has left."""
    BUSY = "busy"
    """429, with the time to come again."""
    CUT = "cut"
    """The answer breaks off in the middle of its first event, or of its body."""
    GARBLED = "garbled"
    """200, and what is no JSON."""
    TALKATIVE = "talkative"
    """JSON of the right shape, whose text is not the JSON that was asked for."""


class Provider:
    """One server. Its answer to a chat is a JSON text that says who answers, and what the last message said."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempts = 0
        """Tasks that workers were to run there, whatever became of them."""
        self.mode = Mode.HEALTHY
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        """What precedes /chat/completions."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def become(self, mode: Mode) -> None:
        """Be so from now on."""
        self.mode = mode
        self._changed.set()
        self._changed = asyncio.Event()
        if mode is Mode.GONE:
            await self.close()
        elif self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Take no connections any more, and cut those that there are."""
        server, self._server = self._server, None
        for writer in self._connections:
            writer.transport.abort()
        if server is not None:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                while await self._answer(reader, writer):
                    await writer.drain()
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether another may follow on its connection."""
        async with asyncio.timeout(LONGEST_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0] or "0")
            body = await reader.readexactly(length)
        if head.startswith("get"):
            writer.write(_whole(200, b'{"object": "list", "data": []}'))
            return True
        asked = json.loads(body)
        text = json.dumps({"by": self.name, "said": asked["messages"][-1]["content"]})
        match self.mode:
            case Mode.SLOW:
                changed = asyncio.ensure_future(self._changed.wait())
                left = asyncio.ensure_future(reader.read(1))
                await asyncio.wait([changed, left], timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                left.cancel()
                return False
            case Mode.FAILING:
                writer.write(_whole(500, b'{"error": {"message": "out of memory"}}'))
                return True
            case Mode.BUSY:
                refusal = b'{"error": {"message": "slow down", "code": "rate_limit_exceeded"}}'
                writer.write(_whole(429, refusal, f"Retry-After: {PAUSE_S}\r\n"))
                return True
            case Mode.TALKATIVE:
                text = f"Certainly! Here is your JSON: {text}"
        streams = bool(asked.get("stream"))
        said = b"".join(_events(text)) if streams else json.dumps(_completion(text)).encode()
        if self.mode is Mode.GARBLED:
            said = b'data: {"choices": [}\n\n' if streams else b"<html>It works!</html>"
        kind = "text/event-stream" if streams else "application/json"
        answer = _whole(200, said, kind=kind)
        if self.mode is Mode.CUT:
            writer.write(answer[: answer.index(b"\r\n\r\n") + 24])
            await writer.drain()
            writer.transport.abort()
            return False
        writer.write(answer)
        return True


def _whole(status: int, body: bytes, more: str = "", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


def _completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice], "usage": USAGE}


def _events(text: str) -> list[bytes]:
    half = len(text) // 2
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": piece}, "finish_reason": None}
        for piece in (text[:half], text[half:])
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks: list[dict[str, Any]] = [{"id": "x", "choices": [choice]} for choice in choices]
    chunks.append({"id": "x", "choices": [], "usage": USAGE})
    return [*(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks), b"data: [DONE]\n\n"]


@contextlib.asynccontextmanager
async def providers(*names: str) -> AsyncIterator[dict[str, Provider]]:
    """Return healthy ones, by name."""
    all_of_them = {name: Provider(name) for name in names}
    try:
        for provider in all_of_them.values():
            await provider.become(Mode.HEALTHY)
        yield all_of_them
    finally:
        for provider in all_of_them.values():
            await provider.close()
