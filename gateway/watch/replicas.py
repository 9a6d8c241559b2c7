"""The presence of this replica, as the others and operators see it."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence

import msgspec

from fairlane import __version__
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import ReplicaInfo
from fairlane.queues.keys import Keys
from fairlane.queues.loops import Periodic
from fairlane.queues.store.link import RedisLink

INTERVAL_S = 2.0
LEFT = 1.0
"""The end of the presence of a replica that has stopped (`Replicas.close`): the sweep drops it immediately, but one that died
only after a minute.
"""


def here(started_at: float) -> ReplicaInfo:
    """Return where this process runs. `started_at`: seconds since 1970."""
    return ReplicaInfo(socket.gethostname(), os.getpid(), __version__, int(started_at * 1000))


class Replicas(Periodic):
    """Reports where this replica runs, and whether others are alive."""

    name = "replicas"
    interval_s = INTERVAL_S
    expected = (StoreError,)

    def __init__(
        self,
        pools: Sequence[tuple[RedisLink, Keys]],
        replica: str,
        about: Callable[[], ReplicaInfo],
        group: str = "",
    ) -> None:
        """`pools`: the first one has what operators see.
        `about`: this replica now. `group`: the beginning of the names of those that stop with it; '' for itself alone."""
        self._pools = pools
        self._link, self._keys = pools[0]
        self.me = replica
        self._group = group or replica
        self._about = about

    async def close(self) -> None:
        """End the presence now, so that replicas that stop next do not count this one."""
        await super().close()
        for link, keys in self._pools:
            with contextlib.suppress(StoreError):  # the presence expires after some seconds anyway
                await link.command("ZADD", keys("replicas"), "XX", LEFT, self.me)

    async def another_stays(self) -> bool:
        """Return whether a replica is alive that does not stop with this one, as the other processes of this gateway do."""
        try:
            seconds, flat = await asyncio.gather(
                self._link.command("TIME"),
                self._link.command("ZRANGE", self._keys("replicas"), 0, -1, "WITHSCORES"),
            )
        except StoreError:
            return False
        now_ms, group = int(seconds[0]) * 1000, self._group.encode()
        return any(
            float(end) > now_ms and not name.startswith(group)
            for name, end in zip(flat[::2], flat[1::2], strict=True)
        )

    async def step(self) -> None:
        """Report where this replica runs."""
        about = msgspec.json.encode(self._about())
        await self._link.command("HSET", self._keys("hosts"), self.me, about)
