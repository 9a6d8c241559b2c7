"""Which connections wait for what, and how many there may be.

A connection always stands in one line, except while an answer is being made and read: then the answer has its own limits. A line
has one length of time for all who stand in it, so the longest waiting is the first, and no connection needs a timer.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import structlog

from fairlane.gateway.connections.sockets import ConnectionLimits
from fairlane.queues.metrics import Metrics

log = structlog.get_logger("fairlane.gateway")

HEAD_S = 10.0
"""From the first byte of a request (or from the beginning of a connection) to the end of its head."""
BODY_S = 5.0
"""From an answer to the end of a request's body that nobody wants any more."""
IDLE_S = 75.0
"""From an answer to the next request."""
STALL_S = 30.0
"""A client for whom something waits must have taken STALL_BYTES of it, or all, within every such time; a stream it had can be
resumed."""
STALL_BYTES = 16 * 1024
HANDSHAKE_S = 10.0
"""From the head of a WebSocket's hand-shake to its answer."""
LINGER_S = 5.0
"""From a refusal to the end of the connection, in which what the client still sends is dropped: so it can read the refusal."""
TICK_S = 0.25
TELL_S = 60.0
"""How often the log says that connections are refused."""


class Waiting(Protocol):
    """A connection, as a line knows it."""

    line: "Line | None"

    def expired(self, line: "Line") -> None:
        """The time of the line is over; the connection stands in none now."""

    def evict(self) -> None:
        """End at once, to make room."""


class Line:
    """Connections that wait for the same thing, longest first."""

    __slots__ = ("_since", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[Waiting, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def enter(self, connection: Waiting, now: float) -> None:
        """Stand at the end, in this line alone. Who stands here already keeps the place, and the time that has run."""
        line = connection.line
        if line is not self:
            if line is not None:
                del line._since[connection]
            connection.line = self
            self._since[connection] = now

    def leave(self, connection: Waiting) -> None:
        del self._since[connection]
        connection.line = None

    def first(self) -> Waiting | None:
        """Who has waited longest."""
        return next(iter(self._since), None)

    def due(self, now: float) -> Iterator[Waiting]:
        """Take out those whose time is over; whoever enters meanwhile is not among them."""
        for _ in range(len(self._since)):
            connection, since = next(iter(self._since.items()))
            if now - since < self.seconds:
                return
            self.leave(connection)
            yield connection
            if not self._since:
                return


class Connections:
    """All connections of a process. With too many, those that wait for nothing but a request make room, longest waiting first."""

    def __init__(self, limits: ConnectionLimits, metrics: Metrics) -> None:
        self.limits = limits
        self.open: set[Any] = set()
        """Everything connected, workers too. The server's own set: connections enter and leave by themselves."""
        self.head = Line(HEAD_S)
        self.body = Line(BODY_S)
        self.idle = Line(IDLE_S)
        self.stalled = Line(STALL_S)
        self.handshake = Line(HANDSHAKE_S)
        self.lingering = Line(LINGER_S)
        self._lines = (self.head, self.body, self.idle, self.stalled, self.handshake, self.lingering)
        self._metrics = metrics
        self._addresses: dict[str, int] = {}
        self._ticking = False
        self._untold: Counter[str] = Counter()
        self._told_at = float("-inf")
        self._head_lines: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")

    @property
    def crowded(self) -> bool:
        """Whether only workers and operators are served."""
        return len(self.open) > self.limits.callers

    def arrived(self, address: str | None, loop: asyncio.AbstractEventLoop) -> bool:
        """Take note of a new connection, which is in `open`. False: it is one too many and must go; nothing was noted."""
        if not self._ticking:
            self._ticking = True
            loop.call_later(TICK_S, self._tick, loop)
        limits = self.limits
        if limits.per_address is not None and address is not None:
            if self._addresses.get(address, 0) >= limits.per_address:
                self.refused("address", loop.time())
                return False
            self._addresses[address] = self._addresses.get(address, 0) + 1
        if self.crowded and not self._make_room(loop.time()) and len(self.open) > limits.most:
            self.left(address)
            self.refused("limit", loop.time())
            return False
        return True

    def left(self, address: str | None) -> None:
        """A connection that had arrived counts for its address no more: it is gone, or a worker's."""
        count = self._addresses.get(address, 0) if address is not None else 0
        if count > 1:
            self._addresses[str(address)] = count - 1
        elif count:
            del self._addresses[str(address)]

    def refused(self, reason: str, now: float) -> None:
        """Tell that a connection was turned away: `limit`, `address`, `caller` (see `crowded`), or `evicted` to make room."""
        self._metrics.connection_refused(reason)
        self._untold[reason] += 1
        self._tell(now)

    def default_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """The headers that all answers have, as they are sent. The list is a new one each second, with the date."""
        known, lines = self._head_lines
        if known is not headers:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
            self._head_lines = (headers, lines)
        return lines

    def sweep(self, now: float) -> None:
        """End every wait that has lasted too long."""
        for line in self._lines:
            for connection in line.due(now):
                connection.expired(line)
        self._tell(now)

    def _make_room(self, now: float) -> bool:
        for line in (self.lingering, self.idle, self.body, self.head):
            connection = line.first()
            if connection is not None:
                connection.evict()
                self.refused("evicted", now)
                return True
        return False

    def _tell(self, now: float) -> None:
        if self._untold and now - self._told_at >= TELL_S:
            self._told_at = now
            limits = self.limits
            log.warning(
                "too many connections",
                open=len(self.open),
                limit=limits.most,
                callers=limits.callers,
                per_address=limits.per_address,
                turned_away=dict(self._untold),
            )
            self._untold.clear()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sweep(loop.time())
        self._ticking = bool(self.open) or bool(self._untold) or any(self._lines)
        if self._ticking:
            loop.call_later(TICK_S, self._tick, loop)
