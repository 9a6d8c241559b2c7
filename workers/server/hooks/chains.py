"""Ends stages of chains, and parts of them. What follows is decided by the chain's plan, which the workers' side does not know.

One attempt completes a stage; then the chain is read, `Chains` makes the request of the next stage, and one step of
the store does the rest (`queues.chains.advance`). Nothing has happened before that, so a replica that dies on the way loses the
attempt, and nothing else: its lease runs out, and the stage, or the part, runs again.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fairlane.queues.chains import Advanced, Chain, ChainEnd, Running, StageEntry, read_chain, running
from fairlane.queues.chains import Step as Advance
from fairlane.queues.semaphore import FairSemaphore
from fairlane.queues.tasks import EventFields, Grant, Used
from fairlane.streaming.events import Event, parse_event_id, with_failed_stage
from fairlane.streaming.writer import STAGE_DONE, STAGE_OVER
from fairlane.workers.server.hooks.structured import OutputView
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.accounts import Accounts
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.effects import Finish
from fairlane.workers.server.tasks.hook import Answer, AttemptHook

MAX_STEPS = 20
"""Times that the store may ask for more before it ends a stage: it takes one or two."""
BALANCE_TRIES = 30
BALANCE_PAUSE_S = 1.0
"""Reads of the balance that pays the next stage of a chain, and the pauses between them."""
MAX_CONCURRENT = 4
"""Chains that are read at the same time, users in turns: one can have 16 MiB, and all other replies wait for it."""
NOT_ENTERED = {
    "quota": ("INSUFFICIENT_QUOTA", "There are not enough credits left for the next stage"),
    "no_balance": (
        "DATABASE_UNAVAILABLE",
        "The database does not answer, and what there is to pay the next stage with is not known",
    ),
    "no_worker": ("NO_WORKER", "No worker available"),
}
"""Why a chain ends whose next stage cannot be entered: a failure code, and a sentence."""


class StageDone(NamedTuple):
    """A stage, or a part of one, that an attempt has completed."""

    running: Running
    used: Used
    result: bytes
    """As readers get it: JSON."""
    reason: str | None
    """Why it finished."""
    logged: bool
    """The log holds it as chunks, so its end need not repeat it."""


class Follows(NamedTuple):
    """The step after a stage, and the events about it for the chain's log."""

    then: StageEntry | ChainEnd
    log_events: Sequence[EventFields]


class Chains(Protocol):
    """Knows what follows a stage. Each replica has one."""

    async def follows(self, chain: Chain, done: StageDone) -> Follows:
        """Return the step after a completed stage: the next stage whose condition holds, with its request, or the end. An error
        in the next stage ends the chain; nothing is raised."""
        ...

    def broken(self, chain: Chain, done: StageDone, entry: StageEntry, code: str, sentence: str) -> Follows:
        """Return the end of a chain whose next stage cannot be entered, with a failure code and a message."""
        ...

    async def load_balance(self, subject: str, window: str) -> bool:
        """Load the balance into the store. Return whether it could be read."""
        ...


class Stages:
    """What the hooks of a replica share. `chains` is set once, before the first task: see `Dispatcher`."""

    chains: Chains

    def __init__(self, slots: Slots, accounts: Accounts) -> None:
        self.slots = slots
        self.accounts = accounts
        self.reading = FairSemaphore(MAX_CONCURRENT)

    async def chain(self, task_id: str) -> Chain | None:
        """Read a chain; None: it is gone."""
        scheduler = self.slots.scheduler
        return await self.slots.background.until_answered(lambda: read_chain(scheduler, task_id))


