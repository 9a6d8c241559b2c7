"""The FastAPI application: its routers, its document, and the handler of each call.

Operators', account and page calls are FastAPI's. The hot calls are raw ASGI: they are found by one look-up and pay for nothing
that stands between. Access, failures, request ids and metrics are the same for both, in one place: `_http`.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
import structlog
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import iter_route_contexts

from fairlane import __version__
from fairlane.gateway.access import Access
from fairlane.gateway.accounts import me as account
from fairlane.gateway.accounts import routes as accounts
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.admin import routes as admin
from fairlane.gateway.api import native, pages, probes, routes
from fairlane.gateway.api.calls import Call, Calls
from fairlane.gateway.api.dependencies import REQUEST, complete, components, invalid
from fairlane.gateway.api.raw_routes import RawRoute
from fairlane.gateway.audit import routes as audit
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.database.errors import DatabaseUnavailable
from fairlane.gateway.errors import (
    AnswerCut,
    ApiError,
    ClientGone,
    InsufficientQuota,
    InvalidToken,
    TaskFailed,
    TokenForbids,
    anthropic_answer,
    database_unavailable,
    native_answer,
    openai_answer,
    speaks_openai,
    store_unavailable,
)
from fairlane.gateway.features import route_modules
from fairlane.gateway.http.rate_limits import LIMIT_HEADERS
from fairlane.gateway.http.request import JSON, AnswerBroken, Message, Receive, Request, Scope, Send
from fairlane.gateway.http.tracing import end_request, trace_request
from fairlane.gateway.openai import routes as openai
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.usage import routes as usage
from fairlane.queues.errors import StoreError
from fairlane.queues.logs.redaction import without_paths
from fairlane.queues.metrics import HTTP_REQUESTS

log = structlog.get_logger("fairlane.gateway")

CORE = (*(admin, accounts, usage, audit), *(openai, native, account, routes, probes, pages))
"""The modules of the core with routes."""
EXPOSED = (
    *("X-Task-Id", "X-Request-Id", "Request-Id", "Retry-After", "Retry-After-Ms", "X-Should-Retry"),
    *(
        "Idempotency-Replayed",
        "X-Replay-From",
        "X-Fairlane-Waited-Ms",
        "X-Fairlane-Ran-Ms",
        "X-Fairlane-Model",
    ),
    *("OpenAI-Processing-Ms", "Content-Range", "Content-Disposition", "Accept-Encoding"),
)
"""Headers of answers that pages of other origins can read, in addition to those of limits."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
ABOUT = """Submit work to models that are shared fairly, and read it as it comes. Errors of `/v1` have OpenAI's shape, others
`{"error", "code"}`. Where keys are configured every call but health and pages wants one, or a token that one has signed:
`Authorization: Bearer <key>`."""


@dataclass(frozen=True, slots=True)
class Surface:
    """The calls of an application: the same for each with the same features."""

    modules: Sequence[ModuleType]
    raw: Sequence[RawRoute]
    routers: Sequence[tuple[APIRouter, Access]]
    calls: Calls


@cache
def surface(disabled: frozenset[str]) -> Surface:
    """Return the calls of the core, and of the features that are not disabled."""
    modules = (*CORE, *route_modules(disabled))
    raw = [route for module in modules for route in getattr(module, "ROUTES", ())]
    routers = [pair for module in modules for pair in getattr(module, "ROUTERS", ())]
    calls = Calls(disabled)
    for route in raw:
        call = Call(
            route.path.replace(":path}", "}"), route.access, route.call, route.submits, route.any_method
        )
        calls.add(route.method, route.path, call)
    for router, access in routers:
        for context in iter_route_contexts(router.routes):
            for method in context.methods or ():
                reads = access is Access.ADMIN and method == "GET"
                call = Call(str(context.path_format), Access.VIEWER if reads else access)
                calls.add(method, str(context.path), call)
    return Surface(modules, raw, routers, calls)


