"""Carries out a plan over one socket, and judges what comes back."""

import asyncio
import contextlib
import socket
import struct
import sys
from typing import Any, cast

from tests.hostile.answers import AnswerReader, fault_of
from tests.hostile.mutations import Plan
from tests.hostile.report import Part

PATIENCE_S = 75.0
"""A good request has its answer by then, once those before it on its connection have theirs: longer than any task may take, and
than an upload, which stands twice in line behind all else that its caller asks of the database (30 s and 5 s each)."""
SHORT_S = 0.6
"""What may want no answer gets so long for one."""
STREAM_S = 0.3
"""A stream that has begun is read for so long."""
MAX_READ = 8 << 20


class _Connection(asyncio.Protocol):
    def __init__(self, methods: tuple[str, ...]) -> None:
        self.reader = AnswerReader(methods)
        self.news = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self.lost = False
        self.read = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.read += len(data)
        if self.read > MAX_READ:
            self.transport.pause_reading()
        self.reader.feed(data)
        self.news.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.reader.end()
        self.news.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    @property
    def over(self) -> bool:
        """Whether no more answers come, or none that can be read."""
        return self.lost or bool(self.reader.broken)

    async def wait(self, seconds: float, whole: int | None = None, begun: int | None = None) -> bool:
        """Wait for so many answers, or the end of the connection; False when neither came in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.over:
                    if whole is not None and self.reader.whole >= whole:
                        break
                    if begun is not None and self.reader.begun >= begun:
                        break
                    self.news.clear()
                    await self.news.wait()
                return True
        return False


def _source(number: int) -> tuple[str, int] | None:
    """The address that a connection comes from: one of many, as the ports of one would be used up in a minute."""
    return (f"127.0.0.{2 + number % 200}", 0) if sys.platform == "linux" else None


async def carry_out(port: int, plan: Plan, part: Part, number: int) -> _Connection | None:
    """Do what the plan says, count the answers in `part`, and note what must not be."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, connection = await loop.create_connection(
                lambda: _Connection(plan.methods), "127.0.0.1", port, local_addr=_source(number)
            )
    except (OSError, TimeoutError) as error:
        part.fault(plan.kind, number, f"cannot connect: {error!r}", plan.writes[0])
        return None
    part.sent(plan.kind, plan.requests)
    try:
        in_time = await _converse(connection, plan)
    finally:
        if not connection.lost:  # (a transport that is lost has no loop any more)
            connection.transport.abort()
    _judge(connection, plan, part, number, in_time)
    return connection


async def _converse(connection: _Connection, plan: Plan) -> bool:
    """Write, and wait as the plan says; False when a good request had no answer in time."""
    transport = connection.transport
    for index, data in enumerate(plan.writes):
        if index and index <= len(plan.pauses):
            await asyncio.sleep(plan.pauses[index - 1])
        if plan.waits and not await connection.wait(PATIENCE_S, whole=index):
            return False
        if connection.lost or transport.is_closing():
            break
        transport.write(data)
        if not connection.writable.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await connection.writable.wait()
    if plan.end == "reset":
        raw = cast(socket.socket, transport.get_extra_info("socket"))
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return True
    if plan.end == "leave":
        return True
    if plan.end == "half" and not connection.lost:
        with contextlib.suppress(OSError, RuntimeError):
            transport.write_eof()
    if not plan.proper:
        await connection.wait(SHORT_S, whole=plan.requests)
        return True
    in_time = True
    while in_time and connection.reader.begun < plan.requests and not connection.over:
        in_time = await connection.wait(PATIENCE_S, begun=connection.reader.begun + 1)
    await connection.wait(STREAM_S, whole=plan.requests)
    return in_time


def _judge(connection: _Connection, plan: Plan, part: Part, number: int, in_time: bool) -> None:
    reader = connection.reader
    sent = plan.writes[0]

    def fault(what: str, seen: Any = b"") -> None:
        part.fault(plan.kind, number, what, sent, seen)

    # after a damaged HEAD nobody knows where an answer ends
    by_head = not plan.methods and any(b"HEAD " in data for data in plan.writes)
    for answer in reader.answers:
        part.answered(answer.status, answer.code() if answer.status >= 500 else "")
        if wrong := fault_of(answer, framed=not by_head):
            fault(wrong, answer.body)
        if plan.wants is not None and answer.status not in plan.wants:
            fault(f"{answer.status} instead of {sorted(plan.wants)}", answer.body)
    if reader.broken and not by_head:
        fault("an answer that is not HTTP: " + reader.broken)
    if plan.proper and plan.end == "wait":
        if not in_time:
            fault(f"no answer within {PATIENCE_S:.0f} s to request {reader.begun + 1} of {plan.requests}")
        elif not reader.begun:
            fault("the connection ended without an answer")
