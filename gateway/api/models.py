"""Requests and answers as pydantic models: what callers may rely on. FastAPI makes the document of them.

Answers are built without them, and a test compares what is answered with the document. What the gateway hands to workers without
looking at it is not described: a member that is not named may be any.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from fairlane.gateway.operator.settings import ENTRY, PAUSED, changeable
from fairlane.gateway.settings.parts import Mode
from fairlane.queues.rules import Kind
from fairlane.queues.survey.survey import Blocked
from fairlane.queues.survey.upstreams import BreakerState
from fairlane.queues.tasks import State
from fairlane.workers.server.limits.tightening import Why

Ms = int
"""Milliseconds; of a time, since 1970."""


class Answer(BaseModel):
    """An answer; members may be added."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow")


class Asked(BaseModel):
    """A request; what it does not name is the worker's."""

    model_config = ConfigDict(extra="allow")


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The document's part on a JSON body that is read by hand. Models within it stand where they are used."""
    schema = model.model_json_schema(ref_template="{model}")
    parts = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _with_parts(schema, parts)}},
        }
    }


def _with_parts(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_with_parts(one, parts) for one in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**parts[node["$ref"]], **{name: value for name, value in node.items() if name != "$ref"}}
    return {name: _with_parts(value, parts) for name, value in node.items()}


# ---- refusals ----------


class NativeError(Answer):
    """Why a call failed. `code` names the cause for programs, `error` is a sentence for people."""

    error: str
    code: str
    family: str = Field("", description="of a task that failed: what is to be done, a word for several codes")
    model: str = Field("", description="with NO_WORKER: the model that nobody runs")
    task_id: str = ""
    retry_after_ms: Ms = 0
    why: str = Field("", description="for operators: what is wrong with Redis or the database")
    fields: dict[str, str] = Field({}, description="for operators: setting -> what is wrong with it")
    rate_limited: bool = Field(False, description="with RATE_LIMITED: true")
    retry_after: int = Field(0, description="with RATE_LIMITED: seconds until it would be accepted")
    failed_stage: str = Field("", description="of a chain that failed: in which stage")
    results: dict[str, JsonValue] = Field(
        {}, description="of a chain that failed: the results of its stages so far"
    )
    needed: float = Field(0, description="with INSUFFICIENT_QUOTA: credits that the task may cost")
    available: float = Field(0, description="and that are left")


class OpenAIErrorBody(BaseModel):
    """Four members, as OpenAI has them."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """Why a call failed, in OpenAI's shape."""

    error: OpenAIErrorBody


# ---- OpenAI's calls ----------


class StreamOptions(Asked):
    include_usage: bool | None = None


Left = SkipJsonSchema[None]
"""Of what is not given: no null can stand in a header or a query."""


Positive = Annotated[float, Field(gt=0)]
Priority = Annotated[int, Field(ge=0, le=5)]


IdempotencyKey = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[!-~]+$")]


class IdempotencyHeader(BaseModel):
    """What makes a submission safe to repeat."""

    idempotency_key: IdempotencyKey | Left = Field(
        None, description="the same key and body are the same task, which is joined or replayed"
    )


class OpenAIHeaders(IdempotencyHeader):
    """Our own wishes on OpenAI's calls."""

    x_fairlane_timeout: Positive | Left = Field(None, description="ms from submission to the end")
    x_fairlane_priority: Priority | Left = Field(None, description="among one's own tasks, 5 first")
    x_fairlane_mode: Mode | Left = Field(
        None, description="which of the tier's queues; else by the body: `vision` with an image, or `stream`"
    )
    x_fairlane_on_disconnect: Literal["cancel", "continue"] | Left = Field(
        None, description="what becomes of the task when its caller hangs up; `cancel` if not given"
    )
    x_fairlane_result_ttl: Positive | Left = Field(None, description="ms")
    x_fairlane_repair: Literal["1", "0", "true", "false"] | Left = Field(
        None, description="1: an answer that does not match its JSON schema is asked for again, once"
    )
    x_fairlane_metadata: str | Left = Field(None, description="a JSON object of at most 4,096 bytes")
    x_fairlane_user: str | Left = Field(None, description="for delegating keys")
    x_fairlane_tier: str | Left = Field(None, description="for delegating keys")


Model = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]


class ChatRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    messages: list[Any]
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    prompt: Any
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class EmbeddingRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    input: Any
    encoding_format: Literal["float", "base64"] = "float"


class Usage(Answer):
    prompt_tokens: int = Field(0, alias="prompt_tokens")
    completion_tokens: int = Field(0, alias="completion_tokens")
    total_tokens: int = Field(0, alias="total_tokens")


class ChatChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    index: int
    message: dict[str, Any]
    finish_reason: str | None


class ChatCompletion(BaseModel):
    """A whole answer, as in OpenAI's reference."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ChunkChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    index: int
    delta: dict[str, Any]
    finish_reason: str | None


class ChatCompletionChunk(BaseModel):
    """A part of a streamed answer, as in OpenAI's reference; the stream ends with `data: [DONE]`."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class TextChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    index: int
    text: str
    finish_reason: str | None


class Completion(BaseModel):
    """A whole answer, or a part of a streamed one, as in OpenAI's reference."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class Embedding(BaseModel):
    model_config = ConfigDict(extra="allow")
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """As in OpenAI's reference."""

    model_config = ConfigDict(extra="allow")
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage | None = None


