"""Groups of settings: models, queues, keys and what belongs to them, and the kinds of values. Pure."""

import contextlib
import datetime
import functools
import re
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from fairlane.gateway.credits.amounts import plain_credits, read_credits
from fairlane.gateway.credits.prices import Period, Price, price
from fairlane.gateway.credits.quota import Per
from fairlane.gateway.settings.units import DAY_MS, HOUR_MS, MIB, MINUTE_MS, SECOND_MS, Amount, external_name
from fairlane.queues.windows import read_windows
from fairlane.workers.adapters.endpoints.addresses import read_networks
from fairlane.workers.adapters.providers import PROVIDERS

Mode = Literal["stream", "batch", "vision"]
MODES: tuple[Mode, ...] = ("stream", "batch", "vision")

Ms = Annotated[int, Amount("ms", 1, 366 * DAY_MS)]
MsOrZero = Annotated[int, Amount("ms", 0, 366 * DAY_MS)]
Days = Annotated[int, Amount("days", 1, 36_500)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=10_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
Bytes = Annotated[int, Amount("bytes", 1, 1 << 46)]
Weight = Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
UserFrom = Annotated[str, Field(pattern=r"^(body\.user|[A-Za-z][A-Za-z0-9-]{0,99})?$")]
Scope = Literal["call", "viewer", "metrics", "admin"]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
SigningKey = Annotated[str, Field(pattern=r"^([0-9a-fA-F]{64})?$", repr=False)]


def _windows(text: str) -> str:
    read_windows(text)
    return text


Windows = Annotated[str, Field(max_length=100), AfterValidator(_windows)]


def _networks(texts: list[str]) -> list[str]:
    try:
        return [str(network) for network in read_networks(texts)]
    except ValueError:
        raise ValueError("should be networks such as 10.1.0.0/16 or fd00::/8") from None


Networks = Annotated[list[str], Field(max_length=64), AfterValidator(_networks)]
"""Of private addresses, which may be called although they are none of the public internet."""

MAX_FALLBACKS = 8
MAX_OF_A_PRICE = 100_000_000
"""Credits of a million tokens, or of a task: what one task costs then is a number that Redis's scripts can count with."""


def _instant(value: Any) -> int:
    """ms since 1970 of a date or an instant, UTC unless it names an offset. Raises ValueError."""
    found = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            found = datetime.datetime.fromisoformat(value.strip())
    if not isinstance(found, datetime.date):
        raise ValueError(
            "should be a date such as 2027-01-31 (UTC), or an instant such as 2027-01-31T06:00:00+01:00"
        )
    day = found if isinstance(found, datetime.datetime) else datetime.datetime.combine(found, datetime.time())
    ms = round((day if day.tzinfo else day.replace(tzinfo=datetime.UTC)).timestamp() * 1000)
    if ms < 0:
        raise ValueError("should lie after 1970")
    return ms


def _told_instant(ms: int | None) -> str | None:
    return None if ms is None else datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat()


_AMOUNT_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number"}, {"type": "string"}], "description": "credits, at most 6 decimals"}
)
Credits = Annotated[
    int, BeforeValidator(read_credits), PlainSerializer(plain_credits, return_type=float), _AMOUNT_SCHEMA
]
"""Given in credits, held in micro-credits."""
PriceOf = Annotated[
    int,
    BeforeValidator(functools.partial(read_credits, most=MAX_OF_A_PRICE)),
    PlainSerializer(plain_credits, return_type=float),
]
Instant = Annotated[int, BeforeValidator(_instant), PlainSerializer(_told_instant, return_type=str)]
"""Given as ISO 8601, held in ms since 1970."""


MODEL_CONFIG = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    alias_generator=external_name,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
)
"""Code names a setting with its unit, as in `Settings(task_timeout=90s)`; files, JSON and errors use `external_name`."""


class SettingsPart(BaseModel):
    """A group of settings."""

    model_config = MODEL_CONFIG


