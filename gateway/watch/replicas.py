"""What the replicas tell of themselves, and a line in the log when one is gone: by those that stay, as it cannot tell itself."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog

from fairlane import __version__
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.loops import end_tasks, run_periodically
from fairlane.queues.store.link import RedisLink
from fairlane.queues.survey.survey import ReplicaInfo, read_replica_info

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 2.0
LEFT = 1.0
"""When the presence of a replica ends that has left in order (`Replicas.close`). The sweep forgets it at once, and one that died
after a minute.
"""


def here(started_at: float) -> ReplicaInfo:
    """Where this process runs. `started_at` in seconds since 1970."""
    return ReplicaInfo(socket.gethostname(), os.getpid(), __version__, int(started_at * 1000))


class MissingReplicas:
    """Says which replicas are gone. One counts as gone when two looks in a row do not see it alive: after an outage of Redis all
    need a moment to say that they are there. Pure.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        """Who is alive, or was at the look before."""
        self._missed: set[str] = set()

    def look(self, alive: Collection[str]) -> list[str]:
        """Take in who is alive now; who is gone since the looks before."""
        missing = self.known.difference(alive)
        gone = sorted(missing & self._missed)
        self._missed = missing.difference(gone)
        self.known = (self.known | set(alive)).difference(gone)
        return gone


class Replicas:
    """Tells the others of this replica, and the log who of them is gone."""

    def __init__(
        self, link: RedisLink, keys: Keys, replica: str, about: Callable[[], ReplicaInfo], group: str = ""
    ) -> None:
        """`about`: this one, now. `group`: what the names of those begin with that go with this one; '' for itself alone."""
        self._link = link
        self._keys = keys
        self.me = replica
        self._group = group or replica
        self._about = about
        self._missing = MissingReplicas()
        self._seen: dict[str, ReplicaInfo] = {}
        self._born: bytes | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._watching = run_periodically("replicas", LOOK_S, self._look, expected=(StoreError,))

    async def close(self) -> None:
        """End; be no live replica any more, at once, for those who go next and look whether another stays."""
        await end_tasks(self._watching)
        with contextlib.suppress(StoreError):  # it is forgotten after some seconds anyway
            await self._link.command("ZADD", self._keys("replicas"), "XX", LEFT, self.me)

    async def another_stays(self) -> bool:
        """Whether another replica lives which does not go with this one, as the other processes of this gateway do."""
        try:
            ends, now_ms = await self._present()
        except StoreError:
            return False
        return any(end > now_ms and not name.startswith(self._group) for name, end in ends.items())

    async def _look(self) -> None:
        command = self._link.command
        told = command("HSET", self._keys("hosts"), self.me, msgspec.json.encode(self._about()))
        present = self._present()
        hosts = command("HGETALL", self._keys("hosts"))
        born = command("HGET", self._keys("pool"), "born")
        _, (ends, now_ms), where, data = await asyncio.gather(told, present, hosts, born)
        self._seen.update(read_replica_info(where))
        self.note(ends, now_ms, data)

    async def _present(self) -> tuple[dict[str, float], int]:
        """When the presence of each replica ends, and the time, ms."""
        seconds, flat = await asyncio.gather(
            self._link.command("TIME"),
            self._link.command("ZRANGE", self._keys("replicas"), 0, -1, "WITHSCORES"),
        )
        ends = {name.decode(): float(end) for name, end in zip(flat[::2], flat[1::2], strict=True)}
        return ends, int(seconds[0]) * 1000

    def note(self, ends: Mapping[str, float], now_ms: int, born: bytes | None) -> None:
        """Write who is gone. `ends`: when the presence of each replica ends, ms. `born`: names the data of the store; other ones
        than before know nobody yet, and who is missing there may live all the same.
        """
        if born != self._born:
            self._born, self._missing = born, MissingReplicas()
        alive = {name for name, end in ends.items() if end > now_ms} - {self.me}
        for name in self._missing.look(alive):
            where = self._seen.pop(name, None)
            more = {} if where is None else {"host": where.host, "pid": where.pid, "version": where.version}
            if ends.get(name, LEFT) == LEFT:
                log.info("a replica has left", gone=name, replica=self.me, **more)
            else:
                log.warning(
                    "a replica died: what ran on it goes back to its queue, or ends if it had output",
                    gone=name,
                    replica=self.me,
                    **more,
                )
        self._seen = {
            name: where for name, where in self._seen.items() if name in ends or name in self._missing.known
        }
