"""Leads batches: takes those that nobody leads, carries them out, and says again and again that it is here."""

import asyncio
import contextlib
import time

import structlog

from fairlane.gateway.batches.batch import Status
from fairlane.gateway.batches.led import Tools
from fairlane.gateway.batches.run import Run
from fairlane.gateway.batches.seats import Seat, next_of, who_leaves
from fairlane.gateway.batches.standing import Standing
from fairlane.gateway.batches.store import Overtaken, Waiting
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.going import Going
from fairlane.queues.clock import now_ms
from fairlane.queues.loops import end_tasks, set_within

log = structlog.get_logger("fairlane.gateway")

LOOK_S = 1.0
LEAST_LOOK_S = 0.1
"""Between two looks, however much changes: each looks at all batches that have not ended."""
LEAST_LEASE_MS = 1000
RENEWALS = 4
"""Of a lease, within its time; a leader does not rely on the last part of it."""
MOST = 50
"""Batches that one process leads."""
TAKEN_AT_ONCE = 10
"""Of them, at a look."""
RELEASE_S = 2.0
REST_S = 10.0
"""How long a batch is left alone of which something failed that nobody thought of."""
OTHERS_S = 4 * LOOK_S
"""How long one whose files cannot be read here is left to others."""
LACKS_AGAIN_S = 600.0
"""How often that is: where there are no others, each time makes a line in the log."""


