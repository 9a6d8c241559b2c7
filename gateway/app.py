"""The ASGI application: finds the call, the caller, and the shape in which errors are told.

The calls are plain ASGI without a framework between: what is not needed per request is not paid per request.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from fairlane.gateway.api import (
    admin,
    admin_feed,
    admin_tasks,
    admin_workers,
    health,
    limits,
    metrics,
    native,
    openai,
    pages,
)
from fairlane.gateway.callers import Caller
from fairlane.gateway.errors import (
    ApiError,
    ClientGone,
    bad_request,
    native_answer,
    no_such_path,
    openai_answer,
    speaks_openai,
    unauthorized,
)
from fairlane.gateway.http import CROWDED, JSON, Receive, Request, Scope, Send
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.tracing import end_request, trace_request
from fairlane.web.pages import PAGES

log = structlog.get_logger("fairlane.gateway")

Call = Callable[[Gateway, Caller, Request], Awaitable[None]]
OpenCall = Callable[[Gateway, Request], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Route:
    """One call. `access`: caller, admin, reader (a key or a stream ticket), page (no key), open (nothing is asked)."""

    call: Callable[..., Awaitable[None]]
    access: str
    submits: bool = False


EXACT: dict[tuple[str, str], Route] = {
    ("POST", "/v1/chat/completions"): Route(openai.chat_completions, "caller", True),
    ("POST", "/v1/completions"): Route(openai.completions, "caller", True),
    ("POST", "/v1/embeddings"): Route(openai.embeddings, "caller", True),
    ("GET", "/v1/models"): Route(openai.models, "caller"),
    ("POST", "/api/openai"): Route(native.openai, "caller", True),
    ("POST", "/api/tasks"): Route(native.tasks, "caller", True),
    ("GET", "/api/sse-stream"): Route(native.events, "reader"),
    ("GET", "/api/admin/state"): Route(admin.state, "admin"),
    ("GET", "/api/admin/audit"): Route(limits.audit, "admin"),
    ("GET", "/api/admin/feed"): Route(admin_feed.feed, "admin"),
    ("GET", "/api/admin/history"): Route(admin_feed.history, "admin"),
    ("GET", "/api/admin/tasks"): Route(admin_tasks.search, "admin"),
    ("GET", "/metrics"): Route(metrics.metrics, "admin"),
    ("GET", "/health/live"): Route(health.live, "open"),
    ("GET", "/health/ready"): Route(health.ready, "open"),
    ("HEAD", "/health/live"): Route(health.live, "open"),
    ("HEAD", "/health/ready"): Route(health.ready, "open"),
    ("GET", "/api/caller"): Route(pages.caller, "caller"),
    **{(method, path): Route(pages.page, "page") for path in PAGES for method in ("GET", "HEAD")},
}
PATTERNS: list[tuple[str, re.Pattern[str], Route]] = [
    ("GET", re.compile(r"/api/task/(?P<task_id>[^/]+)"), Route(native.status, "caller")),
    ("POST", re.compile(r"/api/task/(?P<task_id>[^/]+)/cancel"), Route(native.cancel, "caller")),
    ("GET", re.compile(r"/api/task/(?P<task_id>[^/]+)/events"), Route(native.events, "reader")),
    ("GET", re.compile(r"/v1/models/(?P<model>.+)"), Route(openai.model, "caller")),
    ("GET", re.compile(r"/api/admin/tasks/(?P<task_id>[^/]+)"), Route(admin_tasks.detail, "admin")),
    ("POST", re.compile(r"/api/admin/tasks/(?P<task_id>[^/]+)/cancel"), Route(admin_tasks.cancel, "admin")),
    (
        "POST",
        re.compile(r"/api/admin/workers/(?P<worker_id>[^/]+)/drain"),
        Route(admin_workers.drain, "admin"),
    ),
    ("GET", re.compile(r"/static/.+"), Route(pages.page, "page")),
    ("HEAD", re.compile(r"/static/.+"), Route(pages.page, "page")),
    ("PATCH", re.compile(r"/api/admin/queues/(?P<name>[^/]+)"), Route(limits.change_queue, "admin")),
    ("PATCH", re.compile(r"/api/admin/models/(?P<name>.+)"), Route(limits.change_model, "admin")),
]
MAX_PATH = 2048
CROWDED_AGAIN_MS = 1000
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_GROUP = re.compile(r"\(\?P<(\w+)>[^)]*\)")


class App:
    """The application around one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # not a coroutine itself, nor is `_begin`: every frame costs a quiet stream 300 bytes
        if scope["type"] == "http":
            return self._http(Request(scope, receive, send))
        return self._websocket(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["query_string"] = b""  # uvicorn would log it, and it may hold a secret
        if scope["path"] == "/ws":
            await self._gateway.workers(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "workers connect to /ws"})

    async def _http(self, request: Request) -> None:
        try:
            await self._begin(request)
        except ClientGone:
            pass  # nobody reads an answer; its task was cancelled or goes on, as the caller wished
        except ApiError as error:
            if request.started:
                raise
            error.__context__ = None
            await self._refuse(request, error.with_traceback(None))  # whose frames may hold a large body
        except Exception:
            # the task, if there is one, ends by its own rules; the caller is told that we failed
            log.exception("a call failed", path=request.path, method=request.scope["method"])
            if request.started:
                raise
            await self._refuse(request, ApiError(500, "INTERNAL", "Internal error"))
        finally:
            method = request.scope["method"]
            self._gateway.calls.leave(request)
            self._gateway.measures.answered(
                method if method in METHODS else "other",
                request.route,
                request.status,
                time.monotonic() - request.began,
            )
            if request.span is not None:
                end_request(request.span, request.status)

    def _begin(self, request: Request) -> Awaitable[None]:
        """The call that answers, after everything that is asked of a request before. Raises ApiError."""
        route = self._route(request)
        gateway = self._gateway
        if route.access == "open":
            return route.call(gateway, request)
        if gateway.tracer is not None and route.submits:
            request.span = trace_request(gateway.tracer, request)
        refused = gateway.callers.refuse_request(request)
        if refused is not None:
            raise ApiError(403, "FORBIDDEN", refused)
        if route.access == "page":
            return route.call(gateway, request)
        if route.submits and gateway.draining:
            raise gateway.going()
        if route.access == "reader":
            return route.call(gateway, self._reader(request), request)
        caller = gateway.callers.authenticate(request.header)
        if route.access == "admin":
            if not caller.admin:
                raise ApiError(403, "FORBIDDEN", "This call needs a key with admin: true")
        else:
            self._admit(request, caller)
        gateway.calls.enter(request, caller)
        return route.call(gateway, caller, request)

    def _reader(self, request: Request) -> Caller | None:
        """Who reads a task's events: None for the holder of a ticket for it."""
        task_id = request.path_params.get("task_id") or request.query("taskId") or ""
        request.path_params["task_id"] = task_id
        token = request.query("token")
        if token is not None:
            if self._gateway.tickets.expiry(token, task_id) is None:
                raise unauthorized()
            self._admit(request, None)
            self._gateway.calls.enter_by_ticket(request, task_id)
            return None  # whether its time is over, the call looks itself
        caller = self._gateway.callers.authenticate(request.header)
        if not task_id:
            raise bad_request("The query must name a task: ?taskId=…", "taskId")
        self._admit(request, caller)
        self._gateway.calls.enter(request, caller)
        return caller

    def _admit(self, request: Request, caller: Caller | None) -> None:
        """Turn away whoever is not an operator while the connections that are left are kept for those. Raises ApiError (503)."""
        if CROWDED in request.scope and (caller is None or caller.open or not caller.admin):
            self._gateway.connections.refused("caller", asyncio.get_running_loop().time())
            raise ApiError(
                503,
                "TOO_MANY_CONNECTIONS",
                "This gateway has too many connections",
                retry_after_ms=CROWDED_AGAIN_MS,
            )

    def _route(self, request: Request) -> Route:
        method, path = request.scope["method"], request.path
        route = EXACT.get((method, path))
        if route is not None:
            request.route = path
            return route
        if len(path) > MAX_PATH:
            raise ApiError(414, "PATH_TOO_LONG", "The path is too long")
        allowed = [known for known, exact in EXACT if exact == path]
        for known, pattern, route in PATTERNS:
            match = pattern.fullmatch(path)
            if match:
                if known == method:
                    request.path_params = match.groupdict()
                    request.route = _GROUP.sub(r"{\1}", pattern.pattern)
                    return route
                allowed.append(known)
        if allowed:
            methods = sorted(set(allowed))
            raise ApiError(
                405,
                "METHOD_NOT_ALLOWED",
                f"Use {' or '.join(methods)} for this path",
                headers=[(b"allow", ", ".join(methods).encode())],
            )
        if path == "/ws":
            raise ApiError(
                426,
                "UPGRADE_REQUIRED",
                "Workers connect to this path by WebSocket",
                headers=[(b"upgrade", b"websocket"), (b"connection", b"upgrade")],
            )
        raise no_such_path(method, path)

    async def _refuse(self, request: Request, error: ApiError) -> None:
        answer = openai_answer(error) if speaks_openai(request.path) else native_answer(error)
        await request.respond(answer.status, answer.body, [JSON, *answer.headers])


def with_cors(app: App, origins: list[str]) -> Any:
    """The application, open to the web pages of other origins that the configuration names."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # noqa: PLC0415 - only where it is wanted

    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=[
            *("X-Task-Id", "X-Request-Id", "Retry-After", "Retry-After-Ms", "X-Replay-From"),
            *("X-Fairlane-Waited-Ms", "X-Fairlane-Ran-Ms"),
        ],
    )