class ModelRow(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str = Field(description="as its workers tell, else `fairlane`")
    context_length: int | None = Field(
        None,
        description="tokens of input and output together: the least that a worker tells; absent where none does",
    )
    max_model_len: int | None = Field(None, description="the same, under the name that vLLM gives it")


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelRow]


class FileObject(BaseModel):
    """A file that is whole."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None = Field(description="null: it is kept until it is deleted")
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(BaseModel):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


# ---- native calls ----------


class Wishes(Asked):
    """What the gateway reads of a native request; the page on the native API says what each means."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)
    model: Model | None = None
    stream: bool | None = None
    async_: bool | None = Field(None, alias="async")
    timeout: float | None = Field(None, description="ms")
    mode: Mode | None = None
    priority: Priority | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    result_ttl_ms: Positive | None = None
    metadata: Any = None
    repair: bool | None = Field(
        None, description="an answer that does not match its JSON schema is asked for again, once"
    )
    idempotency_key: IdempotencyKey | None = Field(None, description="as the header `Idempotency-Key`")


class NativeRequest(Wishes):
    """Any JSON object: what the gateway does not read is the worker's."""


class TaskRequest(Wishes):
    """A task of any type, of which the worker gets `payload`; one of a `template`, which makes the payload; or a `chain`, whose
    stages make one after the other, and which is `async` unless `stream` or `async` says otherwise."""

    type: (
        Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
        | Left
    ) = Field(None, description="needed without a template and chain")
    payload: Any = Field(None, description="needed without a template and chain")
    template: str | None = Field(None, description="a route or template of `GET /api/routes`")
    chain: Any = Field(
        None,
        description="a chain of `GET /api/routes`, or an object with `stages` as the configuration has it",
    )
    variables: dict[str, JsonValue] | None = Field(
        None, description="a value for each variable of the template or chain"
    )
    locale: str | None = Field(None, description="such as `en` or `zh-CN`")
    url: str | None = Field(None, description="of type `http` and `permit`: what is called")
    endpoint: str | None = Field(None, description="of these, in the place of a URL that stands for itself")
    method: str | None = Field(None, description="of these: POST with a body, GET without, if not given")
    headers: dict[str, JsonValue] | None = Field(
        None, description="of type `http`: of those that may pass, name -> value or values"
    )
    query: dict[str, JsonValue] | None = Field(None, description="of these: put behind that of the URL")
    body: JsonValue = Field(
        None, description="of type `http`: a text, or any other JSON, which is sent as it came"
    )
    bodyBase64: str | None = Field(None, description="of type `http`: bytes")  # noqa: N815


PlainStatusName = Literal["pending", "processing", "completed", "failed", "cancelled"]


class PlainTask(Asked):
    """A request to an endpoint."""

    target_url: str = Field(description="the whole URL")
    http_method: str | None = Field(None, description="POST with a body, GET without, if not given")
    body: JsonValue = Field(None, description="a text, as it is sent")
    priority: Annotated[int, Field(ge=0)] | None = Field(
        None, description="among the caller's own tasks alone; what is above 5 counts as 5"
    )
    timestamp: Annotated[int, Field(ge=0)] | None = Field(
        None, description="means nothing: what counts is when it came"
    )
    task_type: Literal["offline", "online"] | None = Field(None, description="offline if not given")
    idempotencyKey: str | None = None  # noqa: N815 - as in all native calls


class PlainTaskId(Asked):
    task_id: str


class PlainSubmitted(BaseModel):
    model_config = ConfigDict(extra="allow")

    task_id: str
    task_status: PlainStatusName
    created_at: str = Field(description="RFC 3339; so below")
    wait_num: int = Field(description="tasks that come before it")


class PlainStatus(BaseModel):
    model_config = ConfigDict(extra="allow")

    task_status: PlainStatusName
    task_result: str = Field(
        description="the body of the endpoint's answer; of a failed task JSON with `error` and `code`; else empty"
    )
    wait_num: int
    wait_time: int = Field(description="seconds that it may still wait; -1: nobody can tell yet")
    created_at: str
    started_at: str = Field(description="empty: not yet; so below")
    ended_at: str
    http_status: int = Field(0, description="of the endpoint's answer")
    task_result_base64: str = Field("", description="its body, where that is no text")


class PlainCancelled(BaseModel):
    model_config = ConfigDict(extra="allow")

    task_id: str
    task_status: PlainStatusName


class PromptRequest(Asked):
    """A template, and what fills it in."""

    template: str
    variables: dict[str, JsonValue] | None = None
    locale: str | None = None
    model: Model | None = Field(None, description="for a template that is no route")
    tier: str | None = Field(None, description="whose; else that of the key")


class TemplateUsed(Answer):
    """What a task's payload was made of. `version` names the template's content."""

    name: str
    version: str
    locale: str = Field(description="whose messages were used; empty: those for every locale")


class RouteRule(Answer):
    """What a route comes to; null: it says nothing of it."""

    model: str
    mode: Mode | None
    queue: str | None
    stream: bool
    timeout_ms: Ms | None
    max_wait_ms: Ms | None
    max_run_ms: Ms | None
    max_output_tokens: int | None
    price: dict[str, float] | None = Field(description="credits, as in the settings")
    fallbacks: list[str]
    fallback_after_ms: Ms | None
    repair: bool = Field(description="an answer that does not match its JSON schema is asked for again")


