"""Event streams over a bare TCP connection, which a test can cut wherever it likes."""

import asyncio
import hashlib
import json
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from tests.support.serving import DEADLINE_S


class RawStream:
    """One HTTP connection that reads a stream of events. The frames are bytes as they came, with their empty line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._body = b""
        self._over = False
        self.status = 0
        self.headers: dict[str, str] = {}

    @classmethod
    async def open(
        cls,
        base: str,
        path: str,
        *,
        last: str | None = None,
        body: dict[str, Any] | None = None,
        receive_buffer: int | None = None,
    ) -> "RawStream":
        """Connect, ask, and read the head of the answer. `last`: the event id seen last; `body` makes it a POST."""
        host, port = urlsplit(base).hostname, urlsplit(base).port
        link = socket.socket()
        link.setblocking(False)
        if receive_buffer is not None:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.get_running_loop().sock_connect(link, (host, port))
            reader, writer = await asyncio.open_connection(sock=link, limit=1 << 16)
            stream = cls(reader, writer)
            content = b"" if body is None else json.dumps(body).encode()
            lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {host}:{port}"]
            if body is not None:
                lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
            if last is not None:
                lines.append(f"Last-Event-ID: {last}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            await stream._read_head()
        return stream

    async def _read_head(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split()[1])
        for line in head[1:]:
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value

    async def _more(self) -> bool:
        """Read one piece of the body; False at its end, however it ends."""
        if self._over:
            return False
        try:
            if self.headers.get("transfer-encoding") == "chunked":
                size = int(await self._reader.readuntil(b"\r\n"), 16)
                piece = (await self._reader.readexactly(size + 2))[:-2]
            else:
                piece = await self._reader.readexactly(int(self.headers.get("content-length", "0")))
                self._over = True
        except (asyncio.IncompleteReadError, ConnectionError):
            piece = b""
        self._body += piece
        self._over = self._over or not piece
        return bool(piece)

    async def frame(self) -> bytes | None:
        """The next frame of any sort, comments left out; None at the end of the stream."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                while self._body.startswith(b":"):
                    end_of_line = self._body.find(b"\n")
                    if end_of_line < 0:
                        break
                    self._body = self._body[end_of_line + 1 :]
                frame, end, rest = self._body.partition(b"\n\n")
                if end:
                    self._body = rest
                    return frame + end
                if not await self._more():
                    return None

    async def logged(self) -> bytes | None:
        """The next frame of the log."""
        while (frame := await self.frame()) is not None and not event_id(frame):
            pass
        return frame

    async def take(self, count: int) -> list[bytes]:
        """So many frames with ids, fewer at the end of the stream."""
        frames: list[bytes] = []
        while len(frames) < count and (frame := await self.logged()) is not None:
            frames.append(frame)
        return frames

    async def rest(self) -> list[bytes]:
        """All further frames with ids."""
        return await self.take(1 << 40)

    async def whole(self, size: int) -> bytes:
        """So many bytes of the body, fewer at its end; ends the reading by frames."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self._body) < size and await self._more():
                pass
        return self._body[:size]

    async def drain(self, last: int = 4096) -> tuple[str, bytes]:
        """Read to the end without keeping it: the hash of the rest of the body, and its last bytes."""
        seen, tail = hashlib.sha256(), b""
        async with asyncio.timeout(4 * DEADLINE_S):
            while True:
                seen.update(self._body)
                tail = (tail + self._body)[-last:]
                self._body = b""
                if not await self._more():
                    return seen.hexdigest(), tail

    def cut(self) -> None:
        """Break the connection off without a word."""
        self._writer.transport.abort()

    async def __aenter__(self) -> "RawStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()


def event_id(frame: bytes) -> str | None:
    """The id of a frame; None when it has none, '' of a `restart`."""
    for line in frame.split(b"\n"):
        if line.startswith(b"id: "):
            return line[4:].decode()
    return None


def event_name(frame: bytes) -> str:
    """The type of a frame."""
    for line in frame.split(b"\n"):
        if line.startswith(b"event: "):
            return line[7:].decode()
    return "message"


def event_data(frame: bytes) -> dict[str, Any]:
    """The data of a frame."""
    for line in frame.split(b"\n"):
        if line.startswith(b"data: "):
            data: dict[str, Any] = json.loads(line[6:])
            return data
    raise AssertionError(f"no data in {frame!r}")


def joined_text(frames: Iterable[bytes]) -> str:
    """The text that the chunks of a transcript make up."""
    return "".join(event_data(frame)["delta"] for frame in frames if event_name(frame) == "chunk")