class StageHook(AttemptHook[Attempt]):
    """Runs a stage of a chain, or a part of one. Its output is kept, and logged if readers of the chain see it as it arrives."""

    __slots__ = ("_done", "_end", "_running", "_stages", "_steps", "_view")

    def __init__(self, stages: Stages, grant: Grant) -> None:
        stage = running(grant)
        assert stage is not None
        self._stages = stages
        self._running = stage
        self._view = OutputView(grant, stage.chain)
        self._steps = 0
        """How often the end of the stage was reported to the store, which asked for more."""
        self._end: Finish | None = None
        self._done: StageDone
        """The stage, when it is completed."""

    def sends(self, attempt: Attempt, payload: bytes) -> bytes:
        if self._running.part >= 0 or not attempt.grant.stream:
            attempt.writer.discard_output()
        return payload

    def output(self, index: int, kind: str, value: str | bytes) -> None:
        self._view.add(index, kind, value)

    def failure(self, fragment: bytes) -> bytes:
        return with_failed_stage(fragment, self._running.stage.name)

    # ---- the stage is completed ----------

    def completes(self, attempt: Attempt, answer: Answer) -> bool:
        """Complete a stage, or a part of one, with what follows it. For a part, the replica that learns that it is the
        last decides; and also for a chain that is gone."""
        view = self._view.result
        view.feed(Event(0, 0, "done", b"{%b}" % answer.end.fragment))
        logged = answer.in_chunks and attempt.writer.has_output
        self._end = answer.end
        self._done = StageDone(self._running, answer.end.used, view.result_json(), answer.reason, logged)
        attempt.phase, attempt.end = "finishing", answer.end
        if self._running.part < 0:
            self._stages.slots.background.spawn(self._continue(attempt))
        else:
            self._step(attempt, None)
        return True

    async def _continue(self, attempt: Attempt) -> None:
        stages, follows = self._stages, None
        async with stages.reading.hold(attempt.grant.user):
            chain = await stages.chain(self._running.chain)
            if chain is not None and chain.plan:
                follows = await stages.chains.follows(chain, self._done)
            del chain  # it may be large
        self._step(attempt, follows)

    def _step(self, attempt: Attempt, follows: Follows | None) -> None:
        """Report the end of a stage to the store, unless the attempt has ended otherwise. `follows`: None if unknown here."""
        if attempt.end is not self._end or attempt.phase != "finishing":
            return
        worker, slots = attempt.worker, self._stages.slots
        attempt.writer.advance(
            Advance(
                self._done.result,
                self._done.used,
                slots.scheduler.nonce(),
                follows.then if follows else None,
                follows.log_events if follows else (),
                slots.pool.wanted(worker, leaving=1),
                worker.models,
                worker.id,
                worker.upstream,
            )
        )

    def advanced(self, attempt: Attempt, step: Advance, advanced: Advanced) -> None:
        """The end of a stage, or of a part, was answered.

        1 It is done, or was ended elsewhere: the slot is free. 2 Its grant is over, and another attempt has it. 3 Nothing
        has happened yet: the store needs to know more, or what was to follow cannot be.
        """
        if attempt.end is not self._end:
            return
        outcome = advanced.outcome
        if outcome not in STAGE_OVER:  # 3
            self._stages.slots.background.spawn(self._decide_again(attempt, step, advanced))
            return
        self._show(step, advanced)
        if outcome in STAGE_DONE:
            self._account(attempt, step, advanced)
        attempt.effects.freed(
            attempt,
            "ok" if outcome in STAGE_DONE else outcome,
            list(advanced.grants),
            advanced.retry_at,
            advanced.closed_upstreams,
        )

    async def _decide_again(self, attempt: Attempt, step: Advance, advanced: Advanced) -> None:
        """Decide the next step of an attempt whose stage the store did not end: see `Advanced`."""
        self._steps += 1
        if advanced.outcome == "too_large" or self._steps > MAX_STEPS:
            self._give_up(attempt, advanced.outcome)
            return
        if advanced.outcome == "next" or not isinstance(step.then, StageEntry):
            await self._continue(attempt)
            return
        chains = self._stages.chains
        if advanced.outcome == "no_balance":
            for _ in range(BALANCE_TRIES):
                if await chains.load_balance(*advanced.unknown):
                    self._step(attempt, Follows(step.then, step.log_events))
                    return
                await asyncio.sleep(BALANCE_PAUSE_S)
        code, sentence = NOT_ENTERED[advanced.outcome]
        async with self._stages.reading.hold(attempt.grant.user):
            chain = await self._stages.chain(self._running.chain)
        follows = None if chain is None else chains.broken(chain, self._done, step.then, code, sentence)
        self._step(attempt, follows)

    def _give_up(self, attempt: Attempt, why: str) -> None:
        """End an attempt whose stage the store does not end."""
        if attempt.end is not self._end or attempt.phase != "finishing":
            return
        code, text = "STORE_LOST", "The store does not end the stage"
        if why == "too_large":
            code = "OUTPUT_TOO_LARGE"
            text = "The results of the chain's stages are larger together than the store keeps of one chain"
        attempt.end_anyhow(code, text, self._done.used)

    def _show(self, step: Advance, advanced: Advanced) -> None:
        """Bring what the step wrote into its chain's log to the readers here."""
        events = [*step.log_events, *([step.then.terminal] if isinstance(step.then, ChainEnd) else [])]
        if not advanced.event_id or not events:
            return
        epoch, seq = parse_event_id(advanced.event_id)
        logged = [Event(epoch, seq + at, kind, data) for at, (kind, data) in enumerate(events)]
        self._stages.slots.hub.deliver(self._running.chain, logged)

    def _account(self, attempt: Attempt, step: Advance, advanced: Advanced) -> None:
        """Count a task that ended with its stage; its worker has done its work anyhow."""
        then = step.then
        if advanced.outcome == "ended" and isinstance(then, ChainEnd) and self._running.part < 0:
            self._stages.accounts.ended(attempt, then.state, then.code, step.used, then)
        else:
            self._stages.accounts.stage_done(attempt, step.used)