class Route(RouteRule):
    name: str
    tier: str
    template: str | None
    vision: RouteRule | None = Field(description="for requests with images, where it differs")


class Template(Answer):
    name: str
    version: str
    locales: list[str]
    default_locale: str | None
    variables: list[str]
    optional: list[str]
    json_schema: dict[str, JsonValue] | None


class Chain(Answer):
    name: str
    title: str
    variables: list[str]
    optional: list[str]
    stages: list[dict[str, str]] = Field(description="name and status of each, as polls show them")


class RouteList(Answer):
    routes: list[Route]
    templates: list[Template]
    chains: list[Chain]


class Rendered(Answer):
    template: TemplateUsed
    asked: str
    model: str
    queue: str
    payload: dict[str, JsonValue]
    estimated_input_tokens: int


class ChainStage(Answer):
    """How one stage of a chain stands. `skipped`: its condition was false, or the chain ended before it."""

    name: str
    status: Literal["waiting", "queued", "executing", "completed", "skipped", "failed", "cancelled"]
    parts: int = Field(0, description="of one that runs several times, side by side")
    parts_done: int = 0
    usage: dict[str, JsonValue] | None = Field(None, description="tokens, of all its parts")


class CurrentStage(Answer):
    """The stage that a chain is in, or ended in; `index` from 1."""

    name: str
    index: int
    of: int


class Accepted(Answer):
    """An async task, which waits from now on; or the one that its idempotency key names, as it stands now (`replay`).

    While it waits it has a place, from 1, and how long it may wait: nine times out of ten between low and high. These are null,
    and it is `estimating`, as long as nothing has been learnt that tells, and while nothing of its queue or model can start.
    """

    task_id: str
    status: State
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False
    poll_after_ms: Ms = 0
    stream_url: str
    status_url: str
    replay: bool = False
    idem_key: str = ""
    asked: str = Field("", description="what its caller named, where another model may run")
    model: str = Field("", description="beside `asked`: the model that it waits for")
    template: TemplateUsed | None = None
    stage_status: str = Field("", description="of a chain: as its first stage says")
    stages: list[ChainStage] = Field([], description="of a chain")


class TaskStatus(Answer):
    """A task as a poll shows it; which members there are depends on `status`."""

    task_id: str
    status: State
    asked: str = Field("", description="what its caller named, where another model may run")
    model: str = Field("", description="beside `asked`: the model that runs it, or ran it last")
    template: TemplateUsed | None = None
    chain: str = Field("", description="of a configured chain: its name")
    stage_status: str = Field(
        "", description="of a chain: as its stage says; at the end COMPLETED, FAILED or CANCELLED"
    )
    stage: CurrentStage | None = Field(None, description="of a chain")
    stages: list[ChainStage] = Field([], description="of a chain")
    results: dict[str, JsonValue] = Field(
        {}, description="of a chain that has ended: what its stages came to; of one with `each` a list"
    )
    failed_stage: str = Field("", description="of a chain that failed")
    usage: dict[str, JsonValue] | None = Field(
        None, description="of a chain that has ended: tokens of all stages"
    )
    metadata: JsonValue = None
    enqueued_at: Ms = 0
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False
    poll_after_ms: Ms = 0
    stream_url: str = ""
    worker_id: str = ""
    started_at: Ms = 0
    permit: str = Field("", description="to call `url` of `endpoint` with, once, until `expiresAt`")
    endpoint: str = ""
    url: str = ""
    expires_at: Ms = 0
    used_at: Ms = Field(0, description="the permit was used then")
    result: JsonValue = None
    completed_at: Ms = 0
    error: str = ""
    code: str = ""
    family: str = Field("", description="of its code")
    retryable: bool = False
    failed_at: Ms = 0
    cancelled_at: Ms = 0


class Cancelled(Answer):
    task_id: str
    status: State


class LetIn(Answer):
    """The request may pass; the header `X-Fairlane-Receipt` is what its end is to be reported with."""

    task_id: str


class LeftOff(Answer):
    """`ended`: it has ended now; `over`: it had before, or its time was over."""

    status: Literal["ended", "over"]


# ---- account, health ----------


class LimitLeft(Answer):
    """A limit of a key or a user, and what is left of it."""

    limit: int
    remaining: int
    reset_ms: Ms = Field(0, description="until all of it is back; of requests and tokens")


class LimitsLeft(Answer):
    """Those that are set."""

    requests_per_minute: LimitLeft | Left = None
    requests_per_day: LimitLeft | Left = None
    tokens_per_minute: LimitLeft | Left = None
    tokens_per_day: LimitLeft | Left = None
    max_running: LimitLeft | Left = None
    max_waiting: LimitLeft | Left = None


class Account(Answer):
    """As whom a request counts."""

    user: str
    tier: str
    key: str | None
    open: bool
    delegating: bool
    admin: bool
    scopes: list[Literal["call", "viewer", "metrics", "admin"]] = Field(description="what the key is for")
    tiers: list[str]
    modes: list[Mode]
    version: str
    limits: LimitsLeft = Field(description="of the key, over all its users")
    user_limits: LimitsLeft = Field(description="of this user of a delegating key")
    quota: "QuotaLeft | None" = Field(description="null: nobody pays for its tasks")


