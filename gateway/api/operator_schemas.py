"""The answers of the account's and the operators' calls, for the OpenAPI document."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType, field

from fairlane.gateway.api.schemas import ChainStage, Ms, Schema, TemplateUsed, says
from fairlane.gateway.batches.models import Status
from fairlane.gateway.settings.parts import Mode
from fairlane.queues.tasks import State

SettingValue = float | int | bool | str | None
"""A setting of a queue or a model."""


class BudgetLeft(Schema, kw_only=True):
    """A budget of the current day or month, in credits."""

    limit: float
    per: Literal["day", "month"]
    used: float
    reserved: Annotated[float, says("for tasks that have not ended")]
    remaining: float
    ends: Annotated[Ms, says("when it is renewed")]


class QuotaLeft(Schema, kw_only=True):
    """The balance of a key or a user, in credits."""

    of: Annotated[Literal["key", "user"], says("the payer: the key for all its users, or each user")]
    granted: Annotated[float, says("all grants together")]
    spent: Annotated[float, says("the costs of tasks that were paid from grants")]
    balance: Annotated[float, says("`granted` less `spent`; less than 0: a debt")]
    reserved: Annotated[float, says("for tasks that have not ended, of grants and budget together")]
    available: Annotated[float, says("what the next task may reserve")]
    budget: BudgetLeft | None
    otherwise: str | None


class QuotaShown(QuotaLeft, kw_only=True):
    key: str
    user: Annotated[str | None, says("null: the key pays")]
    active: Annotated[bool, says("the key's quota applies now")]


class QuotaGranted(QuotaShown, kw_only=True):
    id: str
    new: Annotated[bool, says("false: this id was granted before, and nothing more was granted")]
    credits: float
    notes: Annotated[list[str], says("hints for the operator")]


class LedgerEntry(Schema, kw_only=True):
    """The effect of a grant or a task on a fund."""

    id: Annotated[str, says("of the grant or the task")]
    kind: Literal["grant", "task"]
    fund: Literal["granted", "day", "month"]
    ends: Annotated[Ms | None, says("of the budget's day or month")]
    of: Literal["key", "user"]
    key: str
    user: str | None
    reserved: Annotated[float, says("while the task ran")]
    amount: Annotated[float, says("less than 0: a payment, or a withdrawn grant")]
    refunded: Annotated[float, says("the part of the reservation that was returned")]
    price: Annotated[str, says("as of usage records")]
    at: Ms
    granted_by: Annotated[str, says("of a grant: the key of the operator")]
    note: str


class LimitLeft(Schema, kw_only=True):
    """A limit of a key or a user, and what is left of it."""

    limit: int
    remaining: int
    reset_ms: Annotated[Ms, says("until it is full again; of requests and tokens")] = 0


class LimitsLeft(Schema, kw_only=True):
    """The limits that are set."""

    requests_per_minute: LimitLeft | UnsetType = UNSET
    requests_per_day: LimitLeft | UnsetType = UNSET
    tokens_per_minute: LimitLeft | UnsetType = UNSET
    tokens_per_day: LimitLeft | UnsetType = UNSET
    max_running: LimitLeft | UnsetType = UNSET
    max_waiting: LimitLeft | UnsetType = UNSET


class Account(Schema, kw_only=True):
    """The caller of a request."""

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
    quota: Annotated[QuotaLeft | None, says("null: its tasks are free")]


class ArchivedTask(Schema, kw_only=True):
    task_id: str
    key: str
    user: str
    status: Literal["completed", "failed", "cancelled"]
    ended_at: Ms
    answer: Annotated[dict[str, Any], says("as of GET /api/task/{taskId}")]
    request: Annotated[Any, says("null: it was not stored")]


class AuditEntry(Schema, kw_only=True):
    id: str
    at: Ms
    actor: str
    from_: Annotated[str, says("the client's address; empty: unknown")] = field(name="from")
    action: str
    target: str
    before: dict[str, Any]
    after: dict[str, Any]


class Rejection(Schema, kw_only=True):
    minute: Annotated[Ms, says("its beginning")]
    key: Annotated[str, says("empty: no-auth mode, or a link of a task")]
    code: Annotated[str, says("of the errors")]
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
    """The queue of an endpoint."""

    waiting: int
    running: int
    workers: Annotated[int, says("that serve it")]
    limit: Annotated[int | None, says("the effective concurrency")]
    windows: Annotated[str | None, says("the effective ones")]
    reason: str | None
    slots: Annotated[int, says("C: concurrent requests")]
    mean_ms: Annotated[float | None, says("T: the duration of a request")]
    measured: Annotated[bool, says("T is measured, not configured (`mean`)")]
    per_second: Annotated[float | None, says("Q = C / T, or the rate of its narrowest window")]
    paused: bool


class EndpointShown(Schema, kw_only=True):
    """An endpoint."""

    name: str
    model: Annotated[str, says("its name for the scheduler")]
    source: Literal["configuration", "database"]
    settings: dict[str, Any]
    note: str
    created_at: Ms | None
    changed_at: Ms | None
    changed_by: Annotated[str | None, says("the id of the operator's key")]
    line: EndpointLine | None


class EndpointDone(EndpointShown, kw_only=True):
    notes: list[str]


class KeySecret(Schema, kw_only=True):
    """A valid secret, without the secret itself."""

    created_at: Ms
    valid_until: Annotated[Ms | None, says("null: as long as the key")]
    signs: Annotated[bool, says("it can sign tokens: the key had `signing` when the secret was created")]


class KeyShown(Schema, kw_only=True):
    id: str
    kind: Literal["caller", "worker"]
    source: Literal["configuration", "database"]
    status: Literal["valid", "expired", "revoked", "replaced", "unusable"]
    settings: Annotated[dict[str, Any], says("as in an entry of the configuration")]
    note: str
    created_at: Ms | None
    expires: Ms | None
    revoked_at: Ms | None
    last_used_at: Ms | None
    secrets: Annotated[list[KeySecret], says("the valid ones of a key in the database")]


class KeyDetail(KeyShown, kw_only=True):
    limits: LimitsLeft | None
    user_limits: Annotated[LimitsLeft | None, says("of the `user` in the query")]
    database_error: str | None


class KeyChanged(KeyShown, kw_only=True):
    notes: Annotated[list[str], says("hints for the operator")]


class KeyCreated(KeyChanged, kw_only=True):
    secret: Annotated[str, says("shown only once")]


class KeyRevoked(KeyChanged, kw_only=True):
    cancelled: Annotated[int, says("tasks that this call cancelled")]


class Attempt(Schema, kw_only=True):
    worker_id: str
    model: str | None
    granted_at: Ms | None
    first_output_at: Ms | None = None
    ended_at: Ms | None
    outcome: str | None


class ModelMove(Schema, kw_only=True):
    """A fallback from `model` to another one."""

    model: str
    at: Ms
    reason: str


class Task(Schema, kw_only=True):
    task_id: str
    status: State
    model: str | None
    requested_model: Annotated[str | None, says("the name in the request, where another model may run")]
    moves: Annotated[list[ModelMove], says("its fallbacks, the last ten")]
    repaired: Annotated[bool, says("an output did not match its schema and was retried")]
    stage: Annotated[str | None, says("of a chain: its current or last stage")]
    stage_index: int | None
    part: Annotated[int | None, says("of a part of a stage: its number, from 0")]
    chain: Annotated[str | None, says("of a part: its chain")]
    stage_at: Annotated[Ms | None, says("the start of this stage")]
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
    """A stage of a chain, and its model and queue, if they are known before it starts."""

    model: str | None
    queue: str | None


class PermitOfTask(Schema, kw_only=True):
    until: Annotated[Ms, says("the end of its validity; once used, the end of its slot's lease")]
    used_at: Ms | None


class TaskDetail(Task, kw_only=True):
    now: Ms
    fallbacks: Annotated[list[str], says("its next models, if this one fails")]
    chain_name: Annotated[str | None, says("of a chain in the configuration")] = None
    stages: Annotated[list[StageOfTask] | UnsetType, says("of a chain")] = UNSET
    permit: Annotated[PermitOfTask | None, says("the current one")]
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
    """The number of erased rows."""

    usage: int
    days: int
    archived: int
    audit: int
    responses: int
    files: int
    batches: Annotated[int, says("batches that had ended; others were cancelled")]
    webhooks: Annotated[int, says("of this user's webhooks, and deliveries about this user's tasks")]
    results: int
    ledger: int
    unended: Annotated[int, says("batches that were cancelled and have not ended yet")]
    stopping: Annotated[int, says("cancelled tasks that their workers still run")]
    more: Annotated[bool, says("call again for the rest")]


class WebhookFailing(Schema, kw_only=True):
    """The recent failures of a webhook."""

    since: Ms
    attempts: Annotated[int, says("since the last success")]
    error: Annotated[str, says("of the last one")]
    next_at: Annotated[Ms | None, says("when its receiver is tried next, if the webhook backs off")]


class WebhookShown(Schema, kw_only=True):
    """A webhook, as shown to its owner."""

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
    http_status: Annotated[int | None, says("of the last answer; null: no answer")]
    error: Annotated[str | None, says("of the last attempt")]


class OwnedWebhook(WebhookShown, kw_only=True):
    """A webhook, as shown to operators."""

    key: Annotated[str | None, says("null: created in no-auth mode")]
    user: Annotated[str, says("`*`: all users of its key")]


class WebhookDisabled(OwnedWebhook, kw_only=True):
    notes: list[str]


class RequestCounts(Schema, kw_only=True):
    """The progress of a batch."""

    total: int
    completed: int
    failed: int


class WaitsFor(Schema, kw_only=True):
    """The reason why lines of a batch are not submitted now."""

    code: str
    models: Annotated[list[str], says("the models of these lines, up to ten; none: any")]


class AnyBatch(Schema, kw_only=True):
    """A batch, as shown to operators."""

    lines_waiting: Annotated[int, says("submitted, and in their queue")]
    lines_running: int
    waits_for: Annotated[list[WaitsFor], says("reasons why others are not submitted")]
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
    replica: Annotated[str | None, says("the one that submits its lines")]
    error: Annotated[str | None, says("the first one")]
    error_line: Annotated[int | None, says("its line in the file")]
    error_param: Annotated[str | None, says("its member")]


class SettingInfo(Schema, kw_only=True):
    help: str
    type: Literal["integer", "number", "string"]
    minimum: float | int | None
    maximum: float | int | None
    choices: list[str] | None


class SettingsChanged(Schema, kw_only=True):
    """The settings of a queue or a model."""

    queue: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    values: Annotated[dict[str, SettingValue], says("the effective ones")]
    overrides: Annotated[dict[str, SettingValue], says("those that differ from the configuration")]
    changed: dict[str, dict[str, SettingValue]]
    settings: Annotated[dict[str, SettingInfo], says("the settings that can be changed")]


class RouteRule(Schema, kw_only=True):
    """The values that a route sets; null: none."""

    model: str
    mode: Mode | None
    queue: str | None
    stream: bool
    timeout_ms: Ms | None
    max_output_tokens: int | None
    price: Annotated[dict[str, float] | None, says("credits, as in the settings")]
    fallbacks: list[str]
    fallback_after_ms: Ms | None


class Route(RouteRule, kw_only=True):
    name: str
    tier: str
    template: str | None
    vision: Annotated[RouteRule | None, says("for requests with images, if it differs")]


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


class Used(Schema, kw_only=True):
    """Sums over tasks. Unknown tokens count as 0."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    cached_tokens: Annotated[int, says("part of the input, if workers report it")]
    reasoning_tokens: Annotated[int, says("part of the output, if workers report it")]
    estimated: Annotated[int, says("tasks whose tokens are, at least in part, the gateway's estimate")]
    waited_ms: Annotated[Ms, says("each until its last start, or its end without a start")]
    ran_ms: Annotated[Ms, says("each from its last start to its end")]
    cost: Annotated[float, says("credits, by the prices at submission")]


