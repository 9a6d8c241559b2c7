"""The replica's pub/sub channel: wake-ups, stop requests and events of the tasks that are read here.

One connection and one channel for everything, so that following a task costs no SUBSCRIBE: the scripts know which replicas
read a task (field `rd` of its record) and publish to their channels. Messages may be lost while the connection is down;
whoever needs them checks again when `on_change(True)` tells that it is back.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable

from redis.exceptions import RedisError

from fairlane.queues.link import Backoff, make_connection

PING_S = 5.0


class Channel:
    """Calls `on_message(bytes)` for each message published to `name`, in order, from the event loop.

    The callback must not raise and must not block. `on_change(up)` tells when listening begins and ends.
    """

    def __init__(
        self,
        url: str,
        name: str,
        on_message: Callable[[bytes], None],
        on_change: Callable[[bool], None],
        *,
        timeout_ms: int = 1000,
    ) -> None:
        self._url = url
        self._name = name
        self._on_message = on_message
        self._on_change = on_change
        self._timeout_ms = timeout_ms
        self._task: asyncio.Task[None] | None = None
        self._heard = 0.0
        self.listening = asyncio.Event()

    async def start(self) -> None:
        """Begin to listen; returns when subscribed or after the time-out (it goes on trying)."""
        self._task = asyncio.create_task(self._keep_listening(), name="redis-channel")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.listening.wait(), self._timeout_ms / 1000)

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _keep_listening(self) -> None:
        backoff = Backoff()
        while True:
            connection = make_connection(self._url, self._timeout_ms)
            pinger: asyncio.Task[None] | None = None
            try:
                async with asyncio.timeout(2 * self._timeout_ms / 1000):
                    await connection.connect()  # type: ignore[no-untyped-call]
                await connection.send_command("SUBSCRIBE", self._name, check_health=False)
                self._heard = asyncio.get_running_loop().time()
                pinger = asyncio.create_task(self._ping(connection), name="redis-channel-ping")
                while True:
                    reply = await connection.read_response(disable_decoding=True, timeout=math.inf)
                    self._heard = asyncio.get_running_loop().time()
                    if reply[0] == b"message":
                        self._on_message(reply[2])
                    elif reply[0] == b"subscribe":
                        backoff.reset()
                        self.listening.set()
                        self._on_change(True)
            except (TimeoutError, OSError, RedisError):
                pass  # listen again below; what was missed is found by checking again
            finally:
                if pinger:
                    pinger.cancel()
                if self.listening.is_set():
                    self.listening.clear()
                    self._on_change(False)
                with contextlib.suppress(Exception):  # the socket may be broken in any way; it is given up
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(backoff.delay())

    async def _ping(self, connection: object) -> None:
        """Notice a peer that is silent: without an answer to PING the connection is cut, which ends the read."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_S)
            if loop.time() - self._heard > 2 * PING_S + self._timeout_ms / 1000:
                await connection.disconnect(nowait=True)  # type: ignore[attr-defined]
                return
            with contextlib.suppress(OSError, RedisError):
                await connection.send_command("PING", check_health=False)  # type: ignore[attr-defined]
