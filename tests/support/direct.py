"""The scheduler without an event loop: each call is sent and answered before it returns. For simulations and tables."""

import socket
from collections.abc import Awaitable, Generator, Mapping, Sequence
from typing import Any, cast

import hiredis

from fairlane.queues.keys import Keys, pool_prefix
from fairlane.queues.scheduler import Ends, Limits, Scheduler
from fairlane.queues.store.link import Arg, RedisLink
from fairlane.queues.store.scripts import Library, load_scripts
from fairlane.queues.tasks import Fragment


class Answered:
    """A reply that is there already; looks like the future that a RedisLink returns."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self) -> Any:
        return self._value

    def __await__(self) -> Generator[None, None, Any]:
        yield from ()
        return self._value


class Connection:
    """A blocking connection: `call` returns the reply, raises hiredis.ReplyError."""

    def __init__(self, socket_path: str, database: int = 0) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(socket_path)
        self._reader = hiredis.Reader()
        if database:
            self.call("SELECT", database)

    def send(self, *args: Arg) -> None:
        self._socket.sendall(hiredis.pack_command(args))  # type: ignore[arg-type]

    def receive(self) -> Any:
        """The next reply or message, whatever it is."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("Redis closed the connection")
            self._reader.feed(data)
        return reply

    def call(self, *args: Arg) -> Any:
        self.send(*args)
        reply = self.receive()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[tuple[Arg, ...]]) -> list[Any]:
        """The replies to many commands, in one round trip."""
        self._socket.sendall(b"".join(hiredis.pack_command(command) for command in commands))  # type: ignore[arg-type]
        return [self.receive() for _ in commands]

    def close(self) -> None:
        self._socket.close()


class Subscription:
    """Listens to one channel; `drain` returns what was published before the call."""

    def __init__(self, socket_path: str, channel: str) -> None:
        self._connection = Connection(socket_path)
        self._connection.call("SUBSCRIBE", channel)

    def drain(self) -> list[bytes]:
        self._connection.send("PING")
        messages = []
        while (message := self._connection.receive())[0] != b"pong":
            messages.append(message[2])
        return messages

    def close(self) -> None:
        self._connection.close()


class DirectLink:
    """Runs scripts over a blocking connection; the part of RedisLink that a Scheduler uses."""

    def __init__(self, connection: Connection, prefix: str, scripts: Library) -> None:
        self.connection = connection
        self._prefix = prefix
        self._scripts = scripts
        if not connection.call("FUNCTION", "LIST", "LIBRARYNAME", scripts.name):
            connection.call("FUNCTION", "LOAD", scripts.text)

    def words(self, name: str, *args: Arg) -> tuple[Arg, ...]:
        """The command that runs a script."""
        return ("FCALL", self._scripts.functions[name], 1, self._prefix, *args)

    def run(self, name: str, *args: Arg) -> Answered:
        try:
            return Answered(self.connection.call(*self.words(name, *args)))
        except hiredis.ReplyError as error:
            raise hiredis.ReplyError(self._scripts.explain(str(error))) from None

    def command(self, *args: Arg) -> Answered:
        return Answered(self.connection.call(*args))


def drive(call: Awaitable[Any]) -> Any:
    """The result of a scheduler's coroutine over a DirectLink: it never waits."""
    steps = call.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def fragment(error: str, code: str) -> Fragment:
    return Fragment(f'"error":"{error}","code":"{code}","retryable":false'.encode(), code)


def sample_ends() -> Ends:
    """Terminal events as the gateway words them, more or less."""
    return Ends(
        timeout=fragment("Task timeout", "TOTAL_TIMEOUT"),
        queue_timeout=fragment("Task timeout", "QUEUE_TIMEOUT"),
        worker_lost=fragment("Worker disconnected", "WORKER_LOST"),
        no_worker=fragment("Worker disconnected", "NO_WORKER"),
        left=Fragment(b'"by":"client"', "CANCELLED"),
        unavailable=fragment("unavailable", "MODEL_UNAVAILABLE"),
        permit_unreported=Fragment(b'"result":{"reported":false}', ""),
        busy=fragment("The provider takes no request", "MODEL_TOO_BUSY"),
        permit_unused=fragment("The permit was not used in time", "PERMIT_EXPIRED"),
    )


class World:
    """A pool on one database with a clock moved by hand, and any number of replicas' schedulers in it."""

    def __init__(
        self, socket_path: str, database: int = 0, *, limits: Limits | None = None, real_clock: bool = False
    ) -> None:
        self.connection = Connection(socket_path, database)
        self.prefix = pool_prefix()
        self.keys = Keys(self.prefix)
        self.limits = limits or Limits()
        self.link = DirectLink(self.connection, self.prefix, load_scripts(test_clock=not real_clock))
        self.read: dict[bytes, tuple[Any, Any]] = {}
        """What an audit read last of each key, and as what it took it."""
        self.now_us = self.latest_us = 1_800_000_000_000_000
        if not real_clock:
            self.advance(0)

    def scheduler(self, replica: str) -> Scheduler:
        return Scheduler(cast(RedisLink, self.link), self.keys, replica, sample_ends(), self.limits)

    def advance(self, ms: float) -> None:
        """Move the clock."""
        self.now_us += round(ms * 1000)
        self.latest_us = max(self.latest_us, self.now_us)
        self.connection.call("SET", self.keys("clock"), self.now_us)

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    @property
    def latest_ms(self) -> int:
        """The latest that it has ever been: the clock may have gone back since."""
        return self.latest_us // 1000

    def call(self, *args: Arg) -> Any:
        return self.connection.call(*args)

    def empty(self) -> None:
        """Forget everything but the time."""
        self.call("FLUSHALL")
        self.advance(0)

    def save(self) -> dict[bytes, tuple[int, bytes]]:
        """All that the store holds but the time: what it comes back with when it loses what happens from now on."""
        names = [name for name in self.call("KEYS", "*") if name != self.keys("clock").encode()]
        commands: list[tuple[Arg, ...]] = [(word, name) for name in names for word in ("PTTL", "DUMP")]
        found = self.connection.pipeline(commands)
        return {name: (found[2 * i], found[2 * i + 1]) for i, name in enumerate(names)}

    def restore(self, saved: Mapping[bytes, tuple[int, bytes]]) -> None:
        """Come back with what was saved, and nothing else but the time."""
        self.call("FLUSHALL")
        replies = self.connection.pipeline(
            [("RESTORE", name, max(ttl, 0), value) for name, (ttl, value) in saved.items()]
        )
        assert all(reply == b"OK" for reply in replies), replies
        self.advance(0)

    def close(self) -> None:
        self.connection.close()
