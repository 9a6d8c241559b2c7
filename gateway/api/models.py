"""Requests and answers as pydantic models: what callers may rely on. FastAPI makes the document of them.

Answers are built without them, and a test compares what is answered with the document. What the gateway hands to workers without
looking at it is not described: a member that is not named may be any.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from fairlane.gateway.operator.settings import ENTRY, PAUSED, changeable
from fairlane.gateway.settings.model import Mode
from fairlane.queues.rules import Kind
from fairlane.queues.tasks import State

Ms = int
"""Milliseconds; of a time, since 1970."""


class Answer(BaseModel):
    """An answer; members may be added."""

    model_config = ConfigDict(alias_generator=to_camel, extra="allow")


class Asked(BaseModel):
    """A request; what it does not name is the worker's."""

    model_config = ConfigDict(extra="allow")


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The document's part on a JSON body that is read by hand."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


# ---- refusals ----------


class NativeError(Answer):
    """Why a call failed. `code` names the cause for programs, `error` is a sentence for people."""

    error: str
    code: str
    task_id: str = ""
    retry_after_ms: Ms = 0
    why: str = Field("", description="for operators: what is wrong with Redis")


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


class OpenAIHeaders(BaseModel):
    """Our own wishes on OpenAI's calls."""

    x_fairlane_timeout: Positive | Left = Field(None, description="ms from submission to the end")
    x_fairlane_priority: Priority | Left = Field(None, description="among one's own tasks, 5 first")
    x_fairlane_mode: Mode | Left = None
    x_fairlane_on_disconnect: Literal["cancel", "continue"] | Left = None
    x_fairlane_result_ttl: Positive | Left = Field(None, description="ms")
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
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelRow]


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


class NativeRequest(Wishes):
    """Any JSON object: what the gateway does not read is the worker's."""


class TaskRequest(Wishes):
    """A task of any type; the worker gets `payload`."""

    type: Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
    payload: Any


class Place(Answer):
    """Where a task stands in its queue, from 1, and how long it may wait: four times out of five between low and high.

    Null, and `estimating`, as long as nothing has been learnt that tells.
    """

    position: int
    estimated_wait_ms: Ms | None
    estimated_wait_low_ms: Ms | None
    estimated_wait_high_ms: Ms | None
    estimating: bool = False


class Accepted(Place):
    """An async task, which waits from now on."""

    task_id: str
    status: Literal["queued"]
    poll_after_ms: Ms
    stream_url: str
    status_url: str


class TaskStatus(Answer):
    """A task as a poll shows it; which members there are depends on `status`."""

    task_id: str
    status: State
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
    result: JsonValue = None
    completed_at: Ms = 0
    error: str = ""
    code: str = ""
    retryable: bool = False
    failed_at: Ms = 0
    cancelled_at: Ms = 0


class Cancelled(Answer):
    task_id: str
    status: State


# ---- account, health ----------


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


class Before(BaseModel):
    before: Setting
    after: Setting


class _Changed(Answer):
    values: dict[str, Setting] = Field(description="what holds now")
    overrides: dict[str, Setting] = Field(description="what of it differs from the configuration")
    changed: dict[str, Before]


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


class ModelState(Answer):
    model: str
    running: int
    limit: int | None
    waiting: int
    cost: str
    requests_per_minute: float | None
    tokens_per_minute: float | None
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


class Worker(Answer):
    worker_id: str
    name: str | None
    replica: str
    version: int
    models: list[str]
    task_types: list[str] | None
    slots: int
    draining: bool
    unhealthy: str | None = None
    """Why it cannot work, in its own words or those of its last tasks."""
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


class Store(Answer):
    """What the replica that answers sees of Redis."""

    up: bool
    refuses: bool
    since: Ms | None
    why: str | None


class Attempt(Answer):
    worker_id: str
    granted_at: Ms | None
    first_output_at: Ms | None = None
    ended_at: Ms | None
    outcome: str | None


class Task(Answer):
    task_id: str
    status: State
    model: str | None
    queue: str | None
    user: str | None
    key: str | None
    type: str | None
    code: str | None
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


class TaskDetail(Task):
    now: Ms
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


class Replica(Answer):
    replica: str
    age_ms: Ms
    host: str | None
    pid: int | None
    version: str | None
    started_at: Ms | None
    configuration: Configuration | None


class OperatorState(Answer):
    now: Ms
    queues: list[Queue]
    models: list[ModelState]
    workers: list[Worker]
    counts: Counts
    store: Store
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
    action: str
    target: str
    before: dict[str, JsonValue]
    after: dict[str, JsonValue]


class Audit(Answer):
    entries: list[AuditEntry]
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


class ModelMinute(Answer):
    accepted_last_minute: int
    ended_last_minute: int
    output_tokens_last_minute: int


class HistoryTotal(Answer):
    accepted: int
    completed: int
    failed: int
    cancelled: int
    refused: int
    wait_ms: TotalPercentiles
    first_output_ms: TotalPercentiles
    total_ms: TotalPercentiles
    failures: list[CodeCount]
    refusals: list[CodeCount]


class History(Answer):
    now: Ms
    bucket_ms: Ms
    at: list[Ms]
    accepted: list[int]
    completed: list[int]
    failed: list[int]
    cancelled: list[int]
    refused: list[int]
    waiting: list[int]
    wait_ms: Percentiles
    first_output_ms: Percentiles
    total_ms: Percentiles
    models: dict[str, ModelMinute]
    total: HistoryTotal