def part_of(field: FieldInfo) -> type[BaseModel] | None:
    """The group of settings that a field holds, if it holds one."""
    for found in (field.annotation, *get_args(field.annotation)):
        if isinstance(found, type) and issubclass(found, SettingsPart):
            return found
    return None


class ModelSettings(SettingsPart):
    """One model. A model that is not listed works with these defaults as soon as a worker offers it."""

    concurrency: Count | None = None
    """Tasks of this model that may run at once, over all replicas. Not set: only the connected workers'
    slots bound it, because they usually are the capacity.
    """

    cost: Literal["tokens", "requests", "slot_seconds"] = "tokens"
    """What fairness counts. `tokens` (input + 2 x output) because a long answer takes more of the model than
    a short one; `requests` counts each task as one: plain weighted round-robin; `slot_seconds` counts how
    long a task held its slot, for work whose tokens nobody reports (images, speech, tools).
    """

    requests_per_minute: Count | None = None
    """Tasks of this model that may begin within any minute, over all replicas: what its provider allows.
    Further ones wait and begin at that pace, without bursts, instead of failing there. Not set: no pace. A
    value above the provider's brings its 429s back, each of which holds the model for as long as it says.
    """

    tokens_per_minute: Tokens | None = None
    """Tokens that tasks of this model may use within any minute, input and output together: estimated when a
    task begins, corrected when it ends. Not set: no pace. Below what one task uses, that task begins all the
    same, and the next ones wait for it to be made up.
    """

    windows: Windows | None = None
    """Requests that the model's target may see within a time, wherever one begins to count, over all replicas and workers:
    `50/1s`, or up to three such windows, `50/1s, 1000/1m` (ms, s, m or h). Further tasks wait. A task counts until its request is
    known to have left, or it has ended, and a window longer. Not set: no window. Above what the target takes, it refuses.
    """

    max_running_per_user: Count | None = None
    """Tasks of one user that may run at once on this model; the user's others wait, and those behind them in
    the queue pass. Not set: no limit, as fair queueing alone gives nobody more than a share while others
    wait.
    """

    max_waiting_per_user: Count | None = None
    """Tasks of one user that may wait for this model, over all queues; further ones are refused with 429.
    Not set: no limit but the queues' own.
    """

    breaker_failures: Annotated[int, Field(ge=0, le=100)] | None = None
    """Failures of an upstream (a server behind workers) within a minute that open its breaker for this model, if they
    are half of what ended in that time. Then nothing of the model starts through it for a while. Not set: 5. 0: no breaker.
    """

    breaker_open_ms: Annotated[int, Amount("ms", 100, HOUR_MS)] | None = None
    """Milliseconds for which a breaker is open at first; then a few tasks probe the upstream, and after each probe that fails
    it is open for twice as long, up to a minute. Not set: 5000.
    """

    first_output_ms: Ms | None = None
    """Milliseconds a worker may take to its first output. Not set: no limit, because a worker that sends
    only a result is silent until then.
    """

    silence_ms: Ms | None = None
    """Milliseconds between two outputs of a worker, after the first. Not set: no limit, as above."""

    adaptive_timeouts: bool = False
    """Whether `first_output` and `silence` tighten, down to a quarter, while the model's queue makes new tasks wait for 2
    to 20 s, so that slots come back sooner. They relax as the queue drains, and stay above what answers take.
    """

    fallbacks: Annotated[list[ModelName], Field(max_length=MAX_FALLBACKS)] = []
    """Models to which a task of this one goes on, in this order, that it could not answer: before anybody saw output, at
    its age. Routes that run this model have them too, unless they name others.
    """

    fallback_after_ms: MsOrZero | None = None
    """A task goes on to the next model while this one is held or paced for longer than so many milliseconds. Not set: 10 s.
    """


