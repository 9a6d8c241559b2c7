"""Draining a worker, also one that is connected to another replica."""

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.gateway.api.admin import read_workers
from fairlane.gateway.audit import NOBODY, write_down
from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import JSON, NO_STORE, Request
from fairlane.queues.errors import StoreError

if TYPE_CHECKING:
    from fairlane.gateway.runtime import Gateway

CONFIRM_S = 3.0
LOOK_S = 0.05
SILENT = "The worker's replica did not confirm that it drains the worker; try again"
_WORKER_ID = re.compile(r"[0-9a-f]{16}")


async def drain(gateway: "Gateway", caller: Caller, request: Request) -> None:
    """POST /api/admin/workers/{workerId}/drain: no more tasks for this worker; what it runs goes on.

    A version 2 worker is told, and goes when it is done. Answers once the worker's replica has said that the worker drains. A
    second call makes no difference and is not written down again.
    """
    worker_id = request.path_params["worker_id"]
    try:
        worker = await _find(gateway, worker_id)
        if worker is None:
            raise ApiError(404, "WORKER_NOT_FOUND", "No such worker is connected")
        if not worker["draining"]:
            told, confirmed = await _tell(gateway, worker)
            if told:
                await write_down(
                    gateway,
                    caller.key_id or NOBODY,
                    "drain",
                    f"worker {worker_id}",
                    {"draining": False, "name": worker["name"], "replica": worker["replica"]},
                    {"draining": True},
                )
            if not confirmed:
                raise ApiError(503, "REPLICA_SILENT", SILENT, retry_after_ms=1000)
    except StoreError:
        raise gateway.store_trouble() from None
    answer = {"workerId": worker_id, "name": worker["name"], "replica": worker["replica"], "draining": True}
    await request.respond(200, msgspec.json.encode(answer), [JSON, NO_STORE])


async def _find(gateway: "Gateway", worker_id: str) -> dict[str, Any] | None:
    if not _WORKER_ID.fullmatch(worker_id):
        return None
    rows = await read_workers(gateway)
    return next((row for row in rows if row["workerId"] == worker_id), None)


async def _tell(gateway: "Gateway", worker: dict[str, Any]) -> tuple[bool, bool]:
    """Let the worker's replica drain it, and wait for it: whether it was told, and whether it says so. Raises StoreError when it
    could not be told."""
    worker_id, replica = worker["workerId"], worker["replica"]
    if gateway.drain_worker(worker_id):
        return True, True
    channel, message = gateway.keys.channel(replica), b"d\n" + worker_id.encode()
    loop = asyncio.get_running_loop()
    give_up = loop.time() + CONFIRM_S
    told = False
    while loop.time() < give_up:
        # again until somebody listens: the other replica may just be connecting anew
        try:
            told = told or bool(await gateway.link.command("PUBLISH", channel, message))
            row = await _find(gateway, worker_id)
        except StoreError:
            if told:
                break
            raise
        if row is None or row["draining"]:
            return told, True  # gone is as good
        await asyncio.sleep(LOOK_S)
    return told, False
