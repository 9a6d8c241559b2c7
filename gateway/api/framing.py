"""What FastAPI's routes are given, and how the hot calls appear in its document."""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Response
from fastapi import Request as Framed
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel, TypeAdapter

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.models.base import REF
from fairlane.gateway.api.models.messages import AnthropicError
from fairlane.gateway.api.models.refusals import NativeError, OpenAIError
from fairlane.gateway.calls.bodies import Bodies, parse_values
from fairlane.gateway.calls.http import Request
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.metrics.scrape import Scrape
from fairlane.gateway.operator.audit import actor_of
from fairlane.gateway.operator.operator import Operator
from fairlane.gateway.records.reports import UsageReports
from fairlane.gateway.watch.health import Health
from fairlane.queues.actor import Actor

REQUEST = "fairlane.request"
"""Where the ASGI scope of a framed call holds our `Request`."""
MAX_BODY_BYTES = 16 * 1024
"""Of a call that submits no task, if nothing else is said."""
NO_STORE = {"cache-control": "no-store"}

KEY = HTTPBearer(auto_error=False, scheme_name="key", description="A key; an open gateway asks for none.")
"""Named in the document; who may call, `access` has found before."""
SIGNED_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "A token that a back end has signed with its key, for one of its users: docs/signing.md.",
}
SIGNED_REQUEST = {
    "type": "apiKey",
    "in": "header",
    "name": "Authorization",
    "description": "The request is signed as a whole, which is good once: "
    "`Fairlane-HMAC-SHA256 keyid=…,ts=…,nonce=…,body=…,signature=…`: docs/signing.md.",
}


def describe_proofs(document: dict[str, Any]) -> None:
    """Say in a document what stands in place of a key, at each call that wants one."""
    document["components"]["securitySchemes"] |= {
        "signedToken": SIGNED_TOKEN,
        "signedRequest": SIGNED_REQUEST,
    }
    for path in document["paths"].values():
        for operation in path.values():
            if "security" in operation:
                others = (
                    ["signedRequest"]
                    if "operators" in operation["tags"]
                    else ["signedToken", "signedRequest"]
                )
                operation["security"] += [{name: []} for name in others]


class Body:
    """The body of a call that submits no task; it is read when it is asked for."""

    def __init__(self, request: Request, bodies: Bodies) -> None:
        self._request = request
        self._bodies = bodies

    async def fields(self, most: int = MAX_BODY_BYTES) -> dict[str, Any]:
        """The members of its JSON, of so many bytes at most, as Python values. Raises ApiError, and ClientGone."""
        return parse_values(await self._request.json_body(most, self._bodies.arriving))


# (coroutines: FastAPI calls what is none in a thread)


async def _operator(request: Framed) -> Operator:
    operator: Operator = request.app.gateway.operator
    return operator


async def _health(request: Framed) -> Health:
    health: Health = request.app.gateway.health
    return health


async def _scrape(request: Framed) -> Scrape:
    scrape: Scrape = request.app.gateway.scrape
    return scrape


async def _usage(request: Framed) -> UsageReports:
    usage: UsageReports = request.app.gateway.records.usage
    return usage


async def _request(request: Framed) -> Request:
    ours: Request = request.scope[REQUEST]
    return ours


async def _body(request: Framed) -> Body:
    return Body(request.scope[REQUEST], request.app.gateway.tasks.bodies)


async def _exact(request: Framed) -> None:
    """Refuse parameters of the query that the call does not have. Raises ApiError(400)."""
    ours: Request = request.scope[REQUEST]
    ours.check_query(*_parameters_of(request.scope["route"].dependant))


def _parameters_of(call: Dependant) -> Iterator[str]:
    yield from (field.alias for field in call.query_params)
    for other in call.dependencies:
        yield from _parameters_of(other)


async def _caller(request: Framed) -> Caller:
    caller = request.scope[REQUEST].caller
    assert isinstance(caller, Caller)
    return caller


async def _actor(request: Framed) -> Actor:
    ours: Request = request.scope[REQUEST]
    return actor_of(await _caller(request), ours.address)


EXACT = Depends(_exact)
TheActor = Annotated[Actor, Depends(_actor)]
TheOperator = Annotated[Operator, Depends(_operator)]
TheHealth = Annotated[Health, Depends(_health)]
TheScrape = Annotated[Scrape, Depends(_scrape)]
TheUsage = Annotated[UsageReports, Depends(_usage)]
TheRequest = Annotated[Request, Depends(_request)]
TheBody = Annotated[Body, Depends(_body)]
TheCaller = Annotated[Caller, Depends(_caller)]


_encode = msgspec.json.Encoder(decimal_format="number").encode


def answer(body: Any, headers: Mapping[str, str] = NO_STORE, status: int = 200) -> Response:
    """JSON. The models of an answer describe it and are not run: what another release of a replica tells must not make a 500."""
    encoded = body if isinstance(body, bytes) else _encode(body)
    return Response(encoded, status, media_type="application/json", headers=dict(headers))


