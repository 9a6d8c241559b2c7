"""What a feature adds to the attempts of tasks that use it. `hooks/features.py` lists them."""

from typing import Generic, NamedTuple

from fairlane.queues.chains import Advanced
from fairlane.queues.chains import Step as Advance
from fairlane.queues.tasks import State, Used
from fairlane.workers.server.tasks.effects import A_contra, Finish


class Answer(NamedTuple):
    """A completed task: how it ends, and what its end is made of."""

    end: Finish
    result: bytes
    """JSON; `null` if all of it came in chunks."""
    usage: bytes | None
    reason: str | None
    """Why it finished."""

    @property
    def in_chunks(self) -> bool:
        return self.result == b"null"


class AttemptHook(Generic[A_contra]):
    """One feature's part in one attempt. Here the methods do nothing.

    A hook does not keep its attempt: an attempt that is over must not wait for the cycle collector.
    """

    __slots__ = ()

    def sends(self, attempt: A_contra, payload: bytes) -> bytes | None:
        """Return what the worker gets as the payload; None: the hook has ended the attempt."""
        return payload

    def begun(self, attempt: A_contra) -> None:
        """The worker has begun."""

    def request_left(self, attempt: A_contra) -> None:
        """The worker's request to its target has left: once by its own report, and once by its first output."""

    def output(self, index: int, kind: str, value: str | bytes) -> None:
        """A piece of output arrived."""

    def first_output(self, attempt: A_contra) -> None:
        """The first output was taken."""

    def result(
        self, usage: bytes | None, result: bytes, progress: bytes | None
    ) -> tuple[bytes | None, bytes]:
        """Return usage and result as clients see them. `progress`: the usage that the worker reported last while it ran."""
        return usage, result

    def usage(self, usage: bytes) -> bytes:
        """Return the usage of a failure as clients see it."""
        return usage

    def completes(self, attempt: A_contra, answer: Answer) -> bool:
        """Return whether the hook ends the attempt itself: `Attempt.complete` continues with the next hook."""
        return False

    def advanced(self, attempt: A_contra, step: Advance, advanced: Advanced) -> None:
        """The store answered the step with which this hook ended its stage."""

    def failure(self, fragment: bytes) -> bytes:
        """Return the fields of a failure as they are logged."""
        return fragment

    def stopped(self, attempt: A_contra, why: str) -> None:
        """The attempt is asked to stop, or its task returns to its queue."""

    def ended(self, attempt: A_contra, state: State, code: str, used: Used) -> Used:
        """Return what the task used, at its end."""
        return used

    def left(self, attempt: A_contra) -> None:
        """The attempt has left its slot."""
