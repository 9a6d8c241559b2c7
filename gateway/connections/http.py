"""A caller's connection: HTTP/1.1, parsed by llhttp, with a bound on everything that a client decides.

Why not the server's own: a header in a trailer is none, a connection that waits has a deadline whatever came before, bytes sent
ahead are bounded and do not hide that the client is gone, and a connection that is lost leaves no reference cycle.
"""

import asyncio
import urllib.parse
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.server import ServerState

from fairlane.gateway.calls.http import CONNECTION, CROWDED
from fairlane.gateway.connections import answers
from fairlane.gateway.connections.exchange import UNREAD_BYTES, Exchange
from fairlane.gateway.connections.handshake import hand_over, handshake_head
from fairlane.gateway.connections.lines import STALL_BYTES, Connections, Line
from fairlane.gateway.connections.sockets import address_of, unread_by_client

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
FRAMING = 8
"""Bytes of chunk framing that come for free with each byte of body; more of it counts as head."""
MAX_AHEAD = 16
"""Requests in one read that may wait for the answer to the one before."""
AHEAD_BYTES = 64 * 1024
"""Bytes that may come while an answer is made. Beyond them the connection is not read, and a hang-up not seen."""

SLICE = 32 * 1024
"""Bytes that are parsed at once."""
PIECES_AT_ONCE = 1000
"""Parts of a body that one slice may bring; beyond it, others run before the next slice."""

_BETWEEN, _HEAD, _BODY = 0, 1, 2


class _Refused(Exception):
    """Leaves the parser; what to answer has been noted."""


