"""What comes over a worker's socket, byte by byte: messages in parts, floods of frames that are no message, names."""

import asyncio
import base64
import contextlib
import json
import os
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.rawworkers import Callers, bystander, tune, until_workers, worker_v1
from tests.support.serving import DEADLINE_S, Served

pytestmark = pytest.mark.anyio

TEXT, CONTINUED, CLOSE, PING = 1, 0, 8, 9


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame; its mask is zero, so the data stand as they are."""
    head = (0x80 if fin else 0) | opcode
    if len(data) < 126:
        return struct.pack("!BBI", head, 0x80 | len(data), 0) + data
    return struct.pack("!BBQI", head, 0x80 | 127, len(data), 0) + data


class Raw:
    """A socket after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def message(self) -> Any:
        """The next text frame, as JSON."""
        return json.loads(await self._frame(TEXT))

    async def closed(self) -> int:
        """The code of the close frame; text frames before it are passed over."""
        return int(struct.unpack("!H", (await self._frame(CLOSE))[:2])[0])

    async def _frame(self, opcode: int) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                head, size = await self.reader.readexactly(2)
                if size == 126:
                    (size,) = struct.unpack("!H", await self.reader.readexactly(2))
                data = await self.reader.readexactly(size)
                if head & 15 == opcode:
                    return data


@contextlib.asynccontextmanager
async def raw(served: Served) -> AsyncIterator[Raw]:
    """A version 1 worker of which every byte is the test's."""
    host, port = "127.0.0.1", int(served.url.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"GET /ws HTTP/1.1\r\nHost: %b:%d\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n"
        % (host.encode(), port, base64.b64encode(os.urandom(16)))
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


# ---- messages in parts ----------


@pytest.mark.parametrize("size", [1, 7, 5000])
@pytest.mark.shared
async def test_a_message_may_come_in_parts_with_pings_between(
    served: Served, callers: Callers, size: int
) -> None:
    async with raw(served) as worker:
        await until_workers(served, 1)
        answer = callers.ask()
        task = await worker.message()
        text = "Grüße, 世界 😀" * 50
        whole = json.dumps(
            {"type": "taskResult", "taskId": task["taskId"], "result": text, "error": None},
            ensure_ascii=False,
        ).encode()
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        for number, part in enumerate(parts):
            worker.send(frame(CONTINUED if number else TEXT, part, fin=number == len(parts) - 1), frame(PING))
        assert await answer.ok() == text


@pytest.mark.shared
async def test_what_came_before_the_end_of_a_connection_counts(served: Served, callers: Callers) -> None:
    """Also what is not parsed yet when the connection is found to be gone."""
    async with raw(served) as worker:
        await until_workers(served, 1)
        answer = callers.ask()
        task_id = (await worker.message())["taskId"]
        chunk = json.dumps({"type": "taskChunk", "taskId": task_id, "delta": "x"}).encode()
        result = json.dumps({"type": "taskResult", "taskId": task_id, "result": None, "error": None}).encode()
        worker.send(*[frame(TEXT, chunk)] * 400, frame(TEXT, result))
        worker.writer.close()
        assert (await answer.ok())["content"] == "x" * 400


async def test_a_message_in_parts_is_bounded_like_any_other(
    served: Served, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(served, flood_bytes=1 << 40)
    async with bystander(served, callers), raw(served) as worker:
        await until_workers(served, 2)
        part = b"x" * (1 << 20)
        worker.send(frame(TEXT, part, fin=False), *[frame(CONTINUED, part, fin=False)] * 17)
        assert await worker.closed() == 1009


@pytest.mark.shared
async def test_a_text_that_is_not_utf8_closes_the_connection(served: Served, callers: Callers) -> None:
    async with bystander(served, callers), raw(served) as worker:
        await until_workers(served, 2)
        worker.send(frame(TEXT, b'{"type":"\xff"}'))
        assert await worker.closed() == 1007


# ---- names ----------


# ---- tasks that a worker never had ----------


@pytest.mark.shared
async def test_of_an_unreadable_frame_the_task_is_found_wherever_it_is_named(
    served: Served, callers: Callers
) -> None:
    async with worker_v1(served.ws) as worker:
        answer = callers.ask()
        task = await worker.recv()
        await worker.text(
            f'{{"error":null,"result":[1,,2],"type":"taskResult","taskId" : "{task["taskId"]}"}}'
        )
        await answer.error("PROTOCOL_ERROR", 500)
