"""Ends stages of chains, and parts of them. What follows is decided by the chain's plan, which the workers' side does not know.

One attempt completes a stage; then the chain is read, `Chains` makes the request of the next stage, and one step of
the store does the rest (`Scheduler.advance`). Nothing has happened before that, so a replica that dies on the way loses the
attempt, and nothing else: its lease runs out, and the stage, or the part, runs again.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fairlane.queues.chains import Chain, ChainEnd, Running, StageEntry
from fairlane.queues.tasks import EventFields, Used


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
