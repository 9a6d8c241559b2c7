"""The protocol over one worker's connection, in both versions (PROTOCOL.md).

No I/O: messages arrive, frames and a close leave through the `Connection`; the messages lead to calls of attempts and of the
dispatcher. A worker's wrong input ends here: it is answered, counted and finally closes the connection, and never reaches another
worker or a client.
"""

import enum
import itertools
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from fairlane.queues.keys import ANY_ENDPOINT, is_reserved
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.workers.protocol import (
    CLOSE_FLOOD,
    CLOSE_PROTOCOL,
    CLOSE_REPLACED,
    CLOSE_RESTART,
    CLOSE_UNAUTHORIZED,
    CLOSE_VERSION,
    DEFAULT_MAX_MESSAGE_BYTES,
    SDK_NAME,
    VERSION,
    Cancel,
    Draining,
    Error,
    FromWorker,
    Heartbeat,
    Limits,
    Register,
    Registered,
    ResultAck,
    TaskAck,
    TaskChunk,
    TaskProgress,
    TaskReject,
    TaskResult,
    TaskSent,
    encoder,
)
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.pool.suspects import Loss
from fairlane.workers.server.pool.worker import ANY, AttemptKey, Worker
from fairlane.workers.server.sessions.frames import explain, read_frame
from fairlane.workers.server.sessions.rates import FrameRate, PerMinute
from fairlane.workers.server.tasks import messages
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import BEFORE_THE_END

log = structlog.get_logger("fairlane.workers")

ABOUT_ATTEMPTS: dict[type, Callable[[Attempt, Any], str | None]] = {
    TaskAck: messages.acknowledged,
    TaskSent: messages.request_left,
    TaskReject: messages.reject,
    TaskChunk: messages.chunk,
    TaskProgress: messages.progress,
    TaskResult: messages.result,
}
"""The messages about attempts, and what takes each. It returns what is wrong with the message, or None."""
NOT_LISTED = "Worker disconnected: two heartbeats in a row do not list the task, so it counts as lost"
LOG_BURST = 200
"""Workers that connect, or disconnect, with a log line each."""
INVALID_PER_MINUTE = 5
STALE_PER_MINUTE = 50
MAX_NAMED = 16
"""Tasks that are looked for in a frame that cannot be read."""
_TASK_ID = re.compile(r'"taskId"\s{0,20}:\s{0,20}"([^"\\]{1,100})"')
MAX_CANCELS = 64
"""The most answers to one heartbeat, or as many as the worker has slots."""


class Fault(enum.Enum):
    """How a wrong frame counts against its connection."""

    INVALID = enum.auto()
    LATE = enum.auto()
    """It is about a task that has ended, and whose end may not have been heard of: as a stale one."""
    PUNISHED = enum.auto()
    """Not at all: the task that it is about has failed for it."""


class Identity(Protocol):
    """The owner of a worker token."""

    @property
    def id(self) -> str: ...

    @property
    def models(self) -> tuple[str, ...]:
        """Models it may offer; `*` = any."""
        ...

    @property
    def sha256(self) -> str:
        """Of the token; empty where none is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Durations in ms; frames and bytes per second and slot, above which reading pauses for `flood_ms` at most."""

    heartbeat_ms: int = 10_000
    dead_after_ms: int = 30_000
    max_message_bytes: int = 17 << 20
    register_ms: int = 5000
    send_ms: int = 5000
    flood_frames: int = 500
    flood_bytes: int = 4 << 20
    flood_ms: int = 5000


class SessionLogs:
    """What the sessions of a replica log, at a limited rate. `losses`: workers that had tasks when they disconnected, so that
    others which reconnect do not hide them."""

    def __init__(self) -> None:
        self.connects = RateLimitedLogger(burst=LOG_BURST)
        self.disconnects = RateLimitedLogger(burst=LOG_BURST)
        self.losses = RateLimitedLogger(burst=LOG_BURST)
        self.complaints = RateLimitedLogger()


