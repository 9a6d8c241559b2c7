"""Serves one task's log as server-sent events.

Raw ASGI: one write for all events that arrive together, nothing created per event. A stream never just stops: it ends with the
task's end, with a farewell that asks a native client to reconnect, with an error frame, or the client is gone.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import chain
from typing import Generic, Protocol, TypeVar

from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import Headers
from fairlane.gateway.http.request import DisconnectWatcher, Request, Send
from fairlane.queues.errors import StoreError
from fairlane.queues.tasks import Place
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


class View(Protocol):
    """The frames of logged events (a view of `fairlane.streaming.views`)."""

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        ...

    @property
    def pending(self) -> Event | None:
        """The terminal event, if the stream cannot show it by itself."""
        ...

    def feed(self, event: Event) -> bytes:
        """Return the bytes that a logged event adds, often none."""
        ...


ViewT = TypeVar("ViewT", bound=View)


class StreamAnswer(ABC, Generic[ViewT]):
    """An answer that writes a task's log, as a view shows it, until its end. Subclasses say what stands between the events.

    While the client does not read, at most a page of the log, one frame made of it, and the last frame are in memory; readers of
    one task share the page and the last frame.
    """

    __slots__ = (
        "_head",
        "_keepalive_s",
        "first",
        "give_up",
        "hold_s",
        "place",
        "reader",
        "request",
        "tasks",
        "view",
    )
    resumable = False
    """The client can read the rest elsewhere, so a gateway that stops need not wait for the end."""

    def __init__(
        self, tasks: Tasks, request: Request, reader: LogReader, view: ViewT, headers: Headers
    ) -> None:
        """`headers`: with those of the content type."""
        self.tasks = tasks
        self.request = request
        self.reader = reader
        self.view = view
        self.give_up: float | None = None
        """When a stream without events ends (loop time). None: it follows a task, whose end Redis has not reported at its
        deadline, or it ends after Redis has not answered for STALE_S."""
        self.first = b""
        """The first bytes."""
        self.hold_s = 0.0
        """How long the head waits for the first bytes."""
        self.place: Place | None = None
        """Where the task waits, until its next event."""
        self._head = headers
        self._keepalive_s = tasks.settings.tuning.keepalive_ms / 1000

    # ---- an API's own ----------

    @property
    def waits_behind(self) -> int:
        """Return the number of the event behind which the task waits, or waited last: 0 before the first; more in a chain."""
        return 0

    def opening(self) -> bytes:
        """Return the first bytes if the head leaves before any event."""
        return b""

    def ending(self) -> Ending | None:
        """Return the pending end of the stream; None: the view has none."""
        return None

    @abstractmethod
    def notice(self, event: Event) -> bytes:
        """Return the bytes of an event that is not logged: queue position, progress."""

    @abstractmethod
    def idle(self) -> bytes:
        """Return the bytes to send after a while of silence."""

    @abstractmethod
    def lost(self) -> bytes:
        """Return the end when the log does not hold what the reader needs."""

    @abstractmethod
    def overdue(self) -> bytes:
        """Return the end when the task's deadline has passed, and Redis does not report its end."""

    @abstractmethod
    def unread(self) -> bytes:
        """Return the end when Redis has not answered for a while: the client can read the rest later."""

    @abstractmethod
    def farewell(self) -> bytes:
        """Return the end when the gateway stops."""

    @abstractmethod
    def revoked(self) -> bytes:
        """Return the end when the caller's key was taken away."""

    # ---- writing ----------

    async def write(self) -> bool:
        """Write the stream until it ends. Return True at its end, False if the client left, the gateway stops, or it is given up.

        Before the head is written, raise FailedBeforeStart, Lost, Interrupted (the gateway stops), TimeoutError at `give_up`, and
        `Request.gone()`.
        """
        request, reader, view = self.request, self.reader, self.view
        interrupt, open_answers = reader.interrupt, self.tasks.open_answers
        departure = DisconnectWatcher(request, interrupt)
        open_answers.add(interrupt, None if self.resumable else reader.feed)
        take = None if request.direct is None else self._take
        now = asyncio.get_running_loop().time
        hold_until = now() + self.hold_s
        try:
            if not self.hold_s:
                await self._start()
                self.first = self.first or self.opening()
            if self.first:
                await _write(request.send, self.first)
                self.first = b""
            while True:
                try:
                    if view.pending is not None and await self._finish():
                        return True
                    left = PAGE_RETRY_S if view.pending else max(self._due() - now(), 0.1)
                    left = min(left, self._keepalive_s if request.started else hold_until - now())
                    events = await reader.next(left, take)
                    if request.started:
                        if not events and now() > self._due():
                            await _end(
                                request.send, self.unread() if self.give_up is None else self.overdue()
                            )
                            return False
                        if view.pending:
                            continue
                        parts = self._drawn(events) if events else iter((self.idle(),))
                    else:
                        parts = self._drawn(events, held=True)
                        body = next(parts)
                        if departure.gone:
                            raise request.gone()
                        if view.ended:
                            await request.respond(200, body, self._head)
                            return True
                        if not body and now() > self._due():
                            raise TimeoutError
                        if not body and (events or now() < hold_until):
                            continue
                        await self._start()
                        parts = chain((body or self.opening(),), parts)
                        del body
                    del events
                except Lost:
                    if not request.started:
                        raise
                    await _end(request.send, self.lost())
                    return True
                except Interrupted:
                    if not request.started:
                        if departure.gone:
                            raise request.gone() from None
                        raise
                    if request.revoked:
                        await _end(request.send, self.revoked())
                    elif not departure.gone:  # then the gateway stops
                        await _end(request.send, self.farewell())
                    return False
                for body in parts:
                    if departure.gone and not request.revoked:
                        return False
                    if view.ended:
                        await _end(request.send, body)
                        return True
                    await _write(request.send, body)
                    del body
                del parts  # it may be long until the next ones
        finally:
            open_answers.discard(interrupt)
            departure.close()

    def _due(self) -> float:
        """Return the loop time at which a stream without events ends."""
        feed = self.reader.feed
        if self.give_up is not None or feed is None:
            return self.give_up or math.inf
        deadline = math.inf if feed.ended else feed.deadline + OVERDUE_S
        return min(feed.last_seen + STALE_S, deadline)

    async def _start(self) -> None:
        await self.request.start(200, self._head)
        self.request.forget_head()

    def _take(self, events: list[Event]) -> int:
        """Render and write events while the stream waits, without waking it. Return how many were written.

        The stream handles the rest: it ends, the client does not read, the head waits longer, or there is too much for one write.
        """
        last, connection = events[-1], self.request.direct
        assert connection is not None
        if last.type in TERMINAL or len(last.data) > SLICE:
            return 0
        if not self.request.started and not (last.type == "chunk" and self._begin()):
            return 0
        if not connection.may_write:
            return 0
        self.place = None
        feed = self.view.feed
        if len(events) == 1:
            connection.write_more(feed(last))
            return 1
        frames, size = [], 0
        for event in events:
            frames.append(frame := feed(event))
            size += len(frame)
            if size >= SLICE:
                break
        connection.write_more(b"".join(frames))
        return len(frames)

    def _begin(self) -> bool:
        """Write the waiting head with the first output."""
        if not self.request.begin(200, self._head):
            return False
        self.request.forget_head()
        self.reader.wait(self._keepalive_s)
        return True

    async def _finish(self) -> bool:
        """Write the end. Return False if Redis does not answer. Raise Lost."""
        request, ending = self.request, self.ending()
        if ending is None:
            return False
        try:
            async with ending as parts:
                if not request.started:
                    await self._start()
                for part in parts:
                    await _write(request.send, part)
        except StoreError:
            return False
        await _end(request.send, b"")
        return True

    def _drawn(self, events: Sequence[Event], *, held: bool = False) -> Iterator[bytes]:
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
            if event.type == "chunk" and len(event.data) > SLICE and isinstance(self.view, NativeStreamView):
                head, tail = frame_parts(event)
                yield b"".join([*frames, head])
                yield event.data
                frames, size, held = [tail], len(tail), False
                continue
            if event.type not in UNLOGGED:
                self.place = None
                frame = self.view.feed(event)
            elif self.view.ended or (event.type == "queued" and self.reader.seq != self.waits_behind):
                continue  # it has begun since
            else:
                frame = self.notice(event)
            if held and not size and event.type in REFUSALS:
                raise FailedBeforeStart(event)
            frames.append(frame)
            size += len(frame)
        yield b"".join(frames)


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
