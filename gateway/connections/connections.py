"""The open connections of a process: how many there may be, and how long each may wait."""

import asyncio
import operator
from collections import Counter
from typing import Any

import structlog

from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import CONNECTIONS_REJECTED, Recorder
from fairlane.streaming.timer_wheel import TimerWheel

log = structlog.get_logger("fairlane.gateway")

TICK_S = 0.25


class Connections:
    """All connections of a process. Connections beyond the limits are rejected; those that wait too long are closed.

    A connection that waits has a deadline on a timer wheel with steps of TICK_S: thousands of waits need one timer.
    """

    def __init__(self, max_open: int, max_per_address: int | None, metrics: Recorder) -> None:
        self.max_open = max_open
        self.max_per_address = max_per_address
        self._of_address = Counter[str]()
        """Open connections of clients; counted only if they have a limit."""
        self.open: set[Any] = set()
        """All connections, also of workers. This is the server's set: connections add and remove themselves."""
        self._metrics = metrics
        self._deadlines: TimerWheel[Any] | None = None
        self._lines = RateLimitedLogger(burst=1, per_second=1 / 60)
        self._head_lines: tuple[list[tuple[bytes, bytes]], bytes] = ([], b"")

    def arrived(self, address: str | None) -> bool:
        """Count a new connection, which is in `open`. Return False if it exceeds a limit; then nothing was counted."""
        if len(self.open) > self.max_open:
            self._reject()
            return False
        if self.max_per_address is not None and address is not None:
            if self._of_address[address] >= self.max_per_address:
                self._reject()
                return False
            self._of_address[address] += 1
        return True

    def left(self, address: str | None) -> None:
        """Stop counting a connection for its address: it has closed, or is a worker's."""
        if address is not None and address in self._of_address:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]

    def wait(self, connection: Any, until: float, loop: asyncio.AbstractEventLoop) -> int:
        """Call `connection.expired()` at a time of the event loop, or TICK_S later. Return the slot, for `stop_waiting`."""
        if self._deadlines is None:
            self._deadlines = TimerWheel(loop, TICK_S, operator.methodcaller("expired"), early=False)
        return self._deadlines.add(until, connection)

    def stop_waiting(self, slot: int, connection: Any) -> None:
        """Forget a deadline."""
        assert self._deadlines is not None
        self._deadlines.discard(slot, connection)

    def default_lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the headers of all answers as they are sent. The server replaces the list each second, with the date."""
        known, lines = self._head_lines
        if known is not headers:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in headers)
            self._head_lines = (headers, lines)
        return lines

    def _reject(self) -> None:
        self._metrics.count(CONNECTIONS_REJECTED)
        limits = {"limit": self.max_open, "per_address": self.max_per_address}
        self._lines.log(log.warning, "too many connections", open=len(self.open), **limits)