class Live(Answer):
    status: Literal["live"]


class Version(Answer):
    version: str


class Ready(Answer):
    status: Literal["ready"]
    workers: int = Field(description="connected here")
    store_refuses: str = Field("", description="why Redis takes no writes")


class NotReady(Answer):
    status: Literal["not ready"]
    missing: list[str]
    store_down_ms: Ms = 0


# ---- operators' calls ----------

Setting = float | int | bool | str | None


def _change(kind: Kind) -> type[BaseModel]:
    """The body of a PATCH: the settings that can be changed, each or null."""
    fields: dict[str, Any] = {PAUSED: (bool | None, None)}
    for name in changeable(kind):
        info = ENTRY[kind].model_fields[name]
        kept: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[name] = (kept | None, None)
    return create_model(f"{kind.title()}Change", __config__=ConfigDict(extra="forbid"), **fields)


QueueChange = _change("queue")
ModelChange = _change("model")


class SettingInfo(BaseModel):
    help: str
    type: Literal["integer", "number", "string"]
    least: float | int | None
    most: float | int | None
    choices: list[str] | None


class Before(BaseModel):
    before: Setting
    after: Setting


class _Changed(Answer):
    values: dict[str, Setting] = Field(description="what holds now")
    overrides: dict[str, Setting] = Field(description="what of it differs from the configuration")
    changed: dict[str, Before]
    settings: dict[str, SettingInfo] = Field(description="what can be set, what it is for, and its bounds")


class QueueChanged(_Changed):
    queue: str


class ModelChanged(_Changed):
    model: str


class Queue(Answer):
    queue: str
    tier: str
    mode: Mode
    weight: float
    waiting: int
    max_length: int | None
    max_wait_ms: Ms | None
    max_running: int | None
    reserved: int | None
    lendable: int | None
    borrow: int | None
    admission: str
    paused: bool
    overrides: dict[str, Setting]
    running: int
    oldest_wait_ms: Ms | None
    share: float | None
    tokens_charged: int
    blocked: Blocked | None = Field(description="why none of its waiting tasks can start")


class UpstreamState(Answer):
    """A server behind workers of a model, with its breaker."""

    upstream: str = Field(description="as its workers name it; empty of those that name none")
    workers: int
    breaker: BreakerState = Field(description="`half_open`: a few tasks at a time may start, its probes")
    forced: bool = Field(description="an operator wants it so")
    since: Ms | None = Field(description="when the breaker opened, or was forced")
    until: Ms | None = Field(description="when an open one lets probes through")
    openings: int = Field(description="how often it opened since, without closing between")
    why: str | None = Field(
        description="failure code of the last failure that opened it; `SLOW`: an answer that came late"
    )
    probes: int = Field(description="under way")
    held_until: Ms | None = Field(description="its provider said: not before")


class BreakerChange(Asked):
    model: str
    upstream: str = Field("", description="as the state names it; empty of workers that name none")
    breaker: Literal["open", "closed", "auto"] = Field(
        description="`auto`: it goes by itself, from closed on; also where its provider has it held"
    )


class BreakerChanged(Answer):
    model: str
    upstream: str
    breaker: Literal["open", "closed", "auto"]
    before: Literal["open", "closed", "auto"]
    audit_id: str


class OutputLimit(Answer):
    """A limit of a model on its silence, as it holds now at the replica that answers."""

    ms: Ms
    target_ms: Ms = Field(description="where it goes, by a fifth every 5 s")
    why: Why = Field(description="why it goes there")
    p99_ms: Ms | None = Field(description="how long all but one in a hundred answers took of late")
    answers: int = Field(description="of how many that is known")


class OutputLimits(Answer):
    first_output: OutputLimit | None
    silence: OutputLimit | None
    wait_ms: Ms | None = Field(
        description="how long its queue makes those wait who come now, if limits follow it"
    )


class EndpointOfModel(Answer):
    """What the row of an endpoint's model says of it."""

    url: str
    windows: str | None
    mean_ms: float | None = Field(description="T: how long a request takes")
    measured: bool = Field(description="T is measured, and not guessed")
    per_second: float | None = Field(description="Q = C / T, or what its narrowest window lets through")


class ModelState(Answer):
    model: str
    running: int
    limit: int | None
    waiting: int
    cost: str
    requests_per_minute: float | None
    tokens_per_minute: float | None
    windows: str | None
    max_running_per_user: int | None
    max_waiting_per_user: int | None
    paused: bool
    held_until: Ms | None
    next_start_at: Ms | None
    mean_run_ms: float | None
    jain: float | None
    workers: int
    slots: int
    overrides: dict[str, Setting]
    blocked: dict[str, Blocked] = Field(
        description="queue -> why none of its tasks that wait for this model can start"
    )
    configured: bool
    upstreams: list[UpstreamState] = Field(
        description="the servers behind its workers, where one has a name, or something is known of it"
    )
    output_limits: OutputLimits | None = Field(description="null: it may be silent for as long as it likes")
    endpoint: EndpointOfModel | None = Field(description="null: it is a model, and none")


class ModelInfo(Answer):
    """What a worker tells of a model: tokens of input and output together, and whose it is."""

    context_length: int | None = None
    owned_by: str | None = None


