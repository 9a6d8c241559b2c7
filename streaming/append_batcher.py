"""What the writers of a process share: one timer for those that are due at about the same time, and one call to Redis for all
that they have to write in the same tick of the event loop.
"""

import asyncio
from functools import partial
from typing import Any, Protocol

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Append, Appended
from fairlane.streaming.timer_wheel import TimerWheel

log = structlog.get_logger("fairlane.streaming")

STEP_S = 0.005
CALL_EVENTS, CALL_BYTES = 500, 1 << 20
"""What one call writes; a larger event goes alone. All other callers wait while such a call runs."""


class Flushing(Protocol):
    """A writer."""

    def on_due(self) -> None:
        """Its time to flush has come, or is so near that it shares a step with others'."""
        ...

    def on_appended(self, appended: Appended) -> None:
        """The outcome of its append."""
        ...

    def on_append_error(self, error: BaseException) -> None:
        """Redis did not answer its append, or refuses it."""
        ...


_Written = tuple[Flushing, Append]


class AppendBatcher:
    """See the module. A writer has one append under way at a time, and is called once for each, from the event loop."""

    def __init__(self, scheduler: Scheduler, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduler = scheduler
        self._ready: list[_Written] = []
        timers: TimerWheel[Flushing] = TimerWheel(loop, STEP_S, _due, early=True)
        self.add = timers.add
        """Call a writer's `on_due` at an instant, none too late; returns the slot by which `discard` takes it back."""
        self.discard = timers.discard

    def append(self, writer: Flushing, append: Append) -> None:
        """Write events with those that others have in this tick."""
        if not self._ready:
            self._scheduler.before_writing(self._send)
        self._ready.append((writer, append))

    def _send(self) -> None:
        """Send what is ready, in as few calls as its size permits."""
        ready, self._ready = self._ready, []
        if len(ready) == 1:  # as nearly always
            self._call(ready)
            return
        for written in self._scheduler.grouped(ready, _task_of):
            self._send_some(written)

    def _send_some(self, ready: list[_Written]) -> None:
        begin = events = size = 0
        for at, (_, append) in enumerate(ready):
            more = sum([len(data) for _, data in append.events])
            if at > begin and (events + len(append.events) > CALL_EVENTS or size + more > CALL_BYTES):
                self._call(ready[begin:at])
                begin, events, size = at, 0, 0
            events += len(append.events)
            size += more
        self._call(ready[begin:])

    def _call(self, written: list[_Written]) -> None:
        try:
            reply = self._scheduler.append([append for _, append in written])
        except StoreError as error:
            for writer, _ in written:
                writer.on_append_error(error)
        else:
            reply.add_done_callback(partial(self._on_reply, written))

    def _on_reply(self, written: list[_Written], reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            return
        error = reply.exception()
        if error is None:
            outcomes = self._scheduler.parse_append(reply.result())
            for (writer, _), appended in zip(written, outcomes, strict=True):
                try:
                    writer.on_appended(appended)
                except Exception:  # the others have been answered, too
                    log.exception("a writer failed")
        elif len(written) > 1 and not isinstance(error, StoreError):
            for one in written:  # Redis refuses one of them: each for itself, so that the others continue
                self._call([one])
        else:
            for writer, _ in written:
                writer.on_append_error(error)


def _task_of(written: _Written) -> str:
    return written[1].grant.task_id


def _due(writer: Flushing) -> None:
    writer.on_due()