CODES: Mapping[int, Sequence[str]] = {
    401: ("UNAUTHORIZED", "TOKEN_EXPIRED"),
    403: ("FORBIDDEN",),
    429: ("TOO_MANY_CALLS", "TOO_MANY_AHEAD"),
    503: ("STORE_UNAVAILABLE", "DATABASE_UNAVAILABLE", "TOO_MANY_CONNECTIONS"),
}
"""Of the refusals of any call."""
CODES_OF_SUBMIT: Mapping[int, Sequence[str]] = {
    403: ("TOKEN_USED_UP",),
    410: ("IDEMPOTENCY_RESULT_GONE",),
    422: ("IDEMPOTENCY_KEY_REUSED",),
    429: ("RATE_LIMITED", "INSUFFICIENT_QUOTA", "USER_QUEUE_FULL", "TOO_MANY_IDEMPOTENCY_KEYS"),
    503: (
        "QUEUE_FULL",
        "WAIT_TOO_LONG",
        "NO_WORKER",
        "MODEL_UNAVAILABLE",
        "OUTBOX_FULL",
        "GATEWAY_STOPPING",
        "BUSY",
    ),
    529: ("QUEUE_FULL", "WAIT_TOO_LONG", "MODEL_TOO_BUSY"),
}
"""And of a submission besides."""
CODES_OF_REPORT: Mapping[int, Sequence[str]] = {503: ("REPORT_TOO_LONG",)}
"""And of what the SQL database is asked for at length."""
CODES_OF_FILES: Mapping[int, Sequence[str]] = {
    404: ("FILE_NOT_FOUND", "FILES_OFF"),
    429: ("TOO_MANY_FILES",),
    503: ("STORAGE_UNAVAILABLE", "FILE_LOST", "BUSY"),
    507: ("STORAGE_FULL",),
}
"""And of what brings, tells or reads files, or makes a batch of one."""
REFUSALS = (NativeError, OpenAIError, AnthropicError)
"""The shapes that refusals have, of which the document has one each."""
OPENAI_CODES = {
    "RATE_LIMITED": "rate_limit_exceeded",
    "INSUFFICIENT_QUOTA": "insufficient_quota",
    "UNAUTHORIZED": "invalid_api_key",
}
"""What these are called on /v1."""


def refusals(
    *statuses: int,
    openai: bool = False,
    submits: bool = False,
    reports: bool = False,
    files: bool = False,
    model: Any = None,
) -> dict[int | str, dict[str, Any]]:
    """The answers of a call that are refusals, for the document: of some the codes, too. `model`: if it is none of ours, nor
    OpenAI's."""
    model = model or (OpenAIError if openai else NativeError)
    more = CODES_OF_SUBMIT if submits else CODES_OF_REPORT if reports else CODES_OF_FILES if files else {}
    told: dict[int | str, dict[str, Any]] = {status: _of_shape(model) for status in sorted(statuses)}
    for status in told.keys() & (CODES.keys() | more.keys()):
        codes = [*CODES.get(int(status), ()), *more.get(int(status), ())]
        names = (OPENAI_CODES.get(code, code) if openai else code for code in codes)
        where = "details.error_code" if model is AnthropicError else "code"
        told[status]["description"] = f"`{where}`: {', '.join(names)}"
    return told


def keyed_router(tag: str, *, exact: bool = False, reports: bool = False) -> APIRouter:
    """Calls that want a key where keys are configured. `exact`: they refuse parameters of the query that they do not have;
    `reports`: the SQL database is asked at length."""
    proofs = [Depends(KEY), EXACT] if exact else [Depends(KEY)]
    return APIRouter(
        tags=[tag], dependencies=proofs, responses=refusals(400, 401, 403, 429, 503, reports=reports)
    )


def _of_shape(model: Any) -> dict[str, Any]:
    """An answer of a shape. FastAPI would make the shape anew for each answer: a fifth of a second in all."""
    if model not in REFUSALS:
        return {"model": model}
    return {"content": {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}}


def refusal_schemas() -> dict[str, Any]:
    """The parts of the document that refusals name."""
    _, definitions = TypeAdapter.json_schemas(
        [(model.__name__, "serialization", TypeAdapter[Any](model)) for model in REFUSALS], ref_template=REF
    )
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def invalid(error: RequestValidationError) -> ApiError:
    """What is wrong with a parameter, in our words."""
    detail = error.errors()[0]
    name = str(detail["loc"][-1])
    sentence = str(detail["msg"]).removeprefix("Input ").removeprefix("Value error, ")
    return bad_request(f"{name} {sentence[:200]}", name)


Handler = Callable[..., Awaitable[None]]


class HotRoute(APIRoute):
    """A call that is raw ASGI: found and carried out before FastAPI, which describes it only.

    `call(tasks, caller, request)` answers. `parameters`: path, query and headers, annotated as FastAPI wants them; `body`: the
    body's model. `any_method`: others answer the same, and are not described. `description`, like the rest, is FastAPI's: what a
    caller reads in the document.
    """

    def __init__(
        self,
        method: str,
        path: str,
        call: Handler,
        access: Access,
        *,
        submits: bool = False,
        any_method: bool = False,
        body: type[BaseModel] | None = None,
        parameters: Mapping[str, Any] | None = None,
        **described: Any,
    ) -> None:
        self.method = method
        self.call = call
        self.access = access
        self.submits = submits
        self.any_method = any_method

        async def endpoint(**_: Any) -> None:
            raise NotImplementedError("the application finds hot calls before FastAPI")

        signature = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
            for name, annotation in {**(parameters or {}), **({"body": body} if body else {})}.items()
        ]
        endpoint.__name__ = call.__name__
        endpoint.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        proofs = [] if access is Access.OPEN else [Depends(KEY)]
        super().__init__(path, endpoint, methods=[method], dependencies=proofs, **described)
