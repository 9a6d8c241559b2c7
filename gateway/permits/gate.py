"""Signs permits, admits calls that have one, for the proxy in front of an endpoint, and takes reports of their ends.

Public, as the proxy is. A request without a genuine permit is rejected locally, with one answer that reveals nothing about
endpoints. For a genuine one the store decides. The store issues a permit when its turn has come; until then its text waits there
with the task.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from fairlane.gateway.attached import Polled
from fairlane.gateway.endpoints.endpoints import Endpoint
from fairlane.gateway.errors import SECOND_MS, ApiError
from fairlane.gateway.permits.signed import Signer
from fairlane.gateway.permits.store import release_permit, use_permit
from fairlane.queues.metrics import PERMIT_CHECKS
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Admitted, Fragment, Permit, PermitEnd, Record, RetryAt, State
from fairlane.streaming.events import fragment_done, fragment_error, fragment_permit
from fairlane.workers.server.background import Background, observe

PERMIT_MS = 30_000
"""How long a permit can be used; then the next task in the queue gets one."""
GIVE_UP_S = 2.0
"""How long a call of the store is repeated: a proxy and its client wait."""
RETRY_MS = 5 * SECOND_MS
"""Retry-After of a rejection: the call that requests another permit returns the wait of its line."""
PERMIT_MEMBERS = ("permit", "endpoint", "url", "expiresAt")
"""Members of the event `permit`."""
_REPORTED = fragment_done(b'{"used":true,"reported":true}', None, None)
ENDS = {
    "permit_unreported": Fragment(fragment_done(b'{"used":true,"reported":false}', None, None), ""),
    "permit_unused": Fragment(
        fragment_error("The permit was not used in time", "PERMIT_EXPIRED", True), "PERMIT_EXPIRED"
    ),
}
"""The ends of tasks whose permit was used, and whose call's end was not reported in time; and of those whose was not used."""


class PermitRejected(ApiError):
    """A call that is not admitted, and the reason."""

    def __init__(self, code: str, message: str, task_id: str | None = None) -> None:
        super().__init__(403, code, message, retry_after_ms=RETRY_MS, task_id=task_id)


def permit_needed() -> PermitRejected:
    """Return the only answer to a request without a genuine permit, whatever endpoint, URL or method it is for."""
    text = "A permit for this endpoint is needed: request one (POST /api/tasks, type permit), and send it as X-Fairlane-Permit"
    return PermitRejected("PERMIT_NEEDED", text)


class Gate:
    """See the module. `ask_later`: `Slots.ask_later`."""

    def __init__(
        self,
        scheduler: Scheduler,
        background: Background,
        signer: Signer,
        ask_later: Callable[[RetryAt], None],
    ) -> None:
        self._scheduler = scheduler
        self._background = background
        self._signer = signer
        self._ask_later = ask_later

    def permit(self, task_id: str, endpoint: Endpoint, url: str) -> Permit:
        """Return the permit of a task that waits for it.

        A call holds its slot until the proxy reports its end, or for the endpoint's timeout: after the mean time others would be
        admitted while it runs.
        """
        event = fragment_permit(self._signer.permit(task_id, endpoint.name), endpoint.name, url)
        return Permit(event.decode(), PERMIT_MS, endpoint.timeout_ms)

    async def admit(self, endpoint: str, permit: str | None, task_id: str | None) -> tuple[str, str]:
        """Admit a call with this permit to this endpoint: once, over all replicas. Return its task, and the receipt for the
        report of its end. Raise PermitRejected, and StoreError: then the permit may be used up all the same.

        `task_id`: the request's `X-Task-Id`; it must be the permit's.
        """
        count = partial(self._scheduler.metrics.count, PERMIT_CHECKS)
        of = self._signer.read_permit(permit, endpoint) if permit else None
        if of is None or (task_id and task_id != of):
            count("invalid" if permit else "missing")
            raise permit_needed()
        asked = asyncio.ensure_future(self._ask(of))
        asked.add_done_callback(observe)
        outcome, epoch = await asyncio.shield(asked)  # also when the proxy leaves: the store may have decided
        count({Admitted.IN: "allowed", Admitted.USED: "used"}.get(outcome, "expired"))
        if outcome is Admitted.IN:
            return of, self._signer.receipt(of, epoch)
        if outcome is Admitted.USED:
            raise PermitRejected("PERMIT_USED", "This permit was used: each is for one call", of)
        text = "This permit is over: it was not used in time, or its task was cancelled"
        raise PermitRejected("PERMIT_EXPIRED", text, of)

    async def leave(self, receipt: str) -> PermitEnd | None:
        """Report the end of the call that this receipt is for. Return None if it is no receipt. Raise StoreError: it may be
        repeated."""
        of = self._signer.read_receipt(receipt)
        if of is None:
            return None
        return await self._background.until_answered(
            lambda: release_permit(self._scheduler, *of, _REPORTED), GIVE_UP_S
        )

    def polled(self, task_id: str, record: Record) -> Awaitable[Polled] | None:
        """See `Attached`."""
        issued = record.state is State.EXECUTING and record.permit_used_ms is not None
        return self._polled(task_id, record.permit_used_ms) if issued else None

    async def _polled(self, task_id: str, used_ms: int | None) -> Polled:
        """Return the permit, the newest event of the log, until it is used."""
        if used_ms:
            return Polled({"usedAt": used_ms})
        last = await self._scheduler.last_event(task_id)
        if last is None or last.kind != "permit":
            return Polled({})  # it has ended meanwhile
        permit = msgspec.json.decode(last.data)
        return Polled({name: permit[name] for name in PERMIT_MEMBERS})

    async def inspected(self, _: str, record: Record) -> dict[str, Any]:
        """Return until when the issued permit can be used or keeps its slot, and when it was used; never the permit itself."""
        used_ms = record.permit_used_ms
        return (
            {}
            if used_ms is None
            else {"permit": {"until": record.number("lease"), "usedAt": used_ms or None}}
        )

    async def _ask(self, task_id: str) -> tuple[Admitted, int]:
        nonce = self._scheduler.nonce()
        outcome, epoch, later = await self._background.until_answered(
            lambda: use_permit(self._scheduler, task_id, nonce), GIVE_UP_S
        )
        self._ask_later(later)
        return outcome, epoch
