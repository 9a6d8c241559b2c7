"""What a new connection to Redis must pass before anything is asked over it."""

import secrets

import structlog

from fairlane.gateway.accounts.tickets import Tickets
from fairlane.gateway.configuration import ConfigurationWatch
from fairlane.gateway.current import Current
from fairlane.queues.embedded.server import verify_server
from fairlane.queues.errors import StoreRefused
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink

log = structlog.get_logger("fairlane.gateway")


class NewConnection:
    """Looks whether the server is fit, and brings what must be there: the secret of stream tickets, and our settings.

    `server` names the server that was looked at last.
    """

    def __init__(
        self,
        keys: Keys,
        replica: str,
        address: str,
        current: Current,
        tickets: Tickets,
        configuration: ConfigurationWatch,
    ) -> None:
        self._keys = keys
        self._replica = replica
        self._address = address
        self._current = current
        self._tickets = tickets
        self._configuration = configuration
        self.server = ""

    async def __call__(self, link: RedisLink) -> None:
        """Raises StoreRefused with a sentence for the operator, and StoreError."""
        info = _parse_info(await link.command("INFO", "server"))
        policy = await _config(link, "maxmemory-policy")
        before, self.server = self.server, info.get("run_id", "")
        refused = verify_server(info, policy)
        if refused:
            raise StoreRefused(refused)
        self._tickets.take(await self._secret(link))
        if self.server != before:
            await self._warn_of_memory_only(link)
        if before and not await link.command("EXISTS", self._keys("queues")):
            log.error(
                "Redis has come back empty: every task that waited, ran or was kept is lost, and what was changed while "
                "running; see that it writes to a disk (appendonly yes)",
                replica=self._replica,
                address=self._address,
            )
        await self._configuration.bring(link)

    async def _warn_of_memory_only(self, link: RedisLink) -> None:
        persists = _parse_info(await link.command("INFO", "persistence"))
        if persists.get("aof_enabled") == "0":
            log.warning(
                "Redis keeps no journal: when it ends, what was queued since its last snapshot is lost; set appendonly yes",
                replica=self._replica,
                address=self._address,
                snapshots=bool(await _config(link, "save")),
            )

    async def _secret(self, link: RedisLink) -> bytes:
        """The configured secret of stream tickets, or the one that all replicas of this Redis share."""
        configured = self._current.settings.stream_token_secret
        if configured is not None:
            return configured.get_secret_value().encode()
        name = self._keys("secret")
        await link.command("SET", name, secrets.token_bytes(32), "NX")
        shared: bytes = await link.command("GET", name)
        return shared


def _parse_info(raw: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in raw.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


async def _config(link: RedisLink, name: str) -> str | None:
    """A server setting; None where the server does not tell (managed services)."""
    try:
        reply = await link.command("CONFIG", "GET", name)
    except Exception:  # CONFIG may be forbidden or renamed: then the operator is on their own
        return None
    return reply[1].decode() if reply else None
