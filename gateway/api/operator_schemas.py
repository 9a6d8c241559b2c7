"""What the account calls and the operators' calls answer, for the OpenAPI document."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType, field

from fairlane.gateway.api.schemas import ChainStage, Ms, Schema, TemplateUsed, says
from fairlane.gateway.batches.models import Status
from fairlane.gateway.settings.parts import Mode
from fairlane.queues.inspect.inspector import Blocked
from fairlane.queues.inspect.upstreams import BreakerState
from fairlane.queues.tasks import State
from fairlane.workers.server.limits.tightening import Why

SettingValue = float | int | bool | str | None
"""A setting of a queue or a model."""


class ReloadError(Schema, kw_only=True):
    """The last configuration that a replica read and did not take over, unless a good one came after it."""

    at: Ms
    reason: str


class BudgetLeft(Schema, kw_only=True):
    """A budget in the day or month that is now, in credits."""

    limit: float
    per: Literal["day", "month"]
    used: float
    reserved: Annotated[float, says("for tasks that have not ended")]
    remaining: float
    ends: Annotated[Ms, says("when it comes anew")]


class QuotaLeft(Schema, kw_only=True):
    """What somebody can pay with, in credits."""

    of: Annotated[Literal["key", "user"], says("who pays: the key for all its users, or each user")]
    granted: Annotated[float, says("all grants together")]
    spent: Annotated[float, says("what tasks have cost of them")]
    balance: Annotated[float, says("`granted` less `spent`; less than 0: a debt")]
    reserved: Annotated[float, says("for tasks that have not ended, of grants and budget together")]
    available: Annotated[float, says("what the next task may be held")]
    budget: BudgetLeft | None
    otherwise: str | None


class QuotaShown(QuotaLeft, kw_only=True):
    key: str
    user: Annotated[str | None, says("null: the key pays")]
    active: Annotated[bool, says("the key has a quota by which it, or its users, pay now")]


class QuotaGranted(QuotaShown, kw_only=True):
    id: str
    new: Annotated[bool, says("false: it had been made before, and nothing more was granted")]
    credits: float
    notes: Annotated[list[str], says("what an operator should know of what was done")]


class LedgerEntry(Schema, kw_only=True):
    """What a grant or a task did to a fund."""

    id: Annotated[str, says("of the grant or the task")]
    kind: Literal["grant", "task"]
    fund: Literal["granted", "day", "month"]
    ends: Annotated[Ms | None, says("of the budget's day or month")]
    of: Literal["key", "user"]
    key: str
    user: str | None
    reserved: Annotated[float, says("while the task went on")]
    amount: Annotated[float, says("less than 0: it was paid, or taken back")]
    refunded: Annotated[float, says("what came back of what was held")]
    price: Annotated[str, says("as of usage records")]
    at: Ms
    granted_by: Annotated[str, says("of a grant: the key of the operator")]
    note: str


class LimitLeft(Schema, kw_only=True):
    """A limit of a key or a user, and what is left of it."""

    limit: int
    remaining: int
    reset_ms: Annotated[Ms, says("until all of it is back; of requests and tokens")] = 0


class LimitsLeft(Schema, kw_only=True):
    """Those that are set."""

    requests_per_minute: LimitLeft | UnsetType = UNSET
    requests_per_day: LimitLeft | UnsetType = UNSET
    tokens_per_minute: LimitLeft | UnsetType = UNSET
    tokens_per_day: LimitLeft | UnsetType = UNSET
    max_running: LimitLeft | UnsetType = UNSET
    max_waiting: LimitLeft | UnsetType = UNSET


class Account(Schema, kw_only=True):
    """As whom a request counts."""

    user: str
    tier: str
    key: str | None
    open: bool
    delegating: bool
    admin: bool
    scopes: Annotated[list[Literal["call", "viewer", "metrics", "admin"]], says("what the key is for")]
    tiers: list[str]
    modes: list[Mode]
    version: str
    limits: Annotated[LimitsLeft, says("of the key, over all its users")]
    user_limits: Annotated[LimitsLeft, says("of this user of a delegating key")]
    quota: Annotated[QuotaLeft | None, says("null: nobody pays for its tasks")]


class ArchivedTask(Schema, kw_only=True):
    task_id: str
    key: str
    user: str
    status: Literal["completed", "failed", "cancelled"]
    ended_at: Ms
    answer: Annotated[dict[str, Any], says("as GET /api/task/{taskId} told it")]
    request: Annotated[Any, says("null: it was not kept")]


class AuditEntry(Schema, kw_only=True):
    id: str
    at: Ms
    actor: str
    from_: Annotated[str, says("the client's address, as the gateway sees it; empty: not known")] = field(
        name="from"
    )
    action: str
    target: str
    before: dict[str, Any]
    after: dict[str, Any]


class Rejection(Schema, kw_only=True):
    minute: Annotated[Ms, says("when it began")]
    key: Annotated[str, says("empty: a gateway that asks for no key, or a link of a task")]
    code: Annotated[str, says("that of the errors")]
    count: int


class OverrideShown(Schema, kw_only=True):
    """Values on top of the configuration."""

    id: str
    target: Literal["queue", "model", "route"]
    name: str
    values: dict[str, Any]
    percent: Annotated[int, says("share of the tasks")]
    until: Annotated[Ms | None, says("when it ends; null: when an operator rolls it back")]
    status: Literal["active", "promoted"]
    problem: Annotated[str | None, says("why the replica that answers does not apply it")]
    created_by: Annotated[str, says("the id of the operator's key")]
    created_at: Ms


class OverrideCreated(OverrideShown, kw_only=True):
    warnings: list[str]


class EndpointLine(Schema, kw_only=True):
    """How the line of an endpoint stands."""

    waiting: int
    running: int
    workers: Annotated[int, says("that make its calls")]
    limit: Annotated[int | None, says("the concurrency in force")]
    windows: Annotated[str | None, says("those in force")]
    reason: str | None
    slots: Annotated[int, says("C: requests that may be under way at once")]
    mean_ms: Annotated[float | None, says("T: how long a request takes")]
    measured: Annotated[bool, says("T is measured, and not guessed (`mean`)")]
    per_second: Annotated[float | None, says("Q = C / T, or what its narrowest window lets through")]
    paused: bool


class EndpointShown(Schema, kw_only=True):
    """An endpoint."""

    name: str
    model: Annotated[str, says("as which it is scheduled")]
    source: Literal["configuration", "database"]
    settings: dict[str, Any]
    note: str
    created_at: Ms | None
    changed_at: Ms | None
    changed_by: Annotated[str | None, says("the id of the key that changed it last")]
    line: EndpointLine | None


class EndpointDone(EndpointShown, kw_only=True):
    notes: list[str]


class Ready(Schema, kw_only=True):
    status: Literal["ready"]
    workers: Annotated[int, says("connected here")]
    store_write_error: Annotated[str, says("why Redis takes no writes")] = ""


class NotReady(Schema, kw_only=True):
    status: Literal["not ready"]
    missing: list[str]
    store_down_ms: Ms = 0


class Percentiles(Schema, kw_only=True):
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]


class TotalPercentiles(Schema, kw_only=True):
    p50: float | None
    p95: float | None
    p99: float | None


class CodeCount(Schema, kw_only=True):
    code: str
    count: int


class FailureCount(CodeCount, kw_only=True):
    category: Annotated[str, says("of its code; empty of `other`")]


class ModelMinute(Schema, kw_only=True):
    accepted_last_minute: int
    ended_last_minute: int
    cancelled_last_minute: Annotated[int, says("of those that ended")]
    output_tokens_last_minute: int


class HistoryTotal(Schema, kw_only=True):
    accepted: int
    completed: int
    failed: int
    cancelled: int
    rejected: int
    wait_ms: TotalPercentiles
    first_output_ms: TotalPercentiles
    total_ms: TotalPercentiles
    failures: list[FailureCount]
    rejections: list[CodeCount]


class History(Schema, kw_only=True):
    now: Ms
    until: Ms
    bucket_ms: Ms
    at: list[Ms]
    accepted: list[int]
    completed: list[int]
    failed: list[int]
    cancelled: list[int]
    rejected: list[int]
    waiting: list[int]
    wait_ms: Percentiles
    first_output_ms: Percentiles
    total_ms: Percentiles
    models: dict[str, ModelMinute]
    total: HistoryTotal


class KeySecret(Schema, kw_only=True):
    """That a secret is valid; what it is was told once."""

    created_at: Ms
    valid_until: Annotated[Ms | None, says("null: as long as the key")]
    signs: Annotated[bool, says("what it signs is taken: the key had `signing` when the secret was made")]


class KeyShown(Schema, kw_only=True):
    id: str
    kind: Literal["caller", "worker"]
    source: Literal["configuration", "database"]
    status: Literal["valid", "expired", "revoked", "replaced", "unusable"]
    settings: Annotated[dict[str, Any], says("as an entry of the configuration has them")]
    note: str
    created_at: Ms | None
    expires: Ms | None
    revoked_at: Ms | None
    last_used_at: Ms | None
    secrets: Annotated[list[KeySecret], says("the valid ones of a key of the database")]


class KeyDetail(KeyShown, kw_only=True):
    limits: LimitsLeft | None
    user_limits: Annotated[LimitsLeft | None, says("and of the user's that is asked for")]
    database_error: str | None


class KeyChanged(KeyShown, kw_only=True):
    notes: Annotated[list[str], says("what an operator should know of what was done")]


class KeyCreated(KeyChanged, kw_only=True):
    secret: Annotated[str, says("told this once")]


class KeyRevoked(KeyChanged, kw_only=True):
    cancelled: Annotated[int, says("tasks that were ended by this call")]


class Attempt(Schema, kw_only=True):
    worker_id: str
    model: str | None
    granted_at: Ms | None
    first_output_at: Ms | None = None
    ended_at: Ms | None
    outcome: str | None


class ModelMove(Schema, kw_only=True):
    """A task went on from `model` to another one."""

    model: str
    at: Ms
    reason: str


class Task(Schema, kw_only=True):
    task_id: str
    status: State
    model: str | None
    requested_model: Annotated[str | None, says("the name in the request, where another model may run")]
    moves: Annotated[list[ModelMove], says("the models that it went on from, the last ten")]
    repaired: Annotated[bool, says("an answer of it did not match its schema, and its model was asked again")]
    stage: Annotated[str | None, says("of a chain: the stage that it is in, or ended in")]
    stage_index: int | None
    part: Annotated[int | None, says("of a part of a stage: which, from 0")]
    chain: Annotated[str | None, says("of a part: its chain")]
    stage_at: Annotated[Ms | None, says("since when it is in this stage")]
    queue: str | None
    user: str | None
    key: str | None
    type: str | None
    code: str | None
    category: Annotated[str | None, says("of its code")]
    request_id: Annotated[str | None, says("of the call that submitted it: its `x-request-id`")]
    enqueued_at: Ms | None
    started_at: Ms | None
    first_output_at: Ms | None
    ended_at: Ms | None
    attempt: int | None
    attempts: list[Attempt]


class StageOfTask(ChainStage, kw_only=True):
    """A stage of a chain, and where it is to run, as far as that is known before."""

    model: str | None
    queue: str | None


class PermitOfTask(Schema, kw_only=True):
    until: Annotated[Ms, says("it may be used; or, once it is, its place is taken")]
    used_at: Ms | None


class TaskDetail(Task, kw_only=True):
    now: Ms
    fallbacks: Annotated[list[str], says("models that it may go on to")]
    chain_name: Annotated[str | None, says("of a chain that the configuration has")] = None
    stages: Annotated[list[StageOfTask] | UnsetType, says("of a chain")] = UNSET
    permit: Annotated[PermitOfTask | None, says("the one that is out")]
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
    keep_ms: Ms | None
    events: int
    stream_url: str | None
    metadata: Any
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False


class TopUser(Schema, kw_only=True):
    user: str
    waiting: int
    running: int
    tokens: int
    share: float | None
    model: str | None


class TopUsers(Schema, kw_only=True):
    now: Ms
    users: list[TopUser]
    number: int
    complete: bool


class Erased(Schema, kw_only=True):
    """Of how many rows, each once."""

    usage: int
    days: int
    archived: int
    audit: int
    responses: int
    files: int
    batches: Annotated[int, says("batches that have ended; those that had not were cancelled")]
    webhooks: Annotated[int, says("of webhooks of this user, and of what any told of this user's ends")]
    results: int
    ledger: int
    unended: Annotated[int, says("batches that were cancelled and have not ended yet")]
    stopping: Annotated[int, says("tasks that were cancelled, and that their workers have not let go yet")]
    more: Annotated[bool, says("there is more, or something has not ended yet")]


class WebhookFailing(Schema, kw_only=True):
    """The recent failures of a webhook."""

    since: Ms
    attempts: Annotated[int, says("since the last success")]
    error: Annotated[str, says("of the last one")]
    next_at: Annotated[Ms | None, says("when its receiver is tried next, if the webhook backs off")]


class WebhookShown(Schema, kw_only=True):
    """A webhook, as its owner sees it."""

    id: str
    url: str
    events: list[str]
    note: str
    every_user: Annotated[bool, says("it covers all users of its key")]
    enabled: bool
    disabled_at: Ms | None
    disabled_reason: str | None
    failing: WebhookFailing | None
    created_at: Ms
    changed_at: Ms
    delivered_at: Annotated[Ms | None, says("when a delivery succeeded last")]
    old_secret_until: Annotated[Ms | None, says("until then the former secret signs, too")]
    waiting: Annotated[int, says("deliveries that are still to be sent")]


class WebhookCreated(WebhookShown, kw_only=True):
    secret: Annotated[str, says("`whsec_…`, never shown again")]


class WebhookDelivery(Schema, kw_only=True):
    """An event that is sent to a webhook."""

    id: Annotated[str, says("the `webhook-id` of all its requests")]
    webhook_id: str
    event_id: Annotated[str, says("`id` in the body: the same for all webhooks")]
    event: str
    object_id: str
    created_at: Annotated[Ms, says("when the event happened")]
    status: Literal["waiting", "delivered", "failed"]
    attempts: Annotated[int, says("since it was created, or sent again by hand")]
    next_at: Ms | None
    ended_at: Ms | None
    http_status: Annotated[int | None, says("of the last answer; null: there was none")]
    error: Annotated[str | None, says("what was wrong with the last attempt")]


class OwnedWebhook(WebhookShown, kw_only=True):
    """A webhook, as operators see it."""

    key: Annotated[str | None, says("null: of an open gateway")]
    user: Annotated[str, says("`*`: it covers all users of its key")]


class WebhookDisabled(OwnedWebhook, kw_only=True):
    notes: list[str]


class RequestCounts(Schema, kw_only=True):
    """How far a batch is."""

    total: int
    completed: int
    failed: int


class WaitsFor(Schema, kw_only=True):
    """Why lines of a batch are not submitted now."""

    code: str
    models: Annotated[list[str], says("whose lines, up to ten; none: of any")]


class BatchProgress(Schema, kw_only=True):
    """The progress of a batch at the last report of its leader."""

    lines_waiting: Annotated[int, says("submitted, and in their queue")]
    lines_running: int
    waits_for: Annotated[list[WaitsFor], says("why others are not submitted")]


class AnyBatch(BatchProgress, kw_only=True):
    """A batch as operators see it."""

    id: str
    key: str | None
    user: str
    tier: str
    status: Status
    endpoint: str
    model: str | None
    created_at: Ms
    began_at: Ms | None
    expires_at: Ms
    ended_at: Ms | None
    counts: RequestCounts
    replica: Annotated[str | None, says("the one that works on it")]
    error: Annotated[str | None, says("the first thing that is wrong")]
    error_line: Annotated[int | None, says("in which line of its file")]
    error_param: Annotated[str | None, says("in which member")]


class SettingInfo(Schema, kw_only=True):
    help: str
    type: Literal["integer", "number", "string"]
    minimum: float | int | None
    maximum: float | int | None
    choices: list[str] | None


class _Changed(Schema, kw_only=True):
    values: Annotated[dict[str, SettingValue], says("what holds now")]
    overrides: Annotated[dict[str, SettingValue], says("what of it differs from the configuration")]
    changed: dict[str, dict[str, SettingValue]]
    settings: Annotated[dict[str, SettingInfo], says("what can be set, what it is for, and its bounds")]


class QueueChanged(_Changed, kw_only=True):
    queue: str


class ModelChanged(_Changed, kw_only=True):
    model: str


class RouteRule(Schema, kw_only=True):
    """What a route comes to; null: it says nothing of it."""

    model: str
    mode: Mode | None
    queue: str | None
    timeout_ms: Ms | None
    max_output_tokens: int | None
    price: Annotated[dict[str, float] | None, says("credits, as in the settings")]
    fallbacks: list[str]
    fallback_after_ms: Ms | None


class Route(RouteRule, kw_only=True):
    name: str
    tier: str
    template: str | None
    vision: Annotated[RouteRule | None, says("for requests with images, where it differs")]


class Template(Schema, kw_only=True):
    name: str
    version: str
    locales: list[str]
    default_locale: str | None
    variables: list[str]
    optional: list[str]
    json_schema: dict[str, Any] | None


class Chain(Schema, kw_only=True):
    name: str
    variables: list[str]
    optional: list[str]
    stages: Annotated[list[dict[str, str]], says("name and status of each, as polls show them")]


class RouteList(Schema, kw_only=True):
    routes: list[Route]
    templates: list[Template]
    chains: list[Chain]


class SettingSource(Schema, kw_only=True):
    """A value, and where it comes from."""

    value: Any
    source: Literal["default", "file", "environment", "flag", "generated", "replica", "changed"]
    where: str
    since: Ms | None
    by: Annotated[str | None, says("the key of the operator who changed it")]


class Setting(SettingSource, kw_only=True):
    name: str
    default: Any
    differs: Annotated[bool, says("from the default")]
    reloads: Annotated[bool, says("SIGHUP takes a change of it over; else it waits for a restart")]
    otherwise: SettingSource | None
    after_restart: SettingSource | None


class ConfigurationFile(Schema, kw_only=True):
    path: str
    modified_at: Ms


class Configured(Schema, kw_only=True):
    replica: str
    host: str | None
    version: str | None
    differs: list[Literal["keys", "routes", "others", "queues and models"]]


class Settings(Schema, kw_only=True):
    now: Ms
    replica: Annotated[str, says("the one that answers: the settings are its")]
    version: str
    started_at: Ms
    read_at: Annotated[Ms, says("when it read its configuration last")]
    file: ConfigurationFile | None
    reload_error: ReloadError | None
    in_force: Annotated[
        dict[str, Any] | None, says("whose configuration of queues and models holds everywhere")
    ]
    store_error: str | None
    replicas: list[Configured]
    settings: list[Setting]
    more: Annotated[bool, says("there are more than 10,000: ask for a part of their names")]


class Queue(Schema, kw_only=True):
    queue: str
    tier: str
    mode: Mode
    weight: float
    waiting: int
    max_length: int | None
    max_wait_ms: Ms | None
    max_running: int | None
    reserved: int | None
    admission: str
    paused: bool
    overrides: dict[str, SettingValue]
    running: int
    oldest_wait_ms: Ms | None
    share: float | None
    tokens_charged: int
    blocked: Annotated[Blocked | None, says("why none of its waiting tasks can start")]


class UpstreamState(Schema, kw_only=True):
    """A server behind workers of a model, with its breaker."""

    upstream: Annotated[str, says("as its workers name it; empty of those that name none")]
    workers: int
    breaker: Annotated[BreakerState, says("`half_open`: a few tasks at a time may start, its probes")]
    forced: Annotated[bool, says("an operator wants it so")]
    since: Annotated[Ms | None, says("when the breaker opened, or was forced")]
    until: Annotated[Ms | None, says("when an open one lets probes through")]
    openings: Annotated[int, says("how often it opened since, without closing between")]
    reason: str | None
    probes: Annotated[int, says("under way")]
    cooldown_until: Annotated[Ms | None, says("its provider said: not before")]


class OutputLimit(Schema, kw_only=True):
    """A limit of a model on its silence, as it holds now at the replica that answers."""

    ms: Ms
    target_ms: Annotated[Ms, says("where it goes, by a fifth every 5 s")]
    reason: Annotated[Why, says("why it goes there")]
    p99_ms: Annotated[Ms | None, says("how long all but one in a hundred answers took of late")]
    answers: Annotated[int, says("of how many that is known")]


class OutputLimits(Schema, kw_only=True):
    first_output: OutputLimit | None
    silence: OutputLimit | None
    wait_ms: Ms | None


class EndpointOfModel(Schema, kw_only=True):
    """What the row of an endpoint's model says of it."""

    url: str
    windows: str | None
    mean_ms: Annotated[float | None, says("T: how long a request takes")]
    measured: Annotated[bool, says("T is measured, and not guessed")]
    per_second: Annotated[float | None, says("Q = C / T, or what its narrowest window lets through")]


