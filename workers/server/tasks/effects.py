"""What the state machine of an attempt asks of the replica that runs it. `runner.py` does it."""

from typing import Protocol, TypeVar

from fairlane.queues.tasks import ClosedUpstreams, Grant, RetryAt, Used
from fairlane.workers.server.pool.worker import Mismatch, Worker
from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.tasks.steps import Finish, Requeue

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
