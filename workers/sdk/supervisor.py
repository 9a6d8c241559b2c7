"""Keeps a worker connected until it is asked to stop: reconnects, hands over, drains."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairlane.workers import protocol
from fairlane.workers.sdk.address import without_query
from fairlane.workers.sdk.backoff import Backoff
from fairlane.workers.sdk.connection import CLOSE_TIMEOUT_S, Connection, Ended
from fairlane.workers.sdk.handlers import Registry
from fairlane.workers.sdk.pool import Pool
from fairlane.workers.sdk.session.ledger import Ledger
from fairlane.workers.sdk.session.session import Session
from fairlane.workers.tracing import Tracer

log = logging.getLogger("fairlane.worker")

ACK_WAIT_S = 10.0
"""How long a draining worker waits for the last acknowledgements once its last handler has ended."""

ABORT_GRACE_S = 5.0
"""How long cancelled handlers have to end when the worker stops immediately."""


class Supervisor:
    """Everything that one `serve` call owns: the connections, the running handlers, the kept results.

    Usually there is one connection. After a gateway's `drain{reconnect}` there are two for a while: `current`
    takes new tasks, the others finish theirs and close.
    """

    def __init__(
        self,
        *,
        url: str,
        token: str | None,
        make_register: Callable[[], protocol.Register],
        registry: Registry,
        slots: int,
        drain_ms: int,
        state: SimpleNamespace,
        rng: random.Random,
        tracer: Tracer | None = None,
    ) -> None:
        self._url = url
        self._token = token
        self._make_register = make_register
        self._registry = registry
        self._drain_ms = drain_ms
        self._backoff = Backoff(rng)
        self._slots = slots
        self._ledger = Ledger()
        self._changed = asyncio.Event()
        self._pool = Pool(registry, state=state, on_change=self.on_change, tracer=tracer)
        self._open: dict[asyncio.Task[Ended], Connection] = {}
        self._draining_ms: int | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self, stop: asyncio.Event, abort: asyncio.Event) -> None:
        """Stay connected until `stop`, then drain; `abort` cancels what still runs. Closes everything.

        Raise `GatewayRefusedError`. A cancellation of this call stops immediately, without waiting for results
        to arrive.
        """
        keeper = asyncio.create_task(self._keep_connected(), name="fairlane connections")
        drainer = asyncio.create_task(self._drain_after(stop, abort), name="fairlane worker drain")
        try:
            await asyncio.wait([keeper, drainer], return_when=asyncio.FIRST_COMPLETED)
            if drainer.done():
                drainer.result()
                await self._close(keeper)
            elif keeper.done():
                keeper.result()
        finally:
            await _cancel(keeper, drainer)
            self._pool.stop_all("shutdown", 0.0)
            await _cancel(*self._open)
            if not await self._pool.ended(ABORT_GRACE_S):
                log.warning("%d handlers have not ended and are left behind", len(self._pool))

    # ---- staying connected -----------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        """Open a connection, and the next when it has ended or its gateway asks for that.

        Returns when an operator has taken this worker out (`drain` without `reconnect`) and all it ran is finished.
        """
        while True:
            connection = self._connection()
            link = asyncio.create_task(connection.run(), name="fairlane connection")
            self._open[link] = connection
            link.add_done_callback(self._on_end)
            draining = asyncio.create_task(connection.draining.wait())
            welcomed = asyncio.create_task(self._retire_others(connection))
            try:
                await asyncio.wait([link, draining], return_when=asyncio.FIRST_COMPLETED)
                if not link.done() and not connection.reconnect:
                    connection.close_when_idle()
                    await asyncio.wait([link])
            finally:
                await _cancel(draining, welcomed)
            if connection.draining.is_set() and not connection.reconnect:
                log.info("taken out by the gateway: not coming back")
                for other in self._open.values():
                    other.close_when_idle()
                if self._open:
                    await asyncio.wait(self._open)
                return
            if link.done():
                ended = link.result()
                delay = self._backoff.after(ended.registered_s, ended.retry_after_s, ended.ceiling_s)
                log.warning(
                    "not connected to %s: %s; next attempt in %.1f s",
                    *(without_query(self._url), ended.reason, delay),
                )
            else:
                delay = self._backoff.after_handover(connection.registered_s)
            await asyncio.sleep(delay)

    def _connection(self) -> Connection:
        woken = asyncio.Event()
        session = Session(
            self._make_register,
            free_slots=lambda: self._slots - len(self._pool),
            ledger=self._ledger,
            serves=lambda model, task_type: self._registry.find(model, task_type) is not None,
            clock=self._loop.time,
            wake=woken.set,
        )
        if self._draining_ms is not None:
            session.drain(self._draining_ms)
        return Connection(self._url, self._token, session, self._pool, woken=woken, on_change=self.on_change)

    async def _retire_others(self, connection: Connection) -> None:
        """Once `connection` is registered, the ones before it close as soon as they are idle."""
        await connection.registered.wait()
        for other in self._open.values():
            if other is not connection:
                other.close_when_idle()

    def on_change(self) -> None:
        """A handler or a result is done, or the worker's description has changed: offer what is free, and wake the coroutines
        that wait for it."""
        self._changed.set()
        for connection in self._open.values():
            connection.session.offer()
            connection.stir()

    def _on_end(self, link: asyncio.Task[Ended]) -> None:
        """Let another registered connection send the results of one that has ended."""
        ended = self._open.pop(link)
        if ended.reconnect and not link.cancelled() and (error := link.exception()) is not None:
            log.warning("an old connection ended with %s", error)  # the current one raises its own
        for connection in self._open.values():
            connection.session.resend()
        self.on_change()

    # ---- draining -----------------------------------------------------------------------------------

    async def _drain_after(self, stop: asyncio.Event, abort: asyncio.Event) -> None:
        """Wait for `stop`, then until nothing runs or is unacknowledged, or the drain's time is over."""
        await stop.wait()
        log.info("draining: %d running, at most %d ms", len(self._pool), self._drain_ms)
        self._draining_ms = self._drain_ms
        for connection in self._open.values():
            connection.session.drain(self._drain_ms)
        nudge = asyncio.create_task(self._nudge_on(abort))
        try:
            await self._until(lambda: abort.is_set() or not len(self._pool), self._drain_ms / 1000)
        finally:
            await _cancel(nudge)
        if len(self._pool):
            log.warning("cancelling %d running tasks", len(self._pool))
            self._pool.stop_all("shutdown", ABORT_GRACE_S / 2)
            await self._pool.ended(ABORT_GRACE_S)
        await self._until(lambda: not len(self._ledger), ACK_WAIT_S)
        if len(self._ledger):
            log.warning("%d results were not acknowledged", len(self._ledger))

    async def _nudge_on(self, event: asyncio.Event) -> None:
        await event.wait()
        self._changed.set()

    async def _until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Wait until a condition holds, at most for `timeout_s`. It is checked at every change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()

    async def _close(self, keeper: "asyncio.Task[None]") -> None:
        """Close what is open in good order (1000), at most for the time that a closing handshake may take."""
        await _cancel(keeper)
        for connection in self._open.values():
            connection.close()
        if self._open:
            await asyncio.wait(list(self._open), timeout=CLOSE_TIMEOUT_S + 1)


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
