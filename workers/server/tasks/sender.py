"""Sends attempts to their workers: immediately, but for tasks that may have been the reason that another worker was lost (see
suspects.py). Such a suspect runs alone.
"""

from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import BEFORE_THE_END

HELD_S = 2.0
"""How long a suspect waits until a worker is idle; meanwhile its worker gets nothing else."""
ASIDE_MS = 10_000
"""For how long it stands aside if none was: then it is granted again, as often as a task may be."""
LOOK_S = 1.0


class Sender:
    """See the module."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._loop = slots.loop

    def begin(self, attempt: Attempt) -> None:
        """Send an attempt, or hold it back: while the worker runs a suspect, or if it is one and the worker runs anything."""
        worker, suspicion = attempt.worker, attempt.suspicion
        if not worker.held and worker.alone is None and (suspicion is None or len(worker.attempts) == 1):
            self._send(attempt)
            return
        worker.held.append(attempt)
        worker.hold_until = self._slots.time() + HELD_S
        if suspicion is not None:
            self._loop.call_later(LOOK_S, self._look_for_idle_worker, attempt)

    def _send(self, attempt: Attempt) -> None:
        grant, suspicion = attempt.grant, attempt.suspicion
        if suspicion is not None:
            attempt.worker.alone = attempt
            attempt.worker.hold_until = self._slots.time() + suspicion.alone_s
            self._loop.call_later(suspicion.alone_s, self._survived, attempt)
        payload = self._slots.payloads.pop(grant.task_id)
        if payload is None or (
            grant.extras and (grant.repaired or grant.stage)
        ):  # it has got another payload meanwhile
            self._slots.background.spawn(self._fetch_payload(attempt))
        else:
            attempt.send(payload)

    async def _fetch_payload(self, attempt: Attempt) -> None:
        task_id, scheduler = attempt.grant.task_id, self._slots.scheduler
        try:
            payload = await self._slots.background.until_answered(lambda: scheduler.payload(task_id))
        except BaseException:  # whatever it was, the task must not stay with a worker that never gets it
            attempt.decline("its payload could not be read")
            raise
        if attempt.phase != "sent":
            return
        if payload is None:
            attempt.release()  # it ended between the grant and this read
        else:
            attempt.send(payload)

    def release(self, worker: Worker) -> None:
        """Send what a worker holds back, in order: a suspect when nothing else runs there, others when no suspect runs alone."""
        alone = worker.alone
        if alone is not None and (alone.phase not in BEFORE_THE_END or alone.first_output_at):
            worker.alone = None
        worker.held = [attempt for attempt in worker.held if attempt.phase == "sent"]
        while worker.held and worker.alone is None:
            attempt = worker.held[0]
            if attempt.suspicion is not None and len(worker.attempts) > len(worker.held):
                return
            del worker.held[0]
            self._send(attempt)
        if worker.alone is None:
            worker.hold_until = 0.0
            self._slots.fill(worker)

    def _survived(self, attempt: Attempt) -> None:
        """A suspect has run alone for longer than when its worker was lost."""
        if attempt.worker.alone is attempt:
            attempt.worker.alone = None
            self.release(attempt.worker)

    def _look_for_idle_worker(self, attempt: Attempt) -> None:
        """Move a suspect that is held back to an idle worker, or let it stand aside if there was none."""
        worker, now = attempt.worker, self._slots.time()
        if attempt not in worker.held or attempt.phase != "sent":
            return
        grant = attempt.grant
        other = self._slots.pool.pick(
            *(grant.model, grant.task_type, grant.task_id, worker.upstream), suspicion=attempt.suspicion
        )
        if other is not None and other.suits(attempt.suspicion):
            attempt.effects.reassign(attempt, other)
        elif now - attempt.granted_at > HELD_S:
            attempt.decline("no worker is idle", aside_ms=ASIDE_MS)
        else:
            self._loop.call_later(LOOK_S, self._look_for_idle_worker, attempt)
