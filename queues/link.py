"""One connection to Redis that all of a process's commands share.

Commands that become ready in the same tick of the event loop leave in one write, and replies are matched in order: that is
what makes Redis cheap here (redis-py alone costs about 80 us of CPU per command, in a shared write 10). redis-py's own
connection does the rest: addresses, TLS, authentication, parsing. Nothing is ever sent twice by itself: a command whose reply
is lost fails with `StoreUnavailable(sent=True)`, and its caller decides.
"""

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import hiredis
from redis.asyncio import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from fairlane.queues.errors import StoreRefused, StoreUnavailable
from fairlane.queues.measures import Measures, Recorder
from fairlane.queues.scripts import Script

Arg = bytes | str | int | float
Reply = Any

_ELSEWHERE = (BusyLoadingError, MasterDownError, ReadOnlyError)
"""What a server answers that is a primary no more, or not yet: its address may lead to another one by now."""

_TRANSIENT = (*_ELSEWHERE, ClusterDownError, OutOfMemoryError, TryAgainError)
_TRANSIENT_PREFIXES = ("BUSY", "MISCONF", "NOREPLICAS")


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
    except BaseException:
        await disconnect(connection)
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


class _Pending(NamedTuple):
    """A command that was sent and not answered; of a script also what it takes to send it whole."""

    future: asyncio.Future[Reply]
    sent_at: float
    script: Script | None
    args: tuple[Arg, ...]


