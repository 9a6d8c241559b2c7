"""Every setting of the gateway: its effect, its default with the reason, its unit and range.

Pure values; groups of them, such as a model or a key, are in `parts.py`. `loading.py` reads them from flags, environment and
file; `docs.py` shows them, with the texts under the fields.
"""

import functools
import zoneinfo
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fairlane.gateway.adaptive.settings import largest
from fairlane.gateway.chains.settings import ChainSettings, stage_errors
from fairlane.gateway.database.address import parse_address
from fairlane.gateway.endpoints.settings import MAX_ENDPOINTS, EndpointSettings
from fairlane.gateway.features import known_feature, needed_by_settings
from fairlane.gateway.files.settings import FilesSettings
from fairlane.gateway.prices.prices import ANY_MODEL
from fairlane.gateway.prompts.errors import TemplateError
from fairlane.gateway.settings.parts import (
    MAX_SLOTS_OF_A_WORKER,
    MODES,
    BatchSettings,
    Bytes,
    CallerKey,
    Count,
    Days,
    Entries,
    Identifier,
    KeyLimits,
    KeyQuota,
    Listed,
    ModelName,
    ModelSettings,
    Ms,
    MsOrZero,
    Off,
    PriceSettings,
    QueueSettings,
    ResponseSettings,
    Restart,
    TuningSettings,
    UpstreamSettings,
    WorkerKey,
    checked,
    matching,
    named_entries,
    split_url,
)
from fairlane.gateway.settings.pools import placement_of
from fairlane.gateway.settings.provenance import Loc, Origins
from fairlane.gateway.settings.routing import RouteSettings, TemplateSettings
from fairlane.gateway.settings.units import (
    DAY_MS,
    HOUR_MS,
    MIB,
    MINUTE_MS,
    MODEL_CONFIG,
    SECOND_MS,
    Amount,
    text_of,
)
from fairlane.gateway.webhooks.settings import WebhookSettings
from fairlane.queues.ids import MAX_POOLS
from fairlane.queues.keys import ENDPOINT, is_reserved
from fairlane.queues.store.address import check_url
from fairlane.workers.hosts import is_loopback

WORKER_MESSAGE_MARGIN_BYTES = MIB
"""Room in a message from or to a worker in addition to a body or an output."""


DEFAULT_QUEUES: Mapping[str, QueueSettings] = {
    "paid_stream": QueueSettings(tier="paid", mode="stream", weight=8),
    "paid_batch": QueueSettings(tier="paid", mode="batch", weight=4),
    "paid_vision": QueueSettings(tier="paid", mode="vision", weight=4),
    "free_stream": QueueSettings(tier="free", mode="stream", weight=2),
    "free_batch": QueueSettings(tier="free", mode="batch", weight=1),
    "free_vision": QueueSettings(tier="free", mode="vision", weight=1),
}


def _web_address(value: str) -> None:
    if split_url(value, "http", "https") is None:
        raise ValueError("must be a URL that begins with http:// or https://")


RedisUrl = Annotated[str, checked(check_url)]


def named_pools(value: Any) -> Any:
    """Return the names of a number of pools."""
    text = str(value)
    if not isinstance(value, int | str) or isinstance(value, bool) or not text.isdigit():
        return value
    return ["main", *(f"pool-{number}" for number in range(2, int(text[:4]) + 1))] if int(text) else []


def _time_zone(value: str) -> None:
    try:
        zoneinfo.ZoneInfo(value)
    except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
        raise ValueError("should be the name of a time zone, such as Europe/Berlin or UTC") from None


def _long_enough(value: SecretStr) -> None:
    if len(value.get_secret_value().encode()) < 16:
        raise ValueError("needs at least 16 bytes")


WebOrigin = Annotated[
    str,
    matching(
        r"\*|https?://[^/\s?#@]+",
        "should be an origin such as https://app.example (no path, no trailing slash), or *",
    ),
]
FeatureName = Annotated[str, checked(known_feature)]
DatabaseUrl = Annotated[str, checked(lambda url: parse_address(url, Path()))]