class ModelState(Schema, kw_only=True):
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
    cooldown_until: Ms | None
    next_start_at: Ms | None
    mean_run_ms: float | None
    workers: int
    slots: int
    overrides: dict[str, SettingValue]
    blocked: dict[str, Blocked]
    configured: bool
    upstreams: list[UpstreamState]
    output_limits: Annotated[OutputLimits | None, says("null: it may be silent for as long as it likes")]
    endpoint: Annotated[EndpointOfModel | None, says("null: it is a model, and none")]


class ModelInfo(Schema, kw_only=True):
    """What a worker tells of a model: tokens of input and output together, and whose it is."""

    context_length: int | None = None
    owned_by: str | None = None


class Worker(Schema, kw_only=True):
    worker_id: str
    name: str | None
    replica: str
    version: int
    models: list[str]
    more_models: int = 0
    task_types: list[str] | None
    slots: int
    draining: bool
    upstream: str | None = None
    unhealthy: str | None = None
    model_info: dict[str, ModelInfo] | UnsetType = UNSET
    running: int = 0
    heartbeat_age_ms: Ms = 0
    task_silent_ms: Ms | None = None


class Counts(Schema, kw_only=True):
    queued: int
    executing: int
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    queued_bytes: int
    retained_bytes: int
    dropped_early: int
    records_waiting: int
    records_max: int


