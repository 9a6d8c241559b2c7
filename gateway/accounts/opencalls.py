"""Who has how many calls open in this process, and the end of those whose key is taken away.

A call is open from its authentication to the end of its answer. Nothing is paid per event.
"""

from collections.abc import Callable

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http import Request

MAX_TICKET_READERS = 100
"""Streams of one task that holders of its link may have open."""
AGAIN_MS = 1000

Opener = tuple[str | None, str]
"""A key's id and its user; None and a task's id for the holders of a task's link."""


class OpenCalls:
    """The calls that are open in one process, by caller."""

    def __init__(self, most: int) -> None:
        """`most`: how many one user of a key may have open."""
        self.most = most
        self._open: dict[Opener, set[Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def enter(self, request: Request, caller: Caller) -> None:
        """Open a caller's call, until `leave`. Raises ApiError (429) when it is one too many."""
        request.caller = caller
        if not self._enter(request, (caller.key_id, caller.user), self.most):
            raise _too_many(f"You have {self.most} calls open in this gateway; wait until some have ended")

    def enter_by_ticket(self, request: Request, task_id: str) -> None:
        """Open a stream for a holder of a task's link, until `leave`. Raises ApiError (429) when it is one too many."""
        if not self._enter(request, (None, task_id), MAX_TICKET_READERS):
            raise _too_many(f"This task has {MAX_TICKET_READERS} streams open by its link; close some")

    def _enter(self, request: Request, opener: Opener, most: int) -> bool:
        calls = self._open.setdefault(opener, set())
        if len(calls) >= most:
            return False
        calls.add(request)
        request.opener = opener
        return True

    def leave(self, request: Request) -> None:
        """The answer is over. A call that was never opened has nothing to leave."""
        opener = request.opener
        if opener is not None:
            request.opener = None
            calls = self._open[opener]
            calls.discard(request)
            if not calls:
                del self._open[opener]

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


def _too_many(message: str) -> ApiError:
    return ApiError(429, "TOO_MANY_CALLS", message, retry_after_ms=AGAIN_MS)
