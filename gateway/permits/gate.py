"""Lets in whoever has a permit, for the proxy in front of an endpoint, and hears of the end of what was let in.

Anybody may ask, as anybody may knock at the proxy. What is not genuine is refused by arithmetic alone; of what is, the store
decides, once for each permit; it is asked once for any number of repetitions, and what it has refused for good is remembered. A
request without a permit is rejected with the wait of the endpoint's line, which is read once a second.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from fairlane.gateway.endpoints.endpoints import Endpoints
from fairlane.gateway.errors import SECOND_MS, ApiError
from fairlane.gateway.permits.signed import Signed, Signer
from fairlane.queues.errors import StoreError
from fairlane.queues.metrics import PERMIT_CHECKS
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Admitted, Later, Left
from fairlane.streaming.events import fragment_done
from fairlane.workers.server.background import observe
from fairlane.workers.server.pool import Recent

T = TypeVar("T")

REPEAT_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""How long to wait between questions that the store does not answer."""
PATIENCE_S = 2.0
"""None is begun later than that: a proxy waits with its caller, and not for long."""
OVER_REMEMBERED = 10_000
"""Permits that have been used, or are over: the store is not asked of them again."""
WAIT_S = 1.0
"""For so long the wait of an endpoint's line is not read again."""
UNKNOWN_MS = 5 * SECOND_MS
"""When to come again where nobody can tell how long it takes."""
PERIOD_MS = 600_000
_REPORTED = fragment_done(b'{"used":true,"reported":true}', None, None)
LEFT_UNREPORTED = fragment_done(b'{"used":true,"reported":false}', None, None)
"""The end of a task whose permit was used, and of whose call nobody has reported the end in time."""


class NotYourTurn(ApiError):
    """Who is not let in, why not, and when to come again."""

    longest_ms = 24 * 3_600_000

    def __init__(self, code: str, message: str, retry_after_ms: int, task_id: str | None = None) -> None:
        super().__init__(403, code, message, retry_after_ms=max(retry_after_ms, SECOND_MS), task_id=task_id)


class _Wait(NamedTuple):
    """How long a new caller of an endpoint waits, and until when (s) that is not read again."""

    ms: int
    until: float


class Gate:
    """See the module. `endpoints`: those that there are now. `ask_later`: `Holder.ask_later`."""

    def __init__(
        self,
        scheduler: Scheduler,
        signer: Signer,
        endpoints: Callable[[], Endpoints],
        ask_later: Callable[[Later], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._signer = signer
        self._endpoints = endpoints
        self._ask_later = ask_later
        self._clock = clock
        self._over: Recent[Signed, Admitted] = Recent(OVER_REMEMBERED)
        self._asking: dict[Signed, asyncio.Future[Admitted]] = {}
        self._waits: dict[str, _Wait] = {}

    async def admit(self, endpoint: str, permit: str | None, task_id: str | None) -> tuple[str, str]:
        """Let in whoever has this permit, to this endpoint: once, over all replicas. Returns its task, and the receipt with which
        the end is to be reported. Raises NotYourTurn, and StoreError: then it may have been used up all the same.

        `task_id`: what the request says besides; it must be the permit's.
        """
        count = partial(self._scheduler.metrics.count, PERMIT_CHECKS)
        if not permit:
            count("needed")
            text = "A permit is needed: ask for one (POST /api/tasks, type permit), and send it as X-Fairlane-Permit"
            raise NotYourTurn("PERMIT_NEEDED", text, await self._line_of(endpoint))
        signed = self._signer.read_permit(permit, endpoint)
        if signed is None or (task_id and task_id != signed.task_id):
            count("invalid")
            text = "This is no permit for this endpoint: its signature, its task (X-Task-Id) or its endpoint is another"
            raise NotYourTurn("PERMIT_INVALID", text, UNKNOWN_MS)
        outcome = self._over.get(signed) or await self._ask_once(signed)
        count(outcome.value if outcome is not Admitted.UNKNOWN else "over")
        if outcome is Admitted.IN:
            return signed.task_id, self._signer.receipt(*signed)
        raise await self._over_for(signed, endpoint, outcome)

    async def leave(self, receipt: str) -> Left | None:
        """What was let in for this receipt has ended. None: it is no receipt. Raises StoreError: it may be said again."""
        signed = self._signer.read_receipt(receipt)
        if signed is None:
            return None
        return await _repeated(lambda: self._scheduler.leave(*signed, _REPORTED))

    # ---- who has one ----------

    async def _ask_once(self, signed: Signed) -> Admitted:
        """What the store says. Of several who show the same permit at a time one asks, and the others were late."""
        asked = self._asking.get(signed)
        if asked is not None:
            outcome = await asyncio.shield(asked)
            return Admitted.USED if outcome is Admitted.IN else outcome
        self._asking[signed] = asked = asyncio.ensure_future(self._ask(signed))
        asked.add_done_callback(lambda _: self._asking.pop(signed, None))
        asked.add_done_callback(observe)
        return await asyncio.shield(asked)  # who leaves now has used it: the store may have heard of it

    async def _ask(self, signed: Signed) -> Admitted:
        nonce = self._scheduler.nonce()
        outcome, later = await _repeated(lambda: self._scheduler.admit(*signed, nonce))
        self._ask_later(later)
        self._over.put(signed, Admitted.USED if outcome is Admitted.IN else outcome)
        return outcome

    async def _over_for(self, signed: Signed, endpoint: str, outcome: Admitted) -> NotYourTurn:
        wait_ms = await self._line_of(endpoint)
        if outcome is Admitted.USED:
            return NotYourTurn(
                "PERMIT_USED", "This permit was used: each is for one call", wait_ms, signed.task_id
            )
        text = "This permit is over: it was not used in time, or its task was cancelled"
        return NotYourTurn("PERMIT_EXPIRED", text, wait_ms, signed.task_id)

    async def _line_of(self, endpoint: str) -> int:
        """Return how long a new caller of this endpoint waits, ms."""
        known = self._endpoints().named(endpoint)
        if known is None:
            return UNKNOWN_MS
        now, wait = self._clock(), self._waits.get(endpoint)
        if wait is None or now >= wait.until:
            last_ms = UNKNOWN_MS if wait is None else wait.ms
            self._waits[endpoint] = _Wait(last_ms, now + WAIT_S)
            try:
                crowding = await self._scheduler.congestion(known.model, PERIOD_MS, {})
            except StoreError:
                return last_ms
            ms = UNKNOWN_MS if crowding is None or crowding.wait_ms is None else crowding.wait_ms
            wait = self._waits[endpoint] = _Wait(ms, now + WAIT_S)
        return wait.ms


async def _repeated(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call that may be repeated, for as long as a proxy waits, also where each takes long. Raises StoreError."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + PATIENCE_S
    for pause in REPEAT_S:
        try:
            return await call()
        except StoreError:
            if loop.time() + pause > give_up_at:
                raise
        await asyncio.sleep(pause)
    return await call()
