"""The phases of an attempt, and the steps that end it, which `effects.py` carries out."""

from typing import Literal, NamedTuple

from fairlane.queues.tasks import Fragment, Repair, State, Used
from fairlane.workers.server.pool import Mismatch
from fairlane.workers.server.tasks.chains import StageDone

NO_USAGE = Used()
Cause = Literal["lost", "failed", "falls", "declined", "redo"]
"""Why a task goes back: its worker is gone, it failed in a way that a retry can fix, or only another model, or no worker began it
(which costs no try), or it was answered and the answer is to be repaired (no try either)."""


Phase = Literal["sent", "running", "finishing", "stopping", "over"]
BEFORE_THE_END: frozenset[Phase] = frozenset({"sent", "running"})


class Finish(NamedTuple):
    """Write the end of the task. `keep_slot`: its worker still runs it; the slot is free when that has stopped."""

    state: State
    code: str
    fragment: bytes
    used: Used = NO_USAGE
    keep_slot: bool = False
    blameless: bool = False
    """It failed, and its worker has done its work."""
    stage: StageDone | None = None
    """The stage of a chain, or the part of one, that is completed with it; the chain continues then."""


class Check(NamedTuple):
    """Check whether the texts (JSON strings) of a finished answer match its schema; the attempt ends then (`Attempt.checked`).

    `usage`: the usage for the client if they do not match. `repairs`: the answer may be requested again, for which the request is
    needed.
    """

    schema: bytes
    texts: list[bytes]
    usage: bytes | None
    repairs: bool = False


class Requeue(NamedTuple):
    """Requeue the task at its old place, or end it with `end` if its tries are used up. The slot is free immediately.

    `hold_ms`: no task of its model begins for this long. `blameless`: the worker has done its work. `repair`: the request for a
    repair. `unsent`: no part of the request has left. `suspicion`: if its worker was lost, as the record keeps it. `grace_ms`:
    how long the task waits for a worker if none is left. `aside_ms`: how long it stands aside.
    """

    why: str
    cause: Cause
    begun: bool
    end: Fragment | None = None
    hold_ms: int = 0
    blameless: bool = False
    repair: Repair | None = None
    unsent: bool = False
    suspicion: str = ""
    grace_ms: int = 0
    aside_ms: int = 0


class Release(NamedTuple):
    """The task was ended elsewhere, or another attempt has it, and the worker has stopped: free the slot, and settle what
    was used."""

    used: Used = NO_USAGE


class Move(NamedTuple):
    """Move the task to a worker that can run it. `size`: of its frame, if that is the reason."""

    why: Mismatch
    size: int = 0


Step = Finish | Check | Requeue | Release | Move
