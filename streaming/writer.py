"""Writes the log of one attempt: coalesced, one append under way at a time, delivered to readers when acknowledged.

Everything runs in callbacks of the event loop: a chunk costs no task and no await. While Redis does not
answer, output is kept and sent again in order, as often as it takes: appends that had arrived count as
success, and nobody sees an event that Redis has not acknowledged.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.scheduler import EventFields, Scheduler
from fairlane.queues.tasks import Finished, Grant, State
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import Event, chunk_data, compose, parse_event_id

log = structlog.get_logger("fairlane.streaming")

RETRY_FIRST_S = 0.05
RETRY_MOST_S = 1.0
REFILL_EVENTS = 512
"""Acknowledged events kept to refill a log whose end was lost with a crash of Redis."""


class Deliver(Protocol):
    """Where acknowledged events go: the readers of this replica."""

    def __call__(self, task_id: str, events: Sequence[Event]) -> None: ...


class TaskWriter:
    """The only writer of one grant's events. It lives from the grant until `on_finished` or `on_over` is called, once.

    `on_over(why)`: the grant is not current any more ('stale': ended from outside, or lost with Redis), so stop
    the worker; or what could not be written outgrew `max_buffered` bytes ('overflow'), or Redis lost more of the
    log than is kept here ('hole'), or it refuses it ('refused').
    """

    def __init__(
        self,
        scheduler: Scheduler,
        deliver: Deliver,
        grant: Grant,
        coalescer: Coalescer,
        *,
        on_over: Callable[[str], None],
        max_buffered: int = 8 << 20,
    ) -> None:
        self._scheduler = scheduler
        self._deliver = deliver
        self._grant = grant
        self._coalescer = coalescer
        self._on_over = on_over
        self._max_buffered = max_buffered
        self._loop = asyncio.get_running_loop()
        self._ready: list[EventFields] = []
        self._sending: list[EventFields] = []
        self._seq = grant.start_seq + 1
        self._acknowledged: deque[Event] = deque(maxlen=REFILL_EVENTS)
        self._timer: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_FIRST_S
        self._finish: Callable[[], asyncio.Future[Any]] | None = None
        self._on_finished: Callable[[Finished], None] | None = None
        self._terminal: EventFields | None = None
        self._closed = False
        self.chunks = 0
        self.chars = 0
        self.buffered = 0

    @property
    def has_output(self) -> bool:
        """True once a chunk was accepted, logged or not."""
        return self.chunks > 0

    def chunk(self, index: int, kind: str, delta: str | bytes) -> None:
        """Take one delta of the worker; text for the kinds made of text, JSON for the others."""
        if self._closed or self._finish:
            return
        self._coalescer.add(index, kind, delta, time.monotonic() * 1000)
        self.chunks += 1
        self.chars += len(delta)
        self.buffered += len(delta) + 64
        if self.buffered > self._max_buffered:
            self._over("overflow")

    def event(self, kind: str, fragment: bytes) -> None:
        """Log another event (`stage`, `usage`) behind the output so far."""
        if self._closed or self._finish:
            return
        self._collect(time.monotonic() * 1000)
        self._ready.append((kind, compose(self._grant.task_id, _now_ms(), fragment)))
        self.pump()

    def pump(self) -> None:
        """Send what is due. Call it once after the chunks of a frame."""
        if self._sending or self._closed or self._finish:
            return
        now = time.monotonic() * 1000
        due = self._coalescer.due(now)
        if due is not None and due <= now:
            self._collect(now)
        elif due is not None and self._timer is None and not self._ready:
            self._timer = self._loop.call_later((due - now) / 1000, self._on_timer)
        if self._ready:
            self._send()

    def finish(
        self,
        state: State,
        code: str,
        kind: str,
        fragment: bytes,
        *,
        used: tuple[int, int],
        want: int,
        models: Sequence[str],
        worker: str,
        keep_ms: int = 0,
        on_finished: Callable[[Finished], None],
    ) -> None:
        """End the task with everything that is left and its terminal event; tried until Redis answers."""
        if self._closed or self._finish:
            return
        self._collect(time.monotonic() * 1000)
        self._terminal = (kind, compose(self._grant.task_id, _now_ms(), fragment))
        nonce = self._scheduler.nonce()
        terminal = self._terminal

        def call() -> asyncio.Future[Any]:
            return self._scheduler.finish(
                self._grant,
                state,
                code,
                self._seq,
                self._sending,
                terminal,
                used=used,
                want=want,
                models=models,
                nonce=nonce,
                worker=worker,
                keep_ms=keep_ms,
            )

        self._finish = call
        self._on_finished = on_finished
        if not self._sending:
            self._send()

    def close(self) -> None:
        """Give up: nothing more is written or called back."""
        self._closed = True
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # ---- sending ----------

    def _on_timer(self) -> None:
        self._timer = None
        self.pump()

    def _collect(self, now: float) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        task_id = self._grant.task_id
        ts = _now_ms()
        for piece in self._coalescer.take(now):
            data = chunk_data(task_id, ts, piece.index, piece.kind, piece.delta_json, piece.n)
            self._ready.append(("chunk", data))

    def _send(self) -> None:
        """Send what is ready, or send again what was sent."""
        if self._closed:
            return
        if not self._sending:
            self._sending, self._ready = self._ready, []
        try:
            if self._finish:
                self._sending += self._ready
                self._ready = []
                self._finish().add_done_callback(self._on_finish_reply)
            else:
                output = any(kind == "chunk" for kind, _ in self._sending)
                reply = self._scheduler.append(self._grant, self._seq, self._sending, output=output)
                reply.add_done_callback(self._on_append_reply)
        except StoreError:
            self._send_later()

    def _send_later(self) -> None:
        self._loop.call_later(self._retry_s, self._send)
        self._retry_s = min(self._retry_s * 2, RETRY_MOST_S)

    def _on_append_reply(self, reply: asyncio.Future[Any]) -> None:
        if self._closed or reply.cancelled():
            return
        error = reply.exception()
        if error is not None:
            if isinstance(error, StoreError):
                self._send_later()
            else:
                log.error("the store refuses events", task_id=self._grant.task_id, error=repr(error))
                self._over("refused")
            return
        self._retry_s = RETRY_FIRST_S
        outcome, top = self._scheduler.appended(reply.result())
        if outcome == "hole":
            self._refill(top)
        elif outcome == "stale":
            self._over("stale")
        else:
            self._acknowledge(self._sending)
            self._sending = []
            if self._finish:
                self._send()
            else:
                self.pump()

    def _on_finish_reply(self, reply: asyncio.Future[Any]) -> None:
        if self._closed or reply.cancelled():
            return
        error = reply.exception()
        if error is not None:
            if isinstance(error, StoreError):
                self._send_later()
            else:
                log.error("the store refuses events", task_id=self._grant.task_id, error=repr(error))
                self._over("refused")
            return
        finished = self._scheduler.finished(reply.result())
        if finished.outcome == "hole":
            self._refill(finished.top)
            return
        self._closed = True
        if finished.outcome == "ok" and self._terminal:
            kind, data = self._terminal
            self._acknowledge(self._sending, Event(*parse_event_id(finished.event_id), kind, data))
        if self._on_finished:
            self._on_finished(finished)

    def _acknowledge(self, fields: Sequence[EventFields], terminal: Event | None = None) -> None:
        epoch, seq = self._grant.epoch, self._seq
        events = [Event(epoch, seq + i, kind, data) for i, (kind, data) in enumerate(fields)]
        self._seq += len(events)
        self._acknowledged.extend(events)
        if terminal is not None:
            events.append(terminal)
        self.buffered = sum(len(data) for _, data in self._ready)
        self._deliver(self._grant.task_id, events)

    def _refill(self, top: int) -> None:
        """Redis came back without the last events: write them again, or give up if they are too long ago."""
        kept = [event for event in self._acknowledged if event.seq > top]
        if not kept or kept[0].seq != top + 1:
            self._over("hole")
            return
        self._sending = [*((event.type, event.data) for event in kept), *self._sending]
        for event in kept:
            self._acknowledged.remove(event)
        self._seq = top + 1
        self._send()

    def _over(self, why: str) -> None:
        if not self._closed:
            self.close()
            self._on_over(why)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
