"""Serves one task's log as server-sent events.

Raw ASGI: one write for all events that arrive together, nothing created per event. A stream never just stops: it ends with the
task's end, with a farewell that asks a native client to reconnect, with an error frame, or the client is gone.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain
from typing import Protocol

from fairlane.gateway.calls.http import SSE_HEADERS, DirectExchange, DisconnectWatcher, Request, Send
from fairlane.gateway.core.open_answers import OpenAnswers
from fairlane.gateway.errors import Headers
from fairlane.queues.errors import StoreError
from fairlane.streaming.events import TERMINAL, UNLOGGED, Event
from fairlane.streaming.hub import PAGE_RETRY_S, Interrupted, LiveLog, Lost, Take
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.sse import frame_parts

SLICE = 128 * 1024
"""Bytes that are rendered, or written, in one step, plus one frame. Frames may be many times as large as their events."""
OVERDUE_S = 2.0
"""How long after a task's deadline a client is answered without its end: Redis, which reports it, fails or takes no writes."""
STALE_S = 30.0
"""How long a reader waits for a Redis that does not answer, before its client is asked to return later."""
REFUSALS = frozenset({"error", "cancelled"})
"""Ends that become an HTTP status if nothing was sent before."""


class Stream(Protocol):
    """The frames that one kind of client reads: of logged events (a view of `fairlane.streaming.views`), and between them."""

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def waits_behind(self) -> int:
        """The number of the event behind which its task waits, or waited last: 0 before the first; more in a chain."""
        ...

    @property
    def pending(self) -> Event | None:
        """The terminal event, if the stream cannot show it by itself."""
        ...

    def feed(self, event: Event) -> bytes:
        """Return the bytes that a logged event adds, often none."""
        ...

    def notice(self, event: Event) -> bytes:
        """Return the bytes of an event that is not logged: queue position, progress."""
        ...

    def idle(self) -> bytes:
        """Return the bytes to send after a while of silence."""
        ...

    def lost(self) -> bytes:
        """Return the end when the log does not hold what the reader needs."""
        ...

    def overdue(self) -> bytes:
        """Return the end when the task's deadline has passed, and Redis does not report its end."""
        ...

    def unread(self) -> bytes:
        """Return the end when Redis has not answered for a while: the client can read the rest later."""
        ...

    def farewell(self) -> bytes:
        """Return the end when the gateway stops."""
        ...

    def revoked(self) -> bytes:
        """Return the end when the caller's key was taken away."""
        ...


class LogReader(Protocol):
    """Reads one task's log, wherever it lies (`hub.Reader`)."""

    seq: int

    @property
    def feed(self) -> LiveLog | None:
        """The log's feed; None if it is not in Redis any more."""
        ...

    async def next(self, timeout: float, take: Take | None = None) -> list[Event]:
        """Return the next events; [] after `timeout` seconds without any. Raise Lost and Interrupted."""
        ...

    def wait(self, timeout: float) -> None:
        """Set the duration of the current wait."""
        ...

    def interrupt(self) -> None:
        """Let `next` raise Interrupted as soon as it has no more events."""
        ...


Ending = AbstractAsyncContextManager[Sequence[bytes]]
"""The last frame of a stream, in parts that are there as long as the block. Raises Lost, and StoreError."""


class FailedBeforeStart(Exception):
    """The task ended in failure before its stream had shown anything."""

    def __init__(self, end: Event) -> None:
        super().__init__(end.type)
        self.end = end


async def serve(
    request: Request,
    reader: LogReader,
    stream: Stream,
    open_answers: OpenAnswers,
    *,
    headers: Headers,
    keepalive_s: float,
    give_up: float | None,
    kind: Headers = SSE_HEADERS,
    first: bytes = b"",
    opening: Callable[[], bytes] = bytes,
    hold_s: float = 0.0,
    resumable: bool = False,
    ending: Callable[[], Ending] | None = None,
) -> bool:
    """Write the stream until it ends. Return True at its end, False if the client left, the gateway stops, or it is given up.

    `give_up`: when a stream without events ends (loop time). None: it follows a task, whose end Redis has not reported at its
    deadline, or it ends after Redis has not answered for STALE_S.
    `kind`: the content type's headers, before `headers`. `first`: the first bytes; `opening` makes them if the head leaves
    before any event. `hold_s`: how long the head waits for the first bytes; before it is written this raises FailedBeforeStart,
    Lost, Interrupted (the gateway stops), TimeoutError at `give_up`, and `Request.gone()`. `resumable`: the client can read the
    rest elsewhere, so a gateway that stops need not wait for the end. `ending`: makes the pending end of the stream.
    While the client does not read, at most a page of the log, one frame made of it, and the last frame are in memory; readers of
    one task share the page and the last frame.
    """
    interrupt = reader.interrupt
    departure = DisconnectWatcher(request, interrupt)
    open_answers.add(interrupt, None if resumable else reader.feed)
    head = [*kind, *headers]
    direct = request.direct
    take = None if direct is None else _Live(direct, request, reader, stream, head, keepalive_s).take
    now = asyncio.get_running_loop().time
    hold_until = now() + hold_s
    try:
        if not hold_s:
            await _start(request, head)
            first = first or opening()
        if first:
            await _write(request.send, first)
        while True:
            try:
                if stream.pending is not None and ending is not None and await _finish(request, head, ending):
                    return True
                left = PAGE_RETRY_S if stream.pending else max(_due(give_up, reader) - now(), 0.1)
                left = min(left, keepalive_s if request.started else hold_until - now())
                events = await reader.next(left, take)
                if request.started:
                    if not events and now() > _due(give_up, reader):
                        await _end(request.send, stream.unread() if give_up is None else stream.overdue())
                        return False
                    if stream.pending:
                        continue
                    parts = _drawn(events, stream, reader) if events else iter((stream.idle(),))
                else:
                    parts = _drawn(events, stream, reader, held=True)
                    body = next(parts)
                    if departure.gone:
                        raise request.gone()
                    if stream.ended:
                        await request.respond(200, body, head)
                        return True
                    if not body and now() > _due(give_up, reader):
                        raise TimeoutError
                    if not body and (events or now() < hold_until):
                        continue
                    await _start(request, head)
                    parts = chain((body or opening(),), parts)
                    del body
                del events
            except Lost:
                if not request.started:
                    raise
                await _end(request.send, stream.lost())
                return True
            except Interrupted:
                if not request.started:
                    if departure.gone:
                        raise request.gone() from None
                    raise
                if request.revoked:
                    await _end(request.send, stream.revoked())
                elif not departure.gone:  # then the gateway stops
                    await _end(request.send, stream.farewell())
                return False
            for body in parts:
                if departure.gone and not request.revoked:
                    return False
                if stream.ended:
                    await _end(request.send, body)
                    return True
                await _write(request.send, body)
                del body
            del parts  # it may be long until the next ones
    finally:
        open_answers.discard(interrupt)
        departure.close()


