"""A gateway for testing workers: real sockets, no Redis, no queues.

    async with FakeGateway() as gateway:
        worker = Worker(gateway=gateway.url)
        ...
        outcome = await gateway.run("openaiLike", {"messages": []}, model="m", stream=True)
        assert outcome.text == "hello"

It speaks both versions of the protocol on one port and checks each frame of a worker. All waits have a
deadline.
"""

import asyncio
import contextlib
import http
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from fairlane.workers import protocol

TIMEOUT_S = 10.0
Status = Literal["accepted", "duplicate", "unknown"]
HEARTBEAT_MS = 10_000
MAX_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Outcome:
    """The outcome of a task.

    `deltas` are the worker's deltas as sent. `error` is None for success. `rejected`: why the worker rejected it, if it did.
    """

    task_id: str
    deltas: list[dict[str, Any]] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)
    result: Any = None
    error: str | None = None
    error_info: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    rejected: str | None = None
    last_seq: int = 0

    @property
    def text(self) -> str:
        """The contents of all deltas of the first choice, joined."""
        return "".join(d.get("content") or "" for d in self.deltas if d.get("index", 0) == 0)


class ProtocolViolationError(AssertionError):
    """A worker sent something that the protocol does not allow."""


class Given:
    """A task that was given to a worker. `acknowledged`, `sent`, `first_output` and `ended` are set as it progresses."""

    def __init__(self, link: "Link", task_id: str, attempt: int) -> None:
        self.task_id = task_id
        self.attempt = attempt
        self.link = link
        self.tell_sent = False
        self.acknowledged = asyncio.Event()
        self.sent = asyncio.Event()
        self.first_output = asyncio.Event()
        self.ended = asyncio.Event()
        self.so_far = Outcome(task_id)
        """What has come until now."""
        self.lost = False
        """Whether its worker has disconnected before its end."""

    async def outcome(self, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Wait for the end. Raise `ConnectionError` when the worker was lost, `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            await self.ended.wait()
        if self.lost:
            raise ConnectionError("The worker disconnected.")
        return self.so_far

    async def cancel(
        self, reason: Literal["client", "timeout", "admin", "superseded"] = "client", grace_ms: int = 5000
    ) -> None:
        """Send `cancel`; nothing to a version 1 worker, which has no such message."""
        await self.link.send(protocol.Cancel(self.task_id, self.attempt, reason, grace_ms))


class Link:
    """One worker's connection, as the gateway sees it."""

    def __init__(self, socket: ServerConnection) -> None:
        self.register: dict[str, Any] | None = None
        """The last `register`; None for a version 1 worker."""
        self.tasks: dict[str, Given] = {}
        self.draining = False
        self.close_code: int | None = None
        """How the connection ended, once it has."""
        self.socket = socket

    @property
    def version(self) -> int:
        return 1 if self.register is None else 2

    @property
    def slots(self) -> int:
        return 1 if self.register is None else int(self.register.get("slots", 1))

    def serves(self, model: str) -> bool:
        """Whether the worker offers this model; version 1 offers any."""
        models = ["*"] if self.register is None else self.register["models"]
        return model in models or "*" in models

    async def send(self, message: protocol.FromGateway | bytes) -> None:
        """Send a message, or the frame of one; version 1 workers are sent tasks only."""
        if self.version == 2 or isinstance(message, bytes):
            frame = message if isinstance(message, bytes) else protocol.encoder.encode(message)
            with contextlib.suppress(ConnectionClosed):
                await self.socket.send(frame, text=True)

    async def drain(self, *, reconnect: bool, grace_ms: int = 5000) -> None:
        """Announce to the worker that this gateway shuts down."""
        self.draining = True
        await self.send(protocol.Drain(grace_ms, reconnect))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close in good order, with any code."""
        await self.socket.close(code, reason)

    def drop(self) -> None:
        """Break the connection, as a cut cable would."""
        self.socket.transport.abort()


class FakeGateway:
    """An async context manager that listens on a free port of 127.0.0.1; `url` is its address.

    `token`: the worker token it asks for (None: none). While `acks` is cleared, results are not acknowledged until it is set
    again. `refusals` holds (status, headers) of handshakes to refuse, first come first served. `violations` lists what workers
    did against the protocol, and leaving the context raises the first one.
    """

    def __init__(self, *, token: str | None = None) -> None:
        self.token = token
        self.acks = asyncio.Event()
        self.acks.set()
        self.links: list[Link] = []
        """Open connections, oldest first."""
        self.messages: list[dict[str, Any]] = []
        """Those that workers have sent."""
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self.violations: list[ProtocolViolationError] = []
        self.url = ""
        self._server: Server | None = None
        self._attempts = itertools.count(1_790_000_000_000_000)
        self._changed = asyncio.Event()
        self._finished: set[tuple[str, int]] = set()

    async def __aenter__(self) -> "FakeGateway":
        self._server = await serve(
            self._on_connection,
            "127.0.0.1",
            0,
            process_request=self._admit,
            subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
            select_subprotocol=_select,
            compression=None,
            max_size=64 * 1024 * 1024,
            close_timeout=2,
        )
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/ws"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.acks.set()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        if kind is None and self.violations:
            raise self.violations[0]

    # ---- what a test does ------------------------------------------------------------------------

    async def until(self, is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until something holds; looks again after every frame and connection. Raise `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def worker(self, model: str = "default", timeout_s: float = TIMEOUT_S) -> Link:
        """Wait for a worker that offers the model and has a free slot; the newest one that does."""
        await self.until(lambda: self._free(model) is not None, timeout_s)
        link = self._free(model)
        assert link is not None
        return link

    async def give(
        self,
        task_type: str,
        payload: Any,
        *,
        model: str = "default",
        stream: bool = False,
        attempt: int | None = None,
        timeout_ms: int = 60_000,
        task_id: str | None = None,
        link: Link | None = None,
        tell_sent: bool = False,
    ) -> Given:
        """Give a task to a worker (`link`: to this one, even without a free slot) and return immediately.

        `attempt`: opaque, as a gateway makes it, unless you name one. `tell_sent`: ask for `taskSent`.
        """
        link = link or await self.worker(model)
        if attempt is None:
            attempt = next(self._attempts)
        given = Given(link, task_id or str(uuid.uuid4()), attempt)
        given.tell_sent = tell_sent
        link.tasks[given.task_id] = given
        frame = protocol.task_frame(
            task_type,
            given.task_id,
            msgspec.json.encode(payload),
            version=link.version,
            attempt=attempt,
            model=model,
            stream=stream,
            timeout_ms=timeout_ms,
            tell_sent=tell_sent,
        )
        await link.send(frame)
        return given

    async def run(
        self,
        task_type: str,
        payload: Any,
        *,
        model: str = "default",
        stream: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Outcome:
        """Give a task to a free worker and wait for its end."""
        given = await self.give(
            task_type, payload, model=model, stream=stream, timeout_ms=int(timeout_s * 1000)
        )
        return await given.outcome(timeout_s)

    def from_workers(self, type: str) -> list[dict[str, Any]]:
        """The recorded messages of one type that workers have sent."""
        return [message for message in self.messages if message["type"] == type]

    # ---- what workers do -------------------------------------------------------------------------

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        if self.refusals:
            status, headers = self.refusals.pop(0)
            response = socket.respond(http.HTTPStatus(status), "refused\n")
            response.headers.update(headers)
            return response
        if request.path != "/ws":
            return socket.respond(http.HTTPStatus.NOT_FOUND, "workers connect to /ws\n")
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return socket.respond(http.HTTPStatus.UNAUTHORIZED, "wrong worker token\n")
        return None

    async def _on_connection(self, socket: ServerConnection) -> None:
        link = Link(socket)
        if socket.subprotocol != protocol.SUBPROTOCOL:
            self._join(link)
        try:
            async for data in socket:
                await self._on_frame(link, data)
        except ConnectionClosed:
            pass  # the end is noted below, in good order or not
        finally:
            link.close_code = socket.close_code
            if link in self.links:
                self.links.remove(link)
            for given in link.tasks.values():
                given.lost = True
                given.ended.set()
            self._changed.set()

    async def _on_frame(self, link: Link, data: str | bytes) -> None:
        try:
            protocol.from_worker.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._blame(f"{error} in {data[:200]!r}")
            return
        message: dict[str, Any] = msgspec.json.decode(data)
        self.messages.append(message)
        if message["type"] == "register":
            link.register = message
            self._join(link)
            limits = protocol.Limits(MAX_MESSAGE_BYTES)
            await link.send(protocol.Registered("w", HEARTBEAT_MS, 3 * HEARTBEAT_MS, limits, 2))
        elif message["type"] == "draining":
            link.draining = True
        elif message["type"] != "heartbeat":
            await self._on_task_message(link, message)
        self._changed.set()

    async def _on_task_message(self, link: Link, message: dict[str, Any]) -> None:
        given = link.tasks.get(message["taskId"])
        key = (message["taskId"], message.get("attempt", 0 if given is None else given.attempt))
        known = given is not None and given.attempt == key[1]
        if message["type"] == "taskResult":
            if known and given is not None:
                _finish(given, message, self._blame)
                del link.tasks[given.task_id]
            status: Status = "accepted" if known else "duplicate" if key in self._finished else "unknown"
            self._finished.add(key)
            await self._acknowledge(link, key, status)
        elif given is None or not known:
            self._blame(f"{message['type']} for a task that the worker does not hold")
        elif message["type"] == "taskChunk":
            _add_chunk(given, message, self._blame)
        elif message["type"] == "taskAck":
            given.acknowledged.set()
        elif message["type"] == "taskSent":
            if not given.tell_sent or given.sent.is_set():
                self._blame("taskSent without a request for it")
            given.acknowledged.set()
            given.sent.set()
        elif message["type"] == "taskProgress":
            given.so_far.progress.append(message)
        elif message["type"] == "taskReject":
            given.so_far.rejected = message["reason"]
            given.ended.set()
            del link.tasks[given.task_id]

    async def _acknowledge(self, link: Link, key: tuple[str, int], status: Status) -> None:
        """Answer a result; while `acks` is cleared, the answer and all frames after it wait."""
        self._changed.set()
        await self.acks.wait()
        await link.send(protocol.ResultAck(*key, status))

    def _free(self, model: str) -> Link | None:
        for link in reversed(self.links):
            if not link.draining and link.serves(model) and len(link.tasks) < link.slots:
                return link
        return None

    def _join(self, link: Link) -> None:
        if link not in self.links:
            self.links.append(link)
        self._changed.set()

    def _blame(self, what: str) -> None:
        self.violations.append(ProtocolViolationError(what))
        self._changed.set()


def _select(_: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(protocol.SUBPROTOCOL) if protocol.SUBPROTOCOL in offered else None


def _add_chunk(given: Given, message: dict[str, Any], blame: Callable[[str], None]) -> None:
    outcome = given.so_far
    if given.link.version == 1:
        deltas = [{"content": message.get("delta", "")}]
    else:
        deltas = message.get("deltas", [])
        if message.get("seq") != outcome.last_seq + 1:
            blame(f"seq {message.get('seq')} after {outcome.last_seq}")
        outcome.last_seq = message.get("seq", 0)
    outcome.deltas += deltas
    given.first_output.set()


def _finish(given: Given, message: dict[str, Any], blame: Callable[[str], None]) -> None:
    outcome = given.so_far
    if given.link.version == 2 and message.get("lastSeq", 0) != outcome.last_seq:
        blame(f"lastSeq {message.get('lastSeq', 0)} after {outcome.last_seq} chunk frames")
    outcome.result = message.get("result")
    outcome.error = message.get("error") or None
    outcome.error_info = message.get("errorInfo")
    outcome.usage = message.get("usage")
    outcome.timings = message.get("timings")
    given.ended.set()
