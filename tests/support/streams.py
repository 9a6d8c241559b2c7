"""Server-sent events, read one by one: of an HTTP client's answer, or over a bare TCP connection, which a test can cut."""

import asyncio
import contextlib
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jsonschema_rs
from tests.support.serving import DEADLINE_S

from fairlane.gateway.api.events import components

NATIVE_EVENT = jsonschema_rs.validator_for(
    {"$ref": "#/components/schemas/NativeEvent", "components": {"schemas": components(as_text=False)}}
)
"""Validates an event of the native stream."""


class Frame(bytes):
    """One event of a native stream as it came, with its empty line; comments are no part of it."""

    @cached_property
    def _fields(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for line in self.decode().rstrip("\n").split("\n"):
            name, _, value = line.partition(": ")
            assert name not in fields, f"{name} twice in one event: {self!r}"
            fields[name] = value
        return fields

    @property
    def id(self) -> str | None:
        """None when it has none, '' of a `restart`."""
        return self._fields.get("id")

    @property
    def event(self) -> str:
        return self._fields.get("event", "message")

    @cached_property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._fields["data"])
        return data

    def check(self) -> None:
        """Assert that it is as the schemas promise."""
        head = {} if self.id is None else {"id": self.id}
        NATIVE_EVENT.validate({**head, "event": self.event, "data": self.data})


def first_frame(stream: bytes) -> tuple[Frame | None, bytes]:
    """The first whole event, which must be as the schemas promise, and what follows it; comments before it are dropped."""
    while stream.startswith((b":", b"\n")):
        _, end, rest = stream.partition(b"\n")
        if not end:
            return None, stream
        stream = rest
    text, end, rest = stream.partition(b"\n\n")
    if not end:
        return None, stream
    frame = Frame(text + end)
    frame.check()
    return frame, rest


class EventReader:
    """Reads an open native stream; every event is as the schemas promise. What was read is kept in `seen`."""

    def __init__(self, pieces: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        self._pieces = pieces
        self._body = b""
        self.headers = dict(headers or {})
        """Of the answer, by names in lower case."""
        self.seen: list[Frame] = []

    async def _more(self) -> bool:
        """Read one piece of the body; False at its end."""
        piece = await anext(self._pieces, b"")
        self._body += piece
        return bool(piece)

    async def frame(self) -> Frame | None:
        """The next event, within the deadline; None at the end of the stream."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                frame, self._body = first_frame(self._body)
                if frame is not None:
                    self.seen.append(frame)
                    return frame
                if not await self._more():
                    return None

    async def next(self) -> Frame:
        """The next event. EOFError when the stream has ended."""
        if (frame := await self.frame()) is None:
            raise EOFError(f"behind {self.seen[-1:]}")
        return frame

    async def until(self, name: str) -> list[Frame]:
        """The events up to and with the next one called `name`."""
        events = [await self.next()]
        while events[-1].event != name:
            events.append(await self.next())
        return events

    async def rest(self) -> list[Frame]:
        """All events to the end of the stream."""
        events = []
        while (frame := await self.frame()) is not None:
            events.append(frame)
        return events

    # ---- what was seen ----------

    @property
    def task_id(self) -> str:
        return self.headers["x-task-id"]

    @property
    def text(self) -> str:
        """What the chunks so far make up."""
        return joined_text(self.seen)

    def named(self, name: str) -> list[dict[str, Any]]:
        """The data of the events of a name so far."""
        return [frame.data for frame in self.seen if frame.event == name]

    async def until_event(self, name: str) -> dict[str, Any]:
        """The data of the first event of a name, seen or to come."""
        while not (found := self.named(name)):
            await self.next()
        return found[0]

    async def until_text(self, text: str) -> None:
        """Read until exactly this has been streamed."""
        while self.text != text:
            assert text.startswith(self.text), self.text
            await self.next()


@contextlib.asynccontextmanager
async def events(
    http: httpx2.AsyncClient, method: str, url: str, **request: Any
) -> AsyncIterator[EventReader]:
    """An open event stream."""
    async with http.stream(method, url, **request) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield EventReader(response.aiter_bytes(), response.headers)


def frames_of(stream: bytes) -> list[Frame]:
    """Every event of a whole native stream, as an EventReader would read them."""
    found = []
    frame, rest = first_frame(stream)
    while frame is not None:
        found.append(frame)
        frame, rest = first_frame(rest)
    assert not rest
    return found


def joined_text(frames: Iterable[Frame]) -> str:
    """The text that the chunks of a transcript make up."""
    return "".join(frame.data["delta"] for frame in frames if frame.event == "chunk")


class RawStream(EventReader):
    """One HTTP connection that reads a stream of events, or another body."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(self._chunks())
        self._reader = reader
        self._writer = writer
        self.status = 0

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
            try:
                await asyncio.get_running_loop().sock_connect(link, (host, port))
                reader, writer = await asyncio.open_connection(sock=link, limit=1 << 16)
            except BaseException:
                link.close()
                raise
            stream = cls(reader, writer)
            content = b"" if body is None else json.dumps(body).encode()
            lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", f"Host: {host}:{port}"]
            if body is not None:
                lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
            if last is not None:
                lines.append(f"Last-Event-ID: {last}")
            writer.write("\r\n".join([*lines, "", ""]).encode() + content)
            try:
                await stream._read_head()
            except BaseException:
                writer.transport.abort()
                raise
        return stream

    async def _read_head(self) -> None:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        self.status = int(head[0].split()[1])
        for line in head[1:]:
            name, _, value = line.partition(": ")
            self.headers[name.lower()] = value

    async def _chunks(self) -> AsyncIterator[bytes]:
        """The pieces of the body to its end, however it ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            if self.headers.get("transfer-encoding") != "chunked":
                yield await self._reader.readexactly(int(self.headers.get("content-length", "0")))
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]

    async def take(self, count: int) -> list[Frame]:
        """So many events of the log, which have ids; fewer at the end of the stream."""
        frames: list[Frame] = []
        while len(frames) < count and (frame := await self.frame()) is not None:
            if frame.id:
                frames.append(frame)
        return frames

    async def log(self) -> list[Frame]:
        """All further events of the log."""
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
