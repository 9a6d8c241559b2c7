"""Asks the child process whether a schema is one, and whether texts match it.

It is started when it is first needed, and again after it has ended. One question at a time; keys take turns, and each question
has a deadline.
"""

import asyncio
import hashlib
import signal
import socket
import sys
from collections import OrderedDict
from typing import Literal, NamedTuple

import msgspec
import structlog

from fairlane.queues.embedded.child import ChildProcess
from fairlane.queues.semaphore import FairSemaphore
from fairlane.streaming.structured.requirements import MAX_TEXT_BYTES

log = structlog.get_logger("fairlane.streaming")

START_S = 30.0
CPU_S = 1.0
"""Of a processor, for a question."""
ANSWER_S = 10.0
"""For a machine that does not give the child its processor time."""
PATIENCE_S = 30.0
MAX_KNOWN = 4096
SMALL_BYTES = 64 * 1024
STDERR = 2
_PROGRAM = "fairlane.streaming.structured.child"


class Verdict(NamedTuple):
    """What is wrong with the schema, or with a text; or `unknown`: it was not checked in time. `sentence`: why."""

    wrong: Literal["", "schema", "text", "unknown"]
    sentence: str = ""


FINE = Verdict("")
TOO_SLOW = Verdict("schema", "it takes too long, or too much memory, to compare anything with it")
LATE = Verdict("unknown", "it was not checked in time")
TOO_LONG = Verdict("text", f"it is longer than the {MAX_TEXT_BYTES} bytes that are looked at")
NO_CHILD = Verdict("unknown", "the process that looks at it cannot be started")
_read = msgspec.json.Decoder(tuple[Literal["", "schema", "text"], str]).decode


class Checker:
    """See the module. `close` ends the child; a question under way is answered with `unknown`."""

    def __init__(self, cpu_s: float = CPU_S) -> None:
        self._cpu_s = cpu_s
        self._semaphore = FairSemaphore(1)
        self._child: _Child | None = None
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._closed = asyncio.Event()

    def start(self) -> None:
        """Nothing: the child comes with the first question."""

    async def close(self) -> None:
        """End the child."""
        self._closed.set()
        await self._end()

    async def schema(self, schema: bytes, user: str) -> Verdict:
        """Whether it is a schema that texts can be compared with. A known verdict is returned immediately."""
        name = hashlib.sha256(schema).digest()
        known = self._known.get(name)
        if known is None:
            known = await self._ask(schema, [], user)
            if known.wrong != "unknown":
                self._remember(name, known)
        return known

    async def texts(self, schema: bytes, texts: list[bytes], user: str) -> Verdict:
        """Whether each of the texts (JSON strings) matches the schema."""
        if sum(map(len, texts)) > MAX_TEXT_BYTES:
            return TOO_LONG
        name = hashlib.sha256(schema).digest()
        if not texts or self._known.get(name) is TOO_SLOW:
            return TOO_SLOW if texts else FINE
        verdict = await self._ask(schema, texts, user)
        if verdict is TOO_SLOW and sum(map(len, texts)) <= SMALL_BYTES:
            self._remember(name, verdict)  # it is the schema's doing, and would be again
        return verdict

    def _remember(self, name: bytes, verdict: Verdict) -> None:
        self._known[name] = verdict
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def _ask(self, schema: bytes, texts: list[bytes], user: str) -> Verdict:
        """Wait for a turn, at most PATIENCE_S, and ask."""
        key = user.partition("/")[0]  # (the users of a delegating key are named behind it)
        try:
            async with asyncio.timeout(PATIENCE_S) as patience, self._semaphore.hold(key):
                patience.reschedule(None)
                return await self._ask_now(_line(schema, texts), user)
        except TimeoutError:
            return LATE

    async def _ask_now(self, question: bytes, user: str) -> Verdict:
        if self._closed.is_set():
            return NO_CHILD
        try:
            child = await self._running()
        except (OSError, TimeoutError, EOFError, msgspec.DecodeError) as error:
            log.error("structured output cannot be checked", error=repr(error))
            return NO_CHILD
        try:
            async with asyncio.timeout(ANSWER_S):
                return await _exchange(child, question)
        except (TimeoutError, OSError, EOFError, msgspec.DecodeError) as error:
            code = await self._end(is_gone=isinstance(error, EOFError | ConnectionError))
            if self._closed.is_set() or (code == -signal.SIGKILL and not isinstance(error, TimeoutError)):
                return LATE  # it was ended from outside
            log.warning("a schema or an answer took too long, or too much memory, to be checked", user=user)
            return LATE if isinstance(error, TimeoutError) else TOO_SLOW
        except BaseException:  # no caller waits any more: its answer must not be taken for the next one's
            await self._end()
            raise

    async def _running(self) -> "_Child":
        if self._child is None or self._child.process.status is not None:
            await self._end()
            ours, theirs = socket.socketpair()
            command = (sys.executable, "-P", "-m", _PROGRAM, str(self._cpu_s))
            try:
                process = ChildProcess(command, output=STDERR, dialogue=theirs.fileno())
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._child = _Child(process, *await asyncio.open_unix_connection(sock=ours))
            try:
                async with asyncio.timeout(START_S):
                    await _exchange(self._child, _line(b"true", []))
            except BaseException:
                await self._end()
                raise
        return self._child

    async def _end(self, *, is_gone: bool = False) -> int:
        """End the child, if there is one; with which code it ended."""
        child, self._child = self._child, None
        if child is None:
            return 0
        child.writer.close()
        try:
            return await child.process.wait() if is_gone else -signal.SIGKILL
        finally:
            child.process.kill()


class _Child(NamedTuple):
    process: ChildProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def _exchange(child: _Child, question: bytes) -> Verdict:
    """One question and its answer. Raises EOFError or OSError where the child is gone."""
    child.writer.write(question)
    await child.writer.drain()
    return Verdict(*_read(await child.reader.readuntil(b"\n")))


def _line(schema: bytes, texts: list[bytes]) -> bytes:
    asked = schema.decode(errors="replace"), [text.decode(errors="replace") for text in texts]
    return msgspec.json.encode(asked) + b"\n"