class Connection(Protocol):
    """A WebSocket, as its session sees it."""

    @property
    def closed_by_peer(self) -> bool:
        """Whether the worker sent the close with which the connection ended."""
        ...

    def say(self, text: bytes) -> None:
        """Send a text message; nothing when the connection is over."""
        ...

    def hang_up(self, code: int, reason: str) -> None:
        """End the connection from this side, once."""
        ...


class Session:
    """One connection."""

    __slots__ = (
        "_asked",
        "_connection",
        "_dispatcher",
        "_frame_rate",
        "_invalid",
        "_kept_results",
        "_logs",
        "_settings",
        "_stale",
        "_time",
        "_version",
        "identity",
        "send",
        "worker",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        logs: SessionLogs,
        identity: Identity,
        settings: SessionSettings,
        connection: Connection,
        version: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._logs = logs
        self._settings = settings
        self._connection = connection
        self._version = version
        self._invalid = PerMinute(INVALID_PER_MINUTE)
        self._stale = PerMinute(STALE_PER_MINUTE)
        self._kept_results = 0
        self._asked = [ANY]
        """The models that the worker would offer."""
        self._time = dispatcher.time
        flood_s = settings.flood_ms / 1000
        self._frame_rate = FrameRate(settings.flood_frames, settings.flood_bytes, flood_s, self._time())
        self.identity = identity
        self.worker: Worker | None = None
        self.send = connection.say

    # ---- life ----------

    def begin(self) -> None:
        """Start a connection. A version 1 worker sends no `register`."""
        if self._version == 1:
            self._connect_v1()

    def register_is_due(self) -> None:
        """The time in which a version 2 worker must have registered is over."""
        if self.worker is None:
            self.close(CLOSE_PROTOCOL, f"register is due within {self._settings.register_ms} ms")

    def ended(self, code: int, reason: str) -> None:
        """The connection is over, from either side."""
        worker, self.worker = self.worker, None
        if worker:
            cut_off = code == 1011 or code >= CLOSE_PROTOCOL  # by this side, and for a reason
            (self._logs.losses if worker.attempts else self._logs.disconnects).log(
                log.warning if cut_off or worker.attempts else log.info,
                "worker disconnected",
                worker_id=worker.id,
                name=worker.name,
                code=code,
                reason=reason,
                tasks=len(worker.attempts),
            )
            by_worker = self._connection.closed_by_peer and not worker.draining
            silent = not by_worker and code == 1011  # what came after its last sign it may not have read
            at = worker.heard_at if silent else self._time()
            self._dispatcher.disconnected(worker, Loss(code, reason, by_worker, at, worker.process_known))

    def close(self, code: int, reason: str) -> None:
        """End the connection from this side, once."""
        self._connection.hang_up(code, reason[:120])

    # ---- incoming messages ----------

    def received(self, data: str | bytes, size: int) -> float:
        """Take a message of `size` bytes. Return the seconds until the next one may be read."""
        now = self._time()
        if self.worker is not None:
            self.worker.heard_at = now
        try:
            self._take(read_frame(data))
        except (ValueError, RecursionError) as error:  # msgspec's and Unicode's errors are ValueErrors
            self._complain("INVALID_MESSAGE", explain(error), fault=self._unreadable(data))
        if self.worker is None:
            self.close(CLOSE_PROTOCOL, "the first frame must be a valid register")
        rate = self._frame_rate  # counted here: for most frames a call of `look` is not needed
        rate.count += 1
        rate.size += size
        if rate.count < rate.few and rate.size < rate.little:
            return 0.0
        pause = rate.look(now)
        if pause is None:  # a flood
            self.close(CLOSE_FLOOD, "too much, too fast")
            return 0.0
        return pause

    def _take(self, frame: FromWorker) -> None:
        """Take one message."""
        worker, take = self.worker, ABOUT_ATTEMPTS.get(type(frame))
        try:
            if worker is not None and take is not None:
                key = frame.task_id, frame.attempt if self._version >= 2 else 0  # type: ignore[union-attr]
                attempt: Attempt | None = worker.attempts.get(key)
                if attempt is None or attempt.answered:
                    self._late(worker, key, frame)
                elif wrong := take(attempt, frame):
                    fault = Fault.INVALID if isinstance(frame, TaskProgress) else Fault.PUNISHED
                    self._complain("PROTOCOL_ERROR", wrong, attempt.grant.task_id, fault=fault)
            elif isinstance(frame, Register):
                self._register(frame)
            elif worker is None:
                self._complain("NOT_REGISTERED", "register first")
            elif isinstance(frame, Heartbeat):
                self._heartbeat(worker, frame)
            elif isinstance(frame, Draining) and not worker.draining:
                worker.draining = True
                self._dispatcher.changed(worker)
        except Exception:  # one bad frame must not end a worker's other tasks; the frame is dropped
            log.exception("cannot handle a frame", worker_id=self.worker.id if self.worker else None)
            self._complain("INTERNAL", "the gateway failed to handle this message")

    def _late(self, worker: Worker, key: AttemptKey, frame: FromWorker) -> None:
        """Handle a frame about no running attempt.

        A late frame of an attempt that the gateway has ended is no fault for as long as a worker may take to stop. A later one,
        one after the worker's own result, or one about a task that the worker never had, is a fault. A result is acknowledged
        all the same, so that the worker forgets it.
        """
        late_until = worker.finished_attempts.get(key)
        if not isinstance(frame, TaskResult):
            if self._time() > (late_until or 0.0):
                self._stale_frame(key[0])
            return
        if key in worker.attempts or late_until == 0.0:
            status, fault = "duplicate", True
        elif late_until is not None or worker.unknown_attempts.pop(key, False):
            status, fault = "stale", False
            worker.finished_attempts.put(key, 0.0)
        else:
            given = any(key[0] == task_id for task_id, _ in worker.attempts)
            status = "stale" if given else "unknown"
            # results kept from an earlier connection are sent again: no more than it has slots
            self._kept_results += 1
            fault = self._kept_results > worker.slots
        if worker.version >= 2:
            self.send(encoder.encode(ResultAck(*key, status)))  # type: ignore[arg-type]
        if fault:
            self._stale_frame(None)

    def _unreadable(self, data: str | bytes) -> Fault:
        """Handle an unreadable frame: fail the tasks that it names, as they must not wait for a result or continue without a part
        of their output."""
        worker, fault = self.worker, Fault.INVALID
        if worker is None:
            return fault
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
        named = {match[1] for match in itertools.islice(_TASK_ID.finditer(text), MAX_NAMED)}
        for attempt in list(worker.attempts.values()):
            if attempt.answered or attempt.grant.task_id not in named:
                continue
            runs = attempt.phase in BEFORE_THE_END
            if '"taskResult"' in text:
                messages.unreadable_result(attempt)
            elif '"taskChunk"' in text:
                attempt.broken("The worker sent output that is not valid JSON")
            else:
                continue
            if fault is not Fault.PUNISHED:
                fault = Fault.PUNISHED if runs else Fault.LATE
        return fault

    def _heartbeat(self, worker: Worker, frame: Heartbeat) -> None:
        """Compare a worker's list of running tasks with its attempts here."""
        running = {(task.task_id, task.attempt) for task in frame.running}
        for attempt in list(worker.attempts.values()):
            if attempt.key in running:
                running.discard(attempt.key)
                attempt.missing = 0
            elif attempt.phase in ("running", "stopping"):
                attempt.missing += 1
                if attempt.missing >= 2:
                    if attempt.phase == "running":
                        self._dispatcher.pool.count_loss(worker)
                        task_id = attempt.grant.task_id
                        self._complain("PROTOCOL_ERROR", NOT_LISTED, task_id, fault=Fault.PUNISHED)
                    attempt.lost(NOT_LISTED)
        for key in sorted(running)[: max(worker.slots, MAX_CANCELS)]:
            if worker.finished_attempts.get(key) is None:
                worker.unknown_attempts.put(key, True)  # its answer to the cancel is no fault
            self.send(encoder.encode(Cancel(*key, "superseded", self._dispatcher.settings.cancel_grace_ms)))

    # ---- registering ----------

    def _connect_v1(self) -> None:
        models = self._allowed([ANY])
        if self._dispatcher.pool.draining:
            self.close(CLOSE_RESTART, "the gateway stops")
        elif not models:
            self.close(CLOSE_UNAUTHORIZED, "the worker token covers endpoints alone: register (version 2)")
        else:
            self._connect("v1-" + secrets.token_hex(4), models, 1, upstream=self._upstream(None))

    def _connect(
        self, name: str, models: list[str], slots: int, unhealthy: str | None = None, **more: Any
    ) -> Worker:
        worker = self.worker = Worker(
            *(secrets.token_hex(8), name, self._version, tuple(models), slots),
            key_id=self.identity.id,
            send=self.send,
            close=self.close,
            **more,
        )
        self._logs.connects.log(
            log.info,
            "worker connected",
            worker_id=worker.id,
            name=worker.name,
            version=worker.version,
            models=worker.logged_models,
            slots=worker.slots,
            key_id=self.identity.id,
        )
        self._dispatcher.connected(worker, unhealthy or "")
        return worker

    def _upstream(self, name: str | None) -> str:
        """Return the upstream of this worker as the store knows it: within its token, so that no worker of another token can hold
        it or open its breaker. Ids in parentheses are of the gateway's own workers, and of those without a token."""
        token = self.identity.id
        return name or "" if token.startswith("(") else f"{token}/{name or ''}"

    def _allowed(self, models: list[str]) -> list[str]:
        """Return the requested models that the token may offer; endpoints only if the token names them, as `*` does not include
        them."""
        mine = self.identity.models
        plain = [model for model in models if not is_reserved(model)]
        if ANY not in mine:
            covered = [model for model in mine if not is_reserved(model)]
            plain = covered if ANY in plain else [model for model in plain if model in covered]
        return plain + self._allowed_endpoints(models)

    def _allowed_endpoints(self, models: list[str]) -> list[str]:
        """Return the same for endpoints: all present ones, if all are requested. While there is none, a worker of all endpoints
        offers just that, and waits."""
        mine = [model for model in self.identity.models if is_reserved(model)]
        asked: Sequence[str] = [model for model in models if is_reserved(model)]
        if not mine or not asked:
            return []
        if ANY_ENDPOINT in asked:
            asked = self._dispatcher.settings.endpoints or (ANY_ENDPOINT,)
        return [model for model in asked if ANY_ENDPOINT in mine or model in mine or model == ANY_ENDPOINT]

    def allow(self, identity: Identity) -> None:
        """Apply a token that was read again, or changed endpoints, to the worker's offer. Running tasks continue."""
        self.identity = identity
        worker = self.worker
        if worker is None:
            return
        models = self._allowed(self._asked)
        if not models:
            self.close(CLOSE_UNAUTHORIZED, "the worker token covers none of its models any more")
            return
        before = worker.models
        worker.set_models(models, worker.task_types)
        if worker.models != before:
            log.info(
                "worker offers other models, by its token and the endpoints",
                worker_id=worker.id,
                models=worker.logged_models,
            )
            self._dispatcher.changed(worker)

    def _register(self, frame: Register) -> None:
        """Register a version 2 worker, or change its offer."""
        first, models = self.worker, self._allowed(frame.models)
        if VERSION not in frame.protocols:
            sentence = f"this gateway speaks version {VERSION}"
            self._refuse("VERSION", sentence, CLOSE_VERSION, "no common protocol version")
        elif not models:
            sentence = "the token may offer none of these models"
            self._refuse("MODELS", sentence, CLOSE_PROTOCOL, "no model left that the token may offer")
        elif first is not None and first.version >= 2:
            self._asked = frame.models
            self._change(first, frame, models)
        elif first is None and self._dispatcher.pool.draining:
            self.close(CLOSE_RESTART, "the gateway stops")
        elif first is not None and any(attempt.writer.chunks for attempt in first.attempts.values()):
            self._complain("BUSY", "register while idle")
        else:
            self._asked = frame.models
            self._connect_v2(frame, models)

    def _refuse(self, code: str, sentence: str, close_code: int, reason: str) -> None:
        """Send a worker why it is not accepted, and end its connection."""
        self.send(encoder.encode(Error(code, sentence, None, True)))
        self.close(close_code, reason)

    def _change(self, worker: Worker, frame: Register, models: list[str]) -> None:
        """Change what a worker offers."""
        before = _offer_of(worker)
        worker.upstream = self._upstream(frame.upstream)
        worker.max_message_bytes = _max_message_bytes(frame)
        worker.set_models(models, frame.task_types)
        worker.model_info, worker.tags = frame.model_info, frame.tags
        worker.slots = frame.slots
        self._frame_rate.set_slots(frame.slots)
        self._dispatcher.health.report(worker, frame.unhealthy or "")
        if before != _offer_of(worker):
            self._dispatcher.changed(worker)

    def _connect_v2(self, frame: Register, models: list[str]) -> None:
        """Connect a worker, or connect it again, if it was taken for one of version 1 so far."""
        first = self.worker
        for attempt in list(first.attempts.values()) if first else ():
            attempt.decline("registers")  # it was on its way when the worker sent this
        self._version = 2
        worker = self._connect(  # first: its offer leaves before the welcome does
            *(frame.name, models, frame.slots, frame.unhealthy),
            task_types=frame.task_types,
            model_info=frame.model_info,
            tags=frame.tags,
            instance_id=frame.instance_id,
            upstream=self._upstream(frame.upstream),
            max_message_bytes=_max_message_bytes(frame),
            process_known=frame.sdk is not None and frame.sdk.name == SDK_NAME,
            wants_user=frame.wants_user,
        )
        settings, limits = self._settings, Limits(self._settings.max_message_bytes)
        registered = Registered(worker.id, settings.heartbeat_ms, settings.dead_after_ms, limits, VERSION)
        self.send(encoder.encode(registered))
        self._frame_rate.set_slots(worker.slots)
        if first is not None:
            self._dispatcher.disconnected(first, Loss(CLOSE_RESTART, "registers", False, self._time()))
        for older in self._dispatcher.pool.same_instance(worker):
            if not older.draining:
                older.close(CLOSE_REPLACED, "the same worker connected again")

    # ---- complaints ----------

    def _complain(
        self, code: str, message: str, task_id: str | None = None, *, fault: Fault = Fault.INVALID
    ) -> None:
        """Report to a version 2 worker what was wrong; too many of these end the connection."""
        self._logs.complaints.log(
            log.warning,
            "invalid frame from worker",
            worker_id=self.worker.id if self.worker else None,
            code=code,
            detail=message,
        )
        if self._version >= 2:
            self.send(encoder.encode(Error(code, message, task_id, fatal=self.worker is None)))
        if fault is Fault.LATE:
            self._count_stale()
        elif fault is Fault.INVALID and self._invalid.exceeded(self._time()):
            self.close(CLOSE_PROTOCOL, "too many invalid messages")

    def _stale_frame(self, task_id: str | None) -> None:
        if self._version >= 2 and task_id is not None:
            why = "this attempt is over or was never given to you"
            self.send(encoder.encode(Error("UNKNOWN_TASK", why, task_id)))
        self._count_stale()

    def _count_stale(self) -> None:
        if self._stale.exceeded(self._time()):
            self.close(CLOSE_PROTOCOL, "too many messages about tasks that are not yours")


def _offer_of(worker: Worker) -> tuple[Any, ...]:
    """Return what a worker has registered."""
    where = (worker.upstream, worker.tags, worker.model_info)
    return (worker.models, worker.task_types, worker.slots, *where)


def _max_message_bytes(frame: Register) -> int:
    return frame.limits.max_message_bytes if frame.limits else DEFAULT_MAX_MESSAGE_BYTES
