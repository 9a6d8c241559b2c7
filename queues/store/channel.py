"""The replica's pub/sub channel: wake-ups, stop requests and events of the tasks that are read here.

One connection and one channel for everything, so that following a task costs no SSUBSCRIBE: the scripts know which replicas
read a task (field `readers` of its record) and publish to their channels. Messages may be lost while the connection is down;
their receivers check again after `on_change(True)`.
"""

import asyncio
import contextlib
from collections.abc import Callable

import hiredis
from redis.asyncio import Connection
from redis.exceptions import RedisError

from fairlane.queues.loops import cancel_and_wait, wait_event
from fairlane.queues.store.address import Address
from fairlane.queues.store.wire import Backoff, Reply, Wire, disconnect

_PING = hiredis.pack_command(("PING",))


class Channel:
    """Calls `on_message(bytes)` for each message published to `name`, in order, from the event loop.

    The callback must not raise and must not block. `on_change(up)` is called when listening begins and ends.
    """

    def __init__(
        self,
        address: Address,
        name: str,
        on_message: Callable[[bytes], None],
        on_change: Callable[[bool], None],
        *,
        timeout_ms: int = 1000,
        ping_ms: int = 5000,
    ) -> None:
        """`ping_ms`: after so long a silence the peer is asked; after as long again the connection is given up."""
        self._address = address
        self._name = name
        self._on_message = on_message
        self._on_change = on_change
        self._timeout_ms = timeout_ms
        self._task: asyncio.Task[None] | None = None
        self._ping_s = ping_ms / 1000
        self._until = asyncio.Timeout(None)
        self._heard_at = 0.0
        self.listening = asyncio.Event()

    async def start(self) -> None:
        """Begin to listen; returns when subscribed or after the time-out (it keeps trying)."""
        self._task = asyncio.create_task(self._keep_listening(), name="redis-channel")
        await wait_event(self.listening, self._timeout_ms / 1000)

    def reconnect(self) -> None:
        """Listen over a new connection: the address may lead to another server now, and this one shows nothing of that."""
        if self._task:
            with contextlib.suppress(RuntimeError):  # between two connections: the next one is new
                self._until.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        await cancel_and_wait(self._task)
        self._task = None

    async def _keep_listening(self) -> None:
        backoff = Backoff()
        while True:
            try:
                async with asyncio.Timeout(None) as self._until:
                    connection = await self._address.connect(self._timeout_ms)
                    try:
                        await self._listen(connection)
                    finally:
                        await disconnect(connection)
            except (TimeoutError, OSError, RedisError):
                pass  # listen again below; what was missed is found by checking again
            finally:
                if self.listening.is_set():
                    backoff.reset()
                    self.listening.clear()
                    self._on_change(False)
            await asyncio.sleep(backoff.delay())

    async def _listen(self, connection: Connection) -> None:
        """Pass messages on until the connection breaks or the peer is silent although it was asked; raises then."""
        now = asyncio.get_running_loop().time
        wire = Wire(connection, self._on_replies, lambda: None)
        wire.transport.write(hiredis.pack_command(("SSUBSCRIBE", self._name)))  # type: ignore[arg-type]
        self._heard_at, asked_at = now(), 0.0
        while True:
            await asyncio.wait({wire.lost}, timeout=self._ping_s - (now() - max(self._heard_at, asked_at)))
            if wire.lost.done():
                wire.lost.result()
            if now() - max(self._heard_at, asked_at) < self._ping_s:
                continue
            if asked_at > self._heard_at or not self.listening.is_set():
                raise TimeoutError
            asked_at = now()
            wire.transport.write(_PING)

    def _on_replies(self, replies: list[Reply]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
            if reply[0] == b"smessage":
                self._on_message(reply[2])
            elif reply[0] == b"ssubscribe":
                self.listening.set()
                self._on_change(True)
            elif reply[0] == b"sunsubscribe":
                raise ConnectionError("the channel's slot has moved to another node")