class QueueSettings(SettingsPart):
    """One queue: the tasks of one tier and one mode."""

    tier: Identifier
    """The tier whose callers' tasks wait here. A new name makes a new tier."""

    mode: Mode
    """The mode of the tasks that wait here: `stream`, `batch` or `vision`."""

    weight: Weight = 1.0
    """Share of a contended model, relative to the other queues with waiting tasks. At least 0.001, so that no queue
    starves.
    """

    max_length: Count | None = None
    """Tasks that may wait here, over all models; as `max_queue_length`, which holds where this is not set."""

    max_wait_ms: Ms | None = None
    """Milliseconds a task may wait here. Not set: `max_queue_wait`."""

    max_running: Count | None = None
    """Tasks of this queue that may run at once, over all models and replicas; further ones wait even when
    slots are free. Not set: no limit, so that no slot stays idle.
    """

    reserved: CountOrZero = 0
    """Slots of each model with a `concurrency` that this queue is owed: while it runs fewer, its tasks come first, whatever the
    weights. Other queues use them while it does not. 0: weights alone decide. Without effect on models without a `concurrency`.
    """

    admission: Literal["fixed", "adaptive"] = "fixed"
    """When a task is refused at once instead of queued. `fixed`: when `max_length` tasks wait, or its caller's
    time would be over even after the shortest wait that is to be expected. `adaptive`:
    when the predicted wait exceeds `max_wait` (or `max_queue_wait`) or the caller's own deadline,
    whichever comes first; how many may wait then follows from how fast the queue drains. Fixed, because a
    prediction needs tasks that have run. Without any maximum wait, `adaptive` goes by the caller's own
    deadline alone; and as long as nothing has drained lately, by `max_length`.
    """


class KeyLimits(SettingsPart):
    """How much a key may use, or each user of a delegating key: over all models, modes and replicas. Not set: no limit."""

    requests_per_minute: Count | None = None
    """Tasks that may be submitted within a minute; further ones are refused with 429 `RATE_LIMITED`. The whole limit may be used
    at once; it comes back evenly: of 60 one each second. A task that is refused, or comes to nothing before it has begun,
    counts for nothing.
    """

    requests_per_day: Count | None = None
    """The same within 24 hours."""

    tokens_per_minute: Tokens | None = None
    """Tokens, input and output together, that tasks may use within a minute: estimated when a task is submitted, settled when it
    ends. What it used beyond the estimate has to be made up before the next one is accepted.
    """

    tokens_per_day: Tokens | None = None
    """The same within 24 hours."""

    max_running: Count | None = None
    """Tasks that may run at once; further ones wait, and those of others pass. A change holds for tasks that come after it."""

    max_waiting: Count | None = None
    """Tasks that may wait at once; further ones are refused with 429 `RATE_LIMITED`. Tasks that came before it was set are not
    counted.
    """


class KeyQuota(SettingsPart):
    """Who pays for the tasks of a key, and from what: granted credits (`fairlane balance grant`), and a budget."""

    of: Literal["key", "user"] = "key"
    """Who pays: `key`, for all its users together; or `user`, each user of a delegating key by itself."""

    budget: Credits | None = None
    """Credits that may be used in each day or month beside those that were granted, and before them. What is left of them is gone
    with its end. Not set: only what was granted.
    """

    per: Per | None = None
    """How often the budget comes anew: each calendar `day` or `month`, in the zone `budget_timezone`. Needed with `budget`."""

    otherwise: Identifier | None = None
    """The tier in which a task goes on, at no cost, that cannot be paid. Not set: it is refused with 429 `insufficient_quota`."""


