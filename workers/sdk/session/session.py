"""One connection's side of the protocol, without the connection: frames in, frames out, decisions between.

Pure: no socket, no clock, no task. `connection.py` carries bytes to and from it, `pool.py` runs what it
starts.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

import msgspec

from fairlane.workers import protocol
from fairlane.workers.sdk.errors import shorten
from fairlane.workers.sdk.session.checks import check_message
from fairlane.workers.sdk.session.ledger import Ledger
from fairlane.workers.sdk.session.output import TaskOutput
from fairlane.workers.sdk.values import Key

ENVELOPE_BYTES = 1024
"""Room for the members of a `taskChunk` other than its deltas."""

RETRY_WHEN_FULL_MS = 1000


class Phase(Enum):
    """`NEW → REGISTERING → READY → DRAINING → CLOSED`; any may be the last before CLOSED."""

    NEW = auto()
    REGISTERING = auto()
    READY = auto()
    DRAINING = auto()
    CLOSED = auto()


class Slots:
    """The worker's own slots, shared by its connections. A slot is held until its handler has ended."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._held: set[tuple[object, Key]] = set()

    @property
    def free(self) -> int:
        return self.total - len(self._held)

    def hold(self, owner: object, key: Key) -> None:
        """Occupy a slot; the caller has looked at `free` first."""
        self._held.add((owner, key))

    def release(self, owner: object, key: Key) -> None:
        """Free it again; a second call changes nothing."""
        self._held.discard((owner, key))


# ---- what the session asks its surroundings to do ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """The gateway has welcomed the worker."""

    worker_id: str
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class Start:
    """Run this task and call `Session.finish` once, whatever happens. Its slot is held already."""

    task: protocol.Task
    output: TaskOutput


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this task and see that `Session.finish` is called within `grace_ms`."""

    key: Key
    reason: str
    grace_ms: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The gateway drains: no task arrives here any more. With `reconnect`, open another connection first."""

    grace_ms: int
    reconnect: bool


@dataclass(frozen=True, slots=True)
class Complaint:
    """An `error` of the gateway, or an unreadable message. For the log."""

    code: str
    message: str


