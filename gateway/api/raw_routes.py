"""The description of a raw ASGI call, which bypasses FastAPI, and its entry in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlane.gateway.access import Access
from fairlane.gateway.api.schemas import OBJECT, STRING, Error, OpenAIError, fields, json, ref
from fairlane.gateway.settings import MODES

Json = dict[str, Any]


def sse(data: Json, *, event: bool = False) -> Json:
    """Return the content of a stream of server-sent events with this data."""
    named = {"event": STRING} if event else {}
    return {"text/event-stream": {"itemSchema": fields(**named, data=data)}}


@dataclass(frozen=True, slots=True)
class RawRoute:
    """One call. `call(tasks, caller, request)` answers it; the other members are for the document.

    `answer` is the content of status 200, by media type, and `answers` has other statuses. `any_method`: the call answers all
    methods; the document has `method` alone.
    """

    method: str
    path: str
    call: Callable[..., Awaitable[None]]
    id: str
    summary: str
    description: str = ""
    access: Access = Access.CALLER
    submits: bool = False
    any_method: bool = False
    parameters: Sequence[Json] = ()
    body: Json | None = None
    answer: Json | None = None
    answers: Mapping[str, Json] | None = None
    error: Json | None = None
    tag: str = ""
    """The part of the document; not set: by the path."""

    def operation(self) -> Json:
        """Return the entry of the document."""
        tag, error = ("openai", OpenAIError) if self.path.startswith("/v1/") else ("native", Error)
        answers = {
            "200": {"description": "Success", "content": self.answer or json(OBJECT)},
            **(self.answers or {}),
            "default": {"description": "An error", "content": self.error or json(error)},
        }
        names = [part.partition("}")[0].partition(":")[0] for part in self.path.split("{")[1:]]
        in_path = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in names]
        return {
            "tags": [self.tag or tag],
            "operationId": self.id,
            "summary": self.summary,
            "description": self.description or self.summary,
            "parameters": [*in_path, *self.parameters],
            **({"requestBody": {"required": True, "content": self.body}} if self.body else {}),
            "responses": answers,
            **({} if self.access is Access.OPEN else {"security": [{"key": []}]}),
        }


def form(model: Any) -> Json:
    return {"multipart/form-data": {"schema": ref(model) if isinstance(model, type) else model}}


def _parameter(where: str, name: str, description: str, schema: Json = STRING) -> Json:
    return {"in": where, "name": name, "description": description, "schema": schema}


def query(name: str, description: str, schema: Json = STRING) -> Json:
    return _parameter("query", name, description, schema)


def header(name: str, description: str, schema: Json = STRING) -> Json:
    return _parameter("header", name, description, schema)


def page_size(most: int) -> Json:
    return query("limit", "rows of a page", {"type": "integer", "minimum": 1, "maximum": most})


_MS: Json = {"type": "number", "exclusiveMinimum": 0}
BINARY: Json = {"type": "string", "format": "binary"}
ORDER: Json = {"enum": ["asc", "desc"]}

IDEMPOTENCY_KEY = header(
    "idempotency-key",
    "the same key and body name the same task, which the call joins or replays",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
)
OPTIONS = (
    IDEMPOTENCY_KEY,
    header("x-fairlane-timeout", "ms from the submission to the end", _MS),
    header(
        "x-fairlane-priority",
        "among the user's own tasks; 5 is first",
        {"type": "integer", "minimum": 0, "maximum": 5},
    ),
    header(
        "x-fairlane-mode",
        "a queue of the tier; default: `vision` with an image, else `stream`",
        {"enum": [*MODES]},
    ),
    header(
        "x-fairlane-on-disconnect",
        "what happens if the client disconnects; default: cancel",
        {"enum": ["cancel", "continue"]},
    ),
    header("x-fairlane-result-ttl", "ms", _MS),
    header(
        "x-fairlane-repair",
        "1: retry once if the output does not match its JSON schema",
        {"enum": ["1", "0", "true", "false"]},
    ),
    header("x-fairlane-metadata", "a JSON object of at most 4,096 bytes"),
    header("x-fairlane-user", "for delegating keys"),
    header("x-fairlane-tier", "for delegating keys"),
)
VERSION = header("anthropic-version", "any; the answer has Anthropic's shape")
UNCHANGED = "The worker gets the body unchanged; options of Fairlane are headers."


EVENTS = sse(STRING, event=True)


def submission(
    path: str, call: Callable[..., Awaitable[None]], summary: str, body: Json, answers: Json
) -> RawRoute:
    """Return a call of OpenAI's API that submits a task. `path`: after /v1/; `answers`: those in addition to JSON."""
    return RawRoute(
        *("POST", f"/v1/{path}", call, f"{path.replace('/', '.')}.create", summary),
        description=f"{summary}. {UNCHANGED}",
        access=Access.TASKS,
        submits=True,
        parameters=OPTIONS,
        body=body,
        answer=json(OBJECT) | answers,
    )
