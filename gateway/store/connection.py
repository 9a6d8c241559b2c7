"""Checks of a new connection to Redis."""

import secrets
import time
from dataclasses import dataclass, field

import structlog

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.links import Tickets
from fairlane.gateway.database.database import Database
from fairlane.gateway.store.configuration import ConfigurationMonitor
from fairlane.queues.embedded.server import verify_server
from fairlane.queues.errors import StoreRefused
from fairlane.queues.keys import Keys
from fairlane.queues.store.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

CLOCKS_S = 2.0
"""By how much the clock of a replica can differ from Redis's before a warning is logged."""


@dataclass(eq=False)
class NewConnection:
    """Checks the server, and writes what it must have: the secret of stream tickets, and our settings."""

    _keys: Keys
    _replica: str
    _address: str
    _current: ActiveConfig
    _database: Database
    _tickets: Tickets | None
    """None: another pool has their secret."""
    _configuration: ConfigurationMonitor
    server: str = field(default="", init=False)
    """The id of the last server."""

    async def __call__(self, link: RedisLink) -> None:
        """Raises StoreRefused with a sentence for the operator, and StoreError."""
        info = _parse_info(await link.command("INFO", "server"))
        policy = await _config(link, "maxmemory-policy")
        before, self.server = self.server, info.get("run_id", "")
        refused = verify_server(info, policy)
        if refused:
            raise StoreRefused(refused)
        await self.share_database(link)
        await self.share_secret(link)
        if self.server != before:
            await self._warn_of_losses(link)
        await self._warn_of_clock(link)
        await self._configuration.bring(link)

    async def _warn_of_losses(self, link: RedisLink) -> None:
        """Warn if a restart or a fail-over loses tasks that Redis had accepted."""
        persists = _parse_info(await link.command("INFO", "persistence"))
        if persists.get("aof_enabled") == "0":
            log.warning(
                "Redis keeps no journal: when it ends, what was queued since its last snapshot is lost; set appendonly yes",
                replica=self._replica,
                address=self._address,
                snapshots=bool(await _config(link, "save")),
            )
        replicas = int(_parse_info(await link.command("INFO", "replication")).get("connected_slaves", 0))
        if replicas and await _config(link, "min-replicas-to-write") == "0":
            log.warning(
                "Redis accepts writes without its replicas: after a fail-over, the tasks that the old primary accepted "
                "meanwhile are lost; set min-replicas-to-write 1 and min-replicas-max-lag 10",
                replica=self._replica,
                address=self._address,
                replicas=replicas,
            )

    async def _warn_of_clock(self, link: RedisLink) -> None:
        """Warn if the clocks differ: SQL has times of replicas, such as leases of batches, and expiries."""
        asked = time.time()
        seconds, micros = await link.command("TIME")
        took_s = time.time() - asked
        ahead_s = asked + took_s / 2 - int(seconds) - int(micros) / 1e6
        if abs(ahead_s) > CLOCKS_S + took_s / 2:
            log.warning(
                "the clock of this machine differs from Redis's: have all machines ask a time server (NTP)",
                replica=self._replica,
                address=self._address,
                ahead_s=round(ahead_s, 1),
            )

    async def share_database(self, link: RedisLink) -> None:
        """Check that all replicas of this Redis have the same SQL database. Raises StoreRefused.

        A private Redis belongs to the database and has no other replica: it takes the one that is there.
        """
        name, mine = self._keys("database"), self._database.identifier
        if self._current.settings.redis_url is None:
            await link.command("SET", name, mine)
            return
        theirs = await link.command("SET", name, mine, "NX", "GET")
        if theirs is not None and theirs.decode() != mine:
            raise StoreRefused(
                f"the replicas of this Redis have another SQL database than this one ({self._database.address}): "
                "set database_url to theirs, on each replica. If theirs is lost permanently, let Redis know this one: "
                "fairlane db adopt"
            )

    async def share_secret(self, link: RedisLink) -> None:
        """Sign stream tickets with the configured secret, or with the one that all replicas of this Redis share."""
        if self._tickets is None:
            return
        configured = self._current.settings.stream_token_secret
        if configured is not None:
            self._tickets.take(configured.get_secret_value().encode())
            return
        name = self._keys("secret")
        await link.command("SET", name, secrets.token_bytes(32), "NX")
        self._tickets.take(await link.command("GET", name))


def _parse_info(raw: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in raw.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


async def _config(link: RedisLink, name: str) -> str | None:
    """A server setting; None if the server does not show it (managed services)."""
    try:
        reply = await link.command("CONFIG", "GET", name)
    except Exception:  # CONFIG may be forbidden or renamed
        return None
    return reply[1].decode() if reply else None
