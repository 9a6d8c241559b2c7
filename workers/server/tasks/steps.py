"""How attempts end: values that an attempt decides and `ends.py` carries out."""

from typing import Literal, NamedTuple

from fairlane.queues.tasks import Fragment, Repair, State, Used

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


class Requeue(NamedTuple):
    """Requeue the task at its old place, or end it with `end` if its tries are used up. The slot is free immediately.

    `hold_ms`: no task of its model begins for this long. `blameless`: the worker has done its work. `repair`: the request for a
    repair. `unsent`: no part of the request has left. `suspicion`: if its worker was lost, as the record keeps it. `grace_ms`:
    how long the task waits for a worker if none is left. `aside_ms`: how long it stands aside.
    """

    why: str
    cause: Cause
    begun: bool = False
    end: Fragment | None = None
    hold_ms: int = 0
    blameless: bool = False
    repair: Repair | None = None
    unsent: bool = False
    suspicion: str = ""
    grace_ms: int = 0
    aside_ms: int = 0
