"""What the state machine of an attempt decides, and asks of the replica that runs it. `runner.py` does it."""

from typing import Literal, NamedTuple, Protocol, TypeVar

from fairlane.queues.tasks import ClosedUpstreams, Fragment, Grant, Repair, RetryAt, State, Used
from fairlane.workers.server.pool.worker import Mismatch, Worker
from fairlane.workers.server.settings import DispatchSettings

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


A_contra = TypeVar("A_contra", contravariant=True)
"""An attempt."""


class Effects(Protocol[A_contra]):
    """Acts for attempts. One object for all of them, so that nothing holds an attempt that is over."""

    @property
    def settings(self) -> DispatchSettings: ...

    @property
    def stop_grace_s(self) -> float:
        """How long a worker may take to stop a task before its connection is closed."""
        ...

    def time(self) -> float: ...

    def began_output(self, attempt: A_contra) -> None:
        """The first output was taken."""
        ...

    def finish(self, attempt: A_contra, end: Finish) -> None:
        """Write the end of a task behind its output."""
        ...

    def requeue(self, attempt: A_contra, step: Requeue) -> None:
        """Return a task to its queue."""
        ...

    def release(self, attempt: A_contra, used: Used) -> None:
        """Free the slot of a task that was ended elsewhere, whose worker has stopped, and settle what it used."""
        ...

    def move(self, attempt: A_contra, why: Mismatch, size: int = 0, payload: bytes = b"") -> None:
        """Bring a task that this worker cannot run to one that can. `size`: of its frame, if that is the reason."""
        ...

    def freed(
        self, attempt: A_contra, outcome: str, grants: list[Grant], retry_at: RetryAt, closed: ClosedUpstreams
    ) -> None:
        """The attempt is over, and the store has answered its end: its slot takes what was granted for it."""
        ...

    def reassign(self, attempt: A_contra, worker: Worker) -> None:
        """Begin again on another worker: the grant stays."""
        ...

    def hold(self, worker: Worker, ms: int) -> None:
        """Give a worker no task for a while."""
        ...

    def drain(self, worker: Worker) -> None:
        """Give a worker no task any more."""
        ...