class Worker(Answer):
    worker_id: str
    name: str | None
    replica: str
    version: int
    models: list[str]
    """The first few that it offers."""
    more_models: int = 0
    task_types: list[str] | None
    slots: int
    draining: bool
    upstream: str | None = None
    """The server behind it, as it names that."""
    unhealthy: str | None = None
    """Why it cannot work, in its own words or those of its last tasks."""
    model_info: dict[str, ModelInfo] = {}
    running: int = 0
    heartbeat_age_ms: Ms = 0


class Counts(Answer):
    queued: int
    executing: int
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    queued_bytes: int
    retained_bytes: int
    dropped_early: int
    records_waiting: int
    records_most: int


class Store(Answer):
    """What the replica that answers sees of Redis."""

    address: str
    up: bool
    refuses: bool
    since: Ms | None
    why: str | None


class DatabaseSeen(Answer):
    """What the process that answers sees of the SQL database."""

    address: str
    up: bool
    since: Ms | None
    why: str | None


class Attempt(Answer):
    worker_id: str
    model: str | None
    granted_at: Ms | None
    first_output_at: Ms | None = None
    ended_at: Ms | None
    outcome: str | None


class ModelMove(Answer):
    """A task went on from `model` to another one."""

    model: str
    at: Ms
    why: str = Field(
        description="its attempt's failure code, or `no_worker`, `model_paused`, `breaker_open`, `held` (or paced)"
    )


class Task(Answer):
    task_id: str
    status: State
    model: str | None
    asked: str | None = Field(description="what its caller named, where another model may run")
    moves: list[ModelMove] = Field(description="the models that it went on from, the last ten")
    repaired: bool = Field(
        description="an answer of it did not match its schema, and its model was asked again"
    )
    stage: str | None = Field(description="of a chain: the stage that it is in, or ended in")
    stage_index: int | None
    part: int | None = Field(description="of a part of a stage: which, from 0")
    chain: str | None = Field(description="of a part: its chain")
    stage_at: Ms | None = Field(description="since when it is in this stage")
    queue: str | None
    user: str | None
    key: str | None
    type: str | None
    code: str | None
    family: str | None = Field(description="of its code")
    request_id: str | None = Field(description="of the call that submitted it: its `x-request-id`")
    error: str | None
    enqueued_at: Ms | None
    started_at: Ms | None
    first_output_at: Ms | None
    ended_at: Ms | None
    attempt: int | None
    attempts: list[Attempt]


class AllCancelled(Answer):
    """How many tasks a call has cancelled, and whether more match."""

    cancelled: int
    more: bool


class ChangeOfTask(Answer):
    id: str
    side: Literal["new", "old"]


class StageOfTask(ChainStage):
    """A stage of a chain, and where it is to run, as far as that is known before."""

    model: str | None
    queue: str | None


class PermitOfTask(Answer):
    until: Ms = Field(description="it may be used; or, once it is, its place is taken")
    used_at: Ms | None


class TaskDetail(Task):
    now: Ms
    change: ChangeOfTask | None = Field(
        description="the change of settings that concerned it when it was submitted, and its side"
    )
    fallbacks: list[str] = Field(description="models that it may go on to")
    chain_name: str | None = Field(None, description="of a chain that the configuration has")
    stages: list[StageOfTask] = Field([], description="of a chain")
    permit: PermitOfTask | None = Field(description="the one that is out")
    template: TemplateUsed | None = None
    priority: int
    tries: int
    stream: bool
    waited: bool
    estimated_input_tokens: int | None
    max_output_tokens: int | None
    payload_bytes: int | None
    wait_deadline_at: Ms | None
    deadline_at: Ms | None
    attempt_deadline_at: Ms | None
    kept_for_ms: Ms | None
    events: int
    stream_url: str | None
    metadata: JsonValue
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False


class Configuration(Answer):
    hash: str
    modified_at: Ms
    in_force: bool


class RefusedReload(Answer):
    """The last configuration that a replica read and did not take over, unless a good one came after it."""

    at: Ms
    why: str


class Replica(Answer):
    replica: str
    age_ms: Ms
    host: str | None
    pid: int | None
    version: str | None
    started_at: Ms | None
    keys_hash: str | None = Field(
        description="of its keys and worker tokens: the same where these are the same"
    )
    routes_hash: str | None = Field(
        description="the same of its routes, templates, chains, endpoints and fallbacks"
    )
    reload_refused: RefusedReload | None
    configuration: Configuration | None


class OperatorState(Answer):
    now: Ms
    queues: list[Queue]
    models: list[ModelState]
    workers: list[Worker]
    counts: Counts
    store: Store
    database: DatabaseSeen
    tasks: list[Task]
    replicas: list[Replica]


class FoundTasks(Answer):
    now: Ms
    tasks: list[Task]
    next: str | None


class Drained(Answer):
    worker_id: str
    name: str | None
    replica: str
    draining: Literal[True]


class AuditEntry(Answer):
    id: str
    at: Ms
    who: str
    from_: str = Field(
        alias="from", description="the client's address, as the gateway sees it; empty: not known"
    )
    action: str
    target: str
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]


class Audit(Answer):
    entries: list[AuditEntry]
    next: str | None


class ArchivedTask(Answer):
    task_id: str
    key: str
    user: str
    status: Literal["completed", "failed", "cancelled"]
    ended_at: Ms
    answer: dict[str, JsonValue] = Field(description="as GET /api/task/{taskId} told it")
    request: JsonValue = Field(description="null: it was not kept")


