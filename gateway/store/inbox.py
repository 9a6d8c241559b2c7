"""Messages of other replicas, and of scripts, over this replica's channel in Redis."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from fairlane.gateway.watch.task_log import LoggingRecorder
from fairlane.streaming.hub import Hub
from fairlane.workers.server.dispatch import Dispatcher

log = structlog.get_logger("fairlane.gateway")


@dataclass(eq=False)
class Inbox:
    """Dispatches each message."""

    _hub: Hub
    _dispatcher: Dispatcher
    _drain_worker: Callable[[str], bool]
    """Drains a worker that is connected here, by its id."""
    _metrics: LoggingRecorder
    _replica: str

    def __call__(self, message: bytes) -> None:
        """Take a message. One that cannot be understood is dropped: it must not make the replica deaf."""
        try:
            self._handle(message)
        except Exception:
            log.exception("cannot handle a message of the channel")

    def _handle(self, message: bytes) -> None:
        kind = message[: message.find(b"\n")]
        if kind in (b"event", b"event_id", b"ephemeral"):
            self._hub.on_event(message)
        elif kind in (b"wake", b"wake_all"):
            self._dispatcher.on_wake(message[len(kind) + 1 :].decode(), targeted=kind == b"wake")
        elif kind == b"stop":
            _, task_id, epoch, why = message.decode().split("\n", 3)
            self._dispatcher.on_stop(task_id, int(epoch), why)
        elif kind == b"reader":
            _, task_id, epoch, replica = message.decode().split("\n")
            self._dispatcher.on_reader(task_id, int(epoch), replica)
        elif kind == b"drain":
            self._drain_worker(message[len(kind) + 1 :].decode())
        elif kind == b"breaker":
            _, what, ms, by, why, model, upstream = message.decode().split("\n", 6)
            if by == self._replica:  # the owner of the task that caused the change logs it
                self._metrics.breaker_changed(model, upstream, what, why, int(ms))
            if what == "closed":
                self._dispatcher.on_upstream_open(model, upstream)
