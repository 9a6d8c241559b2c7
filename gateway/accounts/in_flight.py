"""Counts the open calls of each caller in this process, and ends those of keys that become invalid.

A call is open from its authentication to the end of its answer. Events cost nothing here.
"""

from collections.abc import Callable

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.request import Request

MAX_TICKET_READERS = 100
"""Open streams of one task by its link."""
RETRY_MS = 1000
LINKS = "links of "
"""A prefix of a key's id, for the readers of its tasks' links. Ids of keys contain no space."""

OwnerKey = tuple[str | None, str]
"""The id of a key and its user ('' until a body that may name one is read); or None and the id of a task, for the holders of
the task's link."""


class InFlightRequests:
    """The open calls in one process, by caller."""

    def __init__(self, max_open: int) -> None:
        """`max_open`: open calls of one user of a key."""
        self.max_open = max_open
        self._open: dict[OwnerKey, set[Request]] = {}
        self._used: set[str] = set()

    def __len__(self) -> int:
        return len(set().union(*self._open.values()))

    def enter(self, request: Request, caller: Caller, *, unnamed: bool = False) -> None:
        """Count a caller's call as open, until `leave`. Raise ApiError (429) if it is one too many.

        `unnamed`: the body may name the user; until `name`, the call counts apart from those of all users.
        """
        request.caller = caller
        self._used.add(caller.key_id)
        owner_key = (caller.key_id, "" if unnamed else caller.user)
        calls = self._open.setdefault(owner_key, set())
        if len(calls) >= self.max_open:
            raise too_many_calls(
                f"You have {self.max_open} calls open in this gateway; wait until some have ended"
            )
        calls.add(request)
        request.owner_key = owner_key

    def name(self, request: Request, caller: Caller) -> None:
        """Count a call for the user that its body names. Raise ApiError (429) if it is one too many; it is not open then."""
        if request.owner_key != (caller.key_id, caller.user):
            self.leave(request)
            self.enter(request, caller)

    def enter_by_ticket(self, request: Request, task_id: str) -> None:
        """Count a stream by a task's link as open, until `leave`. Raise ApiError (429) if it is one too many."""
        sentence = f"This task has {MAX_TICKET_READERS} streams open by its link; close some"
        request.owner_key = self._add(request, (None, task_id), MAX_TICKET_READERS, sentence)

    def enter_for_owner(self, request: Request, key_id: str, user: str) -> None:
        """Count a stream by a task's link also among those of the task's owner, until `leave`.

        They have a count of their own, so that readers by links do not block the owner's calls. The task's record has the owner,
        the ticket does not. Raise ApiError (429) if it is one too many.
        """
        sentence = (
            f"The links of this task's owner have {self.max_open} streams open in this gateway; close some"
        )
        request.link_owner = self._add(request, (LINKS + key_id, user), self.max_open, sentence)

    def _add(self, request: Request, owner_key: OwnerKey, limit: int, too_many: str) -> OwnerKey:
        calls = self._open.setdefault(owner_key, set())
        if len(calls) >= limit:
            raise too_many_calls(too_many)
        calls.add(request)
        return owner_key

    def leave(self, request: Request) -> None:
        """End the count of a call whose answer is over."""
        owner_keys = request.owner_key, request.link_owner
        request.owner_key = request.link_owner = None
        for owner_key in owner_keys:
            if owner_key is not None:
                calls = self._open[owner_key]
                calls.discard(request)
                if not calls:
                    del self._open[owner_key]

    def used(self) -> set[str]:
        """Return the keys whose calls were opened since the last call of this."""
        used, self._used = self._used, set()
        return used

    def revoke(self, is_valid: Callable[[Caller], bool]) -> int:
        """End the calls of callers that are no longer valid. Return their number."""
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
    return ApiError(429, "TOO_MANY_CALLS", message, retry_after_ms=RETRY_MS)
