"""What is measured of attempts: metrics, the history of failures, and what they say about the health of workers."""

import structlog

from fairlane.queues.chains import ChainEnd, running
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.metrics import USAGE_CORRECTED, EndedTask, TaskEnd, error_message_of
from fairlane.queues.tasks import State, Used
from fairlane.workers.server.health import Health
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import NO_USAGE

log = structlog.get_logger("fairlane.workers")


class Accounts:
    """See the module."""

    def __init__(self, slots: Slots, health: Health) -> None:
        self._slots = slots
        self._scheduler = slots.scheduler
        self._health = health
        self._lines = RateLimitedLogger()

    def began_output(self, attempt: Attempt) -> None:
        """Record an attempt's first output."""
        grant = attempt.grant
        since_ms = _since_submission_ms(attempt, attempt.first_output_at)
        self._scheduler.metrics.began_output(grant.model, grant.task_type, since_ms)

    def ended(
        self, attempt: Attempt, state: State, code: str, used: Used = NO_USAGE, chain: ChainEnd | None = None
    ) -> None:
        """Record that an attempt ended its task. `chain`: how its chain ended behind the stage that the attempt completed: if
        that failed it is a later stage's failure, and none of this worker."""
        grant, worker, now = attempt.grant, attempt.worker, self._slots.time()
        for hook in attempt.hooks:
            used = hook.ended(attempt, state, code, used)
        ended = _ended_task(attempt, chain) if state is State.FAILED else None
        works = chain is not None or (attempt.end is not None and attempt.end.blameless)
        said = ended.sentence if ended else ""
        self._health.ended(worker, grant.model, State.COMPLETED if works else state, code, said)
        self._slots.loop.call_soon(  # after the client was woken, which does not wait for this
            self._scheduler.metrics.ended,
            TaskEnd(
                (chain and chain.queue) or grant.queue,
                (chain and chain.model) or grant.model,
                grant.task_type,
                state,
                code,
                _since_submission_ms(attempt, now),
                (now - attempt.granted_at) * 1000,
                (now - attempt.first_output_at) * 1000 if attempt.first_output_at else -1,
                used,
                ended,
                grant.user,
                worker.name if worker.version > 1 else "version 1",
            ),
        )

    def stage_done(self, attempt: Attempt, used: Used) -> None:
        """Record that an attempt ended its stage of a chain, or a part of one, and the chain continues."""
        self._health.ended(attempt.worker, attempt.grant.model, State.COMPLETED, "", "")
        for hook in attempt.hooks:
            hook.ended(attempt, State.COMPLETED, "", used)

    def corrected(self, attempt: Attempt) -> None:
        """Log and count that a worker reported usage that its task cannot have."""
        reported, counted = attempt.usage.corrected or ((), ())
        self._scheduler.metrics.count(USAGE_CORRECTED, attempt.grant.model)
        self._lines.log(
            log.warning,
            "a worker's usage was corrected",
            task_id=attempt.grant.task_id,
            model=attempt.grant.asked,
            worker_id=attempt.worker.id,
            name=attempt.worker.name,
            key_id=attempt.worker.key_id,
            reported=reported[:2],
            counted=counted[:2],
        )


def _ended_task(attempt: Attempt, chain: ChainEnd | None) -> EndedTask:
    """Return what is logged of a failed task."""
    grant, end, run = attempt.grant, attempt.end, running(attempt.grant)
    if chain is not None:
        sentence = error_message_of(chain.terminal[1])
    else:
        sentence = error_message_of(b"{%b}" % end.fragment) if end is not None else ""
    stage = (chain and chain.stage) or (run and run.stage)
    return EndedTask(
        grant.task_id,
        grant.request_id,
        grant.user,
        (chain and chain.model) or grant.asked,
        attempt.worker.id,
        grant.attempt,
        sentence,
        stage.name if stage else "",
    )


def _since_submission_ms(attempt: Attempt, now: float) -> float:
    """How long ago the task was submitted; the store's clock counts until the grant, ours from then on."""
    grant = attempt.grant
    return grant.granted_ms - grant.enqueued_ms + (now - attempt.granted_at) * 1000
