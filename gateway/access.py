"""Who may make a call: asked in one place, before anything else of a call is done."""

import asyncio
import enum

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.errors import ApiError, bad_request, unauthorized
from fairlane.gateway.http import CROWDED, Request
from fairlane.gateway.runtime import Gateway

CROWDED_AGAIN_MS = 1000


class Access(enum.Enum):
    """What a call asks for."""

    OPEN = "open"
    """Nothing: probes come from anywhere."""
    PAGE = "page"
    """No key, but an open gateway shows no page to strangers."""
    READER = "reader"
    """A key, or a ticket for the task."""
    CALLER = "caller"
    """A key."""
    ADMIN = "admin"
    """A key with admin: true."""


def let_in(gateway: Gateway, request: Request, access: Access, submits: bool) -> Caller | None:
    """Who makes this call, which is open from now on; None where no key is asked for, and for a reader with a ticket.

    Raises ApiError: 401, 403, 429, 503.
    """
    if access is Access.OPEN:
        return None
    refused = gateway.callers.refuse_request(request)
    if refused is not None:
        raise ApiError(403, "FORBIDDEN", refused)
    if access is Access.PAGE:
        return None
    if submits and gateway.shutdown.begun:
        raise gateway.shutdown.refusal()
    if access is Access.READER:
        return _reader(gateway, request)
    caller = gateway.callers.authenticate(request.header)
    if access is Access.CALLER:
        _admit(gateway, request, caller)
    elif not caller.admin:
        raise ApiError(403, "FORBIDDEN", "This call needs a key with admin: true")
    gateway.calls.enter(request, caller)
    return caller


def _reader(gateway: Gateway, request: Request) -> Caller | None:
    """Who reads a task's events: None for the holder of a ticket for it."""
    task_id = request.path_params.get("task_id") or request.query("taskId") or ""
    request.path_params["task_id"] = task_id
    token = request.query("token")
    if token is not None:
        if gateway.tickets.expiry(token, task_id) is None:
            raise unauthorized()
        _admit(gateway, request, None)
        gateway.calls.enter_by_ticket(request, task_id)
        return None  # whether its time is over, the call looks itself
    caller = gateway.callers.authenticate(request.header)
    if not task_id:
        raise bad_request("The query must name a task: ?taskId=…", "taskId")
    _admit(gateway, request, caller)
    gateway.calls.enter(request, caller)
    return caller


def _admit(gateway: Gateway, request: Request, caller: Caller | None) -> None:
    """Turn away whoever is not an operator while the connections that are left are kept for those. Raises ApiError (503)."""
    if CROWDED in request.scope and (caller is None or caller.open or not caller.admin):
        gateway.connections.refused("caller", asyncio.get_running_loop().time())
        raise ApiError(
            503,
            "TOO_MANY_CONNECTIONS",
            "This gateway has too many connections",
            retry_after_ms=CROWDED_AGAIN_MS,
        )