class Settings(BaseModel):
    """All settings of one gateway, checked and frozen.

    Building it reads nothing but its arguments: no environment, no file. Raises pydantic's ValidationError;
    use `load_settings` for errors that name the place to correct.
    """

    model_config = MODEL_CONFIG

    host: Restart[str] = Field(default="127.0.0.1", min_length=1)
    """Address to listen on."""

    port: Restart[int] = Field(default=8080, ge=0, le=65535)
    """TCP port to listen on; 0 takes a free one."""

    redis_url: Restart[RedisUrl | Annotated[list[RedisUrl], Field(min_length=1)] | None] = Field(
        default=None, repr=False
    )
    """Redis (7.0 or newer) or Valkey (7.2) that replicas share: `redis://HOST`, `rediss://HOST` or `unix://PATH`,
    `redis+sentinel://HOST,HOST/NAME`, `redis+cluster://HOST,HOST`; or a list with one for each pool. Not set: a private
    one in `data_dir`.
    """

    pools: Restart[
        Annotated[list[Identifier], BeforeValidator(named_pools), Field(min_length=1, max_length=MAX_POOLS)]
    ] = Field(default=["main"])
    """Names of the Redis pools, or their number (`main`, `pool-2`, …). Each pool has its own models. Append new ones only: a task
    id has the number of its pool.
    """

    database_url: Restart[DatabaseUrl | None] = Field(default=None, repr=False)
    """SQL database for keys and records: `postgresql://user:password@host:5432/fairlane` or `sqlite:////path/of/a/file.db`. Not
    set: a SQLite file in `data_dir`. Replicas that share a Redis must share the database, too.
    """

    data_dir: Restart[Path] = Path(".fairlane")
    """Directory for the private Redis, the SQLite database, and the keys created at the first start. For one gateway at a time.
    """

    processes: Restart[int] = Field(default=1, ge=1, le=128)
    """Gateway processes on this machine, each a replica of its own. One is enough for most models' speed."""

    task_timeout_ms: Restart[Ms] = MINUTE_MS
    """Time from submission to the end of a synchronous request without `timeout`. One minute, because HTTP clients and proxies
    rarely wait longer. Requests on `/v1` have `max_task_timeout`.
    """

    min_task_timeout_ms: Restart[Ms] = 5 * SECOND_MS
    """A shorter `timeout` of a request is raised to this."""

    max_task_timeout_ms: Restart[Ms] = 10 * MINUTE_MS
    """A longer `timeout` of a request is lowered to this. Also the limit of streams and of requests on `/v1` without `timeout`:
    OpenAI's SDKs wait for 10 minutes.
    """

    worker_timeout_ms: Restart[Ms | None] = None
    """Time that a task can run once a worker has it. Not set: `max_task_timeout`."""

    max_queue_wait_ms: Ms | None = None
    """Time that a task can wait, for queues without a `max_wait`. Not set: the task's own timeout."""

    no_worker_grace_ms: Restart[MsOrZero] = 0
    """Time that tasks are accepted after the last worker of their model has left. 0: rejected immediately (`No worker
    available`). For models in `models` or `upstreams` it also starts with the gateway. A few seconds let a sole worker
    restart unnoticed. Accepted tasks then wait as long as their own timeouts allow.
    """

    drain_ms: Restart[MsOrZero] = 30 * SECOND_MS
    """Time that running tasks have to finish when the gateway stops. Supervisors must wait at least 15 s longer before they
    kill it: `stop_grace_period` (Docker's default is 10 s), `terminationGracePeriodSeconds` (30 s), `TimeoutStopSec`.
    """

    lease_ms: Restart[Ms] = 15 * SECOND_MS
    """Time until the slots of a lost replica are free again; leases are renewed three times within it. A longer lease survives
    longer stalls, a shorter one frees slots sooner. At least 3 s.
    """

    max_queue_length: Count = 1000
    """Waiting tasks per queue, for queues without a `max_length`; more are rejected with 503. Over all models. One user alone
    can fill a queue; a full queue still accepts tasks of users who have fewer waiting tasks than it has room for, up to twice
    this many. So every user gets in, and never more than twice as many tasks wait, apart from later stages of accepted
    chains. Bounds memory and waiting time.
    """

    max_queued_bytes: Bytes = 1024 * MIB
    """Size of all waiting request bodies; more tasks are rejected with 503. A user's waiting bodies of 16 KiB and more may
    take no more than the free rest, so one user alone gets half. Bounds Redis's memory when bodies are large.
    """

    max_retained_bytes: Bytes = 1024 * MIB
    """Size of all results and event logs of ended tasks in Redis. Above it the oldest are dropped early, with a log line and
    a count in the metrics, and requests for them report that they have expired. A task counts at least 5 KB. Too little:
    results are gone before they are read.
    """

    max_body_bytes: Restart[Bytes] = 16 * MIB
    """Size of a request body; a larger one is rejected with 413. Holds a few images in base64. Bodies of 1 MiB and more are
    decoded one at a time.
    """

    max_output_bytes: Restart[Annotated[int, Amount("bytes", MIB, 1024 * MIB)]] = 16 * MIB
    """Size of the output of one task in its event log. A task that exceeds it fails with `OUTPUT_TOO_LARGE`, and its worker
    must stop. It counts chunks with about 120 bytes for each `stream_flush_size` of them, stages, usage, the result. 16 MiB
    are more than any text that a model writes; a result with images or audio may need more.
    """

    max_connections_per_address: Restart[Count | None] = None
    """Connections of clients from one address in one process; further ones are closed. Workers do not count once they have
    connected. Not set: no limit. Set it where clients connect directly; behind a proxy all clients have its address.
    """

    max_calls_per_caller: Count = 1000
    """Open requests of one user of a key in one process; more are rejected with 429. Waiting ones and streams count. It
    bounds the memory and connections of one client, far above what one needs. Requests whose body names the user (`user_from:
    body.user`) count for the key until the body is read. The links to one user's tasks (`streamUrl`) can have as many streams
    in addition, and those to one task 100: raise it if many pages read the tasks of one user.
    """

    http_worker_slots: int = Field(default=64, ge=0, le=MAX_SLOTS_OF_A_WORKER)
    """Requests to endpoints that this gateway makes at the same time; 0: none. It makes them in a worker that it starts if
    there are endpoints. Gateways that share a Redis start one each, so their slots add up. With 0, run `fairlane worker start
    --provider http`.
    """

    task_result_ttl_ms: Restart[Ms] = 5 * MINUTE_MS
    """Time that result and event log are kept after the end, for polls and reconnects. Short, because they are in memory."""

    idempotency_ttl_ms: Restart[Annotated[int, Amount("ms", 0, 7 * DAY_MS)]] = DAY_MS
    """Time from submission that an `Idempotency-Key` names its task, and at least until a minute after its end. Result and event
    log are kept as long, within `max_retained_size`. 0: the keys are ignored, and each request is a new task. Too short: a late
    retry pays for a second answer.
    """

    archive: Annotated[Literal["off", "results", "requests"], Off] = "off"
    """Whether the database keeps results of async tasks after Redis has dropped them: `off`, `results`, or `requests` (both).
    Prompts and answers are then in the database. Results of endpoints are always kept.
    """

    archive_ttl_ms: Ms = 72 * HOUR_MS
    """Time that archived results are kept after the end. Redis keeps them as long, until the database has them."""

    usage_retention_days: Days = 400
    """Time that the database keeps usage records, about 500 bytes per task, and their sums per day. 400 days allow a
    comparison with last year. Sums per hour are kept for three days.
    """

    audit_retention_days: Days = 1100
    """Time that the database keeps the audit log, the ledger (the cost of each task) and the use of budgets. 1100 days are
    three years. Grants and balances are kept permanently.
    """

    budget_timezone: Annotated[str, checked(_time_zone)] = "UTC"
    """Time zone in which the days and months of budgets (`quota`) begin, such as `Europe/Berlin`."""

    structured_output: Annotated[Literal["off", "strict", "repair", "all"], Off] = "strict"
    """Which finished answers are validated against their JSON schema: `off`, `strict` (schemas with `"strict": true`),
    `repair`, `all`. An answer that does not match fails with `JSON_PARSE_FAILED`. `all`: also schemas without `strict`, and
    `json_object`. `repair`: as `strict`, and the model is asked once more, with the errors, if no output was shown yet; this
    can cost twice as much. Requests can override it (`repair`, `X-Fairlane-Repair`).
    """

    hosted_tools: Literal["reject", "drop"] = "reject"
    """Tools that only their provider can run, such as `web_search`, on `/v1/responses` and `/v1/messages`: `reject` (400) or
    `drop`.
    """

    stream_flush_interval_ms: Restart[Annotated[int, Amount("ms", 0, SECOND_MS)]] = 40
    """Chunks that arrive within this time are joined into one event; 0 joins none. 40 ms are below what a reader notices, and
    save writes to Redis.
    """

    stream_flush_size: Restart[Annotated[int, Field(ge=1, le=1000)]] = 8
    """An event is written as soon as it holds this many chunks."""

    stream_token_secret: Restart[Annotated[SecretStr, checked(_long_enough)] | None] = None
    """Signs the tokens in `streamUrl`; at least 16 bytes, the same on all replicas. Not set: one is created and shared through
    Redis.
    """

    llm_debug: Restart[bool] = False
    """Adds a `debug` event with the payload of each attempt to the event logs. Without effect while `environment` is
    `production`.
    """

    environment: Restart[Literal["production", "development"]] = "production"
    """`production` or `development`, which permits `llm_debug`."""

    log_format: Restart[Literal["auto", "json", "human"]] = "auto"
    """Format of the log on stderr; `auto` is `human` on a terminal and `json` elsewhere."""

    log_level: Restart[Literal["debug", "info", "warning", "error"]] = "info"
    """The least severe log lines to write. No level logs prompts, answers or keys."""

    otlp_endpoint: Restart[Annotated[str, checked(_web_address)] | None] = None
    """Base URL of an OpenTelemetry collector (OTLP over HTTP): `http://collector:4318`. Needs the extra `otel`. Not set: no
    traces. OpenTelemetry is not loaded then; the `traceparent` of a request still reaches the worker. With a wrong URL spans
    are lost, with a log line.
    """

    cors_origins: Restart[Listed[WebOrigin]] = []
    """Web origins (`https://app.example`) whose pages can call the gateway, or `*`. None, because any page that a user visits
    could otherwise use a gateway on loopback.
    """

    allowed_hosts: Listed[str] = []
    """Host names that requests can be addressed to, without ports. None: any; without keys only loopback."""

    disabled_features: Restart[Listed[FeatureName]] = []
    """[Features](#disabled-features) to switch off on all replicas."""

    models: Entries[ModelName, ModelSettings] = {}
    """Settings per model."""

    queues: dict[Identifier, QueueSettings] = Field(default_factory=lambda: dict(DEFAULT_QUEUES))
    """Settings per queue; entries for the six defaults may be partial."""

    routes: Entries[ModelName, RouteSettings] = {}
    """Names that clients can use as `model` or `template`, and the model, queue, limits and price of each for their tier."""

    templates: Entries[ModelName, TemplateSettings] = {}
    """Prompts with variables, which clients of `POST /api/tasks` fill in."""

    chains: Entries[ModelName, ChainSettings] = {}
    """Several models under one task, stage by stage; clients of `POST /api/tasks` name them as `chain`."""

    prices: Listed[PriceSettings] = []
    """Prices of models, for usage records and keys with a `quota`. A model without a price costs nothing."""

    keys: Listed[CallerKey] = []
    """API keys. None: open on loopback; elsewhere one is created at the first start."""

    workers: Listed[WorkerKey] = []
    """Worker tokens. None: any worker can connect while the gateway has no keys. With keys, one is created at the first start,
    because a worker reads what clients send.
    """

    upstreams: Entries[Identifier, UpstreamSettings] = Field(default={}, max_length=64)
    """Servers and accounts that run models. For each, the gateway starts a worker of this name, and restarts it if it dies. None:
    workers are started by hand, also on other machines.
    """

    endpoints: Entries[Identifier, EndpointSettings] = Field(default={}, max_length=MAX_ENDPOINTS)
    """External HTTP interfaces that are called in turn, each with its own queue, and the same users and fairness. Others can be
    added at run time (`fairlane endpoint create`).
    """

    responses: ResponseSettings = ResponseSettings()
    """Stored responses of `/v1/responses`."""

    webhooks: WebhookSettings = WebhookSettings()
    """Requests that report the ends of tasks to clients."""

    files: FilesSettings = FilesSettings()
    """Files of clients and of batches."""

    batches: BatchSettings = BatchSettings()
    """`/v1/batches`: files of requests that are processed in the background."""

    tuning: Restart[TuningSettings] = TuningSettings()
    """Internal times and bounds."""

    _origins: Origins = PrivateAttr(default_factory=Origins)

    @property
    def redis_urls(self) -> list[str]:
        """The URL of each pool; [] for private servers."""
        urls = self.redis_url
        if urls is None:
            return []
        return urls if isinstance(urls, list) else [urls] * len(self.pools)

    @property
    def max_worker_message_bytes(self) -> int:
        """Return the bytes of one WebSocket message from or to a worker; a longer one closes the connection."""
        return max(self.max_body_bytes, self.max_output_bytes) + WORKER_MESSAGE_MARGIN_BYTES

    @property
    def origins(self) -> Origins:
        """Return the sources and times of the settings; among replicas the newest configuration applies."""
        return self._origins

    def set_origins(self, origins: Origins) -> None:
        """Record the sources and times of the settings."""
        self._origins = origins

    def has(self, feature: str) -> bool:
        """Return whether a feature is enabled."""
        return feature not in self.disabled_features

    @property
    def loopback(self) -> bool:
        """Return whether `host` can be reached from this machine only."""
        return is_loopback(self.host)

    @property
    def run_limit_ms(self) -> int:
        """Return the time that a task can run after its grant, ms."""
        return self.worker_timeout_ms or self.max_task_timeout_ms

    @property
    def tiers(self) -> frozenset[str]:
        """Return the tiers of the queues."""
        return frozenset(queue.tier for queue in self.queues.values())

    def queue_for(self, tier: str, mode: str) -> str:
        """Return the queue of a tier and a mode. Raise KeyError for an unknown tier."""
        for name, queue in self.queues.items():
            if queue.tier == tier and queue.mode == mode:
                return name
        raise KeyError(f"no queue for tier {tier!r} and mode {mode!r}")

    def tier_of(self, queue: str) -> str:
        """Return the tier of a queue; '' for an unknown one."""
        settings = self.queues.get(queue)
        return settings.tier if settings else ""

    def queue_max_length(self, queue: str) -> int:
        """Return how many tasks can wait in `queue`."""
        return self.queues[queue].max_length or self.max_queue_length

    def queue_max_wait_ms(self, queue: str) -> int | None:
        """Return how long a task can wait in `queue`, ms; None: as long as its timeout allows."""
        return self.queues[queue].max_wait_ms or self.max_queue_wait_ms

    def model(self, name: str) -> ModelSettings:
        """Return the settings of a model, the defaults if it is not listed."""
        return self.models.get(name) or ModelSettings()

    def lists(self, model: str) -> bool:
        """Return whether the configuration lists a model of this name."""
        return model in self.models or any(model in upstream.models for upstream in self.upstreams.values())

    @property
    def listed_models(self) -> set[str]:
        """Return the names of all models in `models` and `upstreams`."""
        return {*self.models, *(name for upstream in self.upstreams.values() for name in upstream.models)}

    @field_validator("queues", mode="before")
    @classmethod
    def _merge_with_default_queues(cls, value: Any) -> Any:
        entries = named_entries(value)
        if not isinstance(entries, dict):
            return entries
        merged: dict[Any, Any] = dict(DEFAULT_QUEUES)
        for name, entry in entries.items():
            default = DEFAULT_QUEUES.get(name)
            merged[name] = (
                {**default.model_dump(exclude_unset=True), **entry}
                if default and isinstance(entry, dict)
                else entry
            )
        return merged

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if found := list(contradictions(self)):
            text = "; ".join(message for _, message in found)
            raise PydanticCustomError("contradiction", "{text}", {"text": text, "found": found})
        return self


