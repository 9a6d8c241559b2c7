"""Drains a worker of any replica."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.errors import ApiError
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import StoreInspector
from fairlane.queues.keys import Keys
from fairlane.queues.overrides import Actor
from fairlane.queues.store.link import RedisLink

CONFIRM_S = 3.0
POLL_S = 0.05
SILENT = "The worker's replica did not confirm that it drains the worker; try again"
_WORKER_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(eq=False)
class Drain:
    """Drains workers. `here` drains a worker of this replica, and returns whether it is connected here."""

    _link: RedisLink
    _keys: Keys
    _inspector: StoreInspector
    _audit: AuditRecord
    _here: Callable[[str], bool]

    async def __call__(self, worker_id: str, actor: Actor) -> dict[str, Any]:
        """Give a worker no more tasks; its running tasks continue. Return its row once its replica confirms the drain.

        A second call changes nothing and adds no audit log entry. Raise ApiError (404, 503) and StoreError.
        """
        worker = await self._find(worker_id)
        if worker is None:
            raise ApiError(404, "WORKER_NOT_FOUND", "No such worker is connected")
        if worker["draining"]:
            return worker
        channel, message = self._keys.channel(worker["replica"]), b"drain\n" + worker_id.encode()
        now = asyncio.get_running_loop().time
        give_up = now() + CONFIRM_S
        sent = confirmed = self._here(worker_id)
        while not confirmed and now() < give_up:
            # repeated until the other replica listens: it may be reconnecting
            try:
                sent = sent or bool(await self._link.command("SPUBLISH", channel, message))
                row = await self._find(worker_id)
                confirmed = row is None or row["draining"]  # a worker that has left is as good
            except StoreError:
                if not sent:
                    raise
            if not confirmed:
                await asyncio.sleep(POLL_S)
        if sent:
            before = {"draining": False, "name": worker["name"], "replica": worker["replica"]}
            await self._audit.note(actor, "drain", f"worker {worker_id}", before, {"draining": True})
        if not confirmed:
            raise ApiError(503, "REPLICA_SILENT", SILENT, retry_after_ms=1000)
        return worker

    async def _find(self, worker_id: str) -> dict[str, Any] | None:
        if not _WORKER_ID.fullmatch(worker_id):
            return None
        rows = await self._inspector.workers()
        return next((row for row in rows if row["workerId"] == worker_id), None)
