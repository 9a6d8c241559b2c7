"""Reads one answer of an upstream, within its time limits: events, JSON, or bytes."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

import httpx2

from fairlane.workers.adapters.clock import Clock
from fairlane.workers.adapters.dialects.base import Call, Output, Reader
from fairlane.workers.adapters.failures import (
    CallTarget,
    UpstreamSaid,
    from_answer,
    from_status,
    from_transport,
    unreadable,
)
from fairlane.workers.adapters.lenient import NotJsonError
from fairlane.workers.adapters.sse import ErrorEvent, EventParser
from fairlane.workers.sdk.backoff import requested_pause
from fairlane.workers.sdk.errors import TaskError

MAX_ERROR_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
LINGER_S = 0.25
_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"
"""A byte order mark, and white space."""
_TEXT = re.compile(rb"\{\s*\"|\[\s*\{|<(?:!|html)", re.IGNORECASE)
"""How JSON or a page begins, and no sound."""


class Answer:
    """A response whose head has come. Its owner closes it."""

    def __init__(self, response: httpx2.Response, clock: Clock) -> None:
        self._response = response
        self._clock = clock
        self._parts = response.aiter_bytes()
        self._head = b""
        self._asked: CallTarget | None = None

    async def items(self, call: Call, asked: CallTarget) -> AsyncGenerator[Output, None]:
        """Yield what the answer to `call` says. Its first bytes decide how it is read: servers send events as JSON, and JSON as
        events. Raise `TaskError`."""
        self._asked = asked
        if not self._response.is_success:
            body = await self.body(MAX_ERROR_BYTES, cut=True)
            raise from_status(
                self._response.status_code, body, requested_pause(self._response.headers), asked
            )
        while not self._head.strip() and (part := await self._next()) is not None:
            self._head += part
        begins = self._head.lstrip(_BEFORE_JSON)
        if call.binary and not _TEXT.match(begins):
            items = self._bytes()
        elif call.binary or call.reader.plain_text or begins.startswith((b"{", b"[")):
            items = self._whole(call.reader)
        else:
            items = self._events(call.reader)
        async with contextlib.aclosing(items):
            async for item in items:
                yield item

    async def body(self, limit: int, *, cut: bool = False) -> bytes:
        """Return the whole body; more than `limit` is cut off or, without `cut`, a failure."""
        body = bytearray(self._head)
        while len(body) <= limit and (part := await self._next()) is not None:
            body += part
        if len(body) > limit and not cut:
            raise unreadable(f"it has more than {limit} bytes")
        return bytes(body[:limit])

    def _failed(self, said: bytes) -> TaskError:
        """Return the failure of an answer in which the upstream said this."""
        assert self._asked is not None
        headers = self._response.headers
        return from_answer(said, headers.get("Content-Type", ""), requested_pause(headers), self._asked)

    async def _whole(self, reader: Reader) -> AsyncGenerator[Output, None]:
        body = await self.body(MAX_ANSWER_BYTES)
        try:
            items = reader.whole(body)
        except UpstreamSaid as error:
            raise self._failed(error.body) from error
        except NotJsonError as error:
            raise self._failed(body) from error
        except (ValueError, RecursionError) as error:
            raise unreadable(str(error)) from error
        for item in items:
            yield item
        if not reader.complete:
            raise self._failed(body)

    async def _events(self, reader: Reader) -> AsyncGenerator[Output, None]:
        parser, event = EventParser(), b""
        part: bytes | None = self._head or None
        failure: TaskError | None = None
        while True:
            try:
                for event in parser.close() if part is None else parser.feed(part):
                    if isinstance(event, ErrorEvent):
                        raise UpstreamSaid(event)
                    for delta in reader.read(event):
                        self._clock.output()
                        yield delta
                    if reader.done:
                        break
            except UpstreamSaid as error:
                failure = self._failed(error.body)
            except TaskError as error:
                failure = error
            except NotJsonError:
                failure = None if part is None else self._failed(event)  # the last event may be cut off
            except (ValueError, RecursionError) as error:
                failure = unreadable(str(error))
            if part is None or reader.done or failure is not None:
                break
            try:
                part = await self._next()
            except TaskError as error:
                failure = None if reader.complete else error  # all was said, and only its end did not come
                break
        if failure is None and not reader.complete:
            sentence = "The upstream's stream ended without its end."
            text = bytes(parser.text)
            failure = self._failed(text) if text else TaskError("UPSTREAM_TRUNCATED", sentence)
        if failure is None:
            for delta in reader.end():
                self._clock.output()
                yield delta
        if reader.usage is not None:
            yield reader.usage
        if failure is not None:
            raise failure
        if reader.done:
            await self._linger()

    async def _bytes(self) -> AsyncGenerator[Output, None]:
        """Yield an answer of bytes, as they come."""
        size, part = 0, self._head or None
        while part is not None:
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise unreadable(f"it has more than {MAX_ANSWER_BYTES} bytes")
            if part:
                self._clock.output()
                yield part
            part = await self._next()
        if not size:
            raise self._failed(b"")

    async def _next(self) -> bytes | None:
        """Return the next bytes, or None at the end. The time limits count only while this waits."""
        try:
            async with self._clock.until_next():
                part = await anext(self._parts, None)
        except TimeoutError as error:
            raise self._clock.failure() from error
        except httpx2.HTTPError as error:
            raise from_transport(error, streaming=True) from error
        self._clock.came()
        return part

    async def _linger(self) -> None:
        """Read the stream's end, which usually follows immediately, so that the connection can be used again."""
        try:
            async with asyncio.timeout(LINGER_S):
                while await anext(self._parts, None) is not None:
                    pass
        except (TimeoutError, httpx2.HTTPError):
            return  # the answer is complete; only the connection is lost