class Leading:
    """The batches that one replica leads. `start` begins, `close` ends: what is led then others take at once."""

    def __init__(self, tools: Tools, replica: str, going: Going) -> None:
        self._tools = tools
        self._replica = replica
        self._going = going
        self._runs: dict[str, Run] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rests: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """When those that are led here were taken."""
        self._last: dict[str, float] = {}
        """When others that have not ended gave up their seats here."""
        self._standings: dict[str, Standing] = {}
        """How these stood still: what was told of that is not told again with each seat."""
        self._left: dict[str, float] = {}
        """When those that have not ended were left to others, as their files could not be read here."""
        self._until = 0.0
        """Until when the leases hold for sure, by the clock of this process."""
        self._renew_at = 0.0
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="batches")

    async def close(self) -> None:
        """End."""
        await end_tasks(self._task)
        await self._leave()

    def hurry(self) -> None:
        """Something has changed: look now."""
        self._hurry.set()

    async def _run(self) -> None:
        while not self._going.begun:
            self._hurry.clear()
            try:
                await self._look()
            except DatabaseUnavailable:
                pass  # which the outbox tells
            except Exception:  # batches go on meanwhile, as long as their leases hold
                log.exception("cannot look for batches", replica=self._replica)
            await asyncio.sleep(LEAST_LOOK_S)
            await set_within(self._hurry, min(LOOK_S, self._lease_ms / 1000 / RENEWALS) - LEAST_LOOK_S)
        await self._leave()  # its lines go on; another one takes what comes of them

    async def _leave(self) -> None:
        """Lead nothing any more."""
        led = bool(self._tasks)
        await end_tasks(*self._tasks.values())
        if led:
            with contextlib.suppress(DatabaseUnavailable, TimeoutError):
                async with asyncio.timeout(RELEASE_S):
                    await self._tools.store.release(self._replica)

    @property
    def _lease_ms(self) -> int:
        """A batch whose leader is not heard of for so long is led by another one."""
        return max(self._tools.current.settings.lease_ms, LEAST_LEASE_MS)

    def _led_since(self, began: float, lease_ms: int) -> None:
        """The leases were taken, or renewed, behind this instant."""
        part = lease_ms / 1000 / RENEWALS
        self._until, self._renew_at = began + lease_ms / 1000 - part, began + part

    async def _look(self) -> None:
        """Renew what is led, hear of what is cancelled, and take what nobody leads."""
        if self._runs and time.monotonic() >= self._renew_at:
            await self._renew()
        running = self._tools.current.settings.batches.per_caller
        found = await self._tools.store.unended(self._replica, running, now_ms())
        for one in found:
            run = self._runs.get(one.id)
            if run is not None and one.status is Status.CANCELLING:
                run.cancel()
        await self._leave_to_others({one.id for one in found})
        waiting = [one for one in found if self._may_take(one)]
        known = {one.id for one in waiting}
        self._last = {batch_id: at for batch_id, at in self._last.items() if batch_id in known}
        self._standings = {batch_id: one for batch_id, one in self._standings.items() if batch_id in known}
        led = [run.owner for run in self._runs.values()]
        chosen = next_of(waiting, led, self._last, min(MOST - len(led), TAKEN_AT_ONCE))
        for one in chosen:
            await self._take(one)
        if len(chosen) == len(waiting):
            return
        if len(self._runs) >= MOST:
            await self._make_room(len(waiting) - len(chosen))
        else:
            self.hurry()

    async def _leave_to_others(self, unended: set[str]) -> None:
        """Lead those no more that stand still for files which another replica may have, if its storage is not the one here."""
        now = time.monotonic()
        self._left = {batch_id: at for batch_id, at in self._left.items() if batch_id in unended}
        for batch_id, run in [*self._runs.items()]:
            if run.lacks_files and now - self._left.get(batch_id, -LACKS_AGAIN_S) >= LACKS_AGAIN_S:
                self._left[batch_id] = now
                await self._give_back(batch_id)

    async def _give_back(self, batch_id: str) -> None:
        """Lead this one no more: others may take it at once. What it has submitted runs on."""
        await end_tasks(self._tasks.get(batch_id))
        await self._tools.store.release(self._replica, batch_id)

    async def _make_room(self, waiting: int) -> None:
        """End the turns of some for so many that wait."""
        now = time.monotonic()
        seats = [
            Seat(batch_id, run.owner, self._since[batch_id], run.may_leave)
            for batch_id, run in self._runs.items()
        ]
        for batch_id in who_leaves(seats, waiting, now):
            self._last[batch_id] = now
            self._standings[batch_id] = self._runs[batch_id].standing
            await self._give_back(batch_id)
            self.hurry()

    def _may_take(self, one: Waiting) -> bool:
        now = time.monotonic()
        if one.id in self._runs or self._rests.get(one.id, 0.0) > now:
            return False
        if now - self._left.get(one.id, -OTHERS_S) < OTHERS_S and one.status is not Status.CANCELLING:
            return False  # which takes no files, mostly
        # its own from before: a run that failed
        return not one.leader or one.leader == self._replica or one.lease < now_ms()

    async def _take(self, one: Waiting) -> None:
        began, lease_ms = time.monotonic(), self._lease_ms
        batch = await self._tools.store.take(one, self._replica, now_ms() + lease_ms)
        if batch is None:
            return
        if not self._runs:  # one instant holds for all: the first to be renewed
            self._led_since(began, lease_ms)
        if one.leader:  # which others gave back is no news: they do so every minute, where many wait
            log.info("batch taken over", batch=batch.id, replica=self._replica, times=batch.epoch - 1)
        run = self._runs[batch.id] = Run(self._tools, batch, self._holds, self._standings.get(batch.id))
        self._since[batch.id] = began
        task = asyncio.create_task(self._carry_out(run), name=f"batch {batch.id}")
        self._tasks[batch.id] = task

    def _holds(self) -> bool:
        return time.monotonic() < self._until

    async def _renew(self) -> None:
        began, lease_ms = time.monotonic(), self._lease_ms
        still = await self._tools.store.renew(self._replica, [*self._runs], now_ms() + lease_ms)
        self._led_since(began, lease_ms)
        for batch_id, run in [*self._runs.items()]:
            if batch_id not in still and not run.batch.ended:  # one that has ended is tidied up
                self._tasks[batch_id].cancel()

    async def _carry_out(self, run: Run) -> None:
        batch_id = run.batch.id
        try:
            await run()
        except Overtaken:
            pass  # it goes on elsewhere
        except Exception:  # what it has written stays, and it is taken again
            log.exception("a batch is left for a while", batch=batch_id, replica=self._replica)
            self._tools.metrics.batch_left()
            self._rests[batch_id] = time.monotonic() + REST_S
        else:
            self._rests.pop(batch_id, None)
            self.hurry()
        finally:
            del self._runs[batch_id], self._tasks[batch_id], self._since[batch_id]