class Rates(SettingsPart):
    """What something costs, in credits."""

    input: PriceOf
    """Credits for a million tokens of input; decimals of at most six digits."""

    cached_input: PriceOf | None = None
    """The same for those of them that the provider had in its cache. Not set: as `input`."""

    output: PriceOf
    """Credits for a million tokens of output."""

    reasoning: PriceOf | None = None
    """The same for those of them with which the model thought. Not set: as `output`."""

    request: PriceOf = 0
    """Credits for each task, beside its tokens."""

    @property
    def of_each(self) -> Price:
        """The same, as costs are reckoned with it."""
        cached = self.input if self.cached_input is None else self.cached_input
        reasoning = self.output if self.reasoning is None else self.reasoning
        return price(self.input, cached, self.output, reasoning, self.request)


class _Period(SettingsPart):
    model: ModelName
    """The model, as callers name it, or `*`: any that has no price of its own at that time. Also the name of a route."""

    since: Instant | None = None
    """When the price begins to hold, for tasks that are submitted from then on: `2027-01-31` (UTC), or an instant with its
    offset, `2027-01-31T06:00:00+01:00`. Not set: it has always held.
    """

    until: Instant | None = None
    """When it holds no more; a price that follows may begin then. Not set: it goes on."""


class PriceSettings(Rates, _Period):
    """What a model costs from one instant to another, in credits."""

    @property
    def period(self) -> Period:
        """When it is the price."""
        return Period(self.model, self.since, self.until, self.of_each)


class CallerKey(SettingsPart):
    """One key that callers present as `Authorization: Bearer`; `fairlane key create --print` makes one."""

    id: Identifier
    """Name of the key, and of its user unless the key is delegating."""

    sha256: Sha256
    """SHA-256 of the secret, 64 hex digits. The secret itself is stored nowhere."""

    tier: Identifier = "free"
    """The tier of the key's tasks; one that a queue names."""

    delegating: bool = False
    """Whether this key may name the user and tier per request (`X-Fairlane-User`, `X-Fairlane-Tier`). For a
    trusted back end only, hence off. Its users are its own: lists and searches show them as `<id>/<name>`.
    """

    user_from: UserFrom = ""
    """Where else a delegating key's requests name their user, where they have no `X-Fairlane-User`: another header
    (`X-OpenWebUI-User-Id` is Open WebUI's), or `body.user`, the member `user` of OpenAI's bodies. Not set: nowhere.
    """

    scopes: list[Scope] = ["call"]
    """What this key is for. `call`: to submit tasks and read its own. `viewer`: to read what operators see (dashboard, state,
    tasks without their content, audit). `metrics`: to read `/metrics`. `admin`: everything.
    """

    signing: bool = False
    """Whether this key's secret may sign tokens for users' pages; needs `delegating`. Off, because the gateway then holds what
    signs, and not only a hash.
    """

    signing_key: SigningKey = ""
    """What this key signs with, 64 hex digits; `fairlane key create signing=true --print` prints it. Keep it secret."""

    weight: Weight = 1.0
    """Share of the key's users against other users of the same queue and model."""

    models: list[ModelName] = ["*"]
    """Models this key may use; `["*"]` is all."""

    limits: KeyLimits = KeyLimits()
    """How much may be used with this key, by all its users together."""

    user_limits: KeyLimits = KeyLimits()
    """How much each user of a delegating key may use; those whom its requests do not name count as one."""

    quota: KeyQuota | None = None
    """Who pays for the key's tasks, by `prices`. Not set: nobody does, and it may use as much as its limits allow."""

    @property
    def admin(self) -> bool:
        """Return whether the key may do everything."""
        return "admin" in self.scopes

    @field_validator("sha256")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


class WorkerKey(SettingsPart):
    """One token that workers present; `fairlane key create --worker --print` makes one."""

    id: Identifier
    """Name of the token, shown beside its workers."""

    sha256: Sha256
    """SHA-256 of the token, 64 hex digits. The token itself is stored nowhere."""

    models: list[ModelName] = ["*"]
    """Models its workers may offer; `["*"]` is all."""

    @field_validator("sha256")
    @classmethod
    def _lower(cls, value: str) -> str:
        return value.lower()