class RedisLink:
    """The shared connection. `start` it, `await` what `command` and `run` return, `close` it.

    While it is down every call fails at once with `StoreUnavailable(sent=False)`; it reconnects by itself and loads the
    scripts before it takes calls again. A connection from which no reply comes for `timeout_ms` counts as lost, and so does one
    on which a single reply takes ten times as long; that this process was too busy to look does not. One that leads to a server
    that is no primary (any more) is given up, and the address asked again: what it refused had no effect, of what was under way
    behind that nobody knows.
    """

    def __init__(
        self,
        url: str,
        scripts: Mapping[str, Script],
        prefix: str,
        *,
        timeout_ms: int = 1000,
        on_connect: Callable[["RedisLink"], Awaitable[None]] | None = None,
        on_change: Callable[[bool], None] | None = None,
        measures: Measures | None = None,
    ) -> None:
        self._url = url
        self._scripts = scripts
        self._prefix = prefix
        self._timeout = timeout_ms / 1000
        self._timeout_ms = timeout_ms
        self._on_connect = on_connect
        self._on_change = on_change
        self._measures: Measures = measures or Recorder()
        self._out: list[bytes] = []
        self._pending: deque[_Pending] = deque()
        self._wanted = asyncio.Event()
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._fatal: StoreRefused | None = None
        self._trouble: Exception | None = None
        self._served = False
        self._replies = 0
        self.commands = 0
        self.writes = 0

    @property
    def up(self) -> bool:
        """True while calls are taken."""
        return self._up.is_set()

    @property
    def trouble(self) -> str:
        """Why it was down last."""
        return str(self._trouble or "")

    async def start(self, wait_ms: int = 10_000) -> None:
        """Connect; returns when ready. Raises StoreRefused (badly configured) or StoreUnavailable (after `wait_ms`).

        From then on the link goes on trying until `close`, whatever happens to Redis.
        """
        self._task = asyncio.create_task(self._keep_connected(), name="redis-link")
        waiter = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait(
                {waiter, self._task}, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            waiter.cancel()
        if self._fatal:
            raise self._fatal
        if not self.up:
            await self.close()
            why = f" ({self.trouble})" if self._trouble else ""
            raise StoreUnavailable(f"no answer from Redis within {wait_ms} ms{why}", sent=False)

    async def close(self) -> None:
        """Disconnect. Calls under way fail."""
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def command(self, *args: Arg) -> asyncio.Future[Reply]:
        """Send one command. Raises StoreUnavailable at once when down; the future yields the reply, bytes undecoded."""
        if not self._up.is_set():
            raise StoreUnavailable("no connection to Redis", sent=False)
        return self._send(args)

    def run(self, name: str, *args: Arg) -> asyncio.Future[Reply]:
        """Run a script on this link's pool, like `command`. A script the server forgot is sent whole: it had not run."""
        if not self._up.is_set():
            raise StoreUnavailable("no connection to Redis", sent=False)
        script = self._scripts[name]
        return self._send(("EVALSHA", script.sha, 1, self._prefix, *args), script)

    def _send(
        self, args: tuple[Arg, ...], script: Script | None = None, future: asyncio.Future[Reply] | None = None
    ) -> asyncio.Future[Reply]:
        loop = asyncio.get_running_loop()
        if future is None:
            future = loop.create_future()
        self._out.append(hiredis.pack_command(args))  # type: ignore[arg-type]
        self._pending.append(_Pending(future, loop.time(), script, args if script else ()))
        self._wanted.set()
        self.commands += 1
        return future

    async def _keep_connected(self) -> None:
        backoff = Backoff()
        served_before = False
        while True:
            self._served = False
            try:
                connection = await connect(self._url, self._timeout_ms)
                try:
                    await self._serve(connection)
                finally:
                    await disconnect(connection)
            except StoreRefused as refused:
                if not served_before:
                    self._fatal = refused
                    return
                self._trouble = refused  # it was usable before, so somebody may mend it
            except Exception as error:  # what was under way has failed in _serve; connect again
                self._trouble = error
            if self._served:
                served_before = True
                backoff.reset()
            await asyncio.sleep(backoff.delay())

    async def _serve(self, connection: Connection) -> None:
        """Use one connection until it breaks; fails what is under way then."""
        self._out.clear()
        tasks = [
            asyncio.create_task(self._write(connection), name="redis-write"),
            asyncio.create_task(self._read(connection), name="redis-read"),
            asyncio.create_task(self._watch(), name="redis-watch"),
        ]
        prepare = asyncio.create_task(self._prepare(), name="redis-prepare")
        try:
            await asyncio.wait([*tasks, prepare], return_when=asyncio.FIRST_COMPLETED)
            if prepare.done() and not prepare.cancelled():
                prepare.result()
                self._served = True
                self._up.set()
                self._measures.store_connected()
                if self._on_change:
                    self._on_change(True)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except Exception as error:
            self._trouble = error
            raise
        finally:
            was_up = self.up
            self._up.clear()
            for task in [*tasks, prepare]:
                task.cancel()
            await asyncio.gather(*tasks, prepare, return_exceptions=True)
            pending, self._pending = self._pending, deque()
            for future, *_ in pending:
                if not future.done():
                    future.set_exception(StoreUnavailable("the connection to Redis was lost", sent=True))
                    future.exception()  # its caller may be gone: do not log it as never retrieved
            if was_up and self._on_change:
                self._on_change(False)

    async def _prepare(self) -> None:
        with contextlib.suppress(ResponseError):  # ROLE may be forbidden: then the first write tells
            role = (await self._send(("ROLE",)))[0].decode()
            if role != "master":
                raise StoreUnavailable(
                    f"the Redis at this address is no primary (its role is {role})", sent=False
                )
        for script in self._scripts.values():
            await self._send(("SCRIPT", "LOAD", script.text))
        if self._on_connect:
            await self._on_connect(_Unready(self))  # type: ignore[arg-type]

    async def _write(self, connection: Connection) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            batch, self._out = self._out, []
            if batch:
                self.writes += 1
                await connection.send_packed_command(batch, check_health=False)
            del batch  # it may hold large bodies, and be the last for a while

    async def _read(self, connection: Connection) -> None:
        now, replied = asyncio.get_running_loop().time, self._measures.store_replied
        while True:
            try:
                reply = await connection.read_response(disable_decoding=True, timeout=math.inf)
            except ResponseError as error:
                reply = error
            future, sent_at, script, args = self._pending.popleft()
            self._replies += 1
            replied(now() - sent_at)
            if script and isinstance(reply, NoScriptError):
                self._send(("EVAL", script.text, *args[2:]), None, future)
            elif future.done():
                continue  # its caller was cancelled; the command ran all the same
            elif isinstance(reply, Exception):
                future.set_exception(_explain(reply))
                future.exception()  # its caller may be gone
                if isinstance(reply, _ELSEWHERE):
                    raise StoreUnavailable(f"Redis is no primary: {reply}", sent=True)
            else:
                future.set_result(reply)
            del reply, future, args  # the same

    async def _watch(self) -> None:
        """Break a connection that is silent. Looks four times per time-out: a process that was busy is late for its looks too."""
        loop = asyncio.get_running_loop()
        looks, seen = 0, self._replies
        while True:
            await asyncio.sleep(self._timeout / 4)
            looks = looks + 1 if self._pending and seen == self._replies else 0
            seen = self._replies
            waited = loop.time() - self._pending[0].sent_at if self._pending else 0
            if (looks >= 4 and waited > self._timeout) or waited > 10 * self._timeout:
                raise StoreUnavailable(f"no answer from Redis within {waited * 1000:.0f} ms", sent=True)


class _Unready:
    """The link as its `on_connect` hook sees it: usable before it is open to everybody."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    def command(self, *args: Arg) -> asyncio.Future[Reply]:
        return self._link._send(args)

    def run(self, name: str, *args: Arg) -> asyncio.Future[Reply]:
        script = self._link._scripts[name]
        return self._link._send(("EVALSHA", script.sha, 1, self._link._prefix, *args), script)


def _explain(error: Exception) -> Exception:
    """What a caller should know of an error reply. Transient ones had no effect: Redis refuses before the first write."""
    if isinstance(error, _TRANSIENT) or str(error).startswith(_TRANSIENT_PREFIXES):
        return StoreUnavailable(f"Redis cannot do it now: {error}", sent=False)
    return error
