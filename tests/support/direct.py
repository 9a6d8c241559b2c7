"""A blocking connection to Redis that answers as the link of a gateway does: each call is sent and answered before it returns."""

import socket
from collections.abc import Generator, Sequence
from typing import Any

import hiredis

from fairlane.queues.store.link import Arg, Receiver
from fairlane.queues.store.scripts import Library


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
        self._connection.call("SSUBSCRIBE", channel)

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
        self.forget()

    def forget(self) -> None:
        """Load the scripts anew, without what they have in memory."""
        self.connection.call("FUNCTION", "LOAD", "REPLACE", self._scripts.text)

    def words(self, name: str, *args: Arg) -> tuple[Arg, ...]:
        """The command that runs a script."""
        return ("FCALL", self._scripts.functions[name], 1, self._prefix, *args)

    def run(self, name: str, *args: Arg) -> Answered:
        try:
            return Answered(self.connection.call(*self.words(name, *args)))
        except hiredis.ReplyError as error:
            raise hiredis.ReplyError(self._scripts.explain(str(error))) from None

    def run_with_others(self, name: str, *args: bytes) -> Answered:
        (reply,) = self.run(name, len(args), *args).result()
        return Answered(reply)

    def command_to(self, receiver: Receiver, *args: Arg) -> None:
        try:
            receiver.set_result(self.connection.call(*args))
        except hiredis.ReplyError as error:
            receiver.set_exception(error)

    def command(self, *args: Arg) -> Answered:
        return Answered(self.connection.call(*args))