Contradiction = tuple[list[Loc], str]
"""Settings that do not fit together: their places, and the error."""


def contradictions(settings: Settings) -> Iterator[Contradiction]:
    """Yield the contradictions between settings."""
    s = settings
    if s.min_task_timeout_ms > s.max_task_timeout_ms:
        least, most = text_of("ms", s.min_task_timeout_ms), text_of("ms", s.max_task_timeout_ms)
        yield (
            [("min_task_timeout",), ("max_task_timeout",)],
            f"min_task_timeout ({least}) is above max_task_timeout ({most})",
        )
    if s.tuning.grant_ack_ms > s.lease_ms:
        yield [("lease",)], f"lease must be at least {text_of('ms', s.tuning.grant_ack_ms)}"
    for check in (
        _of_queues,
        _of_routes,
        _of_templates,
        _of_chains,
        _of_prices,
        _of_keys,
        _of_endpoints,
        _of_pools,
    ):
        yield from check(settings)
    yield from needed_by_settings(settings, settings.disabled_features)


def _of_endpoints(settings: Settings) -> Iterator[Contradiction]:
    names: list[Loc] = [
        (kind, name) for kind in ("models", "routes", "templates") for name in getattr(settings, kind)
    ]
    names += [
        ("upstreams", name, "models", model)
        for name, upstream in settings.upstreams.items()
        for model in upstream.models
    ]
    for loc in names:
        if is_reserved(str(loc[-1])):
            yield [loc], f"a name that begins with {ENDPOINT} is an endpoint's: configure it under endpoints"
    for name, endpoint in settings.endpoints.items():
        for message, which in unusable_endpoint(name, endpoint, settings.endpoints, settings.tiers):
            yield [("endpoints", name, which)], message


