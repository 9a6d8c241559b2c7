"""One connection's side of the protocol, without the connection: frames in, frames out, decisions between.

Pure: no socket, no clock, no task. `connection.py` carries bytes to and from it, `pool.py` runs what it
starts.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import msgspec

from fairlane.workers import protocol
from fairlane.workers.sdk.errors import shorten
from fairlane.workers.sdk.session.ledger import Ledger
from fairlane.workers.sdk.session.output import TaskOutput
from fairlane.workers.sdk.values import Key

ENVELOPE_BYTES = 1024
"""Room for the members of a `taskChunk` other than its deltas."""

RETRY_WHEN_FULL_MS = 1000

HEADROOM = 200
"""Levels by which a message may be nested less than this process could read. Gateways keep back fewer."""
_OPEN, _CLOSE = b"[" * HEADROOM, b"]" * HEADROOM
_any = msgspec.json.Decoder(msgspec.Raw)
_delta = msgspec.json.Decoder(protocol.Delta)


class Phase(Enum):
    """`NEW → REGISTERING → READY → DRAINING → CLOSED`; any may be the last before CLOSED."""

    NEW = auto()
    REGISTERING = auto()
    READY = auto()
    DRAINING = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Start:
    """Run this task and call `Session.finish` once, whatever happens."""

    task: protocol.Task
    output: TaskOutput


Effect = Start | protocol.Cancel | protocol.Registered | protocol.Drain | protocol.Error
"""What a session asks its surroundings to do: run a task, stop one so that `Session.finish` is called within the grace, note that
it is registered, hand over, write an `error` (or what cannot be read) to the log."""


class Session:
    """The state of one connection.

    Frames leave in this order: what is about the connection, then one frame of each task that has something
    to send, in turn. `wake` is called when there is something to send. A task that was started here belongs
    to this session until its result has been handed out; the result then stays in the ledger until the
    gateway has acknowledged it.
    """

    def __init__(
        self,
        make_register: Callable[[], protocol.Register],
        *,
        free_slots: Callable[[], int],
        ledger: Ledger,
        serves: Callable[[str, str], bool],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`make_register` describes the worker; this session adds its slots. `free_slots`: those that no handler of any
        connection occupies."""
        self.phase = Phase.NEW
        self.max_message_bytes = 1024 * 1024  # until `registered` has the limit
        self._make_register = make_register
        self._free_slots = free_slots
        self._ledger = ledger
        self._serves = serves
        self._clock = clock
        self._wake = wake
        self._control: deque[bytes] = deque()
        self._line: deque[TaskOutput] = deque()
        self._tasks: dict[Key, TaskOutput] = {}
        self._finished: set[Key] = set()
        self._registered: protocol.Register | None = None
        self._drain_ms: int | None = None  # the worker's own wish to go, once it has one

    # ---- the connection --------------------------------------------------------------------------

    def begin(self) -> None:
        """Send `register`: the socket is open."""
        self.phase = Phase.REGISTERING
        self._send_register()

    def receive(self, frame: str | bytes) -> Effect | None:
        """Take one frame from the gateway. Return what has to be done about it."""
        try:
            message = protocol.from_gateway.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = f"The gateway sent a message that this worker cannot read: {error}"
            return protocol.Error("unreadable", why)
        if isinstance(message, protocol.Task):
            return self._on_task(message)
        if isinstance(message, protocol.Cancel):
            return self._on_cancel(message)
        if isinstance(message, protocol.ResultAck):
            self._ledger.forget((message.task_id, message.attempt))
            return None
        if isinstance(message, protocol.Registered):
            return self._on_registered(message)
        if isinstance(message, protocol.Drain):
            self.phase = Phase.DRAINING
        return message

    def next_frame(self) -> bytes | None:
        """The next frame to send, or None when nothing waits."""
        if self._control:
            return self._control.popleft()
        while self._line:
            output = self._line.popleft()
            frame = output.next_frame()
            if output:
                self._line.append(output)
            else:
                output.is_queued = False
            if output.result_sent:
                self._tasks.pop(output.key, None)
                self._finished.discard(output.key)
            if frame is not None:
                return frame
        return None

    def heartbeat(self) -> list[Key]:
        """Send the tasks that are held here: those whose result is not sent. Return the tasks whose result was too old and is
        forgotten."""
        running = [protocol.Running(task_id, attempt) for task_id, attempt in self._tasks]
        self._say(protocol.Heartbeat(running=running))
        return self._ledger.expire(self._clock())

    def drain(self, grace_ms: int) -> None:
        """Drain: ask for no new tasks and reject those that arrive. Running tasks continue."""
        self._drain_ms = grace_ms
        if self.phase is Phase.READY:
            self.phase = Phase.DRAINING
            self._say(protocol.Draining(grace_ms=grace_ms))

    def offer(self) -> None:
        """Send `register` again if the free slots or the worker's description have changed."""
        if self.phase is Phase.READY:
            self._send_register()

    def resend(self) -> None:
        """Send the results that no session carries any more. Only once this one is registered."""
        if self.phase is Phase.READY or (self.phase is Phase.DRAINING and self._drain_ms is not None):
            self._ledger.expire(self._clock())
            self._control.extend(self._ledger.adopt(self))
            self._wake()

    def end(self) -> None:
        """The socket is closed. Tasks of this session are no longer ours; their late results are dropped."""
        self.phase = Phase.CLOSED
        self._tasks.clear()
        self._finished.clear()
        self._line.clear()
        self._control.clear()
        self._ledger.release(self)

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits to be sent, nothing to be acknowledged."""
        return not self._tasks and not self._control and not self._ledger.owned_by(self)

    # ---- its tasks -------------------------------------------------------------------------------

    @property
    def max_delta_bytes(self) -> int:
        """The largest delta, as JSON, that fits into a frame."""
        return self.max_message_bytes - ENVELOPE_BYTES

    def emit(self, output: TaskOutput, encoded: bytes) -> bool:
        """Queue one delta; dropped after the result. False: enough is waiting, wait for room."""
        if output.key not in self._finished:
            output.add_delta(encoded)
            self._enqueue(output)
        return not output.full

    def progress(self, output: TaskOutput, message: protocol.TaskProgress) -> bool:
        """Queue a progress message, in order with the deltas. False as with `emit`."""
        if output.key not in self._finished:
            output.add_frame(protocol.encoder.encode(message))
            self._enqueue(output)
        return not output.full

    def sent(self, output: TaskOutput) -> None:
        """Send `taskSent`, ahead of all output, as other tasks wait for it. Dropped after the result."""
        if self._tasks.get(output.key) is output and output.key not in self._finished:
            self._say(protocol.TaskSent(*output.key))

    def finish(self, output: TaskOutput, result: protocol.TaskResult) -> bool:
        """End a task: its result is queued behind its output and kept until it is acknowledged.

        The first call counts. False: the task had its result already, or its connection is gone.
        """
        key = output.key
        if self._tasks.get(key) is not output or key in self._finished:
            return False
        result.last_seq = output.final_seq()
        frame = protocol.encoder.encode(result)
        try:
            if len(frame) > self.max_message_bytes:
                raise ValueError(f"it has {len(frame)} bytes; the limit is {self.max_message_bytes}")
            check_message(frame)
        except (ValueError, RecursionError) as error:
            sentence = shorten(f"The gateway would not take this result: {error}")
            info = protocol.ErrorInfo(code="WORKER_ERROR", message=sentence)
            instead = protocol.TaskResult(
                *key, result.last_seq, error=sentence, error_info=info, timings=result.timings
            )
            frame = protocol.encoder.encode(instead)
        self._finished.add(key)
        self._ledger.keep(key, frame, self, self._clock())
        output.add_frame(frame, is_result=True)
        self._enqueue(output)
        return True

    # ---- messages --------------------------------------------------------------------------------

    def _on_registered(self, message: protocol.Registered) -> Effect | None:
        self.max_message_bytes = max(message.limits.max_message_bytes, 2 * ENVELOPE_BYTES)
        if self.phase is not Phase.REGISTERING:
            return None  # the answer to a later `register`, which changed the slots
        self.phase = Phase.READY
        self.resend()
        self.offer()
        if self._drain_ms is not None:
            self.drain(self._drain_ms)
        return message

    def _on_task(self, task: protocol.Task) -> Effect | None:
        """1. known already: nothing; 2. not now; 3. not here; 4. no slot; 5. begin."""
        key = (task.task_id, task.attempt)
        if key in self._tasks:  # 1
            return None
        if self.phase is not Phase.READY:  # 2
            self._say(protocol.TaskReject(*key, "draining"))
        elif not self._serves(task.model, task.task_type):  # 3
            why = f"No handler for model {task.model!r} and type {task.task_type!r}."
            self._say(protocol.TaskReject(*key, "unsupported", message=why))
        elif self._free_slots() <= 0:  # 4
            self._say(protocol.TaskReject(*key, "capacity", RETRY_WHEN_FULL_MS))
        else:  # 5
            output = self._tasks[key] = TaskOutput(key)
            output.add_frame(protocol.encoder.encode(protocol.TaskAck(*key)))
            self._enqueue(output)
            return Start(task, output)
        return None

    def _on_cancel(self, message: protocol.Cancel) -> Effect | None:
        """1. running: stop; 2. result on the way; 3. result kept: send it once more; 4. not ours: say so."""
        key = (message.task_id, message.attempt)
        if key in self._tasks:
            return None if key in self._finished else message  # 2, 1
        kept = self._ledger.frame(key)
        if kept is not None:  # 3
            self._control.append(kept)
            self._wake()
        else:  # 4
            self._say(protocol.TaskResult(*key, error="This worker does not hold the task (any more)."))
        return None

    # ---- helpers ---------------------------------------------------------------------------------

    def _send_register(self) -> None:
        register = self._make_register()
        # The gateway counts its own tasks itself; slots that are busy on another connection, or with a
        # handler that has not ended after its task had, are not for offer. Zero cannot be said: a task too
        # many is rejected instead.
        register.slots = max(1, self._free_slots() + len(self._tasks) - len(self._finished))
        if register != self._registered:
            self._registered = register
            self._say(register)

    def _say(self, message: protocol.FromWorker) -> None:
        self._control.append(protocol.encoder.encode(message))
        self._wake()

    def _enqueue(self, output: TaskOutput) -> None:
        if not output.is_queued:
            output.is_queued = True
            self._line.append(output)
            self._wake()


# ---- checks of outgoing messages as the gateway makes them: a wrong one fails its task here, not the connection ----


def check_delta(encoded: bytes) -> None:
    """Raise ValueError or RecursionError for a delta that the gateway would not take."""
    delta = _delta.decode(encoded)
    if delta.tool_calls is not msgspec.UNSET and bytes(delta.tool_calls)[:1] not in (b"[", b"n"):
        raise ValueError("tool_calls is not a list")
    if delta.extra is not msgspec.UNSET and bytes(delta.extra)[:1] not in (b"{", b"n"):
        raise ValueError("extra is not an object")
    _check_depth(encoded)


def check_message(frame: bytes) -> None:
    """The same for a whole message."""
    protocol.from_worker.decode(frame)
    _check_depth(frame)


def _check_depth(text: bytes) -> None:
    if len(text) > HEADROOM and text.count(b"[") + text.count(b"{") > HEADROOM:
        _any.decode(b"%b%b%b" % (_OPEN, text, _CLOSE))
