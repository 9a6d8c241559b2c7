"""Stops tasks here that another replica, or a script, has ended."""

import asyncio

from fairlane.queues.scheduler import Scheduler
from fairlane.workers.server.background import Background
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import AttemptEffects

LOST_REPLY_S = 2.0
"""A reply of Redis seldom takes this long. Replies arrive in order, so a reply to a later call proves that it is lost."""


class RemoteStops:
    """See the module."""

    def __init__(self, scheduler: Scheduler, effects: AttemptEffects, background: Background) -> None:
        self._scheduler = scheduler
        self._effects = effects
        self._attempts = effects.attempts
        self._background = background

    def on_stop(self, task_id: str, epoch: int, why: str) -> None:
        """Stop an attempt here, with this epoch, whose task was ended elsewhere."""
        attempt = self._held(task_id, epoch)
        if attempt is None:
            self._background.spawn(self._confirm(task_id, epoch, why))
        else:
            attempt.stop(why)

    def on_reader(self, task_id: str, epoch: int, replica: str) -> None:
        """Publish the events of an attempt here to another replica, which reads its task."""
        attempt = self._held(task_id, epoch)
        if attempt is not None:
            attempt.writer.add_reader(replica)

    def _held(self, task_id: str, epoch: int) -> Attempt | None:
        attempt = self._attempts.newest(task_id)
        return attempt if attempt is not None and attempt.grant.epoch == epoch else None

    async def _confirm(self, task_id: str, epoch: int, why: str) -> None:
        """The grant is not known here. Only this replica can free its slot, if the grant was lost."""
        await asyncio.sleep(LOST_REPLY_S)
        attempt = self._held(task_id, epoch)
        if attempt is not None:  # the grant came after the report of its end
            attempt.stop(why)
            return
        record = await self._background.until_answered(lambda: self._scheduler.position(task_id))
        if record is None or record.number("epoch") != epoch or self._held(task_id, epoch):
            return
        self._effects.give_back_soon(record.grant(task_id))