def unusable_endpoint(
    name: str, endpoint: EndpointSettings, others: Mapping[str, EndpointSettings], tiers: Collection[str]
) -> list[tuple[str, str]]:
    """Return the errors of an endpoint among `others`, each with its field."""
    found = [(_no_queue(tier, tiers), "tiers") for tier in endpoint.tiers if tier not in tiers]
    for other, its in others.items():
        both = sorted(set(endpoint.methods) & set(its.methods))
        if other != name and its.url == endpoint.url and both:
            found.append((f"the endpoint {other} has the same url, and {', '.join(both)}, too", "url"))
    return found


def _of_pools(settings: Settings) -> Iterator[Contradiction]:
    known, urls = ", ".join(settings.pools), settings.redis_url
    if len(set(settings.pools)) < len(settings.pools):
        yield [("pools",)], "each pool needs a name of its own"
    if isinstance(urls, list) and len(urls) != len(settings.pools):
        yield [("redis_url",)], f"a list has one URL for each of the {len(settings.pools)} pools ({known})"
    unknown = {
        name: model.pool
        for name, model in settings.models.items()
        if model.pool not in (None, *settings.pools)
    }
    for name, pool in unknown.items():
        yield [("models", name, "pool")], f"there is no pool {pool!r}; there are: {known}"
    if not unknown:
        try:
            placement_of(settings.pools, settings.models, settings.routes, settings.chains)
        except ValueError as error:
            yield [("pools",)], str(error)