class App(FastAPI):
    """The application around one gateway."""

    def __init__(self, gateway: Gateway, disabled: frozenset[str] = frozenset()) -> None:
        """`disabled`: the features whose calls are left out."""
        super().__init__(
            title="Fairlane",
            version=__version__,
            description=ABOUT,
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        self.gateway = gateway
        self.surface = surface(disabled)
        self.calls = self.surface.calls
        self._document: asyncio.Task[bytes] | None = None
        for router, _ in self.surface.routers:
            # `include_router` would make each route again, for every application: 50 ms within the first call of a router
            self.router.routes.extend(router.routes)

    def openapi(self) -> dict[str, Any]:
        """Return the document of all calls, with the events of a task. Each call builds it again: `document` caches it."""
        self.openapi_schema = None
        document = super().openapi()
        for route in self.surface.raw:
            entry = document["paths"].setdefault(route.path.replace(":path}", "}"), {})
            entry[route.method.lower()] = route.operation()
        document["components"]["schemas"] = components(self.surface.modules)
        complete(document)
        return document

    async def document(self) -> bytes:
        """Return the same as JSON. The first request builds it in a thread, since this takes a quarter of a second during which
        streams must continue. (Two threads that build it at the same time would disturb each other's warning filters.)
        """
        made = self._document
        if made is None or (
            made.done() and (made.cancelled() or made.exception() is not None)
        ):  # build it again after a failure
            make = asyncio.to_thread(lambda: msgspec.json.encode(self.openapi()))
            self._document = asyncio.create_task(make, name="document")
        assert self._document is not None
        return await asyncio.shield(
            self._document
        )  # a request that is cancelled does not cancel it for the others

    def build_middleware_stack(self) -> Any:
        """Return only the router: `_http` turns the failures of all calls into responses."""
        return AsyncExitStackMiddleware(self.router)

    def __call__(  # type: ignore[override]
        self, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        # not a coroutine itself: every frame costs a quiet stream 300 bytes
        if scope["type"] == "http":
            return self._http(Request(scope, receive, send))
        return self._websocket(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["query_string"] = b""  # uvicorn would log it, and it may hold a secret
        if scope["path"] == "/ws":
            await self.gateway.workers(scope, receive, send)
        else:
            await receive()
            sentence = "This path speaks HTTP alone, without an upgrade; workers connect to /ws by WebSocket"
            answer = openai_answer(
                ApiError(426, "UPGRADE_REQUIRED", sentence, headers=[(b"upgrade", b"HTTP/1.1")])
            )
            headers = [JSON, (b"content-length", b"%d" % len(answer.body)), *answer.headers]
            await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": answer.body})

    async def _http(self, request: Request) -> None:
        """Find the call of a request, authorize it and answer it. Whatever it raises becomes an answer."""
        gateway = self.gateway
        try:
            call = self.calls.exact.get((request.method, request.path)) or self._find(request)
            request.route, request.submits = call.path, call.submits
            if gateway.tracer is not None and call.submits:
                request.span = trace_request(gateway.tracer, request)
            caller = gateway.authorizer.authorize(request, call.access, call.submits)
            await (call.answer or self._call_fastapi)(gateway.tasks, caller, request)
        except ClientGone:
            pass  # no client is left; its task was cancelled or continues, as the caller chose
        except AnswerCut:
            pass  # the server cuts an incomplete response; its failure has its own log line
        except Exception as error:
            answered = self._api_error(request, error)
            if request.started:
                raise AnswerBroken(request.id.decode()) from error
            answered.__context__ = None
            await self._answer_error(
                request, answered.with_traceback(None)
            )  # its frames may hold a large body
        finally:
            method = request.method
            gateway.authorizer.calls.leave(request)
            seconds = time.monotonic() - request.began
            known = method if method in METHODS else "other"
            gateway.metrics.observe(HTTP_REQUESTS, seconds, known, request.route, str(request.status))
            if request.span is not None:
                end_request(request.span, request.status)

    def _find(self, request: Request) -> Call:
        """Return the call of a request, and set its parameters. If its path has none, try it without its last slashes."""
        method = request.method
        try:
            call, request.path_params = self.calls.find(method, request.path)
            return call
        except ApiError as error:
            bare = request.path.rstrip("/")
            if error.status != 404 or not bare or bare == request.path:
                raise
            try:
                call, request.path_params = self.calls.find(method, bare)
            except ApiError as other:
                raise (error if other.status == 404 else other) from None
            request.path = request.scope["path"] = bare
            return call

    async def _call_fastapi(self, _tasks: Tasks, caller: Caller | None, request: Request) -> None:
        """Answer a call that is a route of FastAPI. A viewer sees the origins of URLs only: the rest may be a secret."""
        hides = caller is not None and not caller.admin and request.route.startswith("/api/admin/")

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.started, request.status = True, message["status"]
                message["headers"] = request.complete(message["headers"])
                if hides:  # the body becomes shorter
                    message["headers"] = [pair for pair in message["headers"] if pair[0] != b"content-length"]
            elif hides:
                message["body"] = without_paths(message.get("body", b""))
            await request.send(message)

        scope = {**request.scope, REQUEST: request}
        try:
            await super().__call__(scope, request.receive, send)
        finally:
            scope.clear()  # what FastAPI keeps there leads back to it, and would be left to the collector

    def _api_error(self, request: Request, error: Exception) -> ApiError:
        """Return a failure as the error that the caller receives."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, RequestValidationError):
            return invalid(error)
        if isinstance(error, DatabaseUnavailable):
            changes = request.method != "GET"
            away = database_unavailable(submits=request.submits, changes=changes, unchanged=error.unchanged)
            away.facts = {"cause": str(error)}
            if request.path.startswith("/api/admin/"):
                away.why = str(error)
            return away
        if isinstance(error, StoreError):
            unavailable = store_unavailable(self.gateway.store.longest_down_ms)
            unavailable.facts = {"cause": str(error)}
            if request.path.startswith("/api/admin/"):  # only operators see the reason
                unavailable.why = self.gateway.store.trouble
            return unavailable
        # the task, if there is one, ends by its own rules; the caller gets a 500
        log.exception(
            "a call failed", path=request.path, method=request.method, request_id=request.id.decode()
        )
        return ApiError(500, "INTERNAL", "Internal error")

    def _log_rejection(self, request: Request, error: ApiError) -> None:
        """Log a rejected call that the client may retry, one with an unknown key, and one beyond its token. A failed task has a
        line of its own, other invalid calls have none."""
        metrics, caller = self.gateway.metrics, request.caller
        whose = {} if caller is None else {"key_id": caller.key_id, "user": caller.user}
        where = {"request_id": request.id.decode(), "route": request.route, "address": request.address}
        if error.status == 401 and caller is None and request.key_header:
            why = {"reason": error.message} if isinstance(error, InvalidToken) else {}
            metrics.unknown_key(error.code, **where, **why, **error.facts)
        if isinstance(error, TokenForbids) or error.code == "TOKEN_USED_UP":
            metrics.beyond_token(error.code, **where, reason=error.message, **{**error.facts, **whose})
        if error.status in (429, 503) and not isinstance(error, TaskFailed):
            self.gateway.records.rejections.count(caller.key_id if caller else "", error.code)
            metrics.rejected_call(
                error.code,
                status=error.status,
                request_id=request.id.decode(),
                route=request.route,
                retry_after_ms=error.retry_after_ms,
                reason=error.message,
                **whose,
                **error.facts,
            )

    async def _answer_error(self, request: Request, error: ApiError) -> None:
        self._log_rejection(request, error)
        if isinstance(error, InsufficientQuota) and request.caller and not request.caller.sees_quota:
            error = error.without_amounts()
        request.rate_limits = error.rate_limits or request.rate_limits
        own_param = request.words.get(error.param or "")
        if own_param is not None:
            error.param = own_param
            for name, own in request.words.items():
                error.message = error.message.replace(name, own)
        anthropic = request.anthropic
        openai = not anthropic and speaks_openai(request.path)
        if anthropic:
            answer = anthropic_answer(error, request.id.decode())
        else:
            answer = openai_answer(error) if openai else native_answer(error)
        await request.respond(answer.status, answer.body, [JSON, *answer.headers])


def with_cors(app: App, origins: list[str]) -> Any:
    """Return the application, open to the web pages of other origins that the configuration names."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # noqa: PLC0415 - only where it is wanted

    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=sorted({method for method, _ in app.calls}),
        allow_headers=["*"],
        expose_headers=[*EXPOSED, *LIMIT_HEADERS],
    )
