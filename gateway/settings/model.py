"""Every setting of the gateway: what it does, its default and why, its unit, and what is refused.

Pure values; groups of them, such as a model or a key, are in `parts.py`. Where they come from (flags, environment, file) is in
`loading.py`; how they are shown is in `docs.py`, which reads the texts under the fields.
"""

import functools
import re
import zoneinfo
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, PrivateAttr, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from fairlane.gateway.credits.prices import ANY_MODEL, overlapping
from fairlane.gateway.database.address import parse_address
from fairlane.gateway.hosts import is_loopback
from fairlane.gateway.prompts.errors import TemplateError
from fairlane.gateway.settings.chains import ChainSettings, wrong_in
from fairlane.gateway.settings.endpoints import MAX_ENDPOINTS, EndpointSettings
from fairlane.gateway.settings.files import FilesSettings
from fairlane.gateway.settings.parts import (
    MAX_SLOTS_OF_A_WORKER,
    MODEL_CONFIG,
    MODES,
    BatchSettings,
    Bytes,
    CallerKey,
    Count,
    Days,
    Identifier,
    KeyLimits,
    KeyQuota,
    ModelName,
    ModelSettings,
    Ms,
    MsOrZero,
    PriceSettings,
    QueueSettings,
    ResponseSettings,
    TuningSettings,
    UpstreamSettings,
    WebhookSettings,
    WorkerKey,
)
from fairlane.gateway.settings.provenance import Loc, Origins
from fairlane.gateway.settings.routing import RouteSettings, RouteVariant, TemplateSettings
from fairlane.gateway.settings.units import DAY_MS, HOUR_MS, MIB, MINUTE_MS, SECOND_MS, Amount, text_of
from fairlane.queues.clock import now_ms
from fairlane.queues.keys import ENDPOINT, is_reserved


class Refuse(Protocol):
    """Records one contradiction."""

    def __call__(self, message: str, *locs: Loc) -> None: ...


WORKER_MESSAGE_MARGIN_BYTES = MIB
"""What a message from or to a worker may hold in addition to a body or an output."""


DEFAULT_QUEUES: Mapping[str, QueueSettings] = {
    "paid_stream": QueueSettings(tier="paid", mode="stream", weight=8),
    "paid_batch": QueueSettings(tier="paid", mode="batch", weight=4),
    "paid_vision": QueueSettings(tier="paid", mode="vision", weight=4),
    "free_stream": QueueSettings(tier="free", mode="stream", weight=2),
    "free_batch": QueueSettings(tier="free", mode="batch", weight=1),
    "free_vision": QueueSettings(tier="free", mode="vision", weight=1),
}


@dataclass(frozen=True, slots=True)
class Times:
    """When a configuration was modified and read, ms since 1970; no part of what it says, so all are equal."""

    modified_ms: int = field(default=0, compare=False)
    read_ms: int = field(default=0, compare=False)

    @classmethod
    def now(cls) -> Self:
        """Those of settings that stand in no file."""
        at = now_ms()
        return cls(at, at)