def _of_prices(settings: Settings) -> Iterator[Contradiction]:
    starts: dict[tuple[str, int | None], int] = {}
    for at, entry in enumerate(settings.prices):
        other = starts.setdefault((entry.model, entry.since), at)
        if other != at:
            yield (
                [("prices", other), ("prices", at)],
                f"two prices of {entry.model!r} start at the same time",
            )


def _of_queues(settings: Settings) -> Iterator[Contradiction]:
    owners: dict[tuple[str, str], str] = {}
    for name, queue in settings.queues.items():
        other = owners.setdefault((queue.tier, queue.mode), name)
        if other != name:
            yield [("queues", name)], f"queues {other} and {name} have the same tier and mode"
    for tier in sorted(settings.tiers):
        if missing := [mode for mode in MODES if (tier, mode) not in owners]:
            example = next(name for name, queue in settings.queues.items() if queue.tier == tier)
            message = f"tier {tier!r} has no queue of mode {' and '.join(missing)}: add one"
            yield [("queues", example)], message


def _of_routes(settings: Settings) -> Iterator[Contradiction]:
    tiers = settings.tiers
    for name, model in settings.models.items():
        if name in model.fallbacks:
            yield [("models", name, "fallbacks")], f"{name!r} falls back to itself"
        yield from _of_names(model.fallbacks, ("models", name, "fallbacks"))
    for name, route in settings.routes.items():
        where: tuple[str, ...] = ("routes", name)
        for place, rule in route.rules():
            at = (*where, *place)
            template = settings.templates.get(rule.template or route.template or name)
            asked = max(template.output_tokens, default=0) if template else 0
            if rule.max_output_tokens and asked > rule.max_output_tokens:
                yield (
                    [(*at, "max_output_tokens")],
                    f"its template asks for {asked} tokens, more than the route allows: each request would fail",
                )
            yield from _of_names([rule.model] if rule.model else [], (*at, "model"))
            yield from _of_names(rule.fallbacks or [], (*at, "fallbacks"))
            if "tiers" in place and place[-1] not in tiers:
                yield [at], _no_queue(place[-1], tiers)
        for tier in sorted(tiers):
            own = route.tiers.get(tier)
            if not (route.model or (own and own.model)):
                yield [where], f"it has no model for the tier {tier!r}: set `model`"
                break
        for named in sorted({rule.template for _, rule in route.rules() if rule.template}):
            if named not in settings.templates:
                hint = ", ".join(sorted(settings.templates)) or "none"
                yield [(*where, "template")], f"there is no template {named!r}; there are {hint}"


