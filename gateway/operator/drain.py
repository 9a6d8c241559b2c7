"""Draining a worker, also one that is connected to another replica."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

from fairlane.gateway.errors import ApiError
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import StoreInspector
from fairlane.queues.keys import Keys
from fairlane.queues.overrides import Actor
from fairlane.queues.store.link import RedisLink

CONFIRM_S = 3.0
LOOK_S = 0.05
SILENT = "The worker's replica did not confirm that it drains the worker; try again"
_WORKER_ID = re.compile(r"[0-9a-f]{16}")


class Drain:
    """Drains workers. `here` drains one that is connected to this replica, and says whether it is."""

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        inspector: StoreInspector,
        audit: AuditRecord,
        here: Callable[[str], bool],
    ) -> None:
        self._link = link
        self._keys = keys
        self._surveyor = inspector
        self._audit = audit
        self._here = here

    async def __call__(self, worker_id: str, actor: Actor) -> dict[str, Any]:
        """Give a worker no more tasks; what it runs goes on. The worker's row, once its replica has said that it drains.

        A second call makes no difference and is not written down again. Raises ApiError (404, 503) and StoreError.
        """
        worker = await self._find(worker_id)
        if worker is None:
            raise ApiError(404, "WORKER_NOT_FOUND", "No such worker is connected")
        if not worker["draining"]:
            told, confirmed = await self._tell(worker)
            if told:
                before = {"draining": False, "name": worker["name"], "replica": worker["replica"]}
                await self._audit.note(actor, "drain", f"worker {worker_id}", before, {"draining": True})
            if not confirmed:
                raise ApiError(503, "REPLICA_SILENT", SILENT, retry_after_ms=1000)
        return worker

    async def _find(self, worker_id: str) -> dict[str, Any] | None:
        if not _WORKER_ID.fullmatch(worker_id):
            return None
        rows = await self._surveyor.workers()
        return next((row for row in rows if row["workerId"] == worker_id), None)

    async def _tell(self, worker: dict[str, Any]) -> tuple[bool, bool]:
        """Let the worker's replica drain it, and wait for it: whether it was told, and whether it says so. Raises StoreError when
        it could not be told."""
        worker_id, replica = worker["workerId"], worker["replica"]
        if self._here(worker_id):
            return True, True
        channel, message = self._keys.channel(replica), b"drain\n" + worker_id.encode()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + CONFIRM_S
        told = False
        while loop.time() < give_up:
            # again until somebody listens: the other replica may just be connecting anew
            try:
                told = told or bool(await self._link.command("PUBLISH", channel, message))
                row = await self._find(worker_id)
            except StoreError:
                if told:
                    break
                raise
            if row is None or row["draining"]:
                return told, True  # gone is as good
            await asyncio.sleep(LOOK_S)
        return told, False
