"""A client's connection: HTTP/1.1, parsed by llhttp.

This replaces uvicorn's own protocol because it is faster, and limits the head, the number of connections and every wait.
"""

import asyncio
import urllib.parse
from collections.abc import Callable
from typing import Any, NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from fairlane.gateway.connections import answers
from fairlane.gateway.connections.connections import Connections
from fairlane.gateway.connections.exchange import UNREAD_BYTES, Exchange
from fairlane.gateway.connections.sockets import address_of
from fairlane.gateway.connections.workers import OneWrite
from fairlane.gateway.http.request import CONNECTION

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
HEAD_S = 10.0
"""From the first byte of a request (or from the start of a connection) to the end of its head."""
BODY_S = 5.0
"""From an answer to the end of a request's body that is not needed any more."""
IDLE_S = 75.0
"""From an answer to the next request."""
STALL_S = 30.0
"""A client that reads too little for this time is disconnected; a stream can be resumed."""
LINGER_S = 5.0
"""From a rejection to the end of the connection: the client can read it while the rest of its request is dropped."""

_BETWEEN, _HEAD, _BODY = 0, 1, 2


class _Rejected(Exception):
    """Leaves the parser; `_last_answer` is what to answer."""


class HttpConnection(asyncio.Protocol):
    """One connection. It has a deadline in `Connections` unless an answer is under way."""

    def __init__(
        self,
        connections: Connections,
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - the server hands it to every protocol
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.connections = connections
        self.loop = _loop or asyncio.get_running_loop()
        self.parser: Any = self._new_parser()
        """None while a long answer is under way: see `rest`."""
        self.transport: Any = None
        self.answering: Exchange | None = None
        self.write_paused = False
        self.read_paused = False
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self._config = config
        self._state = server_state
        self._phase = _BETWEEN
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._spent = 0
        """Bytes of the message since the last part of its body: of its head, its trailers, or chunk framing."""
        self._has_body = False
        """The read at hand held a part of a body."""
        self._receiving: Exchange | None = None
        """The exchange whose body arrives."""
        self._last_answer: bytes | None = None
        """An answer that ends the connection, after the one before it."""
        self._stopped = False
        """Bytes that arrive are dropped."""
        self._lingers = False
        self._websocket: bytes | None = None
        """The head of a handshake."""
        self._slot: int | None = None
        self._waits_for = 0.0
        """The time limit of the wait that is in `_slot`."""
        self._drained: list[asyncio.Future[None]] | None = None
        self._on_lost: Callable[[], None] | None = None

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # ---- the transport ----------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.client = address_of(transport.get_extra_info("peername"))
        self.server = address_of(transport.get_extra_info("sockname"))
        self._state.connections.add(self)  # type: ignore[arg-type]
        if self.connections.arrived(self.client and self.client[0]):
            self._wait(HEAD_S)
        else:
            self.client = None  # it is not counted for its address
            self.transport.write(answers.TOO_MANY_CONNECTIONS)
            self.close()

    def _leave(self) -> None:
        self._state.connections.discard(self)
        self.connections.left(self.client and self.client[0])
        self._wait(0)
        self._stopped = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._leave()
        self.parser = self.transport = None
        for exchange in (self.answering, self._receiving):
            if exchange is not None:
                exchange.disconnect()
        self.answering = self._receiving = None
        self._headers = []
        self._resume_writers()
        self._report_lost()

    def data_received(self, data: bytes) -> None:
        if self._stopped:
            return
        if self.parser is None:
            self.parser = self._new_parser()
        self._spent += len(data)
        self._has_body = False
        try:
            self._parse(data)
        except (httptools.HttpParserError, _Rejected):
            self._reject(answers.BAD_REQUEST if self._last_answer is None else self._last_answer)

    def eof_received(self) -> None:
        """Close: a client that closes its sending side counts as gone."""

    def pause_writing(self) -> None:
        self.write_paused = True
        self._wait(STALL_S)

    def resume_writing(self) -> None:
        self.write_paused = False
        self._resume_writers()
        self._settle()

    # ---- calls of the application ----------

    def watch(self, on_lost: Callable[[], None] | None) -> bool:
        """Call `on_lost` when the client is gone; return False when it is gone already. None: stop."""
        self._on_lost = on_lost
        return self.transport is not None

    def shutdown(self) -> None:
        """Close after the answer that is under way: the server stops."""
        if self.answering is None:
            self.close()
        else:
            self.answering.keep_alive = False

    # ---- deadlines ----------

    def expired(self) -> None:
        """Close, or abort, a connection that waited too long."""
        self._slot = None
        self._waits_for = 0.0
        if self.transport is None:
            return
        if self.write_paused or self._lingers or self.transport.is_closing():
            self.transport.abort()
        else:
            self.close()

    def _wait(self, seconds: float) -> None:
        """Start a deadline; 0: none. A wait of the same length that is under way keeps its deadline."""
        if seconds == self._waits_for:
            return
        if self._slot is not None:
            self.connections.stop_waiting(self._slot, self)
        self._waits_for = seconds
        self._slot = self.connections.wait(self, self.loop.time() + seconds, self.loop) if seconds else None

    def _settle(self) -> None:
        """Start the deadline of the present state."""
        if self.transport is None or self._lingers or self.transport.is_closing():
            return
        if self.write_paused:
            self._wait(STALL_S)
        elif self.answering is not None:
            self._wait(0)
        elif self._phase == _BODY:
            self._wait(BODY_S)
        elif self._phase == _HEAD or self._spent:
            self._wait(HEAD_S)
        else:
            self._wait(IDLE_S)

    # ---- reading ----------

    def pace(self) -> None:
        """Continue reading, or pause while a body waits for the application."""
        if self.transport is None:
            return
        receiving = self._receiving
        full = receiving is not None and receiving.unread > UNREAD_BYTES
        if full and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        elif self.read_paused and not full:
            self.read_paused = False
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as found:
            rest = data[found.args[0] :]
            if self._websocket is not None:
                self._upgrade(bool(rest))
                return
            if rest:  # an upgrade to something else: answered as it is
                self._parse(rest)
                return
        if self._has_body:
            self._spent = 0
        if self._spent > MAX_HEAD_BYTES:
            self._leave_parser(answers.HEAD_TOO_LARGE)
        self._settle()

    def on_message_begin(self) -> None:
        self._phase = _HEAD
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # else it is a trailer, which is dropped
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        headers, self._headers = self._headers, []
        size = hosts = 0
        expects_continue = has_body = False
        upgrade = b""
        for name, value in headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"expect":
                expects_continue = value.lower() == b"100-continue"
            elif name == b"upgrade":
                upgrade = value.lower()
            elif name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
                has_body = True
        if len(headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            self._leave_parser(answers.HEAD_TOO_LARGE)
        if hosts > 1:
            self._leave_parser(answers.TWO_HOSTS)
        if self.parser.should_upgrade():
            if has_body:
                self._leave_parser(answers.UPGRADE_WITH_BODY)
            if upgrade == b"websocket":
                self._prepare_upgrade(headers)
                return
        self._take(headers, expects_continue)

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        if self._receiving is not None:
            self._receiving.add(body)
            self.pace()

    def on_message_complete(self) -> None:
        self._phase = _BETWEEN
        self._spent = 0
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.end_body()
            if self.read_paused:  # with a large body: else a disconnect would not be noticed
                self.pace()

    def _take(self, headers: list[tuple[bytes, bytes]], expects_continue: bool) -> None:
        """Start to answer a request whose head is whole.

        One that was sent before the answer to the last is not read: its client sends it again after the close (RFC 9112, 9.3.2).
        """
        if self.answering is not None:
            self.answering.keep_alive = False
            self._leave_parser(b"")
        parser = self.parser
        url, self._url = httptools.parse_url(self._url), b""
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        version = parser.get_http_version()
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": "http",
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": urllib.parse.unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
            "headers": headers,
            CONNECTION: self,
        }
        keep_alive = version != "1.0" and parser.should_keep_alive()
        exchange = self._receiving = self.answering = Exchange(self, scope, keep_alive, expects_continue)
        self._state.tasks.add(exchange.start(self._config.loaded_app, self.loop))

    # ---- answering ----------

    def over(self, task: asyncio.Task[None]) -> None:
        """The application has returned."""
        self._state.tasks.discard(task)

    def answered(self, exchange: Exchange) -> None:
        """The answer is written."""
        self._state.total_requests += 1
        self.answering = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not exchange.keep_alive:
            if self._receiving is None and not self._stopped:
                self.close()
            else:
                self._linger()  # the client still sends: a reset would take the answer from it
        elif self._last_answer is not None:
            self._write_last(self._last_answer)
        else:
            self._settle()

    def rest(self) -> None:
        """Drop the parser for the time of a long answer: between two requests it takes a kilobyte and remembers nothing."""
        if self._phase == _BETWEEN and not self._spent:
            self.parser = None

    def broken(self, exchange: Exchange) -> None:
        """End an exchange whose application returned without a whole answer."""
        if exchange is not self.answering or self.transport is None:
            return
        if exchange.started:
            self.transport.abort()  # a part must not look like a whole
        else:
            exchange.disconnect()
            self.answering = None
            self._write_last(answers.INTERNAL)

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    async def drain(self) -> None:
        """Return when more may be written, or the connection is lost."""
        while self.write_paused and self.transport is not None:
            waiter = self.loop.create_future()
            if self._drained is None:
                self._drained = []
            self._drained.append(waiter)
            await waiter

    def default_lines(self) -> bytes:
        """Return the headers of all answers."""
        return self.connections.default_lines(self._state.default_headers)

    def _resume_writers(self) -> None:
        waiters, self._drained = self._drained, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _report_lost(self) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost()

    # ---- the end ----------

    def close(self) -> None:
        """End the connection once everything is written; a client that does not read it is cut off."""
        self._stopped = True
        self._wait(STALL_S if self.transport.get_write_buffer_size() else 0)
        self.transport.close()

    def _reject(self, answer: bytes) -> None:
        """Read nothing more from this client, and write `answer` after the one that is under way."""
        self._stopped = True
        receiving, self._receiving = self._receiving, None
        if receiving is not None:  # it will never be whole
            if receiving.complete:
                self._linger()
                return
            receiving.disconnect()
            self.answering = None
            self._report_lost()
            if receiving.started:
                self.transport.abort()
                return
        if self.answering is None:
            self._write_last(answer)
        else:
            self._last_answer = answer

    def _leave_parser(self, answer: bytes) -> NoReturn:
        """Reject the request from within the parser. (An exception that held the answer would be part of a cycle.)"""
        self._last_answer = answer
        raise _Rejected

    def _write_last(self, answer: bytes) -> None:
        self._last_answer = None
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Let the client read what was written, and drop what it still sends."""
        self._stopped = self._lingers = True
        self._receiving = None
        self.pace()
        self._wait(LINGER_S)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # ---- WebSockets ----------

    def _prepare_upgrade(self, headers: list[tuple[bytes, bytes]]) -> None:
        if self.answering is not None or self.parser.get_http_version() != "1.1":
            self._leave_parser(answers.BAD_UPGRADE)
        lines = [
            b"%b %b HTTP/1.1" % (self.parser.get_method(), self._url),
            *(b"%b: %b" % pair for pair in headers),
        ]
        self._websocket = b"\r\n".join([*lines, b"", b""])

    def _upgrade(self, more: bool) -> None:
        """Hand the connection over to a worker's WebSocket, with the head. If that is invalid, the connection ends."""
        head, self._websocket = self._websocket, None
        assert head is not None
        # a client that does not read answers gets no socket
        if more or self.transport.get_write_buffer_size():
            self._leave_parser(answers.BAD_UPGRADE)
        self._leave()
        self.parser = None
        transport, self.transport = self.transport, None
        make: Any = self._config.ws_protocol_class
        websocket = make(config=self._config, server_state=self._state, app_state={})
        joined = OneWrite(transport, self.loop)
        websocket.connection_made(joined)
        websocket.data_received(head)
        transport.set_protocol(websocket)
        if not websocket.handshake_initiated:
            joined.write(answers.BAD_UPGRADE)
            joined.close()