def _of_names(models: list[str], place: Loc) -> Iterator[Contradiction]:
    """Yield the invalid names of models: a worker would send them to its upstream."""
    for model in models:
        if model == ANY_MODEL or not model.isprintable() or is_reserved(model):
            yield [place], f"{model[:40]!r} is not the name of a model"


def _no_queue(tier: str, tiers: Collection[str]) -> str:
    return f"no queue has the tier {tier!r}; there are {', '.join(sorted(tiers))}"


def _of_templates(settings: Settings) -> Iterator[Contradiction]:
    for name, template in settings.templates.items():
        if not template.messages and not template.locales:
            yield [("templates", name)], "it has no messages: set `messages`, or `locales`"
        elif not template.messages and template.default_locale not in template.locales:
            message = "without `messages`, `default_locale` must be one of its locales"
            yield [("templates", name, "default_locale")], message
        else:
            try:
                template.compiled(name)
            except TemplateError as error:
                yield [("templates", name)], str(error)


def _of_chains(settings: Settings) -> Iterator[Contradiction]:
    if not settings.chains:
        return
    try:
        templates = {name: template.compiled(name) for name, template in settings.templates.items()}
    except (TemplateError, KeyError):
        return  # that is reported
    for name, chain in settings.chains.items():
        for number, wrong in stage_errors(chain, templates, settings.routes):
            stage = chain.stages[number].name
            place = tuple(wrong.member.split(".", 1)) if wrong.member else ()
            yield [("chains", name, "stages", number, *place)], f"stage {stage!r}: {wrong.sentence}"


