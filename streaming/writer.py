"""Writes the log of one attempt: coalesced, one call under way at a time, delivered to readers when acknowledged.

Everything runs in callbacks of the event loop: a chunk costs no task and no await. While Redis does not
answer, output is kept and sent again in order, as often as it takes: appends that had arrived count as
success, and no reader sees an event that Redis has not acknowledged.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from fairlane.queues.chains import Advanced, Step, advance, parse_advance
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Append, Appended, End, EventFields, Finished, Grant, State, Used
from fairlane.streaming.append_batcher import CALL_BYTES, CALL_EVENTS, AppendBatcher
from fairlane.streaming.coalesce import Coalescer
from fairlane.streaming.events import TEXT_KINDS, Event, chunk_data, compose, parse_event_id

log = structlog.get_logger("fairlane.streaming")

RETRY_FIRST_S = 0.05
MAX_RETRY_S = 1.0
REFILL_EVENTS = 512
"""Acknowledged events kept to refill a log whose end was lost with a crash of Redis."""
MAX_UNSENT_BYTES = 8 << 20
"""Output that may wait while Redis does not answer."""
EARLIER_EVENT_BYTES = 512
"""What each event of earlier attempts counts, in the middle: their sizes are not known any more, and none was output."""
BUFFERED_CHARS = 16_384
"""Output that is withheld becomes an event when it is so long: no reader gets it as it comes."""
PROGRESS_INTERVAL_S = 0.2
"""What is not logged (progress) is shown no more often."""
STAGE_DONE = frozenset({"moved", "ended", "waits"})
"""Answers to the end of a stage that say that it was written."""
STAGE_OVER = STAGE_DONE | {"late", "stale"}
"""Those behind which nothing of it can be written any more."""
TERMINAL_KINDS = {State.COMPLETED: "done", State.FAILED: "error", State.CANCELLED: "cancelled"}


def bytes_of(delta: str | bytes) -> int:
    """How long a delta is in UTF-8."""
    return len(
        delta if isinstance(delta, bytes) or delta.isascii() else delta.encode("utf-8", "surrogatepass")
    )


class Owner(Protocol):
    """Receives a writer's outcomes, with its grant: a writer refers to nothing that refers back, so no cycle is left."""

    def deliver(self, task_id: str, events: Sequence[Event]) -> None:
        """Bring acknowledged events to the readers of this replica."""
        ...

    def on_written(self, grant: Grant, finished: Finished) -> None:
        """The end was answered: it is in the log, or came too late. The writer is closed."""
        ...

    def on_advanced(self, grant: Grant, step: Step, advanced: Advanced) -> None:
        """The end of a stage of a chain was answered. The writer is closed if it is done, or came too late; else nothing has
        happened, and the writer continues."""
        ...

    def show(self, grant: Grant, event: Event) -> None:
        """Show an event that is not logged to all readers: what it stands behind has been delivered."""
        ...

    def on_unwritable(self, grant: Grant, why: str) -> None:
        """The log takes no more of this output: see TaskWriter."""
        ...


