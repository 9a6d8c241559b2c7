"""One worker's WebSocket: from the handshake to the close, for both versions of the protocol (PROTOCOL.md).

The reader runs in the ASGI task, the writer in one task beside it. Whatever a worker sends ends here: wrong input is answered,
counted and finally closed, and never reaches another worker or a caller.
"""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import structlog

from fairlane.workers.protocol import (
    CLOSE_FLOOD,
    CLOSE_PROTOCOL,
    CLOSE_REPLACED,
    CLOSE_VERSION,
    SUBPROTOCOL,
    VERSION,
    Cancel,
    Drain,
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
    encoder,
)
from fairlane.workers.server.attempt import Attempt, Phase
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.frames import read_frame
from fairlane.workers.server.limits import Flood, PerMinute
from fairlane.workers.server.pool import ANY, Worker

log = structlog.get_logger("fairlane.workers")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AboutTask = TaskAck | TaskReject | TaskChunk | TaskProgress | TaskResult

INVALID_PER_MINUTE = 5
STALE_PER_MINUTE = 50
MOST_CANCELS = 64
"""At most so many answers to one heartbeat, or as many as the worker has slots."""


class Identity(Protocol):
    """Who a worker token belongs to."""

    @property
    def id(self) -> str: ...

    @property
    def models(self) -> tuple[str, ...]:
        """Models it may offer; `*` = any."""
        ...


@dataclass(frozen=True, slots=True)
class SocketSettings:
    """Durations in ms; frames and bytes per second and slot, above which reading pauses for `flood_ms` at most."""

    heartbeat_ms: int = 10_000
    dead_after_ms: int = 30_000
    max_message_bytes: int = 17 << 20
    register_ms: int = 5000
    send_ms: int = 5000
    flood_frames: int = 500
    flood_bytes: int = 4 << 20
    flood_ms: int = 5000


