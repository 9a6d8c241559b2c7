"""Groups of settings: models, queues, keys and what belongs to them, and the kinds of values. Pure."""

import contextlib
import datetime
import functools
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from fairlane.gateway.adaptive.settings import Concurrency
from fairlane.gateway.prices.prices import Period, Price, plain_credits, price, read_credits
from fairlane.gateway.prices.quota import Per
from fairlane.gateway.settings.units import DAY_MS, HOUR_MS, MIB, MINUTE_MS, MODEL_CONFIG, SECOND_MS, Amount
from fairlane.queues.windows import read_windows
from fairlane.workers.adapters.endpoints.addresses import read_networks
from fairlane.workers.adapters.providers import PROVIDERS
from fairlane.workers.adapters.quirks import read_quirks

Mode = Literal["stream", "batch", "vision"]
MODES: tuple[Mode, ...] = ("stream", "batch", "vision")

Ms = Annotated[int, Amount("ms", 1, 366 * DAY_MS)]
MsOrZero = Annotated[int, Amount("ms", 0, 366 * DAY_MS)]
Days = Annotated[int, Amount("days", 1, 36_500)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=10_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000_000_000)]
Bytes = Annotated[int, Amount("bytes", 1, 1 << 46)]
BytesOrZero = Annotated[int, Amount("bytes", 0, 1 << 46)]
Weight = Annotated[float, Field(ge=0.001, le=1_000_000, allow_inf_nan=False)]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
UserFrom = Annotated[str, Field(pattern=r"^(body\.user|[A-Za-z][A-Za-z0-9-]{0,99})?$")]
Scope = Literal["call", "viewer", "metrics", "admin"]
ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$", to_lower=True)]
SigningKey = Annotated[str, Field(pattern=r"^([0-9a-fA-F]{64})?$", repr=False)]


