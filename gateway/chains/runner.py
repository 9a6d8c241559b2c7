"""The next stage of a chain, when one has ended here: `workers/server/hooks/chains.py` calls it, and writes it to the store."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog

from fairlane.gateway.chains.engine import NextStage, StageFailed, next_stage
from fairlane.gateway.chains.fields import final_stages
from fairlane.gateway.chains.plan import Head, read_head, read_plan
from fairlane.gateway.chains.planner import reserve_of
from fairlane.gateway.chains.results import of_stage, usage_fields, used_by, whole
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import ApiError
from fairlane.queues.chains import Chain, ChainEnd, Stage, StageEntry
from fairlane.queues.clock import now_ms
from fairlane.queues.failures import failure_row
from fairlane.queues.tasks import EventFields, State, Used
from fairlane.streaming.events import (
    compose,
    fragment_done,
    fragment_error,
    fragment_stage,
    with_failed_stage,
)
from fairlane.workers.server.hooks.chains import Follows, StageDone

log = structlog.get_logger("fairlane.gateway")


class ChainRunner:
    """Makes the next stage from a chain's plan and the results so far."""

    def __init__(self, current: ActiveConfig, load_balance: Callable[[str, str], Awaitable[None]]) -> None:
        """`load_balance`: `Balances.load`."""
        self._current = current
        self._load_balance = load_balance

    async def follows(self, chain: Chain, done: StageDone) -> Follows:
        """See `Chains`."""
        so_far = _SoFar(chain, done)
        try:
            plan, head = read_plan(chain.plan), read_head(chain.head)
        except msgspec.MsgspecError as error:  # another release wrote it
            log.error("the plan of a chain cannot be read", task_id=done.running.chain, error=str(error))
            return so_far.failed(Head([]), None, "STAGE_INPUT_FAILED", "The chain's plan cannot be read here")
        number = done.running.stage.number
        try:
            following = await asyncio.to_thread(next_stage, plan, number, so_far.results)
        except StageFailed as failed:
            sentence = f"The stage {failed.stage.name} cannot begin: {failed.sentence}"
            runs = failed.plan.runs
            return so_far.failed(
                head, failed.stage, "STAGE_INPUT_FAILED", sentence, model=runs.model, queue=runs.queue
            )
        except Exception as error:  # whatever it is, the chain must end: it would begin the same stage again
            log.exception("the next stage of a chain cannot be made", task_id=done.running.chain)
            return so_far.failed(
                head, None, "STAGE_INPUT_FAILED", f"The next stage cannot begin: {type(error).__name__}"
            )
        events = [so_far.event(head, done.running.stage, "completed", used_by(so_far.used, number))]
        events += [so_far.event(head, stage, "skipped") for stage in following.skipped]
        if isinstance(following, NextStage):
            task = following.task
            if plan.quota is not None:
                task.extras["quota"] = self._current.plans.budgets.text(plan.quota, now_ms())
            events.append(so_far.event(head, following.stage, "queued"))
            return Follows(
                StageEntry(following.stage, task, following.parts, reserve_of(plan, following.stage.number)),
                events,
            )
        return Follows(so_far.completed(head), events)

    def broken(self, chain: Chain, done: StageDone, entry: StageEntry, code: str, sentence: str) -> Follows:
        """See `Chains`."""
        head = read_head(chain.head)
        task = entry.task
        return _SoFar(chain, done).failed(
            head, entry.stage, code, sentence, model=task.model, queue=task.queue
        )

    async def load_balance(self, subject: str, window: str) -> bool:
        """See `Chains`."""
        try:
            await self._load_balance(subject, window)
        except (DatabaseUnavailable, ApiError):
            return False
        return True


class _SoFar:
    """A chain, together with what was just made in it."""

    def __init__(self, chain: Chain, done: StageDone) -> None:
        self._id, self._of = done.running.chain, chain.of
        self._done = done
        key = done.running.stage.number, done.running.part
        self.results = {**chain.results, key: done.result}
        self.used = {**chain.used, key: done.used}

    def event(self, head: Head, stage: Stage, status: str, used: Used | None = None) -> EventFields:
        """Return the log event of a stage's status."""
        usage = usage_fields(used)
        raw = None if usage is None else msgspec.json.encode(usage)
        fragment = fragment_stage(stage.name, stage.number + 1, len(head.stages) or self._of, status, raw)
        return "stage", compose(self._id, now_ms(), fragment)

    def completed(self, head: Head) -> ChainEnd:
        """Return the end behind the last stage that ran: its result is the chain's."""
        done, number = self._done, self._done.running.stage.number
        result = None if done.logged else whole(of_stage(self.results, number), each=head.stages[number].each)
        stages = final_stages(head, self.used, (stage for stage, _ in self.results))
        fragment = fragment_done(result, self._usage(), done.reason, stages)
        return ChainEnd(State.COMPLETED, "", ("done", compose(self._id, now_ms(), fragment)))

    def failed(
        self, head: Head, stage: Stage | None, code: str, sentence: str, *, model: str = "", queue: str = ""
    ) -> Follows:
        """Return the end of a chain whose next stage cannot begin."""
        run = self._done.running
        events = [self.event(head, run.stage, "completed", used_by(self.used, run.stage.number))]
        fragment = fragment_error(sentence, code, failure_row(code).retry, self._usage())
        if stage is not None:
            events.append(self.event(head, stage, "failed"))
            done = (number for number, _ in self.results)
            fragment = with_failed_stage(
                fragment, stage.name, final_stages(head, self.used, done, stage.number)
            )
        terminal = "error", compose(self._id, now_ms(), fragment)
        return Follows(ChainEnd(State.FAILED, code, terminal, stage, model, queue), events)

    def _usage(self) -> bytes | None:
        usage = usage_fields(used_by(self.used))
        return None if usage is None else msgspec.json.encode(usage)
