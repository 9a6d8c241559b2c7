"""One WebSocket to the gateway: carries a session's frames, and nothing else.

Three loops share the socket's life: read, write, and the pulse (heartbeats, the watchdog, the wish to close).
When one ends, all end; the handlers of this connection are then cancelled, because the gateway gives their
tasks to others.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from fairlane.workers import protocol
from fairlane.workers.sdk.address import without_query
from fairlane.workers.sdk.backoff import CEILING_S, UNREACHABLE_CEILING_S, requested_pause
from fairlane.workers.sdk.errors import GatewayRefusedError, shorten
from fairlane.workers.sdk.pool import Pool
from fairlane.workers.sdk.session.session import Effect, Session, Start
from fairlane.workers.sdk.values import attempt_mark

log = logging.getLogger("fairlane.worker")

OPEN_TIMEOUT_S = 10.0
REGISTER_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 5.0
PING_INTERVAL_S = 20.0
PING_TIMEOUT_S = 60.0
MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_RETRY_AFTER_S = 60.0
MIN_HEARTBEAT_S = 0.05
PULSE_S = 1.0

FATAL_CLOSES = {
    protocol.CLOSE_PROTOCOL: "it says that this worker broke the protocol. Use the same version of "
    "Fairlane on both sides; if they are the same, this is a bug worth reporting",
    protocol.CLOSE_UNAUTHORIZED: "it wants a worker token that is valid. Set FAIRLANE_WORKER_TOKEN to one",
    protocol.CLOSE_VERSION: "the two have no version of the protocol in common. Update the older one",
}

_NO_GATEWAY = "; is it a Fairlane gateway, with /ws as its path?"
_HINTS = {
    **dict.fromkeys((200, 404, 426), _NO_GATEWAY),
    503: "; it starts, shuts down, or has no connection left",
}
"""What an answer in place of a WebSocket may mean, by its status."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a connection ended: when to come back, at most, and why it ended (for the log)."""

    registered_s: float
    reason: str
    retry_after_s: float | None = None
    ceiling_s: float = CEILING_S