def split_url(text: str, *schemes: str) -> SplitResult | None:
    """Return the parts of a URL with one of these schemes and a host; None if it is none."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme in schemes and parts.hostname and parts.port != 0:
            return parts if text.isascii() and text.isprintable() and " " not in text else None
    return None


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that keeps the values for which `check` raises no ValueError."""

    def keep(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(keep)


def matching(pattern: str, message: str) -> AfterValidator:
    """Return a validator of texts that match a pattern; `message` says what they should be."""

    def match(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(message)
        return text

    return AfterValidator(match)


Windows = Annotated[str, Field(max_length=100), checked(read_windows)]


def _networks(texts: list[str]) -> list[str]:
    try:
        return [str(network) for network in read_networks(texts)]
    except ValueError:
        raise ValueError("should be networks such as 10.1.0.0/16 or fd00::/8") from None


Networks = Annotated[list[str], Field(max_length=64), AfterValidator(_networks)]
"""Private networks that may be called."""

MAX_FALLBACKS = 8
MAX_OF_A_PRICE = 100_000_000
"""Credits per million tokens or per task: the cost of one task is then a number that Lua represents exactly."""


def _instant(value: Any) -> int:
    """Return a date or an instant in ms since 1970; UTC unless it has an offset. Raise ValueError."""
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


def _instant_text(ms: int | None) -> str | None:
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
Instant = Annotated[int, BeforeValidator(_instant), PlainSerializer(_instant_text, return_type=str)]
"""Given as ISO 8601, held in ms since 1970."""


class SettingsPart(BaseModel):
    """A group of settings."""

    model_config = MODEL_CONFIG


def named_entries(value: Any) -> Any:
    """Return settings by name: an empty entry has the defaults, and nothing at all has no entries."""
    if isinstance(value, dict):
        return {name: {} if entry is None else entry for name, entry in value.items()}
    return {} if value is None else value


Name = TypeVar("Name")
Value = TypeVar("Value")
Entries = Annotated[dict[Name, Value], BeforeValidator(named_entries)]
"""Settings by name."""
Listed = Annotated[list[Value], BeforeValidator(lambda value: [] if value is None else value)]
"""A list; nothing at all has no entries."""
Off = BeforeValidator(lambda value: "off" if value is False else value)
"""Of a setting that can be `off`, which YAML reads as false."""
NEEDS_RESTART = "needs a restart"
Restart = Annotated[Value, NEEDS_RESTART]
"""A setting that only a restart applies; SIGHUP applies the others."""


def part_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the group of settings that a field holds, if any."""
    for found in (field.annotation, *get_args(field.annotation)):
        if isinstance(found, type) and issubclass(found, SettingsPart):
            return found
    return None


MODEL_SETTINGS = ("fallbacks", "fallback_after", "first_output", "silence")
"""What replicas apply of a model; the scheduler's scripts apply the rest."""


class ModelSettings(SettingsPart):
    """One model. A model that is not listed works with these defaults as soon as a worker offers it."""

    concurrency: Concurrency | None = None
    """Tasks of this model that can run at the same time, over all replicas. Or `{auto: true, target_first_token: 2s, max:
    64}`. With `auto` the limit follows the time to the first output, between `min` (1) and `max`. Not set: the slots of
    connected workers.
    """

    pool: Identifier | None = None
    """Pool of Redis that has its tasks. Not set: one is chosen by its name. Models that tasks can move between, to a fallback or
    along a chain, are in one pool.
    """

    cost: Literal["tokens", "requests", "slot_seconds"] = "tokens"
    """What fairness counts: `tokens` (input + 2 × output), `requests`, or `slot_seconds`, for work without token counts. An
    output token takes more of the model than an input token. With `requests` it is plain weighted round-robin.
    """

    requests_per_minute: Count | None = None
    """Tasks of this model that can start within any minute; further ones wait. Over all replicas. They start at that rate,
    without bursts, instead of failing at the provider. Not set: no throttle. Above the provider's limit its 429s come back,
    and each is a cooldown of the model.
    """

    tokens_per_minute: Tokens | None = None
    """Tokens of this model, input and output, within any minute; further tasks wait. They are estimated at the start and
    corrected at the end. Not set: no throttle. A task that needs more than this starts all the same, and the next ones wait
    until it is made up for.
    """

    windows: Windows | None = None
    """Strict limit of requests within any such time, over all replicas: `50/1s`, or up to three, `50/1s, 1000/1m`. Further
    tasks wait. A task counts from its grant until its request is known to be sent, or it has ended, and one window longer.
    Not set: no limit.
    """

    max_running_per_user: Count | None = None
    """Tasks of one user that can run at the same time on this model. The user's other tasks wait, and tasks of other users
    pass them. Not set: no limit.
    """

    max_waiting_per_user: Count | None = None
    """Tasks of one user that can wait for this model; more are rejected with 429. Over all queues. Not set: no limit."""

    breaker_failures: Annotated[int, Field(ge=0, le=100)] | None = None
    """Failures of an upstream within a minute that open its circuit breaker, if they are half of the attempts. 0: no breaker.
    Then no task of the model starts at it for a while. Not set: 5.
    """

    breaker_open_ms: Annotated[int, Amount("ms", 100, HOUR_MS)] | None = None
    """Time that a breaker is open at first. Then a few tasks probe the upstream; each failed probe opens it for twice as long, up
    to a minute. Not set: `5s`.
    """

    first_output_ms: Ms | None = None
    """Time that a worker has until its first output. Not set: no limit. A worker that sends only a result is silent until
    then.
    """

    silence_ms: Ms | None = None
    """Time between two outputs of a worker, after the first. Not set: no limit."""

    adaptive_timeouts: bool = False
    """Whether `first_output` and `silence` shrink, to a quarter at most, while new tasks would wait for 2 to 20 s. They
    return as the queue drains.
    """

    fallbacks: Annotated[list[ModelName], Field(max_length=MAX_FALLBACKS)] = []
    """Models that a task falls back to, in this order, if this one could not answer it and no output was shown. The task keeps
    its age. Routes with this model have the same fallbacks unless they set their own.
    """

    fallback_after_ms: MsOrZero | None = None
    """A task falls back to the next model if this one is in a cooldown or throttled for longer than this. Not set: `10s`."""


class QueueSettings(SettingsPart):
    """One queue: the tasks of one tier and one mode."""

    tier: Identifier
    """Tier of the tasks that wait here. A new name creates a new tier."""

    mode: Mode
    """Mode of the tasks that wait here: `stream`, `batch` or `vision`."""

    weight: Weight = 1.0
    """Share of a contended model, relative to the other queues with waiting tasks. At least 0.001, so that no queue
    starves.
    """

    max_length: Count | None = None
    """Tasks that can wait here, over all models. Not set: `max_queue_length`."""

    max_wait_ms: Ms | None = None
    """Time that a task can wait here. Not set: `max_queue_wait`."""

    max_running: Count | None = None
    """Tasks of this queue that can run at the same time, over all models and replicas. Further ones wait. Not set: no limit.
    """

    reserved: CountOrZero = 0
    """Guaranteed slots of each model with a `concurrency`: while this queue runs fewer, its tasks come first. Other queues
    use the slots meanwhile. 0: weights alone decide. Without effect on models without a `concurrency`.
    """

    admission: Literal["fixed", "adaptive"] = "fixed"
    """What rejects a task immediately: `fixed` (the length of the queue) or `adaptive` (the predicted wait). `fixed`: if
    `max_length` tasks wait, or the client's deadline is shorter than the shortest possible wait. `adaptive`: if the predicted
    wait exceeds `max_wait` (or `max_queue_wait`) or the client's deadline; the drain rate then decides how many can wait.
    Fixed, because a prediction needs tasks that have run. Without any maximum wait `adaptive` uses the client's deadline
    alone and, until tasks have drained, `max_length`.
    """


class KeyLimits(SettingsPart):
    """Limits of a key, or of each user of a delegating key, over all models, modes and replicas. Not set: no limit."""

    requests_per_minute: Count | None = None
    """Tasks that can be submitted within a minute; more are rejected with 429 `RATE_LIMITED`. All of them can be
    submitted in one burst; the limit refills evenly (60: one per second). Rejected tasks, and those that end before they start,
    do not count.
    """

    requests_per_day: Count | None = None
    """The same within 24 hours."""

    tokens_per_minute: Tokens | None = None
    """Tokens, input and output together, that tasks can use within a minute: estimated at submission, settled at the end. A use
    above the estimate delays the next tasks.
    """

    tokens_per_day: Tokens | None = None
    """The same within 24 hours."""

    max_running: Count | None = None
    """Tasks that can run at the same time. Further ones wait, and tasks of others pass them. A change applies to later tasks."""

    max_waiting: Count | None = None
    """Tasks that can wait at the same time; more are rejected with 429 `RATE_LIMITED`. Tasks from before it was set do
    not count.
    """


class KeyQuota(SettingsPart):
    """Credits that pay for the tasks of a key: granted ones (`fairlane balance grant`), and a budget."""

    of: Literal["key", "user"] = "key"
    """Payer: `key`, for all its users together, or `user`, each user of a delegating key separately."""

    budget: Credits | None = None
    """Credits that can be used in each day or month, before granted ones. The unused rest expires. Not set: only granted credits.
    """

    per: Per | None = None
    """Period of the budget: a calendar `day` or `month`, in the zone `budget_timezone`. Needed with `budget`."""

    otherwise: Identifier | None = None
    """Tier in which a task without enough credits runs, at no cost. Not set: it is rejected with 429 `insufficient_quota`."""


class Rates(SettingsPart):
    """Prices in credits."""

    input: PriceOf
    """Credits for a million input tokens, with up to six decimals."""

    cached_input: PriceOf | None = None
    """Credits for a million input tokens from the provider's cache. Not set: as `input`."""

    output: PriceOf
    """Credits for a million output tokens."""

    reasoning: PriceOf | None = None
    """Credits for a million reasoning tokens. Not set: as `output`."""

    request: PriceOf = 0
    """Credits for each task, in addition to its tokens."""

    @property
    def of_each(self) -> Price:
        """Return the price that costs are computed with."""
        cached = self.input if self.cached_input is None else self.cached_input
        reasoning = self.output if self.reasoning is None else self.reasoning
        return price(self.input, cached, self.output, reasoning, self.request)


class _Period(SettingsPart):
    model: ModelName
    """The model or route in requests, or `*`: any without a price of its own at that time."""

    since: Instant | None = None
    """Start of the price, for tasks submitted from then on: `2027-01-31` (UTC), or an instant with its offset. It applies
    until the model's next price starts. Not set: always.
    """


class PriceSettings(Rates, _Period):
    """The price of a model from an instant on, in credits."""

    @property
    def period(self) -> Period:
        """Return when the price applies."""
        return Period(self.model, self.since, self.of_each)


class CallerKey(SettingsPart):
    """One API key (`Authorization: Bearer`); `fairlane key create --print` creates one."""

    id: Identifier
    """Name of the key, and of its user unless the key is delegating."""

    sha256: Sha256
    """SHA-256 of the secret, 64 hex digits. The secret itself is stored nowhere."""

    tier: Identifier = "free"
    """The tier of the key's tasks; one that a queue names."""

    delegating: bool = False
    """Whether the key can name the user and tier of each request (`X-Fairlane-User`, `X-Fairlane-Tier`). For trusted back
    ends only. Its users are its own: lists show them as `<id>/<name>`.
    """

    user_from: UserFrom = ""
    """Where requests name their user if not in `X-Fairlane-User`: another header, or `body.user`, OpenAI's field. Only of
    delegating keys. Open WebUI's header is `X-OpenWebUI-User-Id`. Not set: nowhere.
    """

    scopes: list[Scope] = ["call"]
    """Permissions: `call` (submit and read its own tasks), `viewer` (read what operators see), `metrics`, `admin`
    (everything). A viewer sees the dashboard, tasks without their content, and the audit log.
    """

    signing: bool = False
    """Whether the key's secret can sign tokens for users' pages; needs `delegating`. Off, because the gateway then stores a
    signing key, and not only a hash.
    """

    signing_key: SigningKey = ""
    """Signing key, 64 hex digits; `fairlane key create signing=true --print` prints it. Keep it secret."""

    weight: Weight = 1.0
    """Share of the key's users against other users of the same queue and model."""

    models: list[ModelName] = ["*"]
    """Models that the key can use; `["*"]` is all."""

    limits: KeyLimits = KeyLimits()
    """Limits of the key, over all its users."""

    user_limits: KeyLimits = KeyLimits()
    """Limits of each user of a delegating key; requests without a user count as one user."""

    quota: KeyQuota | None = None
    """Credits that pay for the key's tasks, by `prices`. Not set: tasks cost nothing, and only limits apply."""

    @property
    def admin(self) -> bool:
        """Return whether the key may do everything."""
        return "admin" in self.scopes


class WorkerKey(SettingsPart):
    """One worker token; `fairlane key create --worker --print` creates one."""

    id: Identifier
    """Name of the token, shown with its workers."""

    sha256: Sha256
    """SHA-256 of the token, 64 hex digits. The token itself is stored nowhere."""

    models: list[ModelName] = ["*"]
    """Models that its workers can serve; `["*"]` is all."""


MAX_MODELS_OF_A_WORKER = 256
MAX_SLOTS_OF_A_WORKER = 1024


def _served_models(value: Any) -> Any:
    """Return the served models, each with the upstream's name for it; a list has the same names for both."""
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


def _as_written(models: dict[str, str]) -> list[str] | dict[str, str]:
    return list(models) if all(name == other for name, other in models.items()) else models


OfferedModel = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Offers = Annotated[
    dict[OfferedModel, OfferedModel],
    Field(max_length=MAX_MODELS_OF_A_WORKER),
    BeforeValidator(_served_models),
    PlainSerializer(_as_written),
]


def _provider_url(value: str) -> str:
    if (parts := split_url(value, "http", "https")) is None:
        raise ValueError("should be a URL such as http://localhost:8000/v1")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "should hold no user, password or query: a key goes into the variable that api_key_env names"
        )
    return value.rstrip("/")


def _known_provider(value: str) -> str:
    if value not in PROVIDERS:
        raise ValueError(f"should be one of {', '.join(PROVIDERS)}, not {value[:40]!r}")
    return value


Quirks = Annotated[
    dict[str, str | int],
    Field(max_length=100),
    checked(lambda quirks: read_quirks(f"{name}={instead}" for name, instead in quirks.items())),
]
Variable = Annotated[
    str,
    matching(
        "[A-Z_][A-Z0-9_]{0,127}",
        "should be the name of an environment variable, in capitals (DEEPSEEK_API_KEY), and not the key itself",
    ),
]


class UpstreamSettings(SettingsPart):
    """One server or account behind this gateway: the gateway itself starts a worker that passes tasks to it."""

    provider: Annotated[str, AfterValidator(_known_provider)]
    """API: `openai` (any server with an OpenAI API), `deepseek`, `glm`, `vllm`, `ollama`, `anthropic` or `gemini`."""

    base_url: Annotated[str, AfterValidator(_provider_url)] | None = None
    """URL before `/chat/completions`, with its version: `http://localhost:8000/v1`. Not set: the provider's usual one."""

    models: Offers
    """Models to serve: a list of names or, if the upstream has other names, `name: the upstream's name`. `["*"]` serves any."""

    task_types: list[str] = []
    """Task types to serve, for all its models. None: chat, completions and embeddings, if the provider has them. Audio,
    images and moderations must be listed: `openaiTranscription`, `openaiTranslation`, `openaiSpeech`, `openaiImage`,
    `openaiImageEdit`, `openaiImageVariation`, `openaiModeration`.
    """

    quirks: Quirks = {}
    """What becomes of a member of a request: `omit`, another name, or `allow` (`{max_tokens: max_completion_tokens}`).
    `allow` passes one that could direct a request elsewhere or cost more than tokens (`provider`, `tools.web_search`). A
    rejection that names such a member is learnt from.
    """

    slots: int = Field(default=1, ge=1, le=MAX_SLOTS_OF_A_WORKER)
    """Tasks that this gateway runs there at the same time; the slots of several gateways add up. Use
    `models.<name>.concurrency` for a limit over all of them.
    """

    api_key_env: Variable | None = None
    """Environment variable that holds the upstream's key. Not set: no key is sent. Read at the start of the gateway: a later
    variable needs a restart.
    """

    @property
    def address(self) -> str:
        """Return its URL."""
        return self.base_url or PROVIDERS[self.provider].base_url

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        provider = PROVIDERS[self.provider]
        for task_type in self.task_types:
            if task_type not in provider.task_types:
                known = ", ".join(provider.task_types)
                raise ValueError(f"task_types of {self.provider} are {known}, and not {task_type[:40]!r}")
        if provider.needs_key and self.base_url is None and self.api_key_env is None:
            raise ValueError(
                f"{self.provider} needs a key: name the variable that holds it, such as `api_key_env: {provider.key_env}`"
            )
        return self


class BatchSettings(SettingsPart):
    """`/v1/batches`: files of requests that are processed in the background."""

    window: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Requests of one batch that wait or run at the same time; the next one is submitted when one ends. They count in
    `max_length` of their queue. Too few: slots stay idle. Too many: other async tasks of the same client wait behind them.
    """


class ResponseSettings(SettingsPart):
    """Stored responses of `/v1/responses`."""

    ttl_ms: MsOrZero = 30 * DAY_MS
    """Time that a response is kept in the database unless its request has `store: false`. 0: none is stored. As at OpenAI. A
    change applies to later responses. Its prompt and the responses that it continues are kept with it. Too short: older
    conversations cannot be continued. With 0, requests that need it (`store: true`, `background`, `previous_response_id`) are
    rejected with 400.
    """


class TuningSettings(SettingsPart):
    """Internal times and bounds, which tests change; not part of the reference."""

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