def unusable_routes(settings: Settings) -> list[str]:
    """Return the errors of routes and models, each with its place."""
    return [f"{'.'.join(map(str, locs[0]))}: {message}" for locs, message in _of_routes(settings)]


def notes(settings: Settings) -> list[str]:
    """Return warnings about settings that are valid but may not work as intended."""
    found = []
    limited = {name: most for name, model in settings.models.items() if (most := largest(model.concurrency))}
    for name, queue in settings.queues.items():
        if queue.reserved and not limited:
            found.append(
                f"queues.{name}.reserved is {queue.reserved}, but no model has a concurrency: slots are reserved "
                "of limited models only"
            )
        if queue.admission == "adaptive" and settings.queue_max_wait_ms(name) is None:
            found.append(
                f"queues.{name}.admission is adaptive without a max_wait or max_queue_wait: a task is rejected "
                "only when the predicted wait exceeds its caller's own deadline"
            )
    for key in settings.keys:
        if key.quota and (which := unpriced(settings, key.models, settings.origins.read_ms)):
            found.append(
                f"key {key.id!r} has a quota, but {which} have no price now: its tasks cost nothing there"
            )
    led_to = {f"models.{name}": set(model.fallbacks) for name, model in settings.models.items()}
    for name, route in settings.routes.items():
        named = {model for _, rule in route.rules() for model in (rule.model, *(rule.fallbacks or ()))}
        led_to[f"routes.{name}"] = {model for model in named if model}
    listed = settings.listed_models
    for place, models in sorted(led_to.items()):
        if strange := sorted(models - listed) if listed and "*" not in listed else []:
            found.append(
                f"{place} leads to {', '.join(strange)}, which neither models nor upstreams list: a worker has to serve "
                "it by this very name"
            )
    for name, endpoint in settings.endpoints.items():
        if networks := endpoint.unreachable:
            found.append(
                f"endpoints.{name}.url is at a private address, so each request fails with ADDRESS_REFUSED: set "
                f"`allow_private: [{networks}]`, or larger networks, if it is to be called"
            )
    reserved = sum(queue.reserved for queue in settings.queues.values())
    for name, concurrency in limited.items():
        if reserved > concurrency:
            found.append(
                f"models.{name}.concurrency is {concurrency}, but the queues reserve {reserved} slots of it together: "
                "not all reservations can be met"
            )
    return found