MAX_MODELS_OF_A_WORKER = 256
MAX_SLOTS_OF_A_WORKER = 1024
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")


def _offers(value: Any) -> Any:
    """Models by the names that are offered, each with the upstream's own: a list has the same for both."""
    if isinstance(value, list):
        names = [name for name in value if isinstance(name, str)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is given twice")
        if len(names) < len(value):
            raise ValueError("should be names of models; put numbers and the like in quotes")
        value = {name: name for name in names}
    if value == {}:
        raise ValueError("should name a model, at least")
    if isinstance(value, dict):
        return {name: name if other is None else other for name, other in value.items()}
    raise ValueError("should be a list of models, or `name: the upstream's name of it` for each")


def _as_offered(models: dict[str, str]) -> list[str] | dict[str, str]:
    return list(models) if all(name == other for name, other in models.items()) else models


OfferedModel = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Offers = Annotated[
    dict[OfferedModel, OfferedModel],
    Field(max_length=MAX_MODELS_OF_A_WORKER),
    BeforeValidator(_offers),
    PlainSerializer(_as_offered),
]


MAX_ALLOWED_FIELDS = 100
AllowedField = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]


class UpstreamSettings(SettingsPart):
    """One server or account behind this gateway: the gateway itself starts a worker that passes tasks to it."""

    provider: str
    """What it speaks: `openai` (any server that speaks OpenAI), `deepseek`, `glm`, `vllm`, `ollama`, `anthropic` or `gemini`."""

    base_url: str | None = None
    """What precedes `/chat/completions`, with its version: `http://localhost:8000/v1`. Not set: the provider's own address, of
    vLLM and Ollama their usual ones on this machine.
    """

    models: Offers
    """Models to offer: a list of names, or where the upstream calls them otherwise `name: the upstream's name`. `["*"]` offers
    any.
    """

    task_types: list[str] = []
    """Types of tasks to offer, of all its models. None: `openaiLike`, `openaiCompletion` and `openaiEmbedding`, as far as the
    provider has them. Only where they are named: calls for audio, images and moderations:
    `openaiTranscription`, `openaiTranslation`, `openaiSpeech`, `openaiImage`, `openaiImageEdit`,
    `openaiImageVariation`, `openaiModeration`.
    """

    allow_fields: list[AllowedField] = Field(default=[], max_length=MAX_ALLOWED_FIELDS)
    """What callers may say although it can direct a request to another server, key or model, or costs more than tokens: members
    of a body (`provider`). Allow only what every caller may do
    with this server's key.
    """

    slots: int = Field(default=1, ge=1, le=MAX_SLOTS_OF_A_WORKER)
    """Tasks that this gateway gives it at a time. Gateways that share a Redis each start a worker, so their slots add up; where
    the upstream allows less, `models.<name>.concurrency` bounds a model over all of them.
    """

    api_key_env: str | None = None
    """The environment variable that holds its key, which stands in no file. Not set: no key is sent. Read at the start of the
    gateway: a variable that comes later needs a restart.
    """

    @property
    def address(self) -> str:
        """Where it is."""
        return self.base_url or PROVIDERS[self.provider].base_url

    @field_validator("provider")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PROVIDERS:
            raise ValueError(f"should be one of {', '.join(PROVIDERS)}, not {value[:40]!r}")
        return value

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid or not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError("should be a URL such as http://localhost:8000/v1")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError(
                "should hold no user, password or query: a key goes into the variable that api_key_env names"
            )
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _is_a_variable(cls, value: str | None) -> str | None:
        if value is not None and not _VARIABLE.fullmatch(value):
            raise ValueError(
                "should be the name of an environment variable, in capitals (DEEPSEEK_API_KEY), and not the key itself"
            )
        return value

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        provider = PROVIDERS[self.provider]
        for task_type in self.task_types:
            if task_type not in provider.task_types:
                known = ", ".join(provider.task_types)
                raise ValueError(f"task_types of {self.provider} are {known}, and not {task_type[:40]!r}")
        if provider.needs_key and self.base_url is None and self.api_key_env is None:
            raise ValueError(
                f"{self.provider} wants a key: say which variable holds it, such as `api_key_env: {provider.key_env}`"
            )
        return self