Effect = Registered | Start | Stop | HandOver | Complaint


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
        slots: Slots,
        ledger: Ledger,
        serves: Callable[[str, str], bool],
        clock: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`make_register` describes the worker; this session adds its slots."""
        self.phase = Phase.NEW
        self.max_message_bytes = 1024 * 1024  # until `registered` has the limit
        self._make_register = make_register
        self._slots = slots
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

    def receive(self, frame: str | bytes) -> list[Effect]:
        """Take one frame from the gateway; what has to be done about it, in order."""
        try:
            message = protocol.from_gateway.decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return [
                Complaint("unreadable", f"The gateway sent a message that this worker cannot read: {error}")
            ]
        if isinstance(message, protocol.Task):
            return self._on_task(message)
        if isinstance(message, protocol.Cancel):
            return self._on_cancel(message)
        if isinstance(message, protocol.ResultAck):
            self._ledger.forget((message.task_id, message.attempt))
            return []
        if isinstance(message, protocol.Registered):
            return self._on_registered(message)
        if isinstance(message, protocol.Drain):
            self.phase = Phase.DRAINING
            return [HandOver(message.grace_ms, message.reconnect)]
        return [Complaint(message.code, message.message)]

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
            self._say(protocol.TaskSent(task_id=output.key[0], attempt=output.key[1]))

    def finish(self, output: TaskOutput, result: protocol.TaskResult) -> bool:
        """End a task: its result is queued behind its output and kept until it is acknowledged.

        The first call counts. False: the task had its result already, or its connection is gone.
        """
        key = output.key
        if self._tasks.get(key) is not output or key in self._finished:
            return False
        result.last_seq = output.final_seq()
        frame = protocol.encoder.encode(result)
        if len(frame) > self.max_message_bytes:
            sentence = (
                f"The result has {len(frame)} bytes; the gateway takes at most {self.max_message_bytes}."
            )
            frame = protocol.encoder.encode(_instead(result, sentence))
        else:
            try:
                check_message(frame)
            except (ValueError, RecursionError) as error:
                sentence = shorten(f"The gateway would not take this result: {error}")
                frame = protocol.encoder.encode(_instead(result, sentence))
        self._finished.add(key)
        self._ledger.keep(key, frame, self, self._clock())
        output.add_frame(frame, is_result=True)
        self._enqueue(output)
        return True

    # ---- messages --------------------------------------------------------------------------------

    def _on_registered(self, message: protocol.Registered) -> list[Effect]:
        self.max_message_bytes = max(message.limits.max_message_bytes, 2 * ENVELOPE_BYTES)
        if self.phase is not Phase.REGISTERING:
            return []  # the answer to a later `register`, which changed the slots
        self.phase = Phase.READY
        self.resend()
        self.offer()
        if self._drain_ms is not None:
            self.drain(self._drain_ms)
        return [Registered(message.worker_id, message.heartbeat_ms)]

    def _on_task(self, task: protocol.Task) -> list[Effect]:
        """1. known already: nothing; 2. not now; 3. not here; 4. no slot; 5. begin."""
        key = (task.task_id, task.attempt)
        if key in self._tasks:  # 1
            return []
        if self.phase is not Phase.READY:  # 2
            return self._reject(key, "draining")
        if not self._serves(task.model, task.task_type):  # 3
            return self._reject(
                key,
                "unsupported",
                message=f"No handler for model {task.model!r} and type {task.task_type!r}.",
            )
        if self._slots.free <= 0:  # 4
            return self._reject(key, "capacity", retry_after_ms=RETRY_WHEN_FULL_MS)
        output = TaskOutput(key)  # 5
        self._slots.hold(self, key)
        self._tasks[key] = output
        output.add_frame(protocol.encoder.encode(protocol.TaskAck(task_id=key[0], attempt=key[1])))
        self._enqueue(output)
        return [Start(task, output)]

    def _on_cancel(self, message: protocol.Cancel) -> list[Effect]:
        """1. running: stop; 2. result on the way; 3. result kept: send it once more; 4. not ours: say so."""
        key = (message.task_id, message.attempt)
        if key in self._tasks:
            if key in self._finished:  # 2
                return []
            return [Stop(key, message.reason, message.grace_ms)]  # 1
        kept = self._ledger.frame(key)
        if kept is not None:  # 3
            self._control.append(kept)
            self._wake()
        else:  # 4
            self._say(
                protocol.TaskResult(
                    task_id=key[0], attempt=key[1], error="This worker does not hold the task (any more)."
                )
            )
        return []

    # ---- helpers ---------------------------------------------------------------------------------

    def _offer_now(self) -> int:
        # The gateway counts its own tasks itself; slots that are busy on another connection, or with a
        # handler that has not ended after its task had, are not for offer. Zero cannot be said: a task too
        # many is rejected instead.
        mine = len(self._tasks) - len(self._finished)
        return max(1, min(self._slots.total, self._slots.free + mine))

    def _send_register(self) -> None:
        register = self._make_register()
        register.slots = self._offer_now()
        if register != self._registered:
            self._registered = register
            self._say(register)

    def _reject(
        self,
        key: Key,
        reason: Literal["capacity", "unsupported", "draining"],
        *,
        retry_after_ms: int | None = None,
        message: str | None = None,
    ) -> list[Effect]:
        self._say(
            protocol.TaskReject(
                task_id=key[0], attempt=key[1], reason=reason, retry_after_ms=retry_after_ms, message=message
            )
        )
        return []

    def _say(self, message: protocol.FromWorker) -> None:
        self._control.append(protocol.encoder.encode(message))
        self._wake()

    def _enqueue(self, output: TaskOutput) -> None:
        if not output.is_queued:
            output.is_queued = True
            self._line.append(output)
            self._wake()


def _instead(result: protocol.TaskResult, sentence: str) -> protocol.TaskResult:
    """The failure that is sent instead of a result that cannot be."""
    return protocol.TaskResult(
        task_id=result.task_id,
        attempt=result.attempt,
        last_seq=result.last_seq,
        error=sentence,
        error_info=protocol.ErrorInfo(code="WORKER_ERROR", message=sentence),
        timings=result.timings,
    )
