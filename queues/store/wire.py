"""One socket to Redis: how it is connected, how long to wait before the next one, and how replies come over it.

redis-py's own connection does what comes first: addresses, TLS, authentication. Then the socket is taken over: redis-py's way of
reading costs tens of microseconds for each reply.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import hiredis
from redis.asyncio import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, InvalidResponse

Reply = Any


async def connect(url: str, timeout_ms: int) -> Connection:
    """A new connection of redis-py that never repeats a command by itself. `url`: redis://, rediss:// or unix://.

    Raises OSError, TimeoutError or RedisError. Greeting and authentication are within the time-out: a stopped server accepts
    connections and never answers.
    """
    pool = ConnectionPool.from_url(
        url,
        decode_responses=False,
        socket_timeout=None,
        socket_connect_timeout=timeout_ms / 1000,
        health_check_interval=0,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    connection: Connection = pool.make_connection()  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(2 * timeout_ms / 1000):
            await connection.connect()  # type: ignore[no-untyped-call]
    except BaseException as error:
        await disconnect(connection)
        if isinstance(error.__cause__, AuthenticationError):  # redis-py hides it, over a unix socket
            raise error.__cause__ from None
        if isinstance(error, TimeoutError):  # it has no text
            raise TimeoutError(f"no answer from Redis within {2 * timeout_ms} ms of connecting") from None
        raise
    return connection


async def disconnect(connection: Connection) -> None:
    """Give a connection up, in whatever state it is."""
    with contextlib.suppress(Exception):  # the socket may be broken in any way
        await connection.disconnect(nowait=True)


class Backoff:
    """Delays between attempts to connect, in seconds: doubled from `first` to `most`, with full jitter.

    `most` is short, since a lease may end a second and a half after Redis is back (sweep.lua).
    """

    def __init__(self, first: float = 0.05, most: float = 0.5) -> None:
        self._first, self._most = first, most
        self._rng = random.Random()  # noqa: S311 - spreads load, hides nothing; not the process's own, which tests seed
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    def delay(self) -> float:
        delay = self._rng.uniform(0.3, 1.0) * self._next
        self._next = min(self._next * 2, self._most)
        return delay


class Wire(asyncio.Protocol):
    """The socket of one connection, once redis-py has greeted the server: replies as they come, commands while it takes them."""

    def __init__(
        self, connection: Connection, on_replies: Callable[[list[Reply]], None], on_room: Callable[[], None]
    ) -> None:
        """Takes the socket over from redis-py, which has read every reply that came before.

        `on_room` is called when the system takes more commands again.
        """
        self._on_replies = on_replies
        self._on_room = on_room
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=connection._parser.parse_error
        )
        self.transport: asyncio.Transport = connection._writer.transport  # type: ignore[union-attr,assignment]
        self.takes_more = True
        """Whether the system takes commands as fast as they come."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the connection breaks, or what comes over it is no reply."""
        self.transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        if self.lost.done():
            return  # what came last was not matched to the end: these replies would go to others' callers
        replies = []
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
            self._on_replies(replies)
        except (
            Exception
        ) as error:  # from here on replies cannot be matched to calls: the connection is given up
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(exc or ConnectionError("the server closed the connection"))

    def pause_writing(self) -> None:
        self.takes_more = False

    def resume_writing(self) -> None:
        self.takes_more = True
        self._on_room()

    def _break(self, error: Exception) -> None:
        if not self.lost.done():
            self.lost.set_exception(error)
            self.lost.exception()  # its owner may be gone