class BatchSettings(SettingsPart):
    """`/v1/batches`: files of requests that are worked off beside everything else."""

    window: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Requests of one batch that wait or run at the same time; the next one is submitted when one of them has ended. They count
    in `max_length` of their queue. Too few: slots stay idle; too many: other async tasks of the same caller wait behind them.
    """


class ResponseSettings(SettingsPart):
    """What is kept of `/v1/responses`."""

    store: bool = True
    """Responses are kept in the SQL database, to be read, resumed and gone on from later, unless their request says
    `store: false`: as OpenAI does it. Then prompts and answers lie in the database. `false`: nothing is kept, and requests that
    need it (`store: true`, `background`, `previous_response_id`) are refused (400).
    """

    ttl_ms: Ms = 30 * DAY_MS
    """Milliseconds from its submission that a response is kept, and with it what others go on from. It holds for those that come
    from now on. Too little: conversations that rest for longer cannot be gone on with.
    """


class WebhookSettings(SettingsPart):
    """Requests by which callers are told of ends."""

    allow_private: Networks = Field(default=[])
    """Private networks (`10.1.0.0/16`) that receivers may be in. Every client can then have requests sent there, and URLs may
    begin with `http://`: readable on their way, but still signed. None: a private, local or metadata address is rejected at each
    request.
    """


class TuningSettings(SettingsPart):
    """Internal times and bounds, which tests change; no part of the reference."""

    max_result_ttl_ms: Ms = 24 * HOUR_MS
    """The longest `resultTtlMs` of a request."""

    pending_ttl_ms: Ms = 3 * HOUR_MS
    """How long an async task without `timeout` may wait for its turn."""

    outbox_max_entries: Count = 1_000_000
    """Records of ended tasks that may wait in Redis for the SQL database, some 300 bytes each; then no task is accepted."""

    max_idempotency_keys: Count = 1_000_000
    """New idempotency keys of one user within `idempotency_ttl`, some 250 bytes of Redis each."""

    grant_ack_ms: Ms = 3 * SECOND_MS
    """How long a grant holds until its first renewal; above `redis_timeout`, or one lost reply grants a task twice."""

    max_connections: Count | None = None
    """Connections of one process. None: the limit of open files less 64, at most 50,000."""

    linger_ms: MsOrZero = 30 * SECOND_MS
    """How long a task streamed by a native call runs on after its last reader left."""

    heartbeat_ms: Ms = 10 * SECOND_MS
    """Time between a worker's heartbeats."""

    dead_after_ms: Ms = 30 * SECOND_MS
    """A worker that is silent for so long is lost: three heartbeats, so that one late one does not count."""

    keepalive_ms: Ms = 12 * SECOND_MS
    """A stream that is silent for so long gets a comment; proxies cut at 30 to 60 s."""

    redis_timeout_ms: Ms = SECOND_MS
    """How long a Redis command may take; the client never repeats it."""

    stream_token_ms: Ms = 15 * MINUTE_MS
    """How long a `streamUrl` is valid after its issue and after each use."""

    max_response_bytes_per_caller: Bytes = 1024 * MIB
    """Stored responses of one caller; above it the oldest are deleted."""

    webhook_timeout_ms: Ms = 15 * SECOND_MS
    """How long a receiver of webhooks may take to answer."""

    webhook_retry_ms: Ms = 5 * SECOND_MS
    """The first pause before a delivery is repeated; each later one is three times as long, up to a day."""

    webhook_give_up_ms: Ms = 72 * HOUR_MS
    """How long after its event a delivery is tried."""
