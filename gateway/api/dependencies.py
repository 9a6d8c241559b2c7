"""The dependencies of FastAPI's routes, and their entries in the OpenAPI document."""

from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, UnionType
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Response
from fastapi import Request as Framed
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from msgspec import Struct
from pydantic import BaseModel

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.admin.operator import Operator
from fairlane.gateway.api.schemas import REF, STRING, Error, body_of, json
from fairlane.gateway.audit.log import actor_of
from fairlane.gateway.core.bodies import parse_values
from fairlane.gateway.error_codes import ERROR_CODES
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.http.request import Request
from fairlane.gateway.usage.queries import PLAIN
from fairlane.queues.overrides import Actor

REQUEST = "fairlane.request"
"""The key of our `Request` in the ASGI scope of FastAPI's calls."""
MAX_BODY_BYTES = 64 * 1024
"""The limit for calls that submit no task: an endpoint's configured headers can be long."""

KEY = HTTPBearer(auto_error=False, scheme_name="key", description="An API key; none in no-auth mode.")
"""For the document alone; `access` has authorized the call before."""
SIGNED_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "A token that a back end has signed for one of its users: docs/apps.md#let-pages-submit-signed-tokens",
}


LIMIT_HEADERS = {
    f"x-ratelimit-{name}-{unit}": {
        "schema": STRING,
        "description": f"With a limit, if it submits a task: {meaning}",
    }
    for unit in ("requests", "tokens")
    for name, meaning in {
        "limit": "the limit with the least left",
        "remaining": "what is left of it",
        "reset": "the time until it is full again, such as 12ms, 1.5s, 6m0s",
    }.items()
}


def complete(document: dict[str, Any]) -> None:
    """Add to a document the headers of limits on `/v1`, signed tokens where calls accept them, and the error codes."""
    document["x-error-codes"] = [row.shown() for row in ERROR_CODES.values()]
    document["components"]["securitySchemes"]["signedToken"] = SIGNED_TOKEN
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                for one in operation["responses"].values():
                    one["headers"] = LIMIT_HEADERS
            if "security" in operation and "operators" not in operation["tags"]:
                operation["security"].append({"signedToken": []})


# (coroutines, because FastAPI calls plain functions in a thread)


def part(kind: type) -> Any:
    """Return the dependency on a part of the gateway, by its class."""

    async def depend(request: Framed) -> Any:
        return request.app.gateway.part(kind)

    return Depends(depend)


async def _request(request: Framed) -> Request:
    ours: Request = request.scope[REQUEST]
    return ours


async def _body(request: Framed) -> dict[str, Any]:
    """Return the members of a JSON body. Raise ApiError and ClientGone."""
    return parse_values(await request.scope[REQUEST].json_body(MAX_BODY_BYTES))


async def _exact(request: Framed) -> None:
    """Reject unknown parameters of the query. Raise ApiError(400)."""
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
ActorDep = Annotated[Actor, Depends(_actor)]
OperatorDep = Annotated[Operator, part(Operator)]
RequestDep = Annotated[Request, Depends(_request)]
BodyDep = Annotated[dict[str, Any], Depends(_body)]
CallerDep = Annotated[Caller, Depends(_caller)]


_encode = msgspec.json.Encoder(decimal_format="number").encode


def answer(body: Any, headers: Mapping[str, str] = {}, status: int = 200) -> Response:
    """Return a JSON answer. It is not validated against its schema, so that data of another release does not cause a 500."""
    encoded = body if isinstance(body, bytes) else _encode(body)
    return Response(encoded, status, media_type="application/json", headers=dict(headers))


def components(modules: Iterable[ModuleType]) -> dict[str, Any]:
    """Return the components of the document: the structs of requests and answers in these modules, and the events of a task."""
    from fairlane.gateway.api import events, schemas  # noqa: PLC0415 - for the document alone

    structs = [
        one
        for module in (schemas, *modules)
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, Struct)
        and one.__module__ == module.__name__
        and not name.startswith("_")
    ]
    _, parts = msgspec.json.schema_components(structs, ref_template=REF)
    return {**parts, **events.components()}


def described(
    id_: str,
    summary: str,
    answer: Any = None,
    *,
    body: type[BaseModel] | UnionType | None = None,
    status: int = 200,
    content: Mapping[str, Any] = {},
    **more: Any,
) -> dict[str, Any]:
    """Return a route's description. `answer`: a struct or a JSON schema; `content`: answers of other types."""
    whole: dict[str, Any] = {**(json(answer) if answer else {}), **content}
    entry: dict[str, Any] = {"responses": {str(status): {"content": whole}}}
    if body:
        entry["requestBody"] = {"required": True, "content": json(body_of(body))}
    return {"operation_id": id_, "summary": summary, "status_code": status, "openapi_extra": entry, **more}


def failed(error: type[Struct]) -> dict[int | str, dict[str, Any]]:
    """Return the entry of the answers that report an error in this shape."""
    return {"default": {"description": "An error", "content": json(error)}}


def keyed_router(tag: str) -> APIRouter:
    """Return a router of calls that want a key where keys are configured. They reject unknown parameters of the query."""
    return APIRouter(tags=[tag], dependencies=[Depends(KEY), EXACT], responses=failed(Error))


def invalid(error: RequestValidationError) -> ApiError:
    """Return the error for an invalid parameter, in our words."""
    detail = error.errors()[0]
    name = str(detail["loc"][-1])
    sentence = str(detail["msg"]).removeprefix("Input ").removeprefix("String ")
    if detail.get("ctx") == {"pattern": PLAIN}:
        sentence = "must hold no control characters"
    return bad_request(f"{name} {sentence[:200]}", name)
