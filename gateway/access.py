"""Who may make a call: asked in one place, before anything else of a call is done."""

import enum

import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.opencalls import OpenCalls
from fairlane.gateway.accounts.tickets import Tickets
from fairlane.gateway.accounts.tokens import TokenForbids
from fairlane.gateway.calls.http import Request
from fairlane.gateway.current import Current
from fairlane.gateway.errors import ApiError, bad_request, link_refused
from fairlane.gateway.going import Going
from fairlane.gateway.settings import Scope

log = structlog.get_logger("fairlane.gateway")

USER_HEADER = b"x-fairlane-user"


class Access(enum.StrEnum):
    """What a call asks for."""

    OPEN = "open"
    """Nothing: probes come from anywhere."""
    PAGE = "page"
    """No key, but an open gateway shows no page to strangers."""
    READER = "reader"
    """A key of the scope `call`, or a ticket for the task."""
    CALLER = "caller"
    """A key of the scope `call`."""
    KEY = "key"
    """Any key."""
    VIEWER = "viewer"
    """A key of this scope; and so on."""
    METRICS = "metrics"
    ADMIN = "admin"


_SCOPES: dict[Access, Scope] = {
    Access.READER: "call",
    Access.CALLER: "call",
    Access.VIEWER: "viewer",
    Access.METRICS: "metrics",
    Access.ADMIN: "admin",
}
"""What the key must be for."""


class Entrance:
    """Lets callers in."""

    def __init__(self, current: Current, tickets: Tickets, calls: OpenCalls, going: Going) -> None:
        self._current = current
        self._tickets = tickets
        self._going = going
        self.calls = calls
        self._unheeded: set[str] = set()
        """Keys of which the log has said that their users are not heeded."""

    def let_in(self, request: Request, access: Access, submits: bool) -> Caller | None:
        """Who makes this call, which is open from now on (`calls.leave` ends it); None where no key is asked for, and for a
        reader with a ticket.

        Raises ApiError: 401, 403, 429, 503.
        """
        if access is Access.OPEN:
            return None
        callers = self._current.callers
        refused = callers.refuse_request(request)
        if refused is not None:
            raise ApiError(403, "FORBIDDEN", refused)
        if access is Access.PAGE:
            return None
        if submits and self._going.begun:
            raise self._going.refusal()
        if access is Access.READER:
            return self._reader(request)
        caller = self._who(request)
        if not request.plain:
            self._notice_user(request, caller)
        _check_scope(caller, access)
        self.calls.enter(request, caller, unnamed=submits and caller.unnamed)
        return caller

    def _notice_user(self, request: Request, caller: Caller) -> None:
        """Say once of each key that its callers name users whom nobody believes: they all count as one."""
        if caller.delegating or caller.key_id in self._unheeded or request.header(USER_HEADER) is None:
            return
        self._unheeded.add(caller.key_id)
        log.warning(
            "X-Fairlane-User is ignored: the key is not delegating, so all its users are one",
            key_id=caller.key_id,
        )

    def still_viewer(self, request: Request) -> bool:
        """Whether the key of a call that goes on may see what operators see still."""
        try:
            return self._who(request).holds("viewer")
        except ApiError:
            return False

    def _who(self, request: Request) -> Caller:
        """Return the caller of a request. Raise ApiError."""
        callers = self._current.callers
        if callers.open and request.plain:
            return callers.anybody
        return callers.authenticate(request.proof)

    def _reader(self, request: Request) -> Caller | None:
        """Who reads a task's events: None for the holder of a ticket for it."""
        task_id = request.path_params.get("task_id") or request.query("taskId") or ""
        request.path_params["task_id"] = task_id
        token = request.query("token")
        if token is not None:
            if self._tickets.expiry(token, task_id) is None:
                raise link_refused()
            self.calls.enter_by_ticket(request, task_id)
            return None  # whether its time is over, the call looks itself
        caller = self._who(request)
        _check_scope(caller, Access.READER)
        if not task_id:
            raise bad_request("The query must name a task: ?taskId=…", "taskId")
        self.calls.enter(request, caller)
        return caller


def _check_scope(caller: Caller, access: Access) -> None:
    """Raise ApiError(403) for a key that is not for such a call."""
    scope = None if caller.admin else _SCOPES.get(access)
    if scope is None or caller.holds(scope):
        return
    sentence = (
        "a key with admin: true" if scope == "admin" else f"a key with the scope {scope}, or with admin: true"
    )
    refused = ApiError(403, "FORBIDDEN", f"This call needs {sentence}")
    if caller.claims:
        refused = TokenForbids(refused.message)
        refused.facts = {"key_id": caller.key_id, "user": caller.user}
    raise refused
