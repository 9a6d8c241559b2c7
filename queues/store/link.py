"""One connection to Redis that all of a process's commands share.

Commands that become ready in the same tick of the event loop leave in one write, and replies are matched in order as they are
read from the socket: that is what makes Redis cheap here (redis-py alone costs about 80 us of CPU per command, this 4).
Nothing is ever sent twice by itself: a command whose reply is lost fails with `StoreUnavailable(sent=True)`, and its caller
decides.
"""

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import hiredis
import msgspec
from redis.asyncio import Connection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeout

from fairlane.queues.errors import StoreRefused, StoreUnavailable
from fairlane.queues.loops import cancel_and_wait
from fairlane.queues.metrics import REDIS_CONNECTIONS, REDIS_REPLIES, Recorder
from fairlane.queues.store.address import Address
from fairlane.queues.store.scripts import LIBRARIES, Library
from fairlane.queues.store.wire import Backoff, Reply, Wire, connect, disconnect
from fairlane.queues.store.write_errors import WriteErrors

Arg = bytes | str | int | float

_ELSEWHERE = (AskError, BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError)
"""What a server answers that is a primary no more, or not yet: its address may lead to another one by now. (MOVED is an
`AskError`, too.)"""

_TRANSIENT = (*_ELSEWHERE, OutOfMemoryError, TryAgainError)
_TRANSIENT_PREFIXES = ("BUSY", "MISCONF", "NOREPLICAS")

COMMANDS = {
    *("EXISTS", "FUNCTION LOAD", "GET", "HGET", "HGETALL", "HMGET", "HSET", "INFO", "PING", "SET"),
    *("TIME", "XAUTOCLAIM", "XGROUP CREATE", "XLEN", "XRANGE", "XREADGROUP", "XREVRANGE"),
    *("SPUBLISH", "SSUBSCRIBE", "XADD", "ZADD", "ZCARD", "ZRANGE", "ZREVRANGE"),
}
"""What is sent to Redis in addition to scripts and what loads them."""

_NEEDED = (
    "docs/production.md (Redis) has the ACL that Fairlane needs; its keys and channels begin with fairlane:"
)

MAX_SHARED, MAX_SHARED_BYTES = 16, 1 << 20
"""Calls of a script that go in one command, and their bytes: Redis serves no other caller meanwhile. A larger call goes alone."""

PRIMARY_S = 1.0
"""Between two questions to Sentinels."""

JOINED_BYTES = 64 * 1024
"""Commands of one tick that are joined into one piece; what is larger is handed to the system as it is, without a copy."""