def unpriced(settings: Settings, models: Collection[str], now_ms: float) -> str:
    """Return the names of the models of a key without a price at an instant; '' if all have one."""
    priced = {entry.model for entry in settings.prices if (entry.since or 0) <= now_ms}
    if ANY_MODEL in priced:
        return ""
    found = sorted(set(settings.models if "*" in models else models) - priced)
    if "*" in models and not found:
        return "models that are not listed"
    return ", ".join(found[:5]) + (", …" if len(found) > 5 else "")


def _of_keys(settings: Settings) -> Iterator[Contradiction]:
    kinds: dict[str, Sequence[CallerKey | WorkerKey]] = {"keys": settings.keys, "workers": settings.workers}
    hashes = Counter(key.sha256 for keys in kinds.values() for key in keys)
    for kind, keys in kinds.items():
        ids = Counter(key.id for key in keys)
        for at, key in enumerate(keys):
            for name, message in unusable_key(key, settings.tiers, settings.pools).items():
                yield [(kind, at, *name.split("."))], message
            if isinstance(key, CallerKey) and key.signing != bool(key.signing_key):
                message = "signing and signing_key belong together: `fairlane key create signing=true --print` makes both"
                yield [(kind, at, "signing_key" if key.signing_key else "signing")], message
            if ids[key.id] > 1:
                yield [(kind, at, "id")], f"the id {key.id!r} is used more than once"
            if hashes[key.sha256] > 1:
                yield [(kind, at, "sha256")], f"the sha256 of {key.id!r} is used more than once"


def unusable_key(key: CallerKey | WorkerKey, tiers: Collection[str], pools: Sequence[str]) -> dict[str, str]:
    """Return the errors of a key, by the field, with dots."""
    if isinstance(key, WorkerKey):
        return {}
    one_user, quota = not key.delegating, key.quota or KeyQuota()
    several = "only a delegating key has several users: set {}, or make the key delegating"
    errors: list[tuple[object, str, str]] = [
        (one_user and key.user_from, "user_from", "only a delegating key has users"),
        (one_user and key.user_limits != KeyLimits(), "user_limits", several.format("`limits`")),
        (one_user and key.signing, "signing", "only a delegating key signs tokens, as they name users"),
        (key.tier not in tiers, "tier", _no_queue(key.tier, tiers)),
        (one_user and quota.of == "user", "quota.of", several.format("`of: key`")),
        (
            *(key.quota is not None and len(pools) > 1, "quota"),
            "a quota needs one pool of Redis, because each pool would charge the whole balance",
        ),
        (quota.budget is not None and not quota.per, "quota.per", "a budget needs `per`: day or month"),
        (
            *(quota.per and quota.budget is None, "quota.budget"),
            "`per` is the period of a budget: set `budget`, too",
        ),
        (
            *(one_user and quota.otherwise == key.tier, "quota.otherwise"),
            "it is the tier of the key itself: set another one",
        ),
        (
            *(quota.otherwise and quota.otherwise not in tiers, "quota.otherwise"),
            _no_queue(quota.otherwise or "", tiers),
        ),
    ]
    return {field: message for wrong, field, message in errors if wrong}


@functools.lru_cache(1024)
def hide_password(url: str) -> str:
    """Return `url` without user name, password and query, for logs and terminals."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    hidden = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{hidden}{where}{parts.path}" + ("?***" if parts.query else "")