class UsedBy(Used, kw_only=True):
    """One row: the members of `by`, and their sums."""

    model: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    user: str | UnsetType = UNSET
    tier: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    category: Annotated[str | UnsetType, says("with `code`: its category")] = UNSET
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
    """The usage record of a task. An unknown value is null, a missing text empty."""

    task_id: str
    ended_at: Ms
    enqueued_at: Ms
    granted_at: Annotated[Ms | None, says("its last start; null: none")]
    first_output_at: Ms | None
    status: State
    code: Annotated[str, says("failure code, also CANCELLED; empty if it completed")]
    category: Annotated[str, says("of its code")]
    key: str
    user: str
    tier: str
    queue: str
    type: str
    model: Annotated[str, says("the requested one")]
    scheduled_as: Annotated[str, says("the model of its queue: its own, or *")]
    worker_id: str
    attempts: int
    tries: int
    request_id: str
    trace_id: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    estimated: Annotated[bool, says("input or output is the gateway's estimate")]
    cost: float | None
    price: str
    route: Annotated[str, says("the name in the request, if more than one model may run it")]
    template: Annotated[str, says("the template of its payload")]
    template_version: str
    stage: Annotated[str, says("of a chain, which has a row for each stage and each part of one")]
    stage_index: Annotated[int | None, says("from 0; null: not a chain")]
    part: Annotated[int | None, says("from 0; null: the stage had a single one")]