class Receiver(Protocol):
    """Gets a reply while it is read, without a future's next turn of the event loop. Its methods must not raise."""

    def done(self) -> bool:
        """Whether it has no use for a reply any more."""
        ...

    def set_result(self, reply: Reply, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...

    def exception(self) -> object: ...


_Pending = tuple[Receiver, float, tuple[Arg, ...], int]
"""A command that was sent and not answered, when it was sent, and how often it is sent again when the library is missing."""

_FORBIDDEN = re.compile("ACL failure in script|The user executing the script can't")
"""What is in the answer to a script that ran until a command which its user may not run."""

_MISSING = "Function not found"
"""What a server answers that has not, or no more, the library of scripts."""
_LOADS = 10
"""How often a call loads the library: another client may remove it repeatedly, but a server that never has it is broken."""
_KNOWN = "already exists"
"""What a server answers that has the library which is loaded: another connection was faster."""


class RedisLink:
    """The shared connection. `start` it, `await` what `command` and `run` return, `close` it.

    While it is down every call fails immediately with `StoreUnavailable(sent=False)`; it reconnects by itself and loads the
    scripts before it takes calls again. A connection from which no reply comes for `timeout_ms` counts as lost; that replies come
    late, or that this process was too busy to look, does not matter. One that leads to a server that is no primary (any more) is
    given up, and the address asked again: what it refused had no effect, and the outcome of later commands is unknown.
    """

    def __init__(
        self,
        address: Address,
        scripts: Library,
        prefix: str,
        *,
        timeout_ms: int = 1000,
        on_connect: Callable[["RedisLink"], Awaitable[None]] | None = None,
        on_change: Callable[[bool], None] | None = None,
        metrics: Recorder | None = None,
    ) -> None:
        self._address = address
        self._scripts = scripts
        self._prefix = prefix
        self._timeout = timeout_ms / 1000
        self._timeout_ms = timeout_ms
        self._on_connect = on_connect
        self._on_change = on_change
        self._metrics: Recorder = metrics or Recorder()
        self._out: list[bytes] = []
        self._before: list[Callable[[], None]] = []
        self._shared: dict[str, _SharedCall] = {}
        self._flushes = False  # at the end of this tick
        self._pending: deque[_Pending] = deque()
        self._loading: asyncio.Future[Reply] | None = None
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._primary = ""
        self.up = False
        """True while calls are taken."""
        self._ready: asyncio.Future[None] = self._loop.create_future()
        """Done when it was up for the first time."""
        self._task: asyncio.Task[None] | None = None
        self._fatal: StoreRefused | None = None
        self._last_error: Exception | None = None
        self._served = False
        self._replies = 0
        self.write_errors = WriteErrors()
        self.writes = 0

    @property
    def last_error(self) -> str:
        """Why it was down last."""
        return str(self._last_error or "")

    @property
    def setup_error(self) -> str:
        """The same where Redis itself is the reason, as it is set up or where it stands; it names no address. Else ''."""
        plain = isinstance(self._last_error, OSError) or type(self._last_error) in (
            RedisConnectionError,
            RedisTimeout,
        )
        return "" if plain else self.last_error.replace(f" at {self._address}", "")

    async def start(self, wait_ms: int = 10_000, *, required: bool = True) -> None:
        """Connect; returns when ready. Raises StoreRefused (badly configured) or, if it is required, StoreUnavailable (after
        `wait_ms`).

        From then on the link keeps trying until `close`, whatever happens to Redis.
        """
        self._task = asyncio.create_task(self._keep_connected(), name="redis-link")
        try:
            await asyncio.wait(
                {self._ready, self._task}, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            await self.close()
            raise
        if self._fatal:
            raise self._fatal
        if not self.up and required:
            await self.close()
            why = self.last_error or "it does not answer"
            raise StoreUnavailable(
                f"Redis at {self._address} could not be used within {wait_ms} ms: {why}", sent=False
            )

    async def close(self) -> None:
        """Disconnect. Calls under way fail."""
        await cancel_and_wait(self._task)
        self._task = None
        await self._address.close()

    def command(self, *args: Arg) -> asyncio.Future[Reply]:
        """Send one command. Raises StoreUnavailable immediately when down; the future yields the reply, bytes undecoded."""
        if not self.up:
            raise StoreUnavailable("no connection to Redis", sent=False)
        return self._send(args)

    def command_to(self, receiver: Receiver, *args: Arg) -> None:
        """Send one command, whose reply `receiver` gets. Raises StoreUnavailable immediately when down."""
        if not self.up:
            raise StoreUnavailable("no connection to Redis", sent=False)
        self._queue(receiver, args, 0)

    def run(self, name: str, *args: Arg, unready: bool = False) -> asyncio.Future[Reply]:
        """Run a script on this link's pool, like `command`. When the server forgot the library, that is loaded and the script
        runs then. It is sent once for all scripts that were under way: the text has a hundred kilobytes. `unready`: also before
        calls are taken.
        """
        if not self.up and not unready:
            raise StoreUnavailable("no connection to Redis", sent=False)
        return self._send(("FCALL", self._scripts.functions[name], 1, self._prefix, *args), again=_LOADS)

    def run_with_others(self, name: str, *args: bytes) -> asyncio.Future[Reply]:
        """Run a script as `run` does, in one command with its other calls of this tick of the event loop. The script reads shared
        state once for all of them, which saves Redis up to a quarter of the time. A call that fails runs again by itself.
        """
        if not self.up:
            raise StoreUnavailable("no connection to Redis", sent=False)
        future: asyncio.Future[Reply] = self._loop.create_future()
        size = sum(map(len, args))
        shared = self._shared.get(name)
        if shared is not None and (len(shared.calls) == MAX_SHARED or shared.size + size > MAX_SHARED_BYTES):
            self.send_shared(self._shared.pop(name))
            shared = None
        if shared is None:
            shared = self._shared[name] = _SharedCall(self, name)
            if not self._flushes:
                self._flush_soon()
        shared.calls.append((future, args))
        shared.size += size
        return future

    def send_shared(self, shared: "_SharedCall") -> None:
        """Send what was collected."""
        if not self.up:  # the connection was lost in this tick
            shared.set_exception(StoreUnavailable("no connection to Redis", sent=False))
            return
        words: list[Arg] = ["FCALL", self._scripts.functions[shared.name], 1, self._prefix]
        for _, args in shared.calls:
            words.append(len(args))
            words += args
        self._queue(shared, tuple(words), _LOADS)

    def _send(self, args: tuple[Arg, ...], *, again: int = 0) -> asyncio.Future[Reply]:
        future = self._loop.create_future()
        self._queue(future, args, again)
        return future

    def _queue(self, receiver: Receiver, args: tuple[Arg, ...], again: int) -> None:
        if not self._flushes:
            self._flush_soon()
        self._out.append(hiredis.pack_command(args))  # type: ignore[arg-type]
        self._pending.append((receiver, self._loop.time(), args, again))

    def before_writing(self, call: Callable[[], None]) -> None:
        """Call once before the commands of this tick of the event loop leave: what it sends leaves with them."""
        self._before.append(call)
        if not self._flushes:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._flushes = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """The end of this tick, or the system takes more commands again."""
        before, self._before = self._before, []
        try:
            for call in before:
                call()
        finally:
            if self._shared:
                shared, self._shared = self._shared, {}
                for one in shared.values():
                    self.send_shared(one)
            self._flushes = False
            self._write()

    def _write(self) -> None:
        wire = self._wire
        if wire is None or not self._out or not wire.takes_more or wire.transport.is_closing():
            return  # (of a socket that closes the loss comes next, and fails them)
        commands, self._out = self._out, []
        self.writes += 1
        if len(commands) == 1:
            wire.transport.write(commands[0])
        elif sum(map(len, commands)) <= JOINED_BYTES:
            wire.transport.write(b"".join(commands))
        else:
            wire.transport.writelines(commands)

    async def _keep_connected(self) -> None:
        backoff = Backoff()
        served_before = False
        while True:
            self._served = False
            try:
                self._primary = await self._address.primary(self._timeout_ms)
                connection = await connect(self._primary, self._timeout_ms)
                try:
                    await self._serve(connection)
                finally:
                    await disconnect(connection)
            except (StoreRefused, AuthenticationError, NoPermissionError) as error:
                refused = error if isinstance(error, StoreRefused) else _access_error(error, self._address)
                if not served_before and not self._served:
                    self._fatal = refused
                    return
                self._last_error = refused  # it was usable before, so an operator may fix it
            except Exception as error:  # what was under way has failed in _serve; connect again
                self._last_error = error
            if self._served:
                served_before = True
                backoff.reset()
            await asyncio.sleep(backoff.delay())

    async def _serve(self, connection: Connection) -> None:
        """Use one connection until it breaks; fails what is under way then."""
        self._out.clear()
        self._loading = None
        self._wire = Wire(connection, self._on_replies, self._flush)
        tasks = [self._wire.lost, asyncio.create_task(self._check_liveness(), name="redis-liveness")]
        if self._address.changes:
            tasks.append(asyncio.create_task(self._check_primary(), name="redis-primary"))
        prepare = asyncio.create_task(self._prepare(), name="redis-prepare")
        try:
            await asyncio.wait([*tasks, prepare], return_when=asyncio.FIRST_COMPLETED)
            if prepare.done() and not prepare.cancelled():
                prepare.result()
                self._served = True
                self.up = True
                if not self._ready.done():
                    self._ready.set_result(None)
                self._metrics.count(REDIS_CONNECTIONS)
                if self._on_change:
                    self._on_change(True)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (AuthenticationError, NoPermissionError) as error:
            self._last_error = _access_error(error, self._address)
            raise self._last_error from error
        except Exception as error:
            self._last_error = error
            raise
        finally:
            was_up = self.up
            self.up = False
            self._wire = None
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
        with contextlib.suppress(ResponseError):  # HELLO may be forbidden: then the first write shows it
            hello = await self._send(("HELLO",))
            facts = dict(zip(hello[::2], hello[1::2], strict=True))
            mode = facts[b"mode"].decode()
            if wrong := self._address.wrong_kind(mode):
                raise StoreRefused(wrong)
            if facts[b"role"] != b"master":
                raise StoreUnavailable(
                    "this Redis is no primary but a replica: set redis_url to its primary", sent=False
                )
        await self._load_scripts()
        await self._check_rights()
        if self._on_connect:
            await self._on_connect(_Unready(self))  # type: ignore[arg-type]

    async def _load_scripts(self) -> None:
        """Load the library, unless it is there (a full Redis takes none), and remove those of other releases: see scripts.py."""
        try:
            known = await self._send(("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARIES}*"))
        except ResponseError as error:
            if not str(error).startswith("unknown command"):
                raise
            raise StoreRefused(
                "this server has no functions: use Redis 7.0 or Valkey 7.2, or newer"
            ) from error
        names = {library[1].decode() for library in known}
        if self._scripts.name not in names:
            try:
                await self._send(("FUNCTION", "LOAD", self._scripts.text))
            except ResponseError as error:
                if _KNOWN not in str(error):
                    raise
        for name in names - {self._scripts.name}:
            with contextlib.suppress(ResponseError):  # another one was faster
                await self._send(("FUNCTION", "DELETE", name))

    async def _check_rights(self) -> None:
        """A script that lacks one permission would end half-way, on the day on which it first needs it. Raises StoreRefused."""
        needed = sorted(COMMANDS | self._scripts.commands)
        ask = msgspec.msgpack.encode({"commands": needed})
        reply = await self.run("check_rights", ask, unready=True)
        forbidden = msgspec.msgpack.decode(reply[0])["forbidden"]
        if forbidden:
            listed = ", ".join(forbidden)
            raise StoreRefused(f"the user of redis_url lacks permissions in Redis: {listed}. {_NEEDED}")

    def _on_replies(self, replies: list[Reply]) -> None:
        """Answer the oldest commands. Raises StoreUnavailable when the server is no primary, StoreRefused when it forbids one."""
        pending, observe, now = self._pending, self._metrics.observe, self._loop.time()
        self._replies += len(replies)
        for reply in replies:
            future, sent_at, args, again = pending.popleft()
            observe(REDIS_REPLIES, now - sent_at)
            if not isinstance(reply, Exception):
                if not future.done():  # else its caller was cancelled; the command ran all the same
                    future.set_result(reply)
            elif future is self._loading:
                self._loading = None
                if _KNOWN not in str(
                    reply
                ):  # without the library nothing works: the address is asked again, and again
                    self.write_errors.add(reply)
                    raise reply
            elif again and _MISSING in str(reply):
                if self._loading is None or self._loading.done():
                    self._loading = self._send(("FUNCTION", "LOAD", self._scripts.text))
                self._queue(future, args, again - 1)
            elif not future.done():
                self.write_errors.add(reply)
                halfway = _FORBIDDEN.search(str(reply)) is not None
                forbidden = self.up and (halfway or isinstance(reply, NoPermissionError))
                why = StoreUnavailable(f"Redis forbids it: {reply}", sent=halfway) if forbidden else None
                future.set_exception(why or _explain(reply, self._scripts))
                future.exception()  # its caller may be gone
                if isinstance(reply, _ELSEWHERE):
                    raise StoreUnavailable(f"Redis is no primary: {_words(reply)}", sent=True)
                if forbidden:  # a permission was taken away: what else is missing is seen when connecting
                    raise _access_error(reply, self._address)

    async def _check_liveness(self) -> None:
        """Break a connection that is silent. Looks four times per time-out: a process that was busy is late for its looks too."""
        loop = asyncio.get_running_loop()
        looks, seen = 0, self._replies
        while True:
            await asyncio.sleep(self._timeout / 4)
            looks = looks + 1 if self._pending and seen == self._replies else 0
            seen = self._replies
            waited = loop.time() - self._pending[0][1] if self._pending else 0
            if (
                looks >= 4 and waited > self._timeout
            ):  # where replies come, however late, Redis has much to do
                raise StoreUnavailable(f"no answer from Redis within {waited * 1000:.0f} ms", sent=True)

    async def _check_primary(self) -> None:
        """Break the connection when another server has become the primary: the old one accepts commands, and will lose them."""
        while True:
            await asyncio.sleep(PRIMARY_S)
            with contextlib.suppress(OSError, RedisError):  # no Sentinel answers: it may still be the primary
                primary = await self._address.primary(self._timeout_ms)
                if primary != self._primary:
                    raise StoreUnavailable("another server has become the primary", sent=True)


class _SharedCall:
    """Calls of one script that go in one command (a `Receiver`)."""

    __slots__ = ("_link", "calls", "name", "size")

    def __init__(self, link: RedisLink, name: str) -> None:
        self._link = link
        self.name = name
        self.calls: list[tuple[asyncio.Future[Reply], tuple[bytes, ...]]] = []
        self.size = 0

    def done(self) -> bool:
        return False

    def exception(self) -> None: ...

    def set_result(self, replies: Reply) -> None:
        for (future, args), reply in zip(self.calls, replies, strict=True):
            if isinstance(reply, Exception):
                self._repeat(future, args)
            elif not future.done():
                future.set_result(reply)

    def set_exception(self, error: Exception) -> None:
        if len(self.calls) > 1 and not isinstance(error, StoreUnavailable):
            for future, args in self.calls:
                self._repeat(future, args)
            return
        for future, _ in self.calls:
            if not future.done():
                future.set_exception(error)
                future.exception()  # its caller may be gone

    def _repeat(self, future: asyncio.Future[Reply], args: tuple[bytes, ...]) -> None:
        """Send a call that failed by itself, so that its error is its own."""
        if not future.done():
            alone = _SharedCall(self._link, self.name)
            alone.calls.append((future, args))
            self._link.send_shared(alone)


class _Unready:
    """The link as its `on_connect` hook sees it: usable before it is open to other callers."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    def command(self, *args: Arg) -> asyncio.Future[Reply]:
        return self._link._send(args)

    def run(self, name: str, *args: Arg) -> asyncio.Future[Reply]:
        return self._link.run(name, *args, unready=True)


def _access_error(error: Exception, address: Address) -> StoreRefused:
    """What an operator changes where Redis refuses the user as such, or one of the first commands."""
    if isinstance(error, AuthenticationError) and not address.has_password:
        return StoreRefused(
            f"Redis at {address} wants a password, and redis_url has none: redis://:<password>@<host>:<port>"
        )
    if isinstance(error, AuthenticationError) and "without any password" in str(error):
        return StoreRefused(f"redis_url has a password, and Redis at {address} has none: {error}")
    if isinstance(error, AuthenticationError):
        return StoreRefused(f"Redis at {address} refuses the user or the password of redis_url: {error}")
    return StoreRefused(f"the user of redis_url lacks permissions in Redis: {error}. {_NEEDED}")


def _words(error: Exception) -> str:
    """Return an error reply for operators. redis-py leaves of a redirection nothing but the slot and the node."""
    return (
        f"it is a node of a cluster, and the slot is at {error}"
        if isinstance(error, AskError)
        else str(error)
    )


def _explain(error: Exception, scripts: Library) -> Exception:
    """What a caller should know of an error reply. Transient ones had no effect: Redis refuses before the first write."""
    if isinstance(error, _TRANSIENT) or str(error).startswith(_TRANSIENT_PREFIXES) or _MISSING in str(error):
        return StoreUnavailable(f"Redis cannot do it now: {_words(error)}", sent=False)
    if isinstance(error, ResponseError):
        return type(error)(scripts.explain(str(error)))
    return error
