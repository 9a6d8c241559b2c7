"""The OpenAPI schemas of the calls for tasks, and of errors.

Bodies of these calls can be large and are read member by member (`gateway/core/bodies.py`); the structs list these members.
Of the requests of OpenAI and Anthropic, they list only the members that the gateway reads: the vendors' references have the rest.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from pydantic import TypeAdapter

from fairlane.gateway.settings.parts import Mode
from fairlane.queues.tasks import State

REF = "#/components/schemas/{name}"
Ms = int
"""Milliseconds; of a time, since 1970."""


def says(text: str) -> Meta:
    """Describe a member."""
    return Meta(description=text)


WaitedFor = Literal["queue", "worker", "cooldown", "model"]
Waited = Annotated[WaitedFor | UnsetType, says("of a task whose time is over; `model`: it ran")]


class Schema(Struct, rename="camel", kw_only=True):
    """A JSON object of the Fairlane API; members may be added."""


def ref(model: type[Struct]) -> dict[str, Any]:
    """Return a reference to a component of the document."""
    return {"$ref": REF.format(name=model.__name__)}


def listed(name: str, model: type[Schema], **more: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a page of rows, which `name` holds; `next` is the `after` of the next page, null at the end."""
    return fields(**{name: rows(model), "next": NULLABLE, **more})


def rows(model: type[Schema]) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": ref(model)}


def fields(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with these members."""
    return {"type": "object", "required": [*properties], "properties": properties}


def json(schema: Any) -> dict[str, Any]:
    """Return the content of a JSON body: of a struct, or of any schema."""
    return {"application/json": {"schema": ref(schema) if isinstance(schema, type) else schema}}


def json_text(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a text that is JSON of a schema."""
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def body_of(model: Any) -> dict[str, Any]:
    """Return the schema of a pydantic body, or of a union of bodies, with the models in it where they are used."""
    schema = TypeAdapter(model).json_schema(ref_template="{model}")
    inlined: dict[str, Any] = _inlined(schema, schema.pop("$defs", {}))
    return inlined


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(one, parts) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**parts[node["$ref"]], **{name: value for name, value in node.items() if name != "$ref"}}
    return {name: _inlined(value, parts) for name, value in node.items()}


INTEGER = {"type": "integer"}
STRING = {"type": "string"}
NULLABLE: dict[str, Any] = {"type": ["string", "null"]}
BOOLEAN = {"type": "boolean"}
OBJECT = {"type": "object"}

# ---- requests ----------

Model = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[!-~]+$")]
Positive = Annotated[float, Meta(gt=0)]
Choices = Annotated[int, Meta(ge=1, le=128)]
ManyTokens = Annotated[int, Meta(ge=1, le=10_000_000)]


