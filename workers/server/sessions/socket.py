"""Workers' WebSockets: which workers may connect, and which session serves which."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec
import structlog

from fairlane.workers.protocol import CLOSE_RESTART, CLOSE_UNAUTHORIZED, SUBPROTOCOL, Drain, encoder
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.sessions.session import (
    Connection,
    Identity,
    Session,
    SessionLogs,
    SessionSettings,
)

log = structlog.get_logger("fairlane.workers")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SOCKET = "fairlane.socket"
"""Where the ASGI scope holds the `Socket`, once it is accepted."""
RETRY_S = 1
"""When a worker that a stopping gateway refuses should try again: another one may be there immediately."""


class Receiver(Protocol):
    """Takes the messages of a connection."""

    def received(self, data: str | bytes, size: int) -> float:
        """Take a message of `size` bytes. Return the seconds until the next one may be read."""
        ...


class Socket(Connection, Protocol):
    """An accepted WebSocket."""

    async def serve(self, receiver: Receiver | None, stuck_s: float) -> tuple[int, str]:
        """Pass messages to `receiver` until the connection ends, from either side. Return the close code and the reason.

        A peer that reads nothing of what it is sent for `stuck_s` is disconnected.
        """
        ...


class WorkerSocket:
    """The ASGI application of `/ws`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        authenticate: Callable[[str | None], Identity | None],
        settings: SessionSettings,
        *,
        refusal: Callable[[Scope], str | None] = lambda _: None,
        unknown_token: Callable[[Scope], None] = lambda _: None,
    ) -> None:
        """`unknown_token` is called for a handshake with an invalid token."""
        self._dispatcher = dispatcher
        self._logs = SessionLogs()
        self._authenticate = authenticate
        self.settings = settings
        self._refusal = refusal
        self._unknown_token = unknown_token
        self._sessions: set[Session] = set()
        self._used: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            identity = self._admit(scope)
        except _Denied as denied:
            await _deny(scope, send, denied)
            return
        version = 2 if SUBPROTOCOL in scope.get("subprotocols", ()) else 1
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL if version == 2 else None})
        scope["headers"] = []  # of no use any more, for as long as the connection lasts
        socket: Socket = scope.pop(SOCKET)
        settings = self.settings
        session = Session(self._dispatcher, self._logs, identity, settings, socket, version)
        self._sessions.add(session)
        self._used.add(identity.id)
        code, reason = 1006, ""
        register_due = asyncio.get_running_loop().call_later(
            settings.register_ms / 1000, session.register_is_due
        )
        try:
            session.begin()
            code, reason = await socket.serve(session, settings.send_ms / 1000)
        finally:
            register_due.cancel()
            self._sessions.discard(session)
            session.ended(code, reason)

    def _admit(self, scope: Scope) -> Identity:
        """Return the owner of this worker. Raise _Denied."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if "origin" in headers:
            raise _Denied(403, "Workers do not connect from web pages: an Origin is rejected")
        if (refused := self._refusal(scope)) is not None:
            raise _Denied(403, refused)
        identity = self._authenticate(headers.get("authorization"))
        if identity is None:
            if "authorization" in headers:
                self._unknown_token(scope)
            raise _Denied(401, "A worker token is needed: Authorization: Bearer <token>")
        if self._dispatcher.pool.draining:
            raise _Denied(503, "This gateway is shutting down: connect again, to another one")
        return identity

    def drain(self, grace_ms: int) -> None:
        """Announce to all workers that this gateway shuts down. Version 1 has no message for it: see `release`."""
        frame = encoder.encode(Drain(grace_ms, reconnect=True))
        for session in self._sessions:
            if session.worker and session.worker.version >= 2:
                session.worker.send(frame)
        self.release()

    def release(self) -> None:
        """End the connections of idle version 1 workers while this gateway drains, so that they work elsewhere."""
        for session in list(self._sessions):
            worker = session.worker
            if worker and worker.version == 1 and not worker.attempts and not worker.reserved:
                session.close(CLOSE_RESTART, "the gateway stops")

    def drain_worker(self, worker_id: str, grace_ms: int) -> bool:
        """Give one worker no more tasks; one of version 2 is asked to leave when it is done. False: no such worker is
        connected."""
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
            session.close(CLOSE_RESTART, reason)

    def used(self) -> set[str]:
        """Return the ids of the tokens of all workers that were connected since the last call."""
        used, self._used = self._used, set()
        return used | {session.identity.id for session in self._sessions}

    def check_tokens(self, renewed: Callable[[Identity], Identity | None]) -> None:
        """Apply tokens that were read again. `renewed` returns what a token may offer now; None if its secret is no longer
        valid."""
        for session in list(self._sessions):
            identity = renewed(session.identity)
            if identity is None:
                showed_one = bool(session.identity.sha256)
                why = "the worker token was revoked" if showed_one else "the gateway wants worker tokens now"
                session.close(CLOSE_UNAUTHORIZED, why)
            else:
                session.allow(identity)

    def endpoints_changed(self) -> None:
        """Apply changed endpoints to the workers that offer all of them."""
        for session in list(self._sessions):
            session.allow(session.identity)


class _Denied(Exception):
    """A rejected handshake: its status, and the reason."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


async def _deny(scope: Scope, send: Send, denied: _Denied) -> None:
    """Refuse the handshake with an HTTP answer."""
    status, sentence = denied.status, str(denied)
    if "websocket.http.response" in scope.get("extensions", {}):
        body = msgspec.json.encode({"error": sentence})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 503:
            headers.append((b"retry-after", b"%d" % RETRY_S))
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send(
            {"type": "websocket.close", "code": 4401 if status == 401 else 1008, "reason": sentence[:120]}
        )