class TaskWriter:
    """The only writer of one grant's events. It lives from the grant until `on_written`, or until it is closed.

    `on_unwritable` is called at most once, with the reason. 'stale': the grant is not current any more (ended from outside, or
    lost with Redis), so stop the worker; the writer is closed. Else nothing but the end can be written any more, and the owner
    calls `finish` with another end: 'too_large', the events would take more than `max_bytes`; 'overflow', too much waits to be
    sent; 'hole', Redis lost more of the log than is kept here; 'refused', Redis refuses it.
    """

    __slots__ = (
        "_acknowledged",
        "_batcher",
        "_buffered",
        "_busy",
        "_checked",
        "_closed",
        "_coalescer",
        "_discards",
        "_end",
        "_failed",
        "_grant",
        "_loop",
        "_max_bytes",
        "_owner",
        "_pending_progress",
        "_progress_after",
        "_readers",
        "_ready",
        "_retry_s",
        "_scheduler",
        "_sending",
        "_sending_progress",
        "_sent_in",
        "_seq",
        "_show_after",
        "_show_timer",
        "_slot",
        "_too_large",
        "_unsent",
        "chunks",
        "logged_bytes",
        "pieces",
        "text_bytes",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        owner: Owner,
        grant: Grant,
        coalescer: Coalescer,
        batcher: AppendBatcher,
        *,
        max_bytes: int,
    ) -> None:
        """`batcher`: shared by all writers of an event loop."""
        self._scheduler = scheduler
        self._owner = owner
        self._grant = grant
        self._coalescer = coalescer
        self._batcher = batcher
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._ready: list[EventFields] = []
        self._sending: list[EventFields] = []
        self._busy = False  # a call is under way, or waits to be tried again
        self._readers = self._elsewhere(grant.readers)
        self._sent_in = 0  # the `log_generation` of the last append by the script
        self._checked = 0  # the `log_generation` in which the log was seen to hold all output so far
        self._seq = grant.start_seq + 1
        self._acknowledged: deque[Event] = deque(maxlen=REFILL_EVENTS)
        self._pending_progress: Event | None = None
        self._show_after = 0.0
        self._show_timer: asyncio.TimerHandle | None = None
        self._sending_progress: Event | None = None
        self._progress_after = 0
        self._slot: int | None = None
        self._retry_s = RETRY_FIRST_S
        self._end: End | Step | None = None
        self._too_large = False
        self._failed = False
        self._closed = False
        self._unsent = 0
        self._buffered: list[EventFields] | None = None
        self._discards = False
        self.chunks = 0
        self.text_bytes = 0
        """Of the texts that were written: what was said, thought and refused."""
        self.logged_bytes = (grant.start_seq - 1) * EARLIER_EVENT_BYTES
        """What the events of the task take in its log."""
        self.pieces = 0
        """Events that its chunks have become, or will."""

    @property
    def has_output(self) -> bool:
        """True once a chunk was accepted that is logged, or will be: no retry is possible from then on."""
        return self.chunks > 0 and self._buffered is None and not self._discards

    def discard_output(self) -> None:
        """Log no output at all, as there is no reader. It is counted, and the caller keeps it. Call this before the first."""
        self._discards = True

    def buffer_until_end(self) -> None:
        """Log no output before the task is completed, and none if it is not, so that no reader has seen any then.

        Call this before the first output. It is kept in memory, `max_bytes` of it at most.
        """
        self._buffered = []

    def chunk(self, index: int, kind: str, delta: str | bytes) -> None:
        """Take one delta of the worker; text for the kinds made of text, JSON for the others."""
        if self._closed or self._end or self._failed:
            return
        self._coalescer.add(index, kind, delta, time.monotonic() * 1000)
        self.pieces = self._coalescer.begun
        self.chunks += 1
        if kind in TEXT_KINDS:
            self.text_bytes += len(delta) if delta.isascii() else bytes_of(delta)
        self._wait(len(delta) + 64)

    def event(self, kind: str, fragment: bytes) -> None:
        """Log another event (`stage`, `usage`) behind the output so far."""
        if self._closed or self._end or self._failed:
            return
        self._collect()
        self._add(kind, compose(self._grant.task_id, now_ms(), fragment))
        self._wait(len(fragment) + 64)
        self.pump()

    def show(self, event: Event) -> None:
        """Show an event that is not logged (`progress`), behind the output so far: readers get that first.

        At most one in PROGRESS_INTERVAL_S is shown; of those between, and while Redis does not answer, the newest. None
        follows the end.
        """
        if self._closed or self._end or self._failed:
            return
        self._pending_progress = event
        if self._show_timer is None:
            pause = self._show_after - self._loop.time()
            if pause <= 0:
                self._show_pending()
            else:
                self._show_timer = self._loop.call_later(pause, self._show_pending)

    def _show_pending(self) -> None:
        """Its turn has come: send all output before it."""
        self._stop_show_timer()
        if self._pending_progress is None or self._closed or self._end or self._failed:
            return
        self._sending_progress, self._pending_progress = self._pending_progress, None
        self._show_after = self._loop.time() + PROGRESS_INTERVAL_S
        self._collect()
        self._progress_after = self._seq + len(self._sending) + len(self._ready)
        self._show()
        self.pump()

    def _show(self) -> None:
        """Show what waits, if all that it stands behind is acknowledged."""
        event = self._sending_progress
        if event is not None and self._seq >= self._progress_after:
            self._sending_progress = None
            self._owner.show(self._grant, event)

    def _stop_show_timer(self) -> None:
        if self._show_timer is not None:
            self._show_timer.cancel()
            self._show_timer = None

    def pump(self) -> None:
        """Send what is due. Call it once after the chunks of a frame."""
        if self._busy or self._closed or self._end or self._failed:
            return
        if not (self._coalescer.runs or self._ready or self._too_large):
            return
        now = time.monotonic() * 1000
        if self._buffered is not None or self._discards:
            if self._coalescer.size >= BUFFERED_CHARS:
                self._collect()
            self._send_ready()
            return
        due = self._coalescer.due(now)
        if due is not None and due <= now:
            self._collect()
        elif due is not None and self._slot is None and not self._ready:
            self._slot = self._batcher.add(due / 1000, self)
        self._send_ready()

    def _send_ready(self) -> None:
        if self._too_large:
            self._owner.on_unwritable(self._grant, "too_large")
        elif self._ready:
            self._send()

    def fits(self, size: int) -> bool:
        """Whether an end of `size` bytes may follow all output so far."""
        self._collect()
        return not self._too_large and self.logged_bytes + size <= self._max_bytes

    def finish(
        self,
        state: State,
        code: str,
        fragment: bytes,
        *,
        used: Used,
        want: int,
        models: Sequence[str],
        worker: str,
        keep_ms: int = 0,
        upstream: str = "",
    ) -> None:
        """End the task with everything that is left and its terminal event; tried until Redis answers."""
        if self._closed or self._end:
            return
        if self._pending_progress is not None:
            self._show_pending()
        self._collect()
        if self._buffered is not None and state is State.COMPLETED:
            self._ready += self._buffered
            self._buffered = None
        terminal = (TERMINAL_KINDS[state], compose(self._grant.task_id, now_ms(), fragment))
        nonce = self._scheduler.nonce()
        self._end = End(state, code, terminal, used, nonce, want, models, worker, keep_ms, upstream)
        if not self._busy:
            self._send()

    def advance(self, step: Step) -> None:
        """Complete a stage of a chain, or a part of one, behind everything that is left; tried until Redis answers."""
        if self._closed or self._end:
            return
        if self._pending_progress is not None:
            self._show_pending()
        self._collect()
        if self._buffered is not None:
            self._ready += self._buffered
            self._buffered = None
        self._end = step
        if not self._busy:
            self._send()

    def close(self) -> None:
        """Give up: nothing more is written or called back."""
        self._closed = True
        if self._slot is not None:
            self._stop_timer(self._slot)
        self._stop_show_timer()

    # ---- collecting ----------

    def on_due(self) -> None:
        self._slot = None
        if not (self._busy or self._closed or self._end or self._failed):
            self._collect()
            self._send_ready()

    def _stop_timer(self, slot: int) -> None:
        self._batcher.discard(slot, self)
        self._slot = None

    def _collect(self) -> None:
        """Make events of the output that waits."""
        if not self._coalescer.runs:
            return
        if self._slot is not None:
            self._stop_timer(self._slot)
        task_id = self._grant.task_id
        ts = now_ms()
        for piece in self._coalescer.take(time.monotonic() * 1000):
            self._add("chunk", chunk_data(task_id, ts, piece.index, piece.kind, piece.delta_json, piece.n))
            if self._too_large:
                return

    def _add(self, kind: str, data: bytes) -> None:
        """Take an event into the log, unless it is full."""
        self.logged_bytes += len(data)
        if self.logged_bytes > self._max_bytes:
            self._too_large = True
        elif kind == "chunk" and self._discards:
            pass
        elif not self._failed and kind == "chunk" and self._buffered is not None:
            self._buffered.append((kind, data))
        elif not self._failed:
            self._ready.append((kind, data))

    def _wait(self, size: int) -> None:
        """Count the bytes that wait to be sent, which are bounded while Redis does not answer."""
        if self._buffered is None and not self._discards:
            self._unsent += size
        if len(self._coalescer.runs) >= CALL_EVENTS:  # so that they count for what the log may take
            self._collect()
        if self._unsent > MAX_UNSENT_BYTES and self._busy:
            self._fail("overflow")

    # ---- sending ----------

    def _send(self) -> None:
        """Send what is ready, or send again what was sent: as much as one call takes. The end goes with the last of it."""
        self._busy = False
        if self._closed:
            return
        if self._ready:
            self._fill()
        end = None if self._ready else self._end
        if end is None and not self._sending:
            return
        self._busy = True
        try:
            if isinstance(end, Step):
                reply = advance(self._scheduler, self._grant, self._seq, self._sending, end)
                reply.add_done_callback(self._on_advance_reply)
            elif end is not None:
                reply = self._scheduler.finish(self._grant, self._seq, self._sending, end)
                reply.add_done_callback(self._on_finish_reply)
            elif self._checked == self._scheduler.log_generation and len(self._sending) == 1:
                self._scheduler.append_next(self, self._grant, self._seq, self._sending[0])
            else:
                self._sent_in = self._scheduler.log_generation
                append = Append(self._grant, self._seq, self._sending, self.has_output)
                self._batcher.append(self, append)
        except StoreError:
            self._send_later()

    def _fill(self) -> None:
        """Move on from what is ready to what is sent."""
        if not self._sending and len(self._ready) == 1:  # as nearly always
            self._sending, self._ready = self._ready, self._sending
            return
        size = sum(len(data) for _, data in self._sending)
        taken = 0
        for _, data in itertools.islice(self._ready, max(CALL_EVENTS - len(self._sending), 0)):
            size += len(data)
            if size > CALL_BYTES and (taken or self._sending):
                break
            taken += 1
        self._sending += self._ready[:taken]
        del self._ready[:taken]

    def _send_later(self) -> None:
        self._busy = True
        self._loop.call_later(self._retry_s, self._send)
        self._retry_s = min(self._retry_s * 2, MAX_RETRY_S)

    def on_appended(self, appended: Appended) -> None:
        self._busy = False
        if self._closed:
            return
        if self._failed:
            self._send()  # the end, if it is there yet: what this reply was about is given up
            return
        self._retry_s = RETRY_FIRST_S
        outcome, more = appended
        if outcome == "hole":
            assert isinstance(more, int)
            self._refill(more)
        elif outcome == "stale":
            self._over()
        else:
            assert isinstance(more, str)
            self._readers |= self._elsewhere(more)
            if outcome == "open":
                self._checked = self._sent_in
            self._appended()

    # The receiver of the reply to `append_next`: the event was added; or Redis does not say so, and the script finds out why.

    def done(self) -> bool:
        return False

    def exception(self) -> None:
        return None

    def set_result(self, event_id: bytes | None) -> None:
        try:
            self._on_next(event_id)
        except Exception:  # other calls over this connection have their own replies
            log.exception("a writer failed", task_id=self._grant.task_id)

    def _on_next(self, event_id: bytes | None) -> None:
        self._busy = False
        if event_id is None or self._failed:
            self._checked = 0
            self._send()
        elif not self._closed:
            for replica in self._readers:
                self._scheduler.publish_event(
                    replica, self._grant.task_id, event_id.decode(), self._sending[0]
                )
            self._appended()

    def set_exception(self, error: Exception) -> None:
        self._checked = 0
        if isinstance(
            error, StoreError
        ):  # (later, as other calls over this connection must not see what its owner raises)
            self._loop.call_soon(self.on_append_error, error)
        else:
            self._loop.call_soon(self._send)

    def _appended(self) -> None:
        self._acknowledge(self._sending)
        self._sending = []
        if self._end:
            self._send()
        else:
            self.pump()

    def _elsewhere(self, readers: str) -> set[str]:
        """Return the other replicas of a list of readers."""
        return {one for one in readers.split(",") if one and one != self._scheduler.replica}

    def add_reader(self, replica: str) -> None:
        """Another replica reads the task, too: publish its events there, from the last one on if the log holds it."""
        self._readers.add(replica)
        if self._checked == self._scheduler.log_generation:
            self._scheduler.publish_event(
                replica, self._grant.task_id, f"{self._grant.epoch}-{self._seq - 1}"
            )

    def on_append_error(self, error: BaseException) -> None:
        self._busy = False
        if self._closed:
            return
        if self._failed:
            self._send()
        else:
            self._on_error(error)

    def _is_answered(self, reply: asyncio.Future[Any]) -> bool:
        """Whether Redis has said what it did with the end. Else it is tried again, or the writer is closed."""
        self._busy = False
        if self._closed or reply.cancelled():
            return False
        error = reply.exception()
        if error is not None:
            self._on_error(error)
        return error is None

    def _on_finish_reply(self, reply: asyncio.Future[Any]) -> None:
        if not self._is_answered(reply):
            return
        finished = self._scheduler.parse_finish(reply.result())
        if finished.outcome == "hole":
            self._refill(finished.top)
            return
        if finished.outcome == "ok" and isinstance(self._end, End):
            self._acknowledge(self._sending, Event(*parse_event_id(finished.event_id), *self._end.terminal))
        self._written(finished)

    def _on_advance_reply(self, reply: asyncio.Future[Any]) -> None:
        if not self._is_answered(reply):
            return
        advanced, step = parse_advance(self._scheduler, reply.result()), self._end
        if advanced.outcome == "hole":
            self._refill(advanced.top)
            return
        assert isinstance(step, Step)
        if advanced.outcome in STAGE_DONE:
            self._acknowledge(self._sending)
        if advanced.outcome in STAGE_OVER:
            self.close()
        else:
            self._end, self._retry_s = None, RETRY_FIRST_S
        self._owner.on_advanced(self._grant, step, advanced)

    def _written(self, finished: Finished) -> None:
        self.close()
        self._owner.on_written(self._grant, finished)

    def _acknowledge(self, fields: Sequence[EventFields], terminal: Event | None = None) -> None:
        epoch, seq = self._grant.epoch, self._seq
        events = []
        for at, (kind, data) in enumerate(fields, seq):
            events.append(Event(epoch, at, kind, data))
        self._seq += len(events)
        self._acknowledged.extend(events)
        if terminal is not None:
            events.append(terminal)
        self._unsent = sum(len(data) for _, data in self._ready) if self._ready else 0
        self._owner.deliver(self._grant.task_id, events)
        if self._sending_progress is not None and terminal is None:
            self._show()

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, StoreError):
            self._send_later()
        else:
            log.error("the store refuses events", task_id=self._grant.task_id, error=repr(error))
            self._fail("refused")

    def _refill(self, top: int) -> None:
        """Redis came back without the last events: write them again, or give up if they are too long ago."""
        kept = [event for event in self._acknowledged if event.seq > top]
        if self._failed or not kept or kept[0].seq != top + 1:
            self._fail("hole")
            return
        self._sending = [*((event.type, event.data) for event in kept), *self._sending]
        for event in kept:
            self._acknowledged.remove(event)
        self._seq = top + 1
        self._send()

    # ---- giving up ----------

    def _over(self) -> None:
        """The grant is not current any more."""
        self.close()
        self._owner.on_unwritable(self._grant, "stale")

    def _fail(self, why: str) -> None:
        """Nothing but another end can be written now; what cannot even be ended is over."""
        if self._failed:
            self._written(Finished("stale", "", []))  # the lease ends by itself
            return
        self._failed = True
        self._end = None
        if self._slot is not None:
            self._stop_timer(self._slot)
        self._coalescer.take(0)
        self._ready, self._sending, self._buffered = [], [], None if self._buffered is None else []
        self._seq = 0  # where the log ends is known to Redis alone
        self._owner.on_unwritable(self._grant, why)