class KeptResponse(Answer):
    id: str
    task_id: str
    key: str
    user: str
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    created_at: Ms
    ended_at: Ms | None = Field(description="null: SQL does not have its end yet")
    expires_at: Ms


class KeptResponsePage(Answer):
    responses: list[KeptResponse]
    next: str | None


class Forgotten(Answer):
    """Of how many rows, each once."""

    usage: int
    days: int
    archived: int
    audit: int
    responses: int
    batches: int = Field(description="batches that had ended")
    webhooks: int = Field(description="of webhooks of this user, and of what any told of this user's ends")
    results: int
    ledger: int = Field(
        description="rows that keep the name: what was granted to this user and what tasks have cost them"
    )
    more: bool


class Refusal(Answer):
    minute: Ms = Field(description="when it began")
    key: str = Field(description="empty: a gateway that asks for no key, or a link of a task")
    code: str = Field(description="that of the errors")
    count: int


class RefusalPage(Answer):
    refusals: list[Refusal]
    next: str | None


class KeySecret(Answer):
    """That a secret is valid; what it is was told once."""

    created: Ms
    valid_until: Ms | None = Field(description="null: as long as the key")
    signs: bool = Field(description="what it signs is taken: the key had `signing` when the secret was made")


DATABASE_AWAY: Any = Field(
    description="why the SQL database could not be asked: then it is what the gateway and Redis know; null: it was"
)


class KeyShown(Answer):
    id: str
    kind: Literal["caller", "worker"]
    source: Literal["configuration", "database"]
    state: Literal["valid", "expired", "revoked", "replaced", "unusable"]
    settings: dict[str, JsonValue] = Field(description="as an entry of the configuration has them")
    note: str
    created: Ms | None
    expires: Ms | None
    revoked: Ms | None
    last_used: Ms | None
    secrets: list[KeySecret] = Field(description="the valid ones of a key of the database")


class KeyDetail(KeyShown):
    limits: LimitsLeft | None = Field(
        description="what is left of the key's; null: the store does not answer; so below"
    )
    user_limits: LimitsLeft | None = Field(description="and of the user's that is asked for")
    database_away: str | None = DATABASE_AWAY


class KeyPage(Answer):
    now: Ms
    keys: list[KeyShown]
    next: str | None
    database_away: str | None = DATABASE_AWAY


class KeyChanged(KeyShown):
    notes: list[str] = Field(description="what an operator should know of what was done")


class KeyMade(KeyChanged):
    secret: str = Field(description="told this once")


class KeyRevoked(KeyChanged):
    cancelled: int = Field(description="tasks that were ended by this call")


class BudgetLeft(Answer):
    """A budget in the day or month that is now, in credits."""

    limit: float
    per: Literal["day", "month"]
    used: float
    held: float = Field(description="for tasks that have not ended")
    remaining: float
    ends: Ms = Field(description="when it comes anew")


class QuotaLeft(Answer):
    """What somebody can pay with, in credits."""

    of: Literal["key", "user"] = Field(description="who pays: the key for all its users, or each user")
    granted: float = Field(description="all grants together")
    spent: float = Field(description="what tasks have cost of them")
    balance: float = Field(description="`granted` less `spent`; less than 0: a debt")
    held: float = Field(description="for tasks that have not ended, of grants and budget together")
    available: float = Field(description="what the next task may be held")
    budget: BudgetLeft | None
    otherwise: str | None = Field(
        description="the tier in which a task goes on that cannot be paid; null: it is refused"
    )


class QuotaShown(QuotaLeft):
    key: str
    user: str | None = Field(description="null: the key pays")
    active: bool = Field(description="the key has a quota by which it, or its users, pay now")


class QuotaPage(Answer):
    now: Ms
    rows: list[QuotaShown]
    next: str | None
    database_away: str | None = DATABASE_AWAY


class QuotaGranted(QuotaShown):
    id: str
    new: bool = Field(description="false: it had been made before, and nothing more was granted")
    credits: float
    notes: list[str] = Field(description="what an operator should know of what was done")


class LedgerEntry(Answer):
    """What a grant or a task did to a fund."""

    id: str = Field(description="of the grant or the task")
    kind: Literal["grant", "task"]
    fund: Literal["granted", "day", "month"]
    ends: Ms | None = Field(description="of the budget's day or month")
    of: Literal["key", "user"]
    key: str
    user: str | None
    held: float = Field(description="while the task went on")
    amount: float = Field(description="less than 0: it was paid, or taken back")
    refunded: float = Field(description="what came back of what was held")
    price: str = Field(description="as of usage records")
    at: Ms
    who: str = Field(description="of a grant: the key of the operator")
    note: str


class Ledger(Answer):
    now: Ms
    rows: list[LedgerEntry]
    next: str | None


class Percentiles(Answer):
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]


class TotalPercentiles(Answer):
    p50: float | None
    p95: float | None
    p99: float | None


class CodeCount(Answer):
    code: str
    count: int


class FailureCount(CodeCount):
    family: str = Field(description="of its code; empty of `other`")


class TopUser(Answer):
    user: str
    waiting: int
    running: int
    tokens: int
    share: float | None
    model: str | None


class TopUsers(Answer):
    now: Ms
    users: list[TopUser]
    number: int
    complete: bool