class Store(Schema, kw_only=True):
    """What the replica that answers sees of Redis."""

    address: str
    up: bool
    rejects_writes: bool
    since: Ms | None
    reason: str | None


class DatabaseSeen(Schema, kw_only=True):
    """What the process that answers sees of the SQL database."""

    address: str
    up: bool
    since: Ms | None
    reason: str | None


class Replica(Schema, kw_only=True):
    replica: str
    age_ms: Ms
    host: str | None
    pid: int | None
    version: str | None
    started_at: Ms | None
    keys_hash: Annotated[str | None, says("of its keys and worker tokens: the same where these are the same")]
    routes_hash: str | None
    reload_error: ReloadError | None
    configuration: dict[str, Any] | None


class OperatorState(Schema, kw_only=True):
    now: Ms
    queues: list[Queue]
    models: list[ModelState]
    workers: list[Worker]
    counts: Counts
    store: Store
    database: DatabaseSeen
    tasks: list[Task]
    replicas: list[Replica]


class Used(Schema, kw_only=True):
    """Tasks added up. Tokens that are not known count as none."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    cached_tokens: Annotated[int, says("of the input, where workers tell it")]
    reasoning_tokens: Annotated[int, says("of the output, where workers tell it")]
    estimated: Annotated[int, says("tasks whose tokens are, at least in part, the gateway's own count")]
    waited_ms: Annotated[Ms, says("together, each until its last start, or its end where it never started")]
    ran_ms: Annotated[Ms, says("together, each from its last start to its end")]
    cost: Annotated[float, says("credits, by the prices that held when tasks were submitted")]


class UsedBy(Used, kw_only=True):
    """One row: the members that were asked `by`, and what they used."""

    model: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    category: Annotated[str | UnsetType, says("beside `code`: its category")] = UNSET
    route: str | UnsetType = UNSET
    day: Annotated[str | UnsetType, says("2026-11-23")] = UNSET
    hour: Annotated[str | UnsetType, says("2026-11-23T16:00Z")] = UNSET


class UsageReport(Schema, kw_only=True):
    now: Ms
    from_: Ms = field(name="from")
    to: Ms
    by: list[str]
    rows: list[UsedBy]
    total: Used
    more: bool


class UsedTask(Schema, kw_only=True):
    """What a task used, for good. What is not known is null; what there is none of, an empty text."""

    task_id: str
    ended_at: Ms
    enqueued_at: Ms
    granted_at: Annotated[Ms | None, says("its last start; null: it never started")]
    first_output_at: Ms | None
    status: State
    code: Annotated[str, says("failure code, CANCELLED included; empty when it completed")]
    category: Annotated[str, says("of its code")]
    key: str
    user: str
    tier: str
    queue: str
    type: str
    model: Annotated[str, says("that was asked for")]
    scheduled_as: Annotated[str, says("the line that it waited in: its model, or * where any name is taken")]
    worker_id: str
    attempts: int
    tries: int
    request_id: str
    trace_id: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    estimated: Annotated[bool, says("input or output is the gateway's own count")]
    cost: float | None
    price: str
    route: Annotated[str, says("the name that its caller gave, where more than one model may run it")]
    template: Annotated[str, says("the name of the template that its payload was made of")]
    template_version: str
    stage: Annotated[str, says("of a chain, which has a row for each stage, and for each part of one")]
    stage_index: Annotated[int | None, says("from 0; null: it is no chain")]
    part: Annotated[int | None, says("from 0; null: the stage had one alone")]
