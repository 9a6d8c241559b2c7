"""The state of everything, as operators see it."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Ms
from fairlane.gateway.api.models.settings import Setting
from fairlane.gateway.api.models.tasks import Task
from fairlane.gateway.settings.parts import Mode
from fairlane.queues.survey.survey import Blocked
from fairlane.queues.survey.upstreams import BreakerState
from fairlane.workers.server.limits.tightening import Why


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
    model_info: dict[str, ModelInfo] = Field({})
    running: int = 0
    heartbeat_age_ms: Ms = 0
    task_silent_ms: Ms | None = None
    """For how long the one of its tasks that is silent for longest has given no sign: no output, no progress."""


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


class Drained(Answer):
    worker_id: str
    name: str | None
    replica: str
    draining: Literal[True]
