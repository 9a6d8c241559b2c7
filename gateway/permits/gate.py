"""Admits calls that have a permit, for the proxy in front of an endpoint, and takes reports of their ends.

Public, as the proxy is. A request without a genuine permit is rejected locally, with one answer that reveals nothing about
endpoints. For a genuine one the store decides, and a rejection has the wait of the endpoint's line, which is read once a second.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fairlane.gateway.endpoints.endpoints import Endpoints
from fairlane.gateway.errors import SECOND_MS, ApiError
from fairlane.gateway.permits.signed import Signed, Signer
from fairlane.queues.errors import StoreError
from fairlane.queues.metrics import PERMIT_CHECKS
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Admitted, PermitEnd, RetryAt
from fairlane.streaming.events import fragment_done
from fairlane.workers.server.background import Background, observe

GIVE_UP_S = 2.0
"""How long a call of the store is repeated: a proxy and its client wait."""
WAIT_S = 1.0
"""How long the wait of an endpoint's line is cached."""
UNKNOWN_MS = 5 * SECOND_MS
"""Retry-After if the wait is unknown."""
_REPORTED = fragment_done(b'{"used":true,"reported":true}', None, None)
LEFT_UNREPORTED = fragment_done(b'{"used":true,"reported":false}', None, None)
"""The end of a task whose permit was used, and whose call's end was not reported in time."""


class PermitRejected(ApiError):
    """A call that is not admitted, the reason, and Retry-After."""

    longest_ms = 24 * 3_600_000

    def __init__(self, code: str, message: str, retry_after_ms: int, task_id: str | None = None) -> None:
        super().__init__(403, code, message, retry_after_ms=max(retry_after_ms, SECOND_MS), task_id=task_id)


def permit_needed() -> PermitRejected:
    """Return the only answer to a request without a genuine permit, whatever endpoint, URL or method it is for."""
    text = "A permit for this endpoint is needed: request one (POST /api/tasks, type permit), and send it as X-Fairlane-Permit"
    return PermitRejected("PERMIT_NEEDED", text, UNKNOWN_MS)


class _Wait(NamedTuple):
    """The wait of a new call of an endpoint, cached until a time (s)."""

    ms: int
    until: float


class Gate:
    """See the module. `endpoints` returns the current ones. `ask_later`: `PermitIssuer.ask_later`."""

    def __init__(
        self,
        scheduler: Scheduler,
        background: Background,
        signer: Signer,
        endpoints: Callable[[], Endpoints],
        ask_later: Callable[[RetryAt], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._background = background
        self._signer = signer
        self._endpoints = endpoints
        self._ask_later = ask_later
        self._clock = clock
        self._waits: dict[str, _Wait] = {}

    async def admit(self, endpoint: str, permit: str | None, task_id: str | None) -> tuple[str, str]:
        """Admit a call with this permit to this endpoint: once, over all replicas. Return its task, and the receipt for the
        report of its end. Raise PermitRejected, and StoreError: then the permit may be used up all the same.

        `task_id`: the request's `X-Task-Id`; it must be the permit's.
        """
        count = partial(self._scheduler.metrics.count, PERMIT_CHECKS)
        signed = self._signer.read_permit(permit, endpoint) if permit else None
        if signed is None or (task_id and task_id != signed.task_id):
            count("invalid" if permit else "missing")
            raise permit_needed()
        asked = asyncio.ensure_future(self._ask(signed))
        asked.add_done_callback(observe)
        outcome = await asyncio.shield(asked)  # also when the proxy leaves: the store may have decided
        count({Admitted.IN: "allowed", Admitted.USED: "used"}.get(outcome, "expired"))
        if outcome is Admitted.IN:
            return signed.task_id, self._signer.receipt(*signed)
        raise await self._over_for(signed, endpoint, outcome)

    async def leave(self, receipt: str) -> PermitEnd | None:
        """Report the end of the call that this receipt is for. Return None if it is no receipt. Raise StoreError: it may be
        repeated."""
        signed = self._signer.read_receipt(receipt)
        if signed is None:
            return None
        return await self._background.until_answered(
            lambda: self._scheduler.release_permit(*signed, _REPORTED), GIVE_UP_S
        )

    async def _ask(self, signed: Signed) -> Admitted:
        nonce = self._scheduler.nonce()
        outcome, later = await self._background.until_answered(
            lambda: self._scheduler.use_permit(*signed, nonce), GIVE_UP_S
        )
        self._ask_later(later)
        return outcome

    async def _over_for(self, signed: Signed, endpoint: str, outcome: Admitted) -> PermitRejected:
        wait_ms = await self._line_of(endpoint)
        if outcome is Admitted.USED:
            return PermitRejected(
                "PERMIT_USED", "This permit was used: each is for one call", wait_ms, signed.task_id
            )
        text = "This permit is over: it was not used in time, or its task was cancelled"
        return PermitRejected("PERMIT_EXPIRED", text, wait_ms, signed.task_id)

    async def _line_of(self, endpoint: str) -> int:
        """Return how long a new call of this endpoint waits, ms."""
        known = self._endpoints().named(endpoint)
        if known is None:
            return UNKNOWN_MS
        now, wait = self._clock(), self._waits.get(endpoint)
        if wait is None or now >= wait.until:
            last_ms = UNKNOWN_MS if wait is None else wait.ms
            self._waits[endpoint] = _Wait(last_ms, now + WAIT_S)
            try:
                load = await self._scheduler.model_load(known.model)
            except StoreError:
                return last_ms
            ms = UNKNOWN_MS if load is None or load.wait_ms is None else load.wait_ms
            wait = self._waits[endpoint] = _Wait(ms, now + WAIT_S)
        return wait.ms
