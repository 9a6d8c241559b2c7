"""The processes of one gateway exchange their metrics when one of them is scraped.

They share a socket, so a scrape reaches any of them. That one asks the others over sockets in a private folder and shows every
process's numbers under its own `process` label: a counter only rises, whichever process answers, and the counter of a restarted
process begins at zero under the number of its predecessor, as Prometheus expects. (A sum of all processes would drop with every
process that dies or does not answer in time, and Prometheus would count a burst of events. Values in files or Redis would be of
another moment than those of the process that answers, with the same effect.)
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from fairlane.gateway.metrics.gauges import Labels

log = structlog.get_logger("fairlane.gateway")

PATIENCE_S = 2.0
"""A process that has not answered by then is left out: it has ended, or its event loop is blocked."""


class Snapshot(msgspec.Struct):
    """The metrics of one process, in a form that another process can read: by name, the number of each combination of labels."""

    process: int
    """Number of the process in its gateway, from 0; a restarted process has the number of its predecessor."""
    pid: int
    values: dict[str, list[tuple[Labels, float | list[float]]]]


_snapshots = msgspec.json.Decoder(Snapshot)


@dataclass(frozen=True, slots=True)
class Siblings:
    """The processes of one gateway, `size` of them; this one is number `index`. Their sockets are in `folder`."""

    folder: Path
    index: int
    size: int

    @property
    def mark(self) -> str:
        """The common prefix of the names of its processes' replicas; '' if there is one process."""
        return hashlib.blake2s(bytes(self.folder), digest_size=4).hexdigest() if self.size > 1 else ""

    def socket(self, index: int) -> Path:
        return self.folder / f"{index}.sock"


@dataclass(eq=False)
class SnapshotServer:
    """Answers the other processes. `start` it, `close` it."""

    _siblings: Siblings
    _snapshot: Callable[[], Snapshot]
    _server: asyncio.Server | None = field(default=None, init=False)

    async def start(self) -> None:
        path = self._siblings.socket(self._siblings.index)
        path.unlink(missing_ok=True)  # of a process that was killed
        self._server = await asyncio.start_unix_server(self._answer, path)

    async def close(self) -> None:
        if self._server:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                writer.write(msgspec.json.encode(self._snapshot()))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            writer.transport.abort()  # the other process is gone, or does not read


async def snapshots_of(siblings: Siblings, own: Snapshot) -> list[Snapshot]:
    """Return the metrics of each process that answers in time; `own` is this one's."""
    others = await asyncio.gather(
        *(_ask(siblings.socket(index)) for index in range(siblings.size) if index != siblings.index)
    )
    return [own, *(other for other in others if other is not None)]


async def _ask(path: Path) -> Snapshot | None:
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_unix_connection(path)
            return _snapshots.decode(await reader.read())
    except (OSError, TimeoutError, msgspec.DecodeError) as error:
        log.warning(
            "a process of this gateway does not return its metrics", socket=path.name, error=repr(error)
        )
        return None
    finally:
        if writer:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
