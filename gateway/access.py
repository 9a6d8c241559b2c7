"""Authorizes calls, in one place, before anything else of a call happens."""

import enum

import structlog

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.in_flight import InFlightRequests
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.links import Tickets
from fairlane.gateway.errors import ApiError, TokenForbids, bad_request, invalid_link
from fairlane.gateway.http.request import Request
from fairlane.gateway.lifecycle import Lifecycle
from fairlane.gateway.settings import Scope

log = structlog.get_logger("fairlane.gateway")

USER_HEADER = b"x-fairlane-user"


class Access(enum.StrEnum):
    """What a call requires."""

    OPEN = "open"
    """Nothing: probes come from anywhere."""
    PAGE = "page"
    """No key; without keys, a request from this machine."""
    READER = "reader"
    """A key of the scope `call` or a signed token, or a ticket for the task."""
    TASKS = "tasks"
    """A key of the scope `call`, or a signed token."""
    CALLER = "caller"
    """A key of the scope `call`."""
    KEY = "key"
    """Any key, or a signed token."""
    VIEWER = "viewer"
    """A key of this scope; so below."""
    METRICS = "metrics"
    ADMIN = "admin"


_SCOPES: dict[Access, Scope] = {
    Access.READER: "call",
    Access.TASKS: "call",
    Access.CALLER: "call",
    Access.VIEWER: "viewer",
    Access.METRICS: "metrics",
    Access.ADMIN: "admin",
}
"""The scope that the key needs."""
_FOR_TOKENS = frozenset({Access.READER, Access.TASKS, Access.KEY})
"""What the holder of a signed token can call: a token is for tasks."""


class Authorizer:
    """Authorizes calls and counts them as open."""

    def __init__(
        self, current: ActiveConfig, tickets: Tickets, calls: InFlightRequests, lifecycle: Lifecycle
    ) -> None:
        self._current = current
        self._tickets = tickets
        self._lifecycle = lifecycle
        self.calls = calls
        self._logged: set[str] = set()
        """Keys for which the log says that user names are ignored."""

    def authorize(self, request: Request, access: Access, submits: bool) -> Caller | None:
        """Return the caller, and count the call as open until `calls.leave`. Return None if no key is required, and for a reader
        with a ticket. Raise ApiError: 401, 403, 429, 503."""
        if access is Access.OPEN:
            return None
        callers = self._current.callers
        rejection = callers.reject_request(request.scope, request.headers, is_plain=request.plain)
        if rejection is not None:
            raise ApiError(403, "FORBIDDEN", rejection)
        if access is Access.PAGE:
            return None
        if submits and self._lifecycle.draining:
            raise self._lifecycle.rejection()
        if access is Access.READER:
            return self._reader(request)
        caller = callers.anybody if callers.open and request.plain else callers.authenticate(request.proof)
        if not request.plain:
            self._log_ignored_user(request, caller)
        if not caller.admin or caller.claims is not None:
            _check_scope(caller, access)
        self.calls.enter(request, caller, unnamed=submits and bool(caller.user_from) and caller.unnamed)
        return caller

    def _log_ignored_user(self, request: Request, caller: Caller) -> None:
        """Log once per key that its requests name users although it is not delegating."""
        if caller.delegating or caller.key_id in self._logged or request.header(USER_HEADER) is None:
            return
        self._logged.add(caller.key_id)
        log.warning(
            "X-Fairlane-User is ignored: the key is not delegating, so all its users are one",
            key_id=caller.key_id,
        )

    def still_viewer(self, request: Request) -> bool:
        """Return whether the key of an open call still has the scope `viewer`."""
        try:
            return self._authenticate(request).holds("viewer")
        except ApiError:
            return False

    def _authenticate(self, request: Request) -> Caller:
        """Return the caller of a request. Raise ApiError."""
        callers = self._current.callers
        if callers.open and request.plain:
            return callers.anybody
        return callers.authenticate(request.proof)

    def _reader(self, request: Request) -> Caller | None:
        """Return the caller who reads a task's events; None for the holder of a ticket. Raise ApiError."""
        task_id = request.path_params.get("task_id") or request.query("taskId") or ""
        request.path_params["task_id"] = task_id
        token = request.query("token")
        if token is not None:
            if self._tickets.expiry(token, task_id) is None:
                raise invalid_link()
            self.calls.enter_by_ticket(request, task_id)
            return None  # the call itself checks the expiry
        caller = self._authenticate(request)
        _check_scope(caller, Access.READER)
        if not task_id:
            raise bad_request("The query must name a task: ?taskId=…", "taskId")
        self.calls.enter(request, caller)
        return caller


def _check_scope(caller: Caller, access: Access) -> None:
    """Raise ApiError(403) if the caller's key lacks the scope, and TokenForbids if the call is not for tokens."""
    scope = None if caller.admin else _SCOPES.get(access)
    lacks = scope is not None and not caller.holds(scope)
    sentence = "a key with the scope admin" if scope == "admin" else f"a key with the scope {scope} or admin"
    if caller.claims is not None and (lacks or access not in _FOR_TOKENS):
        rejection = TokenForbids(f"A token submits, reads and cancels tasks. This call needs {sentence}")
        rejection.facts = {"key_id": caller.key_id, "user": caller.user}
        raise rejection
    if lacks:
        raise ApiError(403, "FORBIDDEN", f"This call needs {sentence}")