class Used(Answer):
    """Tasks added up. Tokens that are not known count as none."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(description="of the input, where workers tell it")
    reasoning_tokens: int = Field(description="of the output, where workers tell it")
    estimated: int = Field(description="tasks whose tokens are, at least in part, the gateway's own count")
    waited_ms: Ms = Field(
        description="together, each until its last start, or its end where it never started"
    )
    ran_ms: Ms = Field(description="together, each from its last start to its end")
    cost: float = Field(description="credits, by the prices that held when tasks were submitted")


class UsedBy(Used):
    """One row: the members that were asked `by`, and what they used."""

    model: str | Left = None
    key: str | Left = None
    user: str | Left = None
    tier: str | Left = None
    state: str | Left = None
    code: str | Left = None
    family: str | Left = Field(None, description="beside `code`: its family")
    route: str | Left = None
    day: str | Left = Field(None, description="2026-11-23")
    hour: str | Left = Field(None, description="2026-11-23T16:00Z")


class UsageReport(Answer):
    now: Ms
    from_: Ms = Field(alias="from")
    to: Ms
    by: list[str]
    rows: list[UsedBy]
    total: Used
    more: bool


class UsedTask(Answer):
    """What a task used, for good. What is not known is null; what there is none of, an empty text."""

    task_id: str
    ended_at: Ms
    enqueued_at: Ms
    granted_at: Ms | None = Field(description="its last start; null: it never started")
    first_output_at: Ms | None
    status: State
    code: str = Field(description="failure code, CANCELLED included; empty when it completed")
    family: str = Field(description="of its code")
    key: str
    user: str
    tier: str
    queue: str
    type: str
    model: str = Field(description="that was asked for")
    scheduled_as: str = Field(
        description="the line that it waited in: its model, or * where any name is taken"
    )
    worker_id: str
    attempts: int
    tries: int
    request_id: str
    trace_id: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    estimated: bool = Field(description="input or output is the gateway's own count")
    cost: float | None = Field(
        description="credits; 0: it came to nothing; null: its model had no price when it was submitted"
    )
    price: str = Field(
        description="by which it is reckoned, in credits: of a million tokens of input, cached input, output and reasoning, "
        "and of the task itself, with slashes between"
    )
    route: str = Field(description="the name that its caller gave, where more than one model may run it")
    template: str = Field(description="the name of the template that its payload was made of")
    template_version: str
    change_id: str = Field(description="of the change of settings that concerned it; empty: none did")
    side: Literal["new", "old", ""] = Field(description="on which it was of that")
    moves: int | None = Field(
        description="how often it went on to another model; null: no change concerned it, and it was not counted"
    )
    stage: str = Field(description="of a chain, which has a row for each stage, and for each part of one")
    stage_index: int | None = Field(description="from 0; null: it is no chain")
    part: int | None = Field(description="from 0; null: the stage had one alone")


class UsedTasks(Answer):
    now: Ms
    tasks: list[UsedTask]
    next: str | None


class ModelMinute(Answer):
    accepted_last_minute: int
    ended_last_minute: int
    cancelled_last_minute: int = Field(description="of those that ended")
    output_tokens_last_minute: int


class HistoryTotal(Answer):
    accepted: int | None
    completed: int
    failed: int
    cancelled: int | None
    refused: int | None
    input_tokens: int
    output_tokens: int
    wait_ms: TotalPercentiles | None
    first_output_ms: TotalPercentiles | None
    total_ms: TotalPercentiles | None
    failures: list[FailureCount] | None
    refusals: list[CodeCount] | None


class HistoryNames(Answer):
    models: list[str]
    queues: list[str]
    workers: list[str]


class History(Answer):
    now: Ms
    range: str
    until: Ms
    bucket_ms: Ms
    at: list[Ms]
    accepted: list[int] | None
    completed: list[int]
    failed: list[int]
    cancelled: list[int] | None
    refused: list[int] | None
    waiting: list[int] | None
    input_tokens: list[int]
    output_tokens: list[int]
    wait_ms: Percentiles | None
    first_output_ms: Percentiles | None
    total_ms: Percentiles | None
    models: dict[str, ModelMinute]
    total: HistoryTotal
    names: HistoryNames


class ChangeShown(Answer):
    """A change of settings."""

    id: str
    kind: Literal["route", "model", "queue"]
    name: str
    tier: str | None = Field(description="of a route: for tasks of this tier alone")
    vision: bool = Field(description="of a route: for requests with images alone")
    set: dict[str, JsonValue]
    per_task: bool = Field(description="it is decided for each task, so it may hold for a share of them")
    rollout: int | None = Field(description="percent")
    by: Literal["task", "user"] | None
    state: Literal["scheduled", "active", "ended", "taken_back"]
    problem: str | None = Field(description="why it holds for nobody, though it is active")
    note: str
    who: str = Field(description="the id of the key that made it")
    made_at: Ms
    at: Ms = Field(description="when it begins or began, as it was asked for")
    until: Ms | None = Field(description="when it ends by itself")
    began_at: Ms | None
    ended_at: Ms | None


class ChangeMade(ChangeShown):
    warnings: list[str]


class ChangeList(Answer):
    now: Ms
    changes: list[ChangeShown]
    next: None = Field(description="all are told")


class FailuresOfSide(Answer):
    code: str
    family: str | None
    tasks: int


class RefusalsOfSide(Answer):
    code: str
    calls: int


class TimesOfSide(Answer):
    p50: Ms
    p95: Ms


class SideOfChange(Answer):
    """Tasks on one side of a change that have ended, and calls that were refused."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    failures: list[FailuresOfSide]
    refused: int = Field(description="calls that came to no task (429, 503), up to the last full minute")
    refusals: list[RefusalsOfSide]
    moved: int = Field(description="those that went on to another model")
    input_tokens_per_task: float | None
    output_tokens_per_task: float | None
    cost_per_task: float | None = Field(description="credits")
    sampled: int = Field(description="tasks of which times are told, those that ended last")
    wait_ms: TimesOfSide | None
    first_output_ms: TimesOfSide | None
    duration_ms: TimesOfSide | None


