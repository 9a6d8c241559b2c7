"""Who has how many calls open in this process, and the end of those whose key is taken away.

A call is open from its authentication to the end of its answer. Nothing is paid per event.
"""

from collections.abc import Callable

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.calls.http import Request
from fairlane.gateway.errors import ApiError

MAX_TICKET_READERS = 100
"""Streams of one task that holders of its link may have open."""
AGAIN_MS = 1000
LINKS = "links of "
"""Before a key's id: the readers of its tasks' links. No key's id has a space."""

Opener = tuple[str | None, str]
"""A key's id and its user, or '' as long as a body that may name one is not read; None and a task's id for the holders of a
task's link."""


class OpenCalls:
    """The calls that are open in one process, by caller."""

    def __init__(self, most: int) -> None:
        """`most`: how many one user of a key may have open."""
        self.most = most
        self._open: dict[Opener, set[Request]] = {}
        self._used: set[str] = set()

    def __len__(self) -> int:
        return len(set().union(*self._open.values()))

    def enter(self, request: Request, caller: Caller, *, unnamed: bool = False) -> None:
        """Open a caller's call, until `leave`. Raises ApiError (429) when it is one too many.

        `unnamed`: the body may name the user; until `name` says who it is, the call counts apart from those of all users.
        """
        request.caller = caller
        self._used.add(caller.key_id)
        opener = (caller.key_id, "" if unnamed else caller.user)
        if not self._add(request, opener, self.most):
            raise too_many_calls(
                f"You have {self.most} calls open in this gateway; wait until some have ended"
            )
        request.opener = opener

    def name(self, request: Request, caller: Caller) -> None:
        """The body is read, and this is its caller: from now on the call counts for that user alone.

        Raises ApiError (429) when it is one too many; then it counts for nobody any more.
        """
        if request.opener != (caller.key_id, caller.user):
            self.leave(request)
            self.enter(request, caller)

    def enter_by_ticket(self, request: Request, task_id: str) -> None:
        """Open a stream for a holder of a task's link, until `leave`. Raises ApiError (429) when it is one too many."""
        opener = (None, task_id)
        if not self._add(request, opener, MAX_TICKET_READERS):
            raise too_many_calls(f"This task has {MAX_TICKET_READERS} streams open by its link; close some")
        request.opener = opener

    def enter_for_owner(self, request: Request, key_id: str, user: str) -> None:
        """Count a stream that a task's link opened among those of the links of the task's owner as well, until `leave`.

        They have a count of their own: who reads by links does not hold up the owner's calls. Who the owner is the task's record
        tells, not the ticket. Raises ApiError (429) when it is one too many.
        """
        owner = (LINKS + key_id, user)
        if not self._add(request, owner, self.most):
            raise too_many_calls(
                f"The links of this task's owner have {self.most} streams open in this gateway; close some"
            )
        request.owner = owner

    def _add(self, request: Request, opener: Opener, most: int) -> bool:
        calls = self._open.setdefault(opener, set())
        if len(calls) >= most:
            return False
        calls.add(request)
        return True

    def leave(self, request: Request) -> None:
        """The answer is over. A call that was never opened has nothing to leave."""
        openers = request.opener, request.owner
        request.opener = request.owner = None
        for opener in openers:
            if opener is not None:
                calls = self._open[opener]
                calls.discard(request)
                if not calls:
                    del self._open[opener]

    def used(self) -> set[str]:
        """The keys by which calls were opened since this was asked last."""
        used, self._used = self._used, set()
        return used

    def revoke(self, is_valid: Callable[[Caller], bool]) -> int:
        """End the calls of callers who are not valid any more; how many there were."""
        over = [
            call
            for calls in self._open.values()
            for call in calls
            if call.caller is not None and not is_valid(call.caller)
        ]
        for call in over:
            call.revoke()
        return len(over)


def too_many_calls(message: str) -> ApiError:
    return ApiError(429, "TOO_MANY_CALLS", message, retry_after_ms=AGAIN_MS)