class HttpConnection(asyncio.Protocol):
    """One connection. It stands in a line of `Connections` whenever no answer is under way."""

    __slots__ = (
        "_ahead",
        "_config",
        "_drained",
        "_headers",
        "_on_lost",
        "_phase",
        "_pieces",
        "_queue",
        "_read",
        "_receiving",
        "_refusal",
        "_spent",
        "_state",
        "_stopped",
        "_took",
        "_unparsed",
        "_unwritten",
        "_url",
        "_websocket",
        "answering",
        "client",
        "connections",
        "line",
        "loop",
        "parser",
        "read_paused",
        "server",
        "transport",
        "write_paused",
    )

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
        """None while nothing can come that it would parse."""
        self.transport: Any = None
        self.line: Line | None = None
        self.answering: Exchange | None = None
        self.write_paused = False
        self.client: tuple[str, int] | None = None
        self.server: tuple[str, int] | None = None
        self._config = config
        self._state = server_state
        self._phase = _BETWEEN
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._spent = 0
        """Bytes of the message that are not body (see FRAMING)."""
        self._read = self._took = 0
        """Bytes of the read at hand, and how many of them were body."""
        self._pieces = 0
        """Parts of bodies that the slice at hand brought."""
        self._unparsed: bytes | None = None
        """What has come behind a slice of very many parts, until others have run."""
        self._receiving: Exchange | None = None
        """Whose body is coming."""
        self._queue: list[Exchange] | None = None
        self._ahead: bytearray | None = None
        self.read_paused = False
        self._stopped = False
        """Nothing that comes is parsed any more."""
        self._refusal: bytes | None = None
        """The last answer, which waits for those before it."""
        self._websocket: Any = None
        self._unwritten = 0
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
        if self.connections.arrived(self.client and self.client[0], self.loop):
            self._wait_in(self.connections.head)
        else:
            self.client = None  # counts for no address
            transport.write(answers.TOO_MANY_CONNECTIONS)  # type: ignore[attr-defined]
            self.close()

    def _leave(self) -> None:
        self._state.connections.discard(self)
        self.connections.left(self.client and self.client[0])
        self._stand_nowhere()
        self._stopped = True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._leave()
        self.parser = self.transport = None
        for exchange in (self.answering, self._receiving, *(self._queue or ())):
            if exchange is not None:
                exchange.disconnect()
        self.answering = self._receiving = self._queue = self._ahead = self._unparsed = None
        self._headers = []
        self._resume_writers()
        self._tell_lost()

    def data_received(self, data: bytes) -> None:
        if self._stopped:
            return
        if self._unparsed is not None:
            self._unparsed += data
        elif self.answering is not None and self._phase == _BETWEEN:
            if self._ahead is None:
                self._ahead = bytearray()
            self._ahead += data
            self.pace()
        else:
            self._feed(data)

    def eof_received(self) -> None:
        """A client that closes its sending side is taken for gone: the transport closes."""

    def pause_writing(self) -> None:
        self.write_paused = True
        self._unwritten = self._pending()
        self._settle()

    def resume_writing(self) -> None:
        self.write_paused = False
        self._resume_writers()
        self._settle()

    # ---- what the application asks ----------

    def watch(self, on_lost: Callable[[], None] | None) -> bool:
        """Call `on_lost` when the client is gone; False when it is gone already. None: stop."""
        self._on_lost = on_lost
        return self.transport is not None

    def shutdown(self) -> None:
        """The server goes: no request after the one that is being answered."""
        if self.answering is None:
            self.close()
        else:
            self.answering.keep_alive = False

    # ---- lines ----------

    def expired(self, line: Line) -> None:
        """A wait has lasted too long; see `Waiting`."""
        transport = self.transport
        if transport is None:
            return
        lines = self.connections
        if line is lines.handshake:
            if not self._websocket.handshake_complete:
                transport.abort()
            self._websocket = self.transport = None
        elif line is lines.stalled or line is lines.lingering:
            before, self._unwritten = self._unwritten, self._pending()
            if before - self._unwritten >= min(before, STALL_BYTES) > 0:  # slow, but it reads
                self._wait_in(line)
            else:
                transport.abort()
        else:
            self.close()

    def evict(self) -> None:
        """End at once, to make room: nothing is under way here."""
        self._state.connections.discard(self)
        self._stopped = True
        self._stand_nowhere()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _wait_in(self, line: Line) -> None:
        line.enter(self, self.loop.time())

    def _stand_nowhere(self) -> None:
        if self.line is not None:
            self.line.leave(self)

    def _settle(self) -> None:
        """Stand where the connection belongs now."""
        lines = self.connections
        if self.transport is None or self.line is lines.lingering:
            return
        if self.write_paused:
            self._wait_in(lines.stalled)
        elif self.transport.is_closing():
            return
        elif self.answering is not None:
            self._stand_nowhere()
        elif self._phase == _BODY:
            self._wait_in(lines.body)
        elif self._phase == _HEAD:
            self._wait_in(lines.head)
        else:
            self._wait_in(lines.idle)

    # ---- reading ----------

    def pace(self) -> None:
        """Read on, or pause: bounded is what waits for the application, and what comes while an answer is made."""
        if self.transport is None or self._websocket is not None:
            return
        receiving, ahead = self._receiving, self._ahead
        full = (receiving is not None and receiving.unread > UNREAD_BYTES) or (
            ahead is not None and len(ahead) > AHEAD_BYTES
        )
        if self._unparsed is not None:
            full = True
        elif not full and self._queue:
            full = sum(exchange.unread for exchange in self._queue) > AHEAD_BYTES
        if full and not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        elif self.read_paused and not full:
            self.read_paused = False
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        """Parse what has come: a slice at a time, and with others between when slices take long."""
        if self.parser is None:
            self.parser = self._new_parser()
        rest: bytes | memoryview = data
        while rest and not self._stopped:
            piece: bytes | memoryview
            if len(rest) <= SLICE:
                piece, rest = rest, b""
            else:
                rest = memoryview(rest)
                piece, rest = rest[:SLICE], rest[SLICE:]
            self._pieces = 0
            if not self._parse(piece, rest):
                return
            if self._pieces > PIECES_AT_ONCE:
                self._unparsed = bytes(rest)
                self.pace()
                self.loop.call_soon(self._feed_rest)
                return

    def _feed_rest(self) -> None:
        rest, self._unparsed = self._unparsed, None
        if rest and not self._stopped:
            self._feed(rest)
        self.pace()

    def _parse(self, data: bytes | memoryview, rest: bytes | memoryview) -> bool:
        """Parse a slice; False when `rest`, which follows it, is not to be parsed."""
        self._spent += len(data)
        self._read = len(data)
        self._took = 0
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as found:
                    data = data[found.args[0] :]
                    if self._websocket is not None:
                        self._upgrade(len(data) + len(rest) > 0)
                        return False
        except httptools.HttpParserError:
            self._refuse(self._refusal or answers.BAD_REQUEST)
            return False
        if self._took:
            self._spent = max(self._spent - (FRAMING + 1) * self._took, 0)
        if self._spent > MAX_HEAD_BYTES:
            self._refuse(answers.HEAD_TOO_LARGE if self._phase == _HEAD else answers.FRAMING_TOO_LARGE)
            return False
        if self.answering is not None or self._phase == _BODY:
            self._settle()
        else:
            self._wait_in(self.connections.head)  # a part of a head, or line breaks before one
        return True

    def on_message_begin(self) -> None:
        self._phase = _HEAD
        self._spent = self._read
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == _HEAD:  # else a trailer, which is none of our business
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._phase = _BODY
        headers, self._headers = self._headers, []
        size = hosts = 0
        expects_continue = has_body = False
        length: int | None = 0
        upgrade = b""
        for name, value in headers:
            size += len(name) + len(value)
            if name == b"host":
                hosts += 1
            elif name == b"expect":
                expects_continue = value.lower() == b"100-continue"
            elif name == b"upgrade":
                upgrade = value.lower()
            elif name == b"transfer-encoding":
                has_body, length = True, None
            elif name == b"content-length" and value.strip(b"0"):
                has_body, length = True, int(value)
        if len(headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            self._refuse_inside(answers.HEAD_TOO_LARGE)
        if hosts > 1:
            self._refuse_inside(answers.TWO_HOSTS)
        if self.parser.should_upgrade():
            if has_body:
                self._refuse_inside(answers.UPGRADE_WITH_BODY)
            if upgrade == b"websocket":
                self._prepare_upgrade(headers)
                return
        self._take(headers, expects_continue, length)

    def on_body(self, body: bytes) -> None:
        self._took += len(body)
        self._pieces += 1
        if self._receiving is not None:
            self._receiving.add(body)
            self.pace()

    def on_message_complete(self) -> None:
        self._phase = _BETWEEN
        self._spent = self._read = 0  # what follows in this read is another message's
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            receiving.end_body()
            if self.read_paused:  # with a large body: else nobody would see that the client hangs up
                self.pace()

    def _take(self, headers: list[tuple[bytes, bytes]], expects_continue: bool, length: int | None) -> None:
        """Begin with a request whose head is whole, or let it wait for the answer to the one before.

        `length`: of its body, if known.
        """
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
        if self.connections.crowded:
            scope[CROWDED] = True
            keep_alive = False
        exchange = Exchange(self, scope, keep_alive, expects_continue, length)
        if self.answering is None:
            self._begin(exchange)
        else:
            if self._queue is None:
                self._queue = []
            if len(self._queue) >= MAX_AHEAD:
                self._refuse_inside(answers.TOO_MANY_AHEAD)
            self._queue.append(exchange)
        self._receiving = exchange

    # ---- answering ----------

    def _begin(self, exchange: Exchange) -> None:
        self.answering = exchange
        self._state.tasks.add(exchange.start(self._config.loaded_app, self.loop))

    def over(self, task: asyncio.Task[None]) -> None:
        """See `Wire`."""
        self._state.tasks.discard(task)

    def answered(self, exchange: Exchange) -> None:
        """The answer is written; see `Wire`."""
        self._state.total_requests += 1
        self.answering = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not exchange.keep_alive:
            self._queue = self._refusal = None
            if self._receiving is None:
                self.close()
            else:
                self._linger()  # the client still sends: a reset would take the answer from it
        elif self._queue:
            self._begin(self._queue.pop(0))
            self.pace()
        elif self._refusal is not None:
            self._say_last(self._refusal)
        else:
            ahead, self._ahead = self._ahead, None
            if ahead:
                self.pace()
                self._feed(bytes(ahead))
            else:
                self._settle()

    def rest(self) -> None:
        """See `Wire`. A parser that stands between two requests takes a kilobyte and remembers nothing."""
        if self._phase == _BETWEEN and self._unparsed is None:
            self.parser = None

    def broken(self, exchange: Exchange) -> None:
        """The application gave up; see `Wire`."""
        if exchange is not self.answering or self.transport is None:
            return
        if exchange.started:
            self.transport.abort()  # a part must not look like a whole
        else:
            exchange.disconnect()
            self.answering = self._queue = None
            self._say_last(answers.INTERNAL)

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    async def drain(self) -> None:
        """See `Wire`."""
        while self.write_paused and self.transport is not None:
            waiter = self.loop.create_future()
            if self._drained is None:
                self._drained = []
            self._drained.append(waiter)
            await waiter

    def default_lines(self) -> bytes:
        """See `Wire`."""
        return self.connections.default_lines(self._state.default_headers)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.loop.call_soon(callback)

    def _resume_writers(self) -> None:
        waiters, self._drained = self._drained, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def _tell_lost(self) -> None:
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost()

    # ---- the end ----------

    def close(self) -> None:
        """End the connection once everything is written; a client that does not read it is cut off."""
        self._stopped = True
        self._stand_nowhere()
        if self.transport.get_write_buffer_size():
            self._unwritten = self._pending()
            self._wait_in(self.connections.stalled)
        self.transport.close()

    def _refuse_inside(self, answer: bytes) -> None:
        """Refuse from within the parser, which is left by raising."""
        self._refusal = answer
        raise _Refused

    def _refuse(self, answer: bytes) -> None:
        """Take nothing more of this client, and tell it so after the answers that are due before."""
        self._stopped = True
        self._ahead = self._unparsed = None
        receiving, self._receiving = self._receiving, None
        if receiving is not None:  # will never be whole
            if receiving.complete:
                self._linger()
                return
            receiving.disconnect()
            if self._queue and receiving is self._queue[-1]:
                self._queue.pop()
            elif receiving is self.answering:
                self.answering = None
                self._tell_lost()
                if receiving.started:
                    self.transport.abort()
                    return
        if self.answering is None:
            self._say_last(answer)
        else:
            self._refusal = answer
            self._settle()

    def _say_last(self, answer: bytes) -> None:
        self._stopped = True
        self._refusal = None
        self.transport.write(answer)
        self._linger()

    def _linger(self) -> None:
        """Let the client read what was written, and drop what it still sends."""
        self._stopped = True
        self._ahead = self._receiving = self._unparsed = None
        self.pace()
        self._unwritten = self._pending()
        self._wait_in(self.connections.lingering)
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _pending(self) -> int:
        return unread_by_client(self.transport)

    # ---- WebSockets ----------

    def _prepare_upgrade(self, headers: list[tuple[bytes, bytes]]) -> None:
        if self.answering is not None or self.parser.get_http_version() != "1.1":
            self._refuse_inside(answers.BAD_UPGRADE)
        self._websocket = handshake_head(self.parser.get_method(), self._url, headers)
        if self._websocket is None:
            self._refuse_inside(answers.HEAD_TOO_LARGE)

    def _upgrade(self, more: bool) -> None:
        """Hand the connection over, with the head; it is answered by then, or refused here, or its time ends."""
        head, self._websocket = self._websocket, None
        if more or self.transport.get_write_buffer_size():  # (who does not read answers gets no socket)
            self._refuse(answers.BAD_UPGRADE)
            return
        self._leave()
        self.parser = None
        self._websocket = hand_over(self.transport, head, self._config, self._state, self.loop)
        if self._websocket is not None:
            self._wait_in(self.connections.handshake)
