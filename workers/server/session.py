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
    TaskAck,
    TaskChunk,
    TaskProgress,
    TaskReject,
    TaskResult,
    encoder,
    from_worker,
)
from fairlane.workers.server.attempt import Attempt, Phase, result_ack
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.pool import ANY, Worker

log = structlog.get_logger("fairlane.workers")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

REGISTER_S = 5.0
SEND_S = 5.0
INVALID_PER_MINUTE = 5
STALE_PER_MINUTE = 50
FRAMES_PER_S = 500
BYTES_PER_S = 4 << 20
FLOOD_S = 5.0


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
    """Durations in ms."""

    heartbeat_ms: int = 10_000
    dead_after_ms: int = 30_000
    max_message_bytes: int = 17 << 20


class Bucket:
    """A token bucket: `rate` a second, a second's worth at once. Pure."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = rate
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take; returns the seconds to wait until the bucket is no more overdrawn."""
        self._left = min(self._left + (now - self._at) * self.rate, self.rate) - amount
        self._at = now
        return max(-self._left / self.rate, 0.0)


class PerMinute:
    """Counts events of the last minute. Pure."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at: deque[float] = deque()

    def exceeded(self, now: float) -> bool:
        """Count one more; True when there are too many."""
        self._at.append(now)
        while now - self._at[0] > 60:
            self._at.popleft()
        return len(self._at) > self._limit


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
        self._settings = settings
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
        session = Session(self._dispatcher, identity, self._settings, send, version)
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
        self._done: deque[tuple[str, int]] = deque(maxlen=1024)
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
            frame = self._out.popleft()
            async with asyncio.timeout(SEND_S):
                await self._send({"type": "websocket.send", "text": frame.decode()})

    async def _read(self, receive: Receive) -> int:
        frames = Bucket(FRAMES_PER_S, self._time())
        volume = Bucket(BYTES_PER_S, self._time())
        if self._version == 2:
            try:
                async with asyncio.timeout(REGISTER_S):
                    message = await receive()
            except TimeoutError:
                self._closing = (CLOSE_PROTOCOL, "register is due within 5 s")
                return CLOSE_PROTOCOL
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or 1005)
            self._handle(message)
            if self.worker is None and self._closing is None:
                self.close(CLOSE_PROTOCOL, "the first frame must be register")
        overdrawn = 0.0
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or 1005)
            now = self._time()
            worker = self.worker
            if worker is not None:
                worker.heard_at = now
                if frames.rate != FRAMES_PER_S * worker.slots:
                    frames, volume = (
                        Bucket(FRAMES_PER_S * worker.slots, now),
                        Bucket(BYTES_PER_S * worker.slots, now),
                    )
            self._handle(message)
            size = len(message.get("text") or message.get("bytes") or b"")
            wait = max(frames.take(1, now), volume.take(size, now))
            if wait > 0.05:
                overdrawn += wait
                if overdrawn > FLOOD_S:
                    self.close(CLOSE_FLOOD, "too much, too fast")
                await asyncio.sleep(min(wait, FLOOD_S))
            elif wait == 0:
                overdrawn = 0.0

    # ---- messages ----------

    def _handle(self, message: MutableMapping[str, Any]) -> None:
        data = message.get("text")
        if data is None:
            data = message.get("bytes") or b""
        try:
            frame = from_worker.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._complain("INVALID_MESSAGE", str(error)[:500])
            return
        try:
            self._dispatch(frame)
        except Exception:  # one bad frame must not end a worker's other tasks; the frame is dropped
            log.exception("cannot handle a frame", worker_id=self.worker.id if self.worker else None)
            self._complain("INTERNAL", "the gateway failed to handle this message")

    def _dispatch(self, frame: FromWorker) -> None:
        worker = self.worker
        if isinstance(frame, Register):
            self._register(frame)
            return
        if worker is None:
            self._complain("NOT_REGISTERED", "register first")
            return
        if isinstance(frame, TaskChunk):
            attempt = self._find(frame.task_id, frame.attempt)
            if attempt is None:
                self._stale_frame(frame.task_id)
            elif wrong := attempt.chunk(frame):
                self._complain("PROTOCOL_ERROR", wrong, frame.task_id)
        elif isinstance(frame, TaskResult):
            self._result(worker, frame)
        elif isinstance(frame, TaskAck):
            if attempt := self._find(frame.task_id, frame.attempt):
                attempt.acknowledged()
        elif isinstance(frame, TaskReject):
            if attempt := self._find(frame.task_id, frame.attempt):
                attempt.reject(frame)
        elif isinstance(frame, TaskProgress):
            if attempt := self._find(frame.task_id, frame.attempt):
                attempt.progress(frame)
        elif isinstance(frame, Heartbeat):
            self._heartbeat(worker, frame)
        elif isinstance(frame, Draining):
            worker.draining = True
            self._dispatcher.changed(worker)

    def _result(self, worker: Worker, frame: TaskResult) -> None:
        attempt = self._find(frame.task_id, frame.attempt)
        if attempt is not None and attempt.phase is not Phase.FINISHING:
            self._done.append((frame.task_id, frame.attempt))
            attempt.result(frame)
            return
        known = attempt is not None or (frame.task_id, frame.attempt) in self._done
        if worker.version >= 2:
            self.send(result_ack(frame.task_id, frame.attempt, "duplicate" if known else "unknown"))
        self._stale_frame(None)

    def _find(self, task_id: str, attempt_number: int) -> Attempt | None:
        worker = self.worker
        attempt = worker.attempts.get(task_id) if worker else None
        if attempt is None or (self._version >= 2 and attempt.grant.attempt != attempt_number):
            return None
        return attempt

    def _heartbeat(self, worker: Worker, frame: Heartbeat) -> None:
        """Reconcile what the worker holds with what it was given."""
        running = {(task.task_id, task.attempt) for task in frame.running}
        for attempt in list(worker.attempts.values()):
            key = (attempt.grant.task_id, attempt.grant.attempt)
            if key in running:
                running.discard(key)
                attempt.missing = 0
            elif attempt.phase is Phase.RUNNING:
                attempt.missing += 1
                if attempt.missing >= 2:
                    attempt.lost()
        for task_id, number in running:
            self.send(encoder.encode(Cancel(task_id, number, "superseded", self._dispatcher.cancel_grace_ms)))

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
        worker = self.worker
        if worker is not None and worker.version == 1:
            if worker.attempts or worker.reserved:
                self._complain("BUSY", "register while idle")
                return
            self._dispatcher.disconnected(worker)
            self.worker = worker = None
        self._version = 2
        if worker is not None:
            worker.set_models(models)
            worker.slots = frame.slots
            self._dispatcher.changed(worker)
            return
        older = self._dispatcher.pool.by_instance(frame.instance_id)
        worker = self._make_worker(
            frame.name, 2, models, frame.slots, task_types=frame.task_types, instance_id=frame.instance_id
        )
        self.worker = worker
        limits = Limits(self._settings.max_message_bytes)
        self.send(
            encoder.encode(
                Registered(worker.id, self._settings.heartbeat_ms, self._settings.dead_after_ms, limits, VERSION)
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
        if older is not None and not older.draining:
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