class Connection:
    """Owns one socket from dialling to close.

    `registered` is set once the gateway has welcomed us, `draining` when it sends `drain` (`reconnect`
    says whether to open another connection first, or not to come back at all). After `close_when_idle` the
    connection ends by itself once its last task is finished and acknowledged, or the gateway's grace is over.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        session: Session,
        pool: Pool,
        *,
        woken: asyncio.Event,
        on_change: Callable[[], None],
    ) -> None:
        self.session = session
        self.registered = asyncio.Event()
        self.draining = asyncio.Event()
        self.reconnect = False
        self._url = url
        self._token = token
        self._pool = pool
        self._woken = woken
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._registered_at: float | None = None
        self._sending_since: float | None = None
        self._heartbeat_s = 0.0
        self._next_heartbeat: float | None = None
        self._close_asked = False
        self._close_at: float | None = None
        self._stir = asyncio.Event()

    def close_when_idle(self) -> None:
        """End once nothing is running, waiting to be sent, or waiting to be acknowledged."""
        self._close_asked = True
        self._stir.set()

    def close(self) -> None:
        """End immediately: running tasks are cancelled, unacknowledged results stay in the ledger."""
        self._close_at = self._loop.time()
        self._stir.set()

    def stir(self) -> None:
        """Check again whether to close."""
        if self._close_asked:
            self._stir.set()

    @property
    def registered_s(self) -> float:
        """How long the gateway has known this worker on this connection."""
        return 0.0 if self._registered_at is None else self._loop.time() - self._registered_at

    async def run(self) -> Ended:
        """Dial, work, and return when the connection has ended; its session is then ended too.

        Raise `GatewayRefusedError` when coming back would not help.
        """
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            async with connect(
                self._url,
                additional_headers=headers,
                subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
                compression=None,
                proxy=None,
                max_size=MAX_FRAME_BYTES,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=PING_INTERVAL_S,
                ping_timeout=PING_TIMEOUT_S,
                user_agent_header="fairlane-worker",
            ) as socket:
                await self._work(socket)
                return self._ended(socket)
        except InvalidStatus as refusal:
            return self._refused(refusal)
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, ConnectionClosed) as error:
            reason = shorten(f"{type(error).__name__}: {error}", 300)
            return Ended(0.0, reason, ceiling_s=UNREACHABLE_CEILING_S)
        finally:
            self.session.end()
            self._pool.stop_session(self.session, "disconnected")

    # ---- the three loops -------------------------------------------------------------------------

    async def _work(self, socket: ClientConnection) -> None:
        self.session.begin()
        loops = [
            asyncio.create_task(loop, name=f"fairlane {name}")
            for name, loop in (
                ("reader", self._read(socket)),
                ("writer", self._write(socket)),
                ("pulse", self._pulse(socket)),
            )
        ]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in loops:
                task.cancel()
            outcomes = await asyncio.gather(*loops, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionClosed):
                raise outcome

    async def _read(self, socket: ClientConnection) -> None:
        session = self.session
        while True:
            if (effect := session.receive(await socket.recv())) is not None:
                self._carry_out(effect)
            self._on_change()

    async def _write(self, socket: ClientConnection) -> None:
        session, woken = self.session, self._woken
        while True:
            woken.clear()
            while (frame := session.next_frame()) is not None:
                self._sending_since = self._loop.time()
                await socket.send(frame, text=True)
                self._sending_since = None
            self.stir()
            await woken.wait()

    async def _pulse(self, socket: ClientConnection) -> None:
        """Each second, or when stirred: 1. give up a dead gateway; 2. heartbeat; 3. close when it is time."""
        opened = self._loop.time()
        while True:
            now = self._loop.time()
            stuck = self._sending_since is not None and now - self._sending_since > SEND_TIMEOUT_S
            silent = self._registered_at is None and now - opened > REGISTER_TIMEOUT_S
            if stuck or silent:  # 1
                log.warning("the gateway %s", "takes no data" if stuck else "does not answer `register`")
                socket.transport.abort()
                return
            if self._next_heartbeat is not None and now >= self._next_heartbeat:  # 2
                for task_id, attempt in self.session.heartbeat():
                    log.warning("[%s #%s] its result was never acknowledged", task_id, attempt_mark(attempt))
                self._next_heartbeat = now + self._heartbeat_s
            over = self._close_at is not None and now >= self._close_at
            if over or (self._close_asked and self.session.idle and self._sending_since is None):  # 3
                await socket.close()
                return
            try:
                dates = (now + PULSE_S, self._next_heartbeat, self._close_at)
                async with asyncio.timeout_at(min(date for date in dates if date is not None)):
                    await self._stir.wait()
            except TimeoutError:
                continue
            self._stir.clear()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start():
                self._pool.start(self.session, effect)
            case protocol.Cancel():
                self._pool.stop(self.session, effect)
            case protocol.Registered():
                self._registered_at = self._loop.time()
                self._heartbeat_s = max(effect.heartbeat_ms / 1000, MIN_HEARTBEAT_S)
                self._next_heartbeat = self._registered_at + self._heartbeat_s
                log.info("registered with %s as %s", without_query(self._url), effect.worker_id)
                self.registered.set()
                self._stir.set()  # the pulse has a heartbeat to keep from now on
            case protocol.Drain():
                why = "the gateway shuts down" if effect.reconnect else "an operator takes this worker out"
                log.info("%s; %d ms to finish", why, effect.grace_ms)
                self.reconnect = effect.reconnect
                self._close_at = self._loop.time() + effect.grace_ms / 1000
                self.draining.set()
            case protocol.Error():
                log.warning("gateway: %s: %s", effect.code, effect.message)

    # ---- the end ---------------------------------------------------------------------------------

    def _ended(self, socket: ClientConnection) -> Ended:
        code, reason = socket.close_code, socket.close_reason
        was_faulty = code == protocol.CLOSE_PROTOCOL and self._registered_at is not None
        if code in protocol.FATAL_CLOSE_CODES and not was_faulty:
            advice = FATAL_CLOSES.get(code, "do not come back")
            said = f" It said: {shorten(reason, 300)}" if reason else ""
            raise GatewayRefusedError(f"The gateway closed the connection ({code}): {advice}.{said}")
        return Ended(self.registered_s, f"closed with {code or 'no code'}{f' ({reason})' if reason else ''}")

    def _refused(self, refusal: InvalidStatus) -> Ended:
        response = refusal.response
        if response.status_code == 401:
            raise GatewayRefusedError(_unauthorized(self._token))
        if response.status_code == 403:
            raise GatewayRefusedError(
                "The gateway rejects this worker (403). Check its token's permissions, "
                "and proxies in between."
            )
        hint = _HINTS.get(response.status_code, "")
        asked_s = requested_pause(response.headers)
        retry_after_s = None if asked_s is None else min(asked_s, MAX_RETRY_AFTER_S)
        return Ended(0.0, f"answered {response.status_code}{hint}", retry_after_s)


def _unauthorized(token: str | None) -> str:
    """Return what is wrong with a token after a 401."""
    made = "`fairlane key create ID --worker` makes one"
    if not token:
        return f"The gateway asks for a worker token (401): set FAIRLANE_WORKER_TOKEN; {made}."
    if token.startswith("fl_"):
        return f"What FAIRLANE_WORKER_TOKEN says is a caller's key (401): a worker needs a token (flw_…); {made}."
    return (
        f"The gateway does not know this worker's token (401): set FAIRLANE_WORKER_TOKEN to another; {made}."
    )