def _due(give_up: float | None, reader: LogReader) -> float:
    """Return the loop time at which a stream without events ends."""
    feed = reader.feed
    if give_up is not None or feed is None:
        return give_up or math.inf
    deadline = math.inf if feed.ended else feed.deadline + OVERDUE_S
    return min(feed.last_seen + STALE_S, deadline)


async def _start(request: Request, head: Headers) -> None:
    await request.start(200, head)
    request.forget_head()


class _Live:
    """Renders and writes events while a stream waits, without waking the stream."""

    __slots__ = ("_connection", "_head", "_keepalive_s", "_reader", "_request", "_stream")

    def __init__(
        self,
        connection: DirectExchange,
        request: Request,
        reader: LogReader,
        stream: Stream,
        head: Headers,
        keepalive_s: float,
    ) -> None:
        self._connection = connection
        self._request = request
        self._reader = reader
        self._stream = stream
        self._head = head
        self._keepalive_s = keepalive_s

    def take(self, events: list[Event]) -> int:
        """Return how many were written. The stream handles the rest: it ends, the client does not read, the head waits longer, or
        there is too much for one write.
        """
        last = events[-1]
        if last.type in TERMINAL or len(last.data) > SLICE:
            return 0
        if not self._request.started and not (last.type == "chunk" and self._begin()):
            return 0
        if not self._connection.may_write:
            return 0
        feed = self._stream.feed
        if len(events) == 1:
            self._connection.write_more(feed(last))
            return 1
        frames, size = [], 0
        for event in events:
            frames.append(frame := feed(event))
            size += len(frame)
            if size >= SLICE:
                break
        self._connection.write_more(b"".join(frames))
        return len(frames)

    def _begin(self) -> bool:
        """Write the waiting head with the first output."""
        if not self._request.begin(200, self._head):
            return False
        self._request.forget_head()
        self._reader.wait(self._keepalive_s)
        return True


async def _finish(request: Request, head: Headers, ending: Callable[[], Ending]) -> bool:
    """Write the end. Return False if Redis does not answer. Raise Lost."""
    try:
        async with ending() as parts:
            if not request.started:
                await _start(request, head)
            for part in parts:
                await _write(request.send, part)
    except StoreError:
        return False
    await _end(request.send, b"")
    return True


async def _write(send: Send, body: bytes) -> None:
    """Write a part of the answer; a large one in slices, each when the client has read those before it."""
    for at in range(0, len(body), SLICE):
        piece = body if len(body) <= SLICE else body[at : at + SLICE]
        await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _end(send: Send, body: bytes) -> None:
    if len(body) > SLICE:
        await _write(send, body)
        body = b""
    await send({"type": "http.response.body", "body": body})


def _drawn(
    events: Sequence[Event], stream: Stream, reader: LogReader, *, held: bool = False
) -> Iterator[bytes]:
    """Yield the bytes that events add, in parts of about SLICE, each rendered on demand; at least one part, maybe empty.

    Readers of one task share `events`, so the data of a large one is not copied. `held`: the answer has not begun. Raise
    FailedBeforeStart if the task fails before anything is shown.
    """
    frames: list[bytes] = []
    size = 0
    for event in events:
        if size >= SLICE:
            yield b"".join(frames)
            frames, size, held = [], 0, False
        if event.type == "chunk" and len(event.data) > SLICE and isinstance(stream, NativeStreamView):
            head, tail = frame_parts(event)
            yield b"".join([*frames, head])
            yield event.data
            frames, size, held = [tail], len(tail), False
            continue
        frame = draw(event, stream, reader)
        if held and not size and event.type in REFUSALS:
            raise FailedBeforeStart(event)
        frames.append(frame)
        size += len(frame)
    yield b"".join(frames)


def draw(event: Event, stream: Stream, reader: LogReader) -> bytes:
    """Return the bytes that an event of a reader adds, whether it is logged or not."""
    if event.type not in UNLOGGED:
        return stream.feed(event)
    if stream.ended or (event.type == "queued" and reader.seq != stream.waits_behind):  # it has begun since
        return b""
    return stream.notice(event)