class NativeRequest(Schema, kw_only=True):
    """Any JSON object; the worker gets the members that the gateway does not read."""

    model: Annotated[Model | None, says("a model that a worker serves, or a route; default: `default`")] = (
        None
    )
    stream: Annotated[
        bool | None, says("return events as they arrive; default: that of the route, else false")
    ] = None
    async_: Annotated[bool | None, says("return 202 and a task id immediately")] = field(
        default=None, name="async"
    )
    timeout: Annotated[
        float | None,
        says(
            "milliseconds from submission to the end; default: `task_timeout`, of streams `max_task_timeout`"
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        says(
            "a queue of the tier: `stream`, `batch` or `vision`; default: `vision` with an image, else `stream` if a client "
            "waits, else `batch`"
        ),
    ] = None
    priority: Annotated[int, Meta(ge=0, le=5), says("0 to 5 among your own tasks; 5 is first")] | None = None
    on_disconnect: Annotated[
        Literal["cancel", "continue"] | None,
        says("what happens without readers: `cancel`, or `continue`, the default with `async`"),
    ] = None
    result_ttl_ms: Annotated[
        Positive | None, says("milliseconds that result and events are kept; default: `task_result_ttl`")
    ] = None
    metadata: Annotated[
        Any, says("any JSON of at most 4,096 bytes; returned in polls, `start` and the last event")
    ] = None
    repair: Annotated[bool | None, says("retry once if the output does not match its JSON schema")] = None
    idempotency_key: Annotated[IdempotencyKey | None, says("as the header `Idempotency-Key`")] = None


class TaskRequest(NativeRequest, kw_only=True):
    """A task of any type with a `payload` for its worker; a `template`, which makes the payload; or a `chain` of stages, which is
    `async` unless `stream` or `async` is given."""

    type: (
        Annotated[
            str,
            Meta(min_length=1, max_length=100),
            says("the type of task, such as `openaiLike`; `http` and `permit` are requests to endpoints"),
        ]
        | UnsetType
    ) = UNSET
    payload: Annotated[Any, says("any JSON, which the worker gets")] = None
    template: Annotated[str | None, says("a route or template of `GET /api/routes`")] = None
    chain: Annotated[Any, says("the name of a chain of `GET /api/routes`")] = None
    variables: Annotated[dict[str, Any] | None, says("values of the template's or chain's variables")] = None
    locale: Annotated[str | None, says("such as `en` or `zh-CN`")] = None
    url: Annotated[str | None, says("of the types `http` and `permit`: the URL to call")] = None
    endpoint: Annotated[
        str | None, says("of `http` and `permit`: the endpoint, if the URL does not name it")
    ] = None
    method: Annotated[str | None, says("of `http` and `permit`: default POST with a body, else GET")] = None
    headers: Annotated[dict[str, Any] | None, says("of type `http`: headers of the request")] = None
    query: Annotated[dict[str, Any] | None, says("of `http` and `permit`: appended to the URL's query")] = (
        None
    )
    body: Annotated[Any, says("of type `http`: a text or any other JSON")] = None
    body_base64: Annotated[str | None, says("of type `http`: bytes")] = None


class ChatRequest(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the body unchanged."""

    model: Model
    messages: list[Any]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


class CompletionRequest(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the body unchanged."""

    model: Model
    prompt: Any
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


class EmbeddingRequest(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the body unchanged."""

    model: Model
    input: Any
    encoding_format: Literal["float", "base64"] = "float"


File = Annotated[str, Meta(extra_json_schema={"format": "binary"})]


# ---- errors ----------


class OpenAIError(Struct, kw_only=True):
    """Why a call failed, in OpenAI's shape: `message`, `type`, `param` and `code`; and `docs_url`, which explains it."""

    error: dict[str, str | None]


class AnthropicError(Struct, kw_only=True):
    """Why a call failed, in Anthropic's shape; `error.details.error_code` is the code."""

    type: Literal["error"]
    error: dict[str, Any]
    request_id: str


# ---- answers ----------

PlainStatusName = Literal["pending", "processing", "completed", "failed", "cancelled"]


class TemplateUsed(Schema, kw_only=True):
    """The template of a task's payload. `version` identifies the template's content."""

    name: str
    version: str
    locale: Annotated[str, says("of the messages; empty: those for every locale")]


class ChainStage(Schema, kw_only=True):
    """A stage of a chain. `skipped`: its condition was false, or the chain ended before it."""

    name: str
    status: Literal["waiting", "queued", "executing", "completed", "skipped", "failed", "cancelled"]
    parts: Annotated[int, says("of one that runs several times, side by side")] = 0
    parts_done: int = 0
    usage: Annotated[dict[str, Any] | None, says("tokens, of all its parts")] = None


class CurrentStage(Schema, kw_only=True):
    """The current or last stage of a chain; `index` from 1."""

    name: str
    index: int
    of: int


class Waiting(Schema, kw_only=True):
    """A task that may wait. While it waits it has a position, from 1, and an estimated wait; in nine cases of ten the real one is
    between low and high. These are null, and it is `estimating`, while there is no estimate and while no task of its queue or
    model can start.
    """

    task_id: str
    status: State
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False
    poll_after_ms: Ms = 0
    requested_model: Annotated[str, says("the name in the request, where another model may run")] = ""
    model: Annotated[str, says("with `requestedModel`: the model that it waits for, or that ran last")] = ""
    template: TemplateUsed | None = None
    stage_status: Annotated[str, says("of a chain: the status text of its stage")] = ""
    stages: Annotated[list[ChainStage], says("of a chain")] = []


class Accepted(Waiting, kw_only=True):
    """A new async task, or the existing one of its idempotency key (`replay`)."""

    stream_url: str
    status_url: str
    replay: bool = False
    idem_key: str = ""


class TaskStatus(Waiting, kw_only=True):
    """A task; its members depend on `status`."""

    chain: Annotated[str, says("of a configured chain: its name")] = ""
    stage: Annotated[CurrentStage | None, says("of a chain")] = None
    results: dict[str, Any] = {}
    failed_stage: Annotated[str, says("of a chain that failed")] = ""
    usage: Annotated[dict[str, Any] | None, says("of a chain that has ended: tokens of all stages")] = None
    metadata: Any = None
    enqueued_at: Ms = 0
    stream_url: str = ""
    worker_id: str = ""
    started_at: Ms = 0
    permit: Annotated[str, says("to call `url` of `endpoint` with, once, until `expiresAt`")] = ""
    endpoint: str = ""
    url: str = ""
    expires_at: Ms = 0
    used_at: Annotated[Ms, says("of the permit")] = 0
    result: Any = None
    completed_at: Ms = 0
    error: str = ""
    code: str = ""
    category: Annotated[str, says("of its code")] = ""
    retryable: bool = False
    waited_for: Waited = UNSET
    failed_at: Ms = 0
    cancelled_at: Ms = 0


class Cancelled(Schema, kw_only=True):
    task_id: str
    status: State


class Error(Schema, kw_only=True):
    """The reason why a call failed. `code` is for programs, `error` is a message for people."""

    error: str
    code: Annotated[str, says("the cause; `/docs` and `x-error-codes` have all of them")]
    category: Annotated[str, says("of a task that failed: what is to be done, a word for several codes")] = ""
    model: Annotated[str, says("with NO_WORKER: the model without a worker")] = ""
    docs_url: Annotated[str, says("where this gateway explains the code")] = ""
    task_id: str = ""
    retry_after_ms: Ms = 0
    waited_for: Waited = UNSET
    reason: Annotated[str, says("for operators: what is wrong with Redis or the database")] = ""
    fields: Annotated[dict[str, str], says("for operators: setting -> what is wrong with it")] = {}
    rate_limited: Annotated[bool, says("with RATE_LIMITED: true")] = False
    retry_after: Annotated[int, says("with RATE_LIMITED: seconds until it would be accepted")] = 0
    failed_stage: Annotated[str, says("of a chain that failed: in which stage")] = ""
    results: Annotated[dict[str, Any], says("of a chain that failed: the results of its stages so far")] = {}
    needed: Annotated[float, says("with INSUFFICIENT_QUOTA: credits that the task may cost")] = 0
    available: Annotated[float, says("and that are left")] = 0
