"""All keys of the database, in memory: a request asks no database, and goes on when there is none.

Each process looks at the version of all keys a few times a second and reads what has changed. So a change holds everywhere
within a second, whatever message is lost; where it was made, at once.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from fairlane.gateway.accounts.callers import StoredKeys
from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.accounts.stored import StoredKey, next_end, stored_keys
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.queues.loops import end_tasks, run_periodically

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 0.3
USED_S = 60.0
"""How often it is written which keys were used."""
LAST_S = 2.0
"""For that at the end."""


class Keyring:
    """See the module. `changed(keys, cut)` hears what holds now, whenever that is something else; `cut`: keys of which now
    also what is under way ends. `used` tells the ids of keys and tokens that were used since it was asked last."""

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
        """When the next secret ends."""
        self._unwritten: set[str] = set()
        self._reading = asyncio.Lock()
        self._write_at = 0.0
        self._time = asyncio.get_running_loop().time
        self._looking: asyncio.Task[None] | None = None

    @property
    def keys(self) -> Mapping[str, StoredKey]:
        """The keys by their ids, as they were read last; when they were used may be long out of date."""
        return self._keys

    async def start(self) -> None:
        """Read all keys, and begin to look. Raises DatabaseUnavailable: without its keys no gateway starts."""
        await self.read()
        self._write_at = self._time() + USED_S
        self._looking = run_periodically(
            "keyring", LOOK_S, self._look, expected=(DatabaseUnavailable,), delay_s=LOOK_S
        )

    async def close(self) -> None:
        """End, and write which keys were used."""
        await end_tasks(self._looking)
        try:
            async with asyncio.timeout(LAST_S):
                await self._write_used()
        except (DatabaseUnavailable, TimeoutError):
            log.warning("it could not be written when keys were used last")

    async def read(self) -> None:
        """Take over what has changed. Raises DatabaseUnavailable."""
        async with self._reading:
            if self._version != -1:
                version = await self._store.version()
                if version == self._version:
                    return
                if version < self._version:  # a backup was brought back
                    self._version = -1
            all_anew = self._version == -1
            self._version, changed = await self._store.changed_since(self._version)
            before = self._keys
            self._keys = ({} if all_anew else before) | {key.id: key for key in changed}
            cut = [key.id for key in changed if key.cut_ms is not None]
            new = [key_id for key_id in cut if key_id not in before or before[key_id].cut_ms is None]
            self._tell(frozenset(new if self._looking else ()))

    def _tell(self, cut: frozenset[str] = frozenset()) -> None:
        held = stored_keys(self._keys.values())
        self._end_ms = next_end(held, self._now() * 1000)
        self._changed(held, cut)

    async def _look(self) -> None:
        if self._now() * 1000 >= self._end_ms:
            self._tell()  # what was let in by a secret that ended just now
        await self.read()
        if self._time() >= self._write_at:
            self._write_at = self._time() + USED_S
            await self._write_used()

    async def _write_used(self) -> None:
        """Raises DatabaseUnavailable; then they are written with the next ones."""
        self._unwritten |= self._used() & self._keys.keys()
        if self._unwritten:
            await self._store.note_used(self._unwritten, int(self._now() * 1000))
            self._unwritten = set()