class WorkerSocket:
    """The ASGI application of `/ws`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        authenticate: Callable[[str | None], Identity | None],
        settings: SocketSettings,
        *,
        refusal: Callable[[Scope], str | None] = lambda _: None,
    ) -> None:
        self._dispatcher = dispatcher
        self._authenticate = authenticate
        self.settings = settings
        self._refusal = refusal
        self._sessions: set[Session] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if "origin" in headers:
            await _deny(scope, send, 403, "Workers do not come from web pages: an Origin is refused")
            return
        if (refused := self._refusal(scope)) is not None:
            await _deny(scope, send, 403, refused)
            return
        identity = self._authenticate(headers.get("authorization"))
        if identity is None:
            await _deny(scope, send, 401, "A worker token is needed: Authorization: Bearer <token>")
            return
        version = 2 if SUBPROTOCOL in scope.get("subprotocols", ()) else 1
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if version == 2 else None})
        session = Session(self._dispatcher, identity, self.settings, send, version)
        self._sessions.add(session)
        try:
            await session.run(receive)
        finally:
            self._sessions.discard(session)

    def drain(self, grace_ms: int) -> None:
        """Tell all workers that this gateway is going."""
        frame = encoder.encode(Drain(grace_ms, reconnect=True))
        for session in self._sessions:
            if session.worker and session.worker.version >= 2:
                session.worker.send(frame)

    def drain_worker(self, worker_id: str, grace_ms: int) -> bool:
        """Give one worker no more tasks; one of version 2 is told to go when it is done. False: no such worker is connected."""
        worker = self._dispatcher.pool.get(worker_id)
        if worker is None:
            return False
        if not worker.draining:
            worker.draining = True
            if worker.version >= 2:
                worker.send(encoder.encode(Drain(grace_ms, reconnect=False)))
            log.info("worker drains", worker_id=worker.id, name=worker.name, running=len(worker.attempts))
            self._dispatcher.changed(worker)
        return True

    def close(self, reason: str) -> None:
        """End all connections."""
        for session in list(self._sessions):
            session.close(1012, reason)

    def revoke(self, is_valid: Callable[[str], bool]) -> None:
        """Close the connections whose token is not valid any more."""
        for session in list(self._sessions):
            if not is_valid(session.identity.id):
                session.close(4401, "the worker token was revoked")


class Session:
    """One connection."""

    def __init__(
        self, dispatcher: Dispatcher, identity: Identity, settings: SocketSettings, send: Send, version: int
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._send = send
        self._version = version
        self._out: deque[bytes] = deque()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._closing: tuple[int, str] | None = None
        self._invalid = PerMinute(INVALID_PER_MINUTE)
        self._stale = PerMinute(STALE_PER_MINUTE)
        self._kept_results = 0
        self._time = dispatcher.time
        self.identity = identity
        self.worker: Worker | None = None

    # ---- life ----------

    async def run(self, receive: Receive) -> None:
        """Serve the connection until it ends, whoever ends it."""
        self._task = asyncio.current_task()
        writer = asyncio.create_task(self._write(), name="worker-write")
        code, reason = 1000, ""
        try:
            if self._version == 1:
                self._connect_v1()
            code = await self._read(receive)
        except asyncio.CancelledError:
            if self._closing is None:
                raise
            code, reason = self._closing
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        finally:
            worker, self.worker = self.worker, None
            if worker:
                log.info(
                    "worker gone",
                    worker_id=worker.id,
                    name=worker.name,
                    code=code,
                    reason=reason,
                    tasks=len(worker.attempts),
                )
                self._dispatcher.disconnected(worker)
            if self._closing:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._flush()
            writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writer
            if self._closing:
                with contextlib.suppress(
                    Exception
                ):  # the peer may be gone: closing is all that was left to do
                    async with asyncio.timeout(1.0):
                        await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def close(self, code: int, reason: str) -> None:
        """End the connection from this side, once."""
        if self._closing is None and self._task is not None:
            self._closing = (code, reason[:120])
            self._task.cancel()

    def send(self, frame: bytes) -> None:
        """Queue a frame."""
        self._out.append(frame)
        self._wanted.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                await self._flush()
        except asyncio.CancelledError:
            raise
        except (
            Exception
        ) as error:  # the socket is broken: the reader ends the session, its tasks go elsewhere
            log.info("cannot write to worker", error=repr(error))
            self.close(1011, "cannot write")

    async def _flush(self) -> None:
        while self._out:
            frames = [*self._out]
            self._out.clear()
            for frame in frames:
                async with asyncio.timeout(self._settings.send_ms / 1000):
                    await self._send({"type": "websocket.send", "text": frame.decode()})

    async def _read(self, receive: Receive) -> int:
        settings = self._settings
        flood = Flood(settings.flood_frames, settings.flood_bytes, settings.flood_ms / 1000, self._time())
        if self._version == 2:
            try:
                async with asyncio.timeout(settings.register_ms / 1000):
                    message = await receive()
            except TimeoutError:
                self.close(CLOSE_PROTOCOL, f"register is due within {settings.register_ms} ms")
            else:
                if message["type"] == "websocket.disconnect":
                    return int(message.get("code") or 1005)
                self._handle(_data(message))
                if self.worker is None:
                    self.close(CLOSE_PROTOCOL, "the first frame must be register")
        while True:
            if self._closing is not None:
                await asyncio.sleep(0)  # `close` has cancelled this task: nothing that is left is read
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or 1005)
            now = self._time()
            worker = self.worker
            if worker is not None:
                worker.heard_at = now
                flood.set_slots(worker.slots, now)
            data = _data(message)
            self._handle(data)
            pause = flood.pause(len(data), now)
            if pause is None:
                self.close(CLOSE_FLOOD, "too much, too fast")
            elif pause:
                await asyncio.sleep(pause)
                if self.worker is not None:
                    self.worker.heard_at = self._time()

    # ---- messages ----------

    def _handle(self, data: str | bytes) -> None:
        try:
            frame, halves = read_frame(data)
        except (ValueError, RecursionError) as error:  # msgspec's and Unicode's errors are ValueErrors
            self._unreadable(data)
            self._complain("INVALID_MESSAGE", str(error)[:500])
            return
        try:
            self._dispatch(frame, halves)
        except Exception:  # one bad frame must not end a worker's other tasks; the frame is dropped
            log.exception("cannot handle a frame", worker_id=self.worker.id if self.worker else None)
            self._complain("INTERNAL", "the gateway failed to handle this message")

    def _dispatch(self, frame: FromWorker, halves: bool) -> None:
        worker = self.worker
        if isinstance(frame, Register):
            self._register(frame)
            return
        if worker is None:
            self._complain("NOT_REGISTERED", "register first")
            return
        if isinstance(frame, TaskChunk):
            if attempt := self._find(frame):
                if wrong := attempt.chunk(frame, halves=halves):
                    self._complain("PROTOCOL_ERROR", wrong, frame.task_id)
        elif isinstance(frame, TaskResult):
            self._result(worker, frame)
        elif isinstance(frame, TaskAck):
            if attempt := self._find(frame):
                attempt.acknowledged()
        elif isinstance(frame, TaskReject):
            if attempt := self._find(frame):
                attempt.reject(frame)
        elif isinstance(frame, TaskProgress):
            if attempt := self._find(frame):
                if wrong := attempt.progress(frame):
                    self._complain("PROTOCOL_ERROR", wrong, frame.task_id)
        elif isinstance(frame, Heartbeat):
            self._heartbeat(worker, frame)
        elif isinstance(frame, Draining):
            if not worker.draining:
                worker.draining = True
                self._dispatcher.changed(worker)

    def _key(self, frame: AboutTask) -> tuple[str, int]:
        return frame.task_id, frame.attempt if self._version >= 2 else 0

    def _current(self, key: tuple[str, int]) -> Attempt | None:
        """The attempt that is not over; its result may have come."""
        return self.worker.attempts.get(key) if self.worker else None

    def _find(self, frame: AboutTask) -> Attempt | None:
        """The attempt that a frame is about. None is dealt with here.

        What comes late for an attempt that the gateway has ended is no fault for as long as a worker may take to stop; what comes
        after that, behind the worker's own result, or for a task that it never had, is.
        """
        key = self._key(frame)
        attempt = self._current(key)
        if attempt is not None and not attempt.answered:
            return attempt
        late_until = self.worker.past.get(key) if self.worker else None
        if self._time() > (late_until or 0.0):
            self._stale_frame(frame.task_id)
        return None

    def _result(self, worker: Worker, frame: TaskResult) -> None:
        """A result ends its attempt, once; any other is acknowledged, so that the worker forgets it."""
        key = self._key(frame)
        attempt = self._current(key)
        if attempt is not None and not attempt.answered:
            attempt.result(frame)
            return
        late_until = worker.past.get(key)
        if attempt is not None or late_until == 0.0:
            status, fault = "duplicate", True
        elif late_until is not None:
            status, fault = "stale", False
            worker.past.put(key, 0.0)
        else:
            given = any(frame.task_id == task_id for task_id, _ in worker.attempts)
            status = "stale" if given else "unknown"
            # results kept from an earlier connection are sent again: no more than it has slots
            self._kept_results += 1
            fault = self._kept_results > worker.slots
        if worker.version >= 2:
            self.send(encoder.encode(ResultAck(*key, status)))  # type: ignore[arg-type]
        if fault:
            self._stale_frame(None)

    def _unreadable(self, data: str | bytes) -> None:
        """A frame that cannot be read: a task whose end, or whose text, it was, must not wait or go on without it."""
        worker = self.worker
        if worker is None:
            return
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
        for attempt in list(worker.attempts.values()):
            if attempt.answered or attempt.grant.task_id not in text:
                continue
            if '"taskResult"' in text:
                attempt.unreadable_result()
            elif '"taskChunk"' in text:
                attempt.broken("The worker sent output that is not valid JSON")

    def _heartbeat(self, worker: Worker, frame: Heartbeat) -> None:
        """Reconcile what the worker holds with what it was given."""
        running = {(task.task_id, task.attempt) for task in frame.running}
        for attempt in list(worker.attempts.values()):
            if attempt.key in running:
                running.discard(attempt.key)
                attempt.missing = 0
            elif attempt.phase in (Phase.RUNNING, Phase.STOPPING):
                attempt.missing += 1
                if attempt.missing >= 2:
                    if attempt.phase is Phase.RUNNING:
                        self._dispatcher.pool.count_loss(worker)
                    attempt.lost()
        for key in sorted(running)[: max(worker.slots, MOST_CANCELS)]:
            if worker.past.get(key) is None:
                worker.past.put(key, self._time() + self._dispatcher.stop_grace_s)  # until it has stopped
            self.send(encoder.encode(Cancel(*key, "superseded", self._dispatcher.settings.cancel_grace_ms)))

    # ---- registering ----------

    def _connect_v1(self) -> None:
        worker = self._make_worker("v1-" + secrets.token_hex(4), 1, self._allowed([ANY]), 1)
        self.worker = worker
        log.info(
            "worker connected", worker_id=worker.id, version=1, models=worker.models, key_id=self.identity.id
        )
        self._dispatcher.connected(worker)

    def _make_worker(self, name: str, version: int, models: list[str], slots: int, **more: Any) -> Worker:
        return Worker(
            secrets.token_hex(8),
            name,
            version,
            models,
            slots,
            key_id=self.identity.id,
            send=self.send,
            close=self.close,
            **more,
        )

    def _allowed(self, models: list[str]) -> list[str]:
        """Of the models asked for, those that the token may offer."""
        mine = self.identity.models
        if ANY in mine:
            return models
        if ANY in models:
            return list(mine)
        return [model for model in models if model in mine]

    def _register(self, frame: Register) -> None:
        if VERSION not in frame.protocols:
            self.send(encoder.encode(Error("VERSION", f"this gateway speaks version {VERSION}", None, True)))
            self.close(CLOSE_VERSION, "no common protocol version")
            return
        models = self._allowed(frame.models)
        if not models:
            self.send(encoder.encode(Error("MODELS", "the token may offer none of these models", None, True)))
            self.close(CLOSE_PROTOCOL, "no model left that the token may offer")
            return
        first = self.worker
        if first is not None and first.version >= 2:
            before = (first.models, first.task_types, first.slots)
            first.set_models(models, frame.task_types)
            first.slots = frame.slots
            if (first.models, first.task_types, first.slots) != before:
                self._dispatcher.changed(first)
            return
        if first is not None:
            if any(attempt.writer.has_output for attempt in first.attempts.values()):
                self._complain("BUSY", "register while idle")
                return
            for attempt in list(first.attempts.values()):
                attempt.decline("registers")  # it was on its way when the worker sent this
        self._version = 2
        worker = self._make_worker(
            frame.name, 2, models, frame.slots, task_types=frame.task_types, instance_id=frame.instance_id
        )
        self.worker = worker
        limits = Limits(self._settings.max_message_bytes)
        self.send(
            encoder.encode(
                Registered(
                    worker.id, self._settings.heartbeat_ms, self._settings.dead_after_ms, limits, VERSION
                )
            )
        )
        log.info(
            "worker connected",
            worker_id=worker.id,
            name=worker.name,
            version=2,
            models=worker.models,
            slots=worker.slots,
            key_id=self.identity.id,
        )
        self._dispatcher.connected(worker)
        if first is not None:
            self._dispatcher.disconnected(first)
        for older in self._dispatcher.pool.same_instance(worker):
            if not older.draining:
                older.close(CLOSE_REPLACED, "the same worker connected again")

    # ---- complaints ----------

    def _complain(self, code: str, message: str, task_id: str | None = None) -> None:
        """Tell a version 2 worker what was wrong; too many of these end the connection."""
        log.warning(
            "bad frame from worker",
            worker_id=self.worker.id if self.worker else None,
            code=code,
            detail=message,
        )
        if self._version >= 2:
            self.send(encoder.encode(Error(code, message, task_id)))
        if self._invalid.exceeded(self._time()):
            self.close(CLOSE_PROTOCOL, "too many invalid messages")

    def _stale_frame(self, task_id: str | None) -> None:
        if self._version >= 2 and task_id is not None:
            self.send(
                encoder.encode(
                    Error("UNKNOWN_TASK", "this attempt is over or was never given to you", task_id)
                )
            )
        if self._stale.exceeded(self._time()):
            self.close(CLOSE_PROTOCOL, "too many messages about tasks that are not yours")


def _data(message: MutableMapping[str, Any]) -> str | bytes:
    """What a WebSocket message holds; text and binary frames count alike."""
    text: str | None = message.get("text")
    if text is not None:
        return text
    data: bytes | None = message.get("bytes")
    return data or b""


async def _deny(scope: Scope, send: Send, status: int, sentence: str) -> None:
    """Refuse the handshake with an HTTP answer."""
    if "websocket.http.response" in scope.get("extensions", {}):
        body = msgspec.json.encode({"error": sentence})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send(
            {"type": "websocket.close", "code": 4401 if status == 401 else 1008, "reason": sentence[:120]}
        )