class Comparison(Answer):
    old: SideOfChange
    new: SideOfChange
    enough: bool = Field(description="both sides have tasks enough to say something")


class ChangeDetail(ChangeShown):
    now: Ms
    comparison: Comparison | None = Field(
        description="null: it is not decided for each task, or the database is away"
    )
    database_away: str | None = Field(description="why there is no comparison now")


class EndpointLine(Answer):
    """How the line of an endpoint stands."""

    waiting: int
    running: int
    workers: int = Field(description="that make its calls")
    limit: int | None = Field(description="the concurrency in force")
    windows: str | None = Field(description="those in force")
    why: str | None = Field(
        description="why nothing starts now: `paused`, `no_worker`, `breaker_open`, `held` (its 429), `paced` (its windows), or "
        "what its queues say (`queue_paused`, `reserved`); null: something may"
    )
    slots: int = Field(description="C: requests that may be under way at once")
    mean_ms: float | None = Field(description="T: how long a request takes")
    measured: bool = Field(description="T is measured, and not guessed (`mean_ms`)")
    per_second: float | None = Field(description="Q = C / T, or what its narrowest window lets through")
    paused: bool


class EndpointShown(Answer):
    """An endpoint."""

    name: str
    model: str = Field(description="as which it is scheduled")
    source: Literal["configuration", "database"]
    state: Literal["active", "unreadable"] = Field(description="unreadable: a newer release wrote it")
    settings: dict[str, JsonValue]
    note: str
    created: Ms | None
    changed: Ms | None
    who: str | None = Field(description="the id of the key that changed it last")
    line: EndpointLine | None


class EndpointDone(EndpointShown):
    notes: list[str]


class EndpointRemoved(Answer):
    name: str
    waiting: int
    notes: list[str]


class EndpointList(Answer):
    now: Ms
    endpoints: list[EndpointShown]
    database_away: str | None


# ---- webhooks ----------


class WebhookFailing(Answer):
    """How a webhook fails."""

    since: Ms
    attempts: int = Field(description="since the last one that was taken")
    error: str = Field(description="what the last one came to")
    next_at: Ms | None = Field(description="when its receiver is asked next, if it rests until then")


class WebhookShown(Answer):
    """A webhook, as its owner sees it."""

    id: str
    url: str
    events: list[str]
    note: str
    every_user: bool = Field(description="it hears of all users of its key")
    enabled: bool
    off_at: Ms | None
    off_why: str | None
    failing: WebhookFailing | None
    created_at: Ms
    changed_at: Ms
    delivered_at: Ms | None = Field(description="when anything was taken last")
    old_secret_until: Ms | None = Field(description="until then the secret before signs besides")
    waiting: int = Field(description="deliveries that are owed")
    missed: int = Field(description="ends of which it tells nothing, as too many deliveries were owed")


class WebhookMade(WebhookShown):
    secret: str = Field(description="`whsec_…`, told this once")


class WebhookList(Answer):
    webhooks: list[WebhookShown]
    most: int


class WebhookRemoved(Answer):
    id: str
    removed: bool


class WebhookDelivery(Answer):
    """An event that is told to a webhook."""

    id: str = Field(description="the `webhook-id` of all its requests")
    webhook_id: str
    event_id: str = Field(description="`id` in the body: the same for all webhooks that tell of it")
    event: str
    object_id: str
    created_at: Ms = Field(description="when the event was")
    state: Literal["waiting", "delivered", "failed"]
    attempts: int
    next_at: Ms | None
    ended_at: Ms | None
    status: int | None = Field(description="of the last answer; null: there was none")
    error: str | None = Field(description="what was wrong with the last attempt")


class WebhookTry(Answer):
    at: Ms
    took_ms: Ms
    status: int | None
    error: str


class WebhookDeliveryDetail(WebhookDelivery):
    tries: list[WebhookTry] = Field(description="the last 20 attempts, the oldest first")


class WebhookDeliveries(Answer):
    deliveries: list[WebhookDelivery]
    next: str | None


class OwnedWebhook(WebhookShown):
    """A webhook, as operators see it."""

    key: str | None = Field(description="null: of an open gateway")
    user: str = Field(description="`*`: it hears of all users of its key")


class WebhookSwitchedOff(OwnedWebhook):
    notes: list[str]


class AllWebhooks(Answer):
    webhooks: list[OwnedWebhook]
    next: str | None


class OwnedDelivery(WebhookDelivery):
    """A delivery, as operators see it."""

    key: str | None
    user: str
    url: str


class AllWebhookDeliveries(Answer):
    deliveries: list[OwnedDelivery]
    next: str | None