class Settings(BaseModel):
    """All settings of one gateway, checked and frozen.

    Building it reads nothing but its arguments: no environment, no file. Raises pydantic's ValidationError;
    use `load_settings` for errors that name the place to correct.
    """

    model_config = MODEL_CONFIG

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Loopback, because without keys the gateway is open to whoever reaches it."""

    port: int = Field(default=8080, ge=0, le=65535)
    """TCP port to listen on; 0 takes a free one."""

    redis_url: str | None = Field(default=None, repr=False)
    """Redis (7.0 or newer) or Valkey (7.2) that replicas share: `redis://`, `rediss://` or `unix://`. Not set: the
    gateway runs a private one in `data_dir`, so that it works without any other service.
    """

    database_url: str | None = Field(default=None, repr=False)
    """SQL database for keys and records: `postgresql://user:password@host:5432/fairlane`, or `sqlite:////path/of/a/file.db`.
    Not set: a SQLite file in `data_dir`. Replicas that share a Redis must share it, too.
    """

    data_dir: Path = Path(".fairlane")
    """Directory for the private Redis, the SQLite database, and the keys made at the first start. For one gateway at a time."""

    processes: int = Field(default=1, ge=1, le=128)
    """Gateway processes on this machine, each a replica of its own. One is enough for most models' speed."""

    task_timeout_ms: Ms = MINUTE_MS
    """Milliseconds from submission to the end for a native sync call that gives no `timeout`. 60 s, as HTTP
    clients and proxies rarely wait longer; on `/v1` it is `max_task_timeout`.
    """

    min_task_timeout_ms: Ms = 5 * SECOND_MS
    """A caller's `timeout` below this is raised to it, in milliseconds."""

    max_task_timeout_ms: Ms = 10 * MINUTE_MS
    """A caller's `timeout` above this is lowered to it; also the limit of a stream, and of a call on `/v1`, that
    gives none: OpenAI's SDKs wait for 10 minutes. Milliseconds.
    """

    max_queue_length: Count = 1000
    """Waiting tasks per queue, over all models, for queues that set no `max_length`; further ones are
    refused with 503. One user alone may fill it; a full one still takes tasks of users who have less of it
    waiting than it has room until twice this many. So nobody is locked out, and never more than twice as
    many wait. Bounds memory and waiting.
    """

    max_queue_wait_ms: Ms | None = None
    """Milliseconds a task may wait, for queues that set no `max_wait`. Not set: only the task's own
    timeout ends its waiting.
    """

    max_queued_bytes: Bytes = 1024 * MIB
    """Bytes of all waiting request bodies together; further tasks are refused with 503. Of bodies of 16 KiB
    and more no user may have more waiting than is left free, so one alone takes half. Bounds Redis's memory
    when bodies are large.
    """

    max_retained_bytes: Bytes = 1024 * MIB
    """Bytes that results and event logs of ended tasks may take in Redis together, some 5 KB each at least.
    Beyond it those that ended first are dropped before their time, with a line in the log and a count in the
    metrics; who asks for one is told that it has expired. Too little: results are gone before they are read.
    """

    usage_retention_days: Days = 400
    """Days that usage records are kept in the SQL database, one row per task (some 500 bytes with its indexes), and
    their sums per day. 400 is a year and a month, to compare with. Sums per hour are kept for three days.
    """

    budget_timezone: str = "UTC"
    """The time zone in which the budgets of keys (`quota`) begin their days and months: a name such as `Europe/Berlin`."""

    audit_retention_days: Days = 1100
    """Time that the audit log, the cost of each task (the ledger), and the use of budgets are kept in the SQL database. 1100 days
    are three years. Grants and balances are kept for good.
    """

    task_result_ttl_ms: Ms = 5 * MINUTE_MS
    """Milliseconds that result and event log are kept after the end, for polls and reconnects. Short,
    because they lie in memory.
    """

    structured_output: Literal["off", "strict", "all"] = "strict"
    """Which answers are compared, once they are finished, with the JSON schema that a chat's `response_format` names:
    `strict`, those whose caller asks for `"strict": true`: OpenAI keeps that promise, and not every model server does;
    `all`, also schemas that do not say (`"strict": false` is left alone), and `json_object`; `off`, none. An answer that
    does not match fails with `JSON_PARSE_FAILED`.
    """

    structured_repair: bool = False
    """Whether a model is asked once more for an answer that does not match its schema, and told what was wrong, while its caller
    has seen none of it. Such tasks may cost twice as much, and show nothing before their end unless they stream. Routes
    (`repair`) and requests (`repair`, `X-Fairlane-Repair`) may say otherwise.
    """

    archive: Literal["off", "results", "requests"] = "off"
    """What the SQL database keeps of async tasks, for polls when Redis has forgotten them: nothing, how they ended with the
    result, or the request as well. Then prompts and answers lie in the database. `off` also ends asking it, unless there are
    endpoints, which say it for themselves.
    """

    archive_ttl_ms: Ms = 72 * HOUR_MS
    """Milliseconds that the archive keeps them, from their end. Until the database has them, Redis keeps them as long."""

    idempotency_ttl_ms: Annotated[int, Amount("ms", 0, 7 * DAY_MS)] = DAY_MS
    """Milliseconds from its submission that a task is known by its `Idempotency-Key`; in any case until a minute behind its end.
    Its result and event log are kept as long, in memory, within `max_retained_size`. 0: such keys are not looked at, and each
    call is a new task. Too little: who comes again later pays for a second answer.
    """

    worker_timeout_ms: Ms | None = None
    """Milliseconds a task may run once a worker has it. Not set: `max_task_timeout`."""

    lease_ms: Ms = 15 * SECOND_MS
    """Milliseconds until the slot of a lost replica is free again; renewed three times within it. Longer
    survives longer stalls, shorter frees slots sooner. At least 3 s.
    """

    stream_flush_interval_ms: Annotated[int, Amount("ms", 0, SECOND_MS)] = 40
    """Chunks that arrive within this many milliseconds are joined into one event; 0 joins nothing. 40 is
    below what a reader notices and cuts the writes to Redis.
    """

    stream_flush_size: Annotated[int, Field(ge=1, le=1000)] = 8
    """An event is written once it holds this many worker chunks, whatever the interval."""

    llm_debug: bool = False
    """Adds a `debug` event with the payload that each worker gets to the event logs; has no effect while
    `environment` is `production`."""

    environment: Literal["production", "development"] = "production"
    """`development` permits `llm_debug`. Production, because that is the safe mistake."""

    max_body_bytes: Bytes = 16 * MIB
    """Bytes of a request body; a longer one is a 413. Holds a few images in base64. Bodies of 1 MiB and more are decoded
    one at a time.
    """

    max_calls_per_caller: Count = 1000
    """Calls that one user of a key may have open at once in one process: waiting ones and streams. Further ones are
    answered with 429. It bounds what one caller takes of memory and connections, far above what one needs. Calls
    whose body names the user (`user_from: body.user`) count for the key until the body is read. The links
    of one user's tasks (`streamUrl`) may have as many streams open beside, and those of one task 100: set it higher where many
    pages read the tasks of one user.
    """

    max_output_bytes: Annotated[int, Amount("bytes", MIB, 1024 * MIB)] = 16 * MIB
    """Bytes that the output of one task may take in its event log: chunks with what is written around them
    (some 120 bytes for up to `stream_flush_size` chunks), stages, usage, the result. A task that would exceed
    it fails with `OUTPUT_TOO_LARGE` and its worker is told to stop. 16 MiB is more than any text that a model
    writes; a result that holds images or audio may need more.
    """

    no_worker_grace_ms: MsOrZero = 0
    """Milliseconds a task is accepted after the last worker of its model has left, and for a model that `models` or
    `upstreams` name also after the gateway has started. 0 answers `No worker available` at once; some seconds let a
    sole worker restart unnoticed, or connect. What was accepted waits on behind it, as long as its own time-outs allow.
    """

    drain_ms: MsOrZero = 30 * SECOND_MS
    """Milliseconds that running tasks get to finish when the gateway is asked to stop. The supervisor must wait
    at least 15 s longer before it kills: `stop_grace_period` (Docker's default is 10 s), `terminationGracePeriodSeconds`
    (30 s), `TimeoutStopSec`.
    """

    log_format: Literal["auto", "json", "human"] = "auto"
    """Form of the log on stderr; `auto` is `human` on a terminal and `json` elsewhere."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe log lines to write. No level logs prompts, answers or keys."""

    otlp_endpoint: str | None = None
    """Where traces go: the base URL of an OpenTelemetry collector that takes OTLP over HTTP
    (`http://collector:4318`). Needs the extra `otel` (`pip install '.[otel]'`). Not set: no traces, and nothing of OpenTelemetry
    is loaded; a caller's `traceparent` still reaches the worker. A wrong one loses the spans, with a line in the log.
    """

    cors_origins: list[str] = []
    """Web origins (`https://app.example`) whose pages may call the gateway, or `*`. None, because any page a
    user visits could otherwise use a gateway on loopback.
    """

    allowed_hosts: list[str] = []
    """Host names that requests may be addressed to, without ports. None: any, or only loopback while the
    gateway is open.
    """

    stream_token_secret: SecretStr | None = None
    """Signs the tokens in `streamUrl`; at least 16 bytes, the same on all replicas. Not set: one is made and
    shared through Redis.
    """

    models: dict[ModelName, ModelSettings] = {}
    """Settings per model."""

    queues: dict[Identifier, QueueSettings] = Field(default_factory=lambda: dict(DEFAULT_QUEUES))
    """Settings per queue; entries for the six defaults may be partial."""

    routes: dict[ModelName, RouteSettings] = {}
    """What callers may name as `model` or `template`, and what it comes to for their tier: model, queue, limits, price."""

    templates: dict[ModelName, TemplateSettings] = {}
    """Messages with variables, which callers of `POST /api/tasks` fill in."""

    chains: dict[ModelName, ChainSettings] = {}
    """Several models' work under one task, stage by stage, which callers of `POST /api/tasks` name as `chain`."""

    prices: list[PriceSettings] = []
    """What models cost, for the records of usage and for keys with a `quota`. A model without a price costs nothing."""

    keys: list[CallerKey] = []
    """Keys of callers. None: open on loopback; elsewhere one is made at the first start."""

    workers: list[WorkerKey] = []
    """Tokens of workers. None: any worker while the gateway is open; else one is made at the first start, because a
    worker reads what callers send.
    """

    upstreams: dict[Identifier, UpstreamSettings] = Field(default={}, max_length=64)
    """Servers and accounts that run models. For each, this gateway starts a worker of its own, which is seen under this name, and
    starts it again when it dies. None: workers are started by hand, also on other machines.
    """

    endpoints: dict[Identifier, EndpointSettings] = Field(default={}, max_length=MAX_ENDPOINTS)
    """Interfaces of other people that are called in turn: each a line of its own, with the same queues, users and fairness.
    Others may be added while running (`fairlane endpoint list`).
    """

    http_worker_slots: int = Field(default=64, ge=0, le=MAX_SLOTS_OF_A_WORKER)
    """Calls of endpoints that this gateway makes at a time, of all of them together, by a worker that it starts where there are
    endpoints. Gateways that share a Redis each start one, so their slots add up. A call takes memory for its request and its
    answer. 0: it starts none, and the calls are made where `fairlane worker start --provider http` runs.
    """

    responses: ResponseSettings = ResponseSettings()
    """What is kept of `/v1/responses`."""

    webhooks: WebhookSettings = WebhookSettings()
    """Requests by which callers are told of ends."""

    files: FilesSettings = FilesSettings()
    """Files of callers, and of batches."""

    batches: BatchSettings = BatchSettings()
    """`/v1/batches`: files of requests that are worked off beside everything else."""

    tuning: TuningSettings = TuningSettings()
    """Internal times and bounds."""

    _times: Times = PrivateAttr(default_factory=Times.now)
    _set_by: Origins = PrivateAttr(default_factory=Origins)

    @property
    def max_worker_message_bytes(self) -> int:
        """Return the bytes of one WebSocket message from or to a worker; a longer one closes the connection."""
        return max(self.max_body_bytes, self.max_output_bytes) + WORKER_MESSAGE_MARGIN_BYTES

    @property
    def times(self) -> Times:
        """When the configuration was modified and read: of several replicas' the newest one holds."""
        return self._times

    @property
    def origins(self) -> Origins:
        """Who set what."""
        return self._set_by

    def came(self, times: Times, origins: Origins | None = None) -> None:
        """Say when it was modified and read, and by whom it was set."""
        self._times = times
        if origins is not None:
            self._set_by = origins

    @property
    def loopback(self) -> bool:
        """Whether `host` can be reached from this machine only."""
        return is_loopback(self.host)

    @property
    def run_limit_ms(self) -> int:
        """How long a task may run from its grant."""
        return self.worker_timeout_ms or self.max_task_timeout_ms

    @property
    def tiers(self) -> frozenset[str]:
        """The tiers that queues name."""
        return frozenset(queue.tier for queue in self.queues.values())

    def queue_for(self, tier: str, mode: str) -> str:
        """The queue of a tier and a mode. Each of `tiers` has all three; KeyError for any other name."""
        for name, queue in self.queues.items():
            if queue.tier == tier and queue.mode == mode:
                return name
        raise KeyError(f"no queue for tier {tier!r} and mode {mode!r}")

    def tier_of(self, queue: str) -> str:
        """The tier of a queue; '' where there is none of this name."""
        settings = self.queues.get(queue)
        return settings.tier if settings else ""

    def queue_max_length(self, queue: str) -> int:
        """How many tasks may wait in `queue`."""
        return self.queues[queue].max_length or self.max_queue_length

    def queue_max_wait_ms(self, queue: str) -> int | None:
        """How long a task may wait in `queue`; None: as long as its own timeout allows."""
        return self.queues[queue].max_wait_ms or self.max_queue_wait_ms

    def model(self, name: str) -> ModelSettings:
        """The settings of a model, the defaults when it is not listed."""
        return self.models.get(name) or ModelSettings()

    def lists(self, model: str) -> bool:
        """Whether the configuration knows a model by this name."""
        return model in self.models or any(model in upstream.models for upstream in self.upstreams.values())

    @property
    def listed_models(self) -> set[str]:
        """The names that the configuration knows: of models, and of what upstreams offer."""
        return {*self.models, *(name for upstream in self.upstreams.values() for name in upstream.models)}

    @field_validator("otlp_endpoint")
    @classmethod
    def _is_web_address(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith(("http://", "https://")) and urlsplit(value).hostname):
            raise ValueError("must be a URL that begins with http:// or https://")
        return value

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        try:
            parts = urlsplit(value)
            valid = bool(parts.path if parts.scheme == "unix" else parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError("is not a valid URL")  # without the URL, which may hold a password
        return value

    @field_validator("archive", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # as YAML reads it

    @field_validator("database_url")
    @classmethod
    def _names_a_database(cls, value: str | None) -> str | None:
        parse_address(value, Path())
        return value

    @field_validator("budget_timezone")
    @classmethod
    def _is_a_zone(cls, value: str) -> str:
        try:
            zoneinfo.ZoneInfo(value)
        except (OSError, ValueError, zoneinfo.ZoneInfoNotFoundError):
            raise ValueError("should be the name of a time zone, such as Europe/Berlin or UTC") from None
        return value

    @field_validator("stream_token_secret")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value().encode()) < 16:
            raise ValueError("needs at least 16 bytes")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if origin != "*" and not re.fullmatch(r"https?://[^/\s?#@]+", origin):
                raise ValueError(
                    f"{origin!r} is not an origin such as https://app.example (no path, no trailing slash)"
                )
        return value

    @field_validator("upstreams", "endpoints", mode="before")
    @classmethod
    def _nothing_is_none(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("models", "routes", "templates", "chains", mode="before")
    @classmethod
    def _empty_entries_are_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return {} if value is None else value
        return {name: {} if entry is None else entry for name, entry in value.items()}

    @field_validator("queues", mode="before")
    @classmethod
    def _merge_with_default_queues(cls, value: Any) -> Any:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            return value
        merged: dict[Any, Any] = dict(DEFAULT_QUEUES)
        for name, entry in value.items():
            entry = {} if entry is None else entry
            default = DEFAULT_QUEUES.get(name)
            merged[name] = (
                {**default.model_dump(exclude_unset=True), **entry}
                if default and isinstance(entry, dict)
                else entry
            )
        return merged

    @field_validator("prices", "keys", "workers", "cors_origins", "allowed_hosts", mode="before")
    @classmethod
    def _nothing_is_an_empty_list(cls, value: Any) -> Any:
        return [] if value is None else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        found = contradictions(self)
        if found:
            text = "; ".join(message for _, message in found)
            raise PydanticCustomError("contradiction", "{text}", {"text": text, "found": found})
        return self


def contradictions(settings: Settings) -> list[tuple[list[Loc], str]]:
    """Settings that are each valid but do not fit together: for each, where they stand and what is wrong."""
    found: list[tuple[list[Loc], str]] = []

    def refuse(message: str, *locs: Loc) -> None:
        found.append((list(locs), message))

    s = settings
    if s.min_task_timeout_ms > s.max_task_timeout_ms:
        refuse(
            f"min_task_timeout ({text_of('ms', s.min_task_timeout_ms)}) is above "
            f"max_task_timeout ({text_of('ms', s.max_task_timeout_ms)})",
            ("min_task_timeout",),
            ("max_task_timeout",),
        )
    if s.tuning.grant_ack_ms > s.lease_ms:
        refuse(f"lease must be at least {text_of('ms', s.tuning.grant_ack_ms)}", ("lease",))
    _check_queues(settings, refuse)
    _check_routes(settings, refuse)
    _check_templates(settings, refuse)
    _check_chains(settings, refuse)
    _check_prices(settings, refuse)
    _check_keys(settings, refuse)
    _check_endpoints(settings, refuse)
    return found


def _check_endpoints(settings: Settings, refuse: Refuse) -> None:
    names: list[Loc] = [("models", name) for name in settings.models]
    names += [("routes", name) for name in settings.routes]
    names += [("templates", name) for name in settings.templates]
    names += [
        ("upstreams", name, "models", model)
        for name, upstream in settings.upstreams.items()
        for model in upstream.models
    ]
    for loc in names:
        if is_reserved(str(loc[-1])):
            refuse(f"a name that begins with {ENDPOINT} is an endpoint's: say it under endpoints", loc)
    for name, endpoint in settings.endpoints.items():
        for message, which in unusable_endpoint(name, endpoint, settings.endpoints, settings.tiers):
            refuse(message, ("endpoints", name, which))


def unusable_endpoint(
    name: str, endpoint: EndpointSettings, others: Mapping[str, EndpointSettings], tiers: Collection[str]
) -> list[tuple[str, str]]:
    """What does not fit of one endpoint beside `others`: for each, a sentence and the field concerned."""
    found = [
        (f"no queue has the tier {tier!r}; there are {', '.join(sorted(tiers))}", "tiers")
        for tier in endpoint.tiers
        if tier not in tiers
    ]
    for other, its in others.items():
        both = sorted(set(endpoint.methods) & set(its.methods))
        if other != name and its.url == endpoint.url and both:
            found.append((f"the endpoint {other} has the same url, and {', '.join(both)}, too", "url"))
    return found


def _check_prices(settings: Settings, refuse: Refuse) -> None:
    for at, entry in enumerate(settings.prices):
        if entry.since is not None and entry.until is not None and entry.since >= entry.until:
            refuse("until must be later than since", ("prices", at, "until"))
    for at, other in overlapping(entry.period for entry in settings.prices):
        refuse(
            f"two prices of {settings.prices[at].model!r} hold at the same time: end one (until) where the other begins (since)",
            ("prices", at),
            ("prices", other),
        )


def _check_queues(settings: Settings, refuse: Refuse) -> None:
    owners: dict[tuple[str, str], str] = {}
    for name, queue in settings.queues.items():
        other = owners.setdefault((queue.tier, queue.mode), name)
        if other != name:
            refuse(f"queues {other} and {name} have the same tier and mode", ("queues", name))
    for tier in sorted(settings.tiers):
        missing = [mode for mode in MODES if (tier, mode) not in owners]
        if missing:
            example = next(name for name, queue in settings.queues.items() if queue.tier == tier)
            refuse(
                f"tier {tier!r} has no queue of mode {' and '.join(missing)}: add one", ("queues", example)
            )


def _check_routes(settings: Settings, refuse: Refuse) -> None:
    tiers = settings.tiers
    for name, model in settings.models.items():
        if name in model.fallbacks:
            refuse(f"{name!r} falls back to itself", ("models", name, "fallbacks"))
        _check_runs(model.fallbacks, ("models", name, "fallbacks"), refuse)
    for name, route in settings.routes.items():
        where: tuple[str, ...] = ("routes", name)
        variants: list[tuple[RouteVariant, tuple[str, ...]]] = [(route, where)]
        if route.vision is not None:
            variants.append((route.vision, (*where, "vision")))
        for variant, place in variants:
            for rule, at in [
                (variant, place),
                *((one, (*place, "tiers", tier)) for tier, one in variant.tiers.items()),
            ]:
                said = settings.templates.get(rule.template or route.template or name)
                asked = max(said.output_tokens, default=0) if said else 0
                if rule.max_output_tokens and asked > rule.max_output_tokens:
                    refuse(
                        f"its template asks for {asked} tokens (`parameters`), and the route allows fewer: each call would fail",
                        (*at, "max_output_tokens"),
                    )
                _check_runs([rule.model] if rule.model else [], (*at, "model"), refuse)
                _check_runs(rule.fallbacks or [], (*at, "fallbacks"), refuse)
            for tier in sorted(variant.tiers.keys() - tiers):
                refuse(
                    f"no queue has the tier {tier!r}; there are {', '.join(sorted(tiers))}",
                    (*place, "tiers", tier),
                )
        for tier in sorted(tiers):
            own = route.tiers.get(tier)
            if not (route.model or (own and own.model)):
                refuse(f"it names no model for the tier {tier!r}: set `model`", where)
                break
        templates = {
            route.template,
            *(part.template for variant, _ in variants for part in variant.tiers.values()),
        }
        for template in sorted(filter(None, templates | {route.vision.template if route.vision else None})):
            if template not in settings.templates:
                hint = ", ".join(sorted(settings.templates)) or "none"
                refuse(f"there is no template {template!r}; there are {hint}", (*where, "template"))


def _check_runs(models: list[str], place: tuple[str, ...], refuse: Refuse) -> None:
    """Refuse what is no name of one model: a worker would ask its upstream for it."""
    for model in models:
        if model == ANY_MODEL or not model.isprintable() or is_reserved(model):
            refuse(f"{model[:40]!r} is no name of a model", place)


def _check_templates(settings: Settings, refuse: Refuse) -> None:
    for name, template in settings.templates.items():
        if not template.messages and not template.locales:
            refuse("it has no messages: set `messages`, or `locales`", ("templates", name))
        elif not template.messages and template.default_locale not in template.locales:
            sentence = "without `messages`, `default_locale` must be one of its locales"
            refuse(sentence, ("templates", name, "default_locale"))
        else:
            try:
                template.compiled(name)
            except TemplateError as error:
                refuse(str(error), ("templates", name))


def _check_chains(settings: Settings, refuse: Refuse) -> None:
    if not settings.chains:
        return
    templates = {}
    for name, said in settings.templates.items():
        try:
            templates[name] = said.compiled(name)
        except (TemplateError, KeyError):
            return  # that is told
    for name, chain in settings.chains.items():
        for number, wrong in wrong_in(chain, templates, settings.routes):
            stage = chain.stages[number].name
            place = tuple(wrong.member.split(".", 1)) if wrong.member else ()
            refuse(f"stage {stage!r}: {wrong.sentence}", ("chains", name, "stages", number, *place))


def unusable_routes(settings: Settings) -> list[str]:
    """What of routes and models does not fit the rest, one sentence each, which names the place."""
    found: list[str] = []

    def refuse(message: str, *locs: Loc) -> None:
        found.extend(f"{'.'.join(map(str, loc))}: {message}" for loc in locs[:1])

    _check_routes(settings, refuse)
    return found


def _led_to(settings: Settings) -> dict[str, set[str]]:
    """The models that each route, and each model with fallbacks, leads to."""
    led_to = {f"models.{name}": set(model.fallbacks) for name, model in settings.models.items()}
    for name, route in settings.routes.items():
        variants: list[RouteVariant] = [route, *([route.vision] if route.vision else [])]
        rules = [rule for variant in variants for rule in (variant, *variant.tiers.values())]
        named = {model for rule in rules for model in (rule.model, *(rule.fallbacks or ()))}
        led_to[f"routes.{name}"] = {model for model in named if model}
    return led_to


def notes(settings: Settings) -> list[str]:
    """What is allowed but may not do what was meant, one sentence each."""
    found = []
    limited = {name: model.concurrency for name, model in settings.models.items() if model.concurrency}
    for name, queue in settings.queues.items():
        if queue.reserved and not limited:
            found.append(
                f"queues.{name}.reserved is {queue.reserved}, but no model has a concurrency: slots are reserved "
                "of limited models only"
            )
        if queue.admission == "adaptive" and settings.queue_max_wait_ms(name) is None:
            found.append(
                f"queues.{name}.admission is adaptive without a max_wait or max_queue_wait: a task is refused "
                "only when the predicted wait exceeds its caller's own deadline"
            )
    unpriced = Unpriced(settings, settings.times.read_ms)
    for key in settings.keys:
        if key.quota and (which := unpriced(key.models)):
            found.append(
                f"key {key.id!r} has a quota, but prices say nothing of {which} now: its tasks cost nothing there"
            )
    listed = settings.listed_models
    for place, led_to in sorted(_led_to(settings).items()):
        if strange := sorted(led_to - listed) if listed and "*" not in listed else []:
            found.append(
                f"{place} leads to {', '.join(strange)}, which neither models nor upstreams name: a worker has to offer "
                "it by this very name"
            )
    for name, endpoint in settings.endpoints.items():
        if networks := endpoint.unreachable:
            found.append(
                f"endpoints.{name}.url is at a private address, so each call fails with ADDRESS_REFUSED: say "
                f"`allow_private: [{networks}]`, or larger networks, if it is to be called"
            )
    reserved = sum(queue.reserved for queue in settings.queues.values())
    for name, concurrency in limited.items():
        if reserved > concurrency:
            found.append(
                f"models.{name}.concurrency is {concurrency}, but the queues reserve {reserved} slots of it together: "
                "not all can have theirs at once"
            )
    return found


class Unpriced:
    """Tells which of the models that a key may use have no price at an instant, in words; empty: none."""

    def __init__(self, settings: Settings, now_ms: float) -> None:
        self._priced = {entry.model for entry in settings.prices if entry.period.holds(now_ms)}
        listed = self._words(set(settings.models) - self._priced)
        self._of_any = "" if ANY_MODEL in self._priced else listed or "models that are not listed"

    def __call__(self, models: Collection[str]) -> str:
        if "*" in models or not self._of_any:
            return self._of_any
        return self._words(set(models) - self._priced)

    def _words(self, models: Collection[str]) -> str:
        return ", ".join(sorted(models)[:5]) + (", …" if len(models) > 5 else "")


def _check_keys(settings: Settings, refuse: Refuse) -> None:
    tiers = settings.tiers
    hashes = Counter([*(key.sha256 for key in settings.keys), *(key.sha256 for key in settings.workers)])
    both: list[tuple[str, Sequence[CallerKey | WorkerKey]]]
    both = [("keys", settings.keys), ("workers", settings.workers)]
    for kind, keys in both:
        ids = Counter(key.id for key in keys)
        for at, key in enumerate(keys):
            for message, name in unusable_key(key, tiers):
                refuse(message, (kind, at, *name.split(".")))
            if isinstance(key, CallerKey) and key.signing != bool(key.signing_key):
                sentence = "signing and signing_key belong together: `fairlane key create signing=true --print` makes both"
                refuse(sentence, (kind, at, "signing_key" if key.signing_key else "signing"))
            if ids[key.id] > 1:
                refuse(f"the id {key.id!r} is used more than once", (kind, at, "id"))
            if hashes[key.sha256] > 1:
                refuse(f"the sha256 of {key.id!r} is used more than once", (kind, at, "sha256"))


def unusable_key(key: CallerKey | WorkerKey, tiers: Collection[str]) -> list[tuple[str, str]]:
    """What does not fit in one key: for each, a sentence and the field concerned, with dots."""
    found: list[tuple[str, str]] = []
    if isinstance(key, CallerKey):
        if key.user_from and not key.delegating:
            found.append(("only a delegating key names users", "user_from"))
        if key.user_limits != KeyLimits() and not key.delegating:
            sentence = "only a delegating key has several users: set `limits`, or make the key delegating"
            found.append((sentence, "user_limits"))
        if key.signing and not key.delegating:
            found.append(("only a delegating key signs tokens, as they name users", "signing"))
        if key.tier not in tiers:
            sentence = f"no queue has the tier {key.tier!r}; there are {', '.join(sorted(tiers))}"
            found.append((sentence, "tier"))
        if key.quota is not None:
            found += [
                (sentence, f"quota.{name}") for sentence, name in _unusable_quota(key, key.quota, tiers)
            ]
    return found


def _unusable_quota(key: CallerKey, quota: KeyQuota, tiers: Collection[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if quota.of == "user" and not key.delegating:
        found.append(
            ("only a delegating key has several users: set `of: key`, or make the key delegating", "of")
        )
    if quota.budget is not None and quota.per is None:
        found.append(("a budget needs `per`: day or month", "per"))
    if quota.per is not None and quota.budget is None:
        found.append(("`per` says how often a budget comes anew: set `budget`, too", "budget"))
    if quota.otherwise is not None and quota.otherwise not in tiers:
        sentence = f"no queue has the tier {quota.otherwise!r}; there are {', '.join(sorted(tiers))}"
        found.append((sentence, "otherwise"))
    elif quota.otherwise == key.tier and not key.delegating:
        found.append(("it is the tier of the key itself: a task falls to another one", "otherwise"))
    return found


@functools.lru_cache(1024)
def hide_password(url: str) -> str:
    """`url` without its user name, password and query, fit for logs and terminals."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    hidden = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{hidden}{where}{parts.path}" + ("?***" if parts.query else "")
