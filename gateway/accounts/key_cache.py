"""A copy of the database's keys in memory: requests never wait for the database, and work while it is down.

Each process compares the version of all keys a few times a second and reads what changed. So a change takes effect everywhere
within a second, without messages that could be lost; where it was made, immediately.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from fairlane.gateway.accounts.callers import StoredKeys
from fairlane.gateway.accounts.keystore import KeyStore, StoredKey, next_end, stored_keys
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.queues.loops import Periodic

log = structlog.get_logger("fairlane.gateway")

CHECK_S = 0.3
USED_S = 60.0
"""The interval of writing which keys were used."""
CLOSE_S = 2.0
"""For the last such write."""


class ApiKeyCache(Periodic):
    """See the module. `changed(keys, cut)` is called with the valid keys when they change; `cut`: keys whose open calls end as
    well. `used` returns the ids of keys and tokens that were used since its last call."""

    name = "key cache"
    interval_s = delay_s = CHECK_S
    expected = (DatabaseUnavailable,)

    def __init__(
        self,
        store: KeyStore,
        changed: Callable[[StoredKeys, frozenset[str]], None],
        used: Callable[[], set[str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._changed = changed
        self._used = used
        self._now = now
        self._keys: dict[str, StoredKey] = {}
        self._version = -1
        self._end_ms = float("inf")
        """When the next secret expires."""
        self._unwritten: set[str] = set()
        self._reading = asyncio.Lock()
        self._write_at = 0.0
        self._time = asyncio.get_running_loop().time

    @property
    def keys(self) -> Mapping[str, StoredKey]:
        """The keys by their ids, as last read; their times of use may be out of date."""
        return self._keys

    async def start(self) -> None:
        """Read all keys and start to check for changes. Raise DatabaseUnavailable: without its keys no gateway starts."""
        await self.read()
        self._write_at = self._time() + USED_S
        super().start()

    async def close(self) -> None:
        """Stop, and write which keys were used."""
        await super().close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._write_used()
        except (DatabaseUnavailable, TimeoutError):
            log.warning("the last use of keys could not be written")

    async def read(self) -> None:
        """Read what changed. Raise DatabaseUnavailable."""
        async with self._reading:
            if self._version != -1:
                version = await self._store.version()
                if version == self._version:
                    return
                if version < self._version:  # a backup was restored
                    self._version = -1
            read_all = self._version == -1
            self._version, changed = await self._store.changed_since(self._version)
            before = self._keys
            self._keys = ({} if read_all else before) | {key.id: key for key in changed}
            cut = [key.id for key in changed if key.cut_ms is not None]
            new = [key_id for key_id in cut if key_id not in before or before[key_id].cut_ms is None]
            self._publish(frozenset(new if self._task else ()))

    def _publish(self, cut: frozenset[str] = frozenset()) -> None:
        valid = stored_keys(self._keys.values())
        self._end_ms = next_end(valid, self._now() * 1000)
        self._changed(valid, cut)

    async def step(self) -> None:
        if self._now() * 1000 >= self._end_ms:
            self._publish()  # a secret just expired
        await self.read()
        if self._time() >= self._write_at:
            self._write_at = self._time() + USED_S
            await self._write_used()

    async def _write_used(self) -> None:
        """Raise DatabaseUnavailable; then they are written with the next ones."""
        self._unwritten |= self._used() & self._keys.keys()
        if self._unwritten:
            await self._store.note_used(self._unwritten, int(self._now() * 1000))
            self._unwritten = set()
