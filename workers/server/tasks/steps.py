"""Where an attempt stands, and what it may come to: a step, which `effects.py` carries out."""

import enum
from typing import Literal, NamedTuple

from fairlane.queues.tasks import Fragment, Repair, State, Used
from fairlane.workers.server.pool import Mismatch
from fairlane.workers.server.tasks.chains import StageDone

NO_USAGE = Used()
Cause = Literal["lost", "failed", "falls", "declined", "repair"]
"""Why a task goes back: its worker is gone, it failed in a way that a retry can fix, or only another model, or no worker began it
(which costs no try), or it was answered and the answer is to be repaired (no try either)."""


class Phase(enum.Enum):
    """Where an attempt stands."""

    SENT = "sent"
    RUNNING = "running"
    FINISHING = "finishing"
    STOPPING = "stopping"
    OVER = "over"


BEFORE_THE_END = frozenset({Phase.SENT, Phase.RUNNING})


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
    """Look whether the texts (JSON strings) of a finished answer match its schema; the attempt ends then (`Attempt.checked`).

    `usage`: the usage that its client sees, if it does not. `repairs`: then it may be asked for again, for which its request is
    needed."""

    schema: bytes
    texts: list[bytes]
    usage: bytes | None
    repairs: bool = False


class Requeue(NamedTuple):
    """Give the task back to its old place, or end it with `end` if its tries are used up. The slot is free immediately.

    `hold_ms`: no task of its model begins for so long. `blameless`: its worker has done its work. `repair`: with what it is done
    once more. `unsent`: nothing of it has left.
    """

    why: str
    cause: Cause
    begun: bool
    end: Fragment | None = None
    hold_ms: int = 0
    blameless: bool = False
    repair: Repair | None = None
    unsent: bool = False


class Release(NamedTuple):
    """The task was ended elsewhere, or another attempt has it, and the worker has stopped: free the slot, and settle what
    was used."""

    used: Used = NO_USAGE


class Move(NamedTuple):
    """The worker cannot run it: bring it to one that can."""

    why: Mismatch


Step = Finish | Check | Requeue | Release | Move
