"""`fairlane status`: asks a running gateway what it does and prints it as tables."""

from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from rich.console import Console

from fairlane.gateway.hosts import is_loopback
from fairlane.gateway.process.tables import add_row, make_table, plain, print_table, seconds
from fairlane.workers.secrets import check_secret

TIMEOUT_S = 10.0
SILENT_MS = 60_000
"""A worker is marked of which a task has given no sign for so long."""


class StatusError(Exception):
    """The gateway does not do what was asked; the message is a sentence that says why, or what to do.

    `unknown`: it may have been done.
    """

    def __init__(self, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.unknown = unknown


class QueueRow(msgspec.Struct, rename="camel"):
    """A queue in the answer of GET /api/admin/state. None: no such limit, or nothing known."""

    queue: str
    weight: float
    waiting: int
    running: int
    max_length: int | None = None
    max_wait_ms: int | None = None
    oldest_wait_ms: int | None = None
    share: float | None = None
    max_running: int | None = None
    reserved: int = 0
    lendable: int | None = None
    borrow: int | None = None
    admission: str = "fixed"
    paused: bool = False
    blocked: str | None = None
    overrides: dict[str, Any] = {}


class UpstreamRow(msgspec.Struct, rename="camel"):
    """An upstream of a model in that answer. Instants in ms."""

    upstream: str
    workers: int
    breaker: str
    forced: bool = False
    since: float | None = None
    until: float | None = None
    openings: int = 0
    why: str | None = None
    probes: int = 0
    held_until: float | None = None


class OutputLimitRow(msgspec.Struct, rename="camel"):
    """A limit of a model on its silence, in that answer."""

    ms: float
    why: str
    target_ms: float = 0
    p99_ms: float | None = None
    answers: int = 0


class OutputLimitsRow(msgspec.Struct, rename="camel"):
    """Both of them."""

    first_output: OutputLimitRow | None = None
    silence: OutputLimitRow | None = None
    wait_ms: float | None = None


class EndpointRow(msgspec.Struct, rename="camel"):
    """What a model's row says of the endpoint that it is."""

    offline: bool = True
    mean_ms: float | None = None
    measured: bool = False
    per_second: float | None = None

    @property
    def mean(self) -> str:
        """T, with a word where it is a guess."""
        guess = "" if self.measured else " (guess)"
        return "-" if self.mean_ms is None else f"{seconds(self.mean_ms)}{guess}"

    @property
    def rate(self) -> str:
        """Q."""
        return "-" if self.per_second is None else f"{self.per_second:g}/s"


class ModelRow(msgspec.Struct, rename="camel"):
    """A model in that answer. `limit` None: bounded by the workers' slots only."""

    model: str
    running: int
    waiting: int
    workers: int
    slots: int
    limit: int | None = None
    unserved: bool = False
    cost: str = "tokens"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    windows: str | None = None
    max_running_per_user: int | None = None
    max_waiting_per_user: int | None = None
    paused: bool = False
    held_until: float | None = None
    next_start_at: float | None = None
    blocked: dict[str, str] = {}
    configured: bool = False
    upstreams: list[UpstreamRow] = []
    overrides: dict[str, Any] = {}
    output_limits: OutputLimitsRow | None = None
    endpoint: EndpointRow | None = None

    @property
    def pace(self) -> tuple[str, str]:
        """T and Q of an endpoint."""
        return (self.endpoint.mean, self.endpoint.rate) if self.endpoint else ("-", "-")


class WorkerRow(msgspec.Struct, rename="camel"):
    """A worker in that answer."""

    worker_id: str
    models: list[str]
    slots: int
    running: int
    more_models: int = 0
    name: str | None = None
    replica: str = ""
    heartbeat_age_ms: int | None = None
    task_silent_ms: int | None = None
    draining: bool = False
    unhealthy: str | None = None


class ConfigurationRow(msgspec.Struct, rename="camel"):
    """The configuration of a replica in that answer."""

    in_force: bool


class RefusedRow(msgspec.Struct):
    """A configuration that a replica did not take over, in that answer."""

    at: float
    why: str


class ReplicaRow(msgspec.Struct, rename="camel"):
    """A replica in that answer."""

    replica: str
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    age_ms: int = 0
    keys_hash: str | None = None
    routes_hash: str | None = None
    reload_refused: RefusedRow | None = None
    configuration: ConfigurationRow | None = None


class StoreRow(msgspec.Struct, rename="camel", frozen=True):
    """What the gateway sees of Redis, in that answer."""

    address: str = ""
    refuses: bool = False
    since: float | None = None
    why: str | None = None


class DatabaseRow(msgspec.Struct, rename="camel", frozen=True):
    """What the gateway sees of the SQL database."""

    address: str = ""
    up: bool = True
    since: float | None = None
    why: str | None = None


class State(msgspec.Struct, rename="camel"):
    """The parts of that answer that are printed; others are passed over."""

    queues: list[QueueRow]
    models: list[ModelRow]
    workers: list[WorkerRow]
    counts: dict[str, int]
    replicas: list[ReplicaRow] = []
    store: StoreRow = StoreRow()
    database: DatabaseRow = DatabaseRow()
    now: float = 0


def base_url(gateway: str) -> str:
    """Where to ask: `gateway` is http(s)://host:port, or a worker's ws(s)://host:port/ws. Raises StatusError."""
    parts = urlsplit(gateway if "://" in gateway else f"http://{gateway}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.hostname:
        raise StatusError(f"{gateway!r} is not the address of a gateway; write http://host:port")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}"


def call(
    gateway: str, admin_key: str | None, path: str, change: dict[str, Any] | None = None, *, method: str = ""
) -> httpx2.Response:
    """An answer to GET, to PATCH with `change`, or to another `method`, that is good. Raises StatusError."""
    url = base_url(gateway)
    try:
        check_secret(admin_key or "", "the key in FAIRLANE_ADMIN_KEY, or of --key,")
    except ValueError as problem:
        raise StatusError(str(problem)) from None
    headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
    proxies = not is_loopback(urlsplit(url).hostname or "")
    method = method or ("GET" if change is None else "PATCH")
    try:
        with httpx2.Client(timeout=TIMEOUT_S, trust_env=proxies) as client:
            answer = client.request(method, url + path, headers=headers, json=change)
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as problem:
        raise StatusError(
            f"no gateway answers at {gateway} ({problem or problem.__class__.__name__}): start one (`fairlane serve`), or say "
            "where it is with --gateway or FAIRLANE_GATEWAY",
            unknown=not isinstance(problem, httpx2.ConnectError | httpx2.InvalidURL | UnicodeError),
        ) from None
    if answer.status_code == 401:
        wants = "a key with the scope viewer (changes: with admin: true) in FAIRLANE_ADMIN_KEY or --key"
        raise StatusError(
            f"the gateway {'does not know the key that was sent; it ' if admin_key else ''}wants {wants}"
        )
    if answer.is_success:
        return answer
    try:
        refusal = msgspec.json.decode(answer.content, type=_Refusal)
        sentence = f"{refusal.error}: {refusal.why}" if refusal.why else refusal.error
        raise StatusError(sentence, unknown=answer.status_code >= 500)
    except msgspec.MsgspecError:
        raise _stranger(gateway, f"status {answer.status_code}") from None


class _Refusal(msgspec.Struct):
    error: str
    why: str = ""


def _stranger(gateway: str, why: object) -> StatusError:
    return StatusError(f"what answers at {gateway} is no gateway of this version ({why})")


def fetch_state(gateway: str, admin_key: str | None) -> tuple[str, State]:
    """The gateway's answer, as it came and decoded. Raises StatusError."""
    answer = call(gateway, admin_key, "/api/admin/state")
    try:
        return answer.text, msgspec.json.decode(answer.content, type=State)
    except msgspec.MsgspecError as problem:
        raise _stranger(gateway, problem) from None


def breaker_condition(row: UpstreamRow, now: float) -> str:
    """What a breaker lets start, in words."""
    said = row.breaker.replace("_", "-")
    if row.forced:
        said += ", by an operator"
    elif row.until:
        said += f", probed in {max(row.until - now, 0) / 1000:.0f}s"
    if row.probes:
        said += f", {row.probes} probing"
    elif row.breaker == "half_open":
        said += ", the next tasks probe it"
    if row.held_until and row.held_until > now:
        said += f"; held by its provider for {(row.held_until - now) / 1000:.0f}s"
    return said


def print_state(state: State) -> None:
    """Counts and four tables; before them what is wrong with Redis and the database."""
    console = Console(soft_wrap=True)
    if state.store.refuses:
        lasts = seconds(max(state.now - (state.store.since or state.now), 0))
        at = f" ({state.store.address})" if state.store.address else ""
        why = plain(f"Redis{at} has refused writes for {lasts}: {state.store.why}", style="bold red")
        console.print(why)
    if not state.database.up:
        lasts = seconds(max(state.now - (state.database.since or state.now), 0))
        sentence = f"the database has been away for {lasts}: records wait in Redis, keys cannot be changed. {state.database.why}"
        console.print(plain(sentence, style="bold red"))
    records, bound = state.counts["recordsWaiting"], state.counts["recordsMost"]
    if records >= bound:
        sentence = f"new tasks are refused (OUTBOX_FULL): {records} records wait for the database, outbox_max_entries is {bound}"
        console.print(plain(sentence, style="bold red"))
    shown = [f"{state.counts.get(name, 0)} {name}" for name in ("queued", "executing")]
    shown += [f"{state.counts.get(name, 0)} {name}" for name in ("completed", "failed", "cancelled")]
    console.print("tasks: " + ", ".join(shown), highlight=False)
    kept, dropped = state.counts.get("retainedBytes", 0), state.counts.get("droppedEarly", 0)
    early = f", {dropped} dropped before their time" if dropped else ""
    console.print(f"results kept: {kept / (1 << 20):.1f} MiB{early}", highlight=False)
    _print_differences(state, console)
    for replica in state.replicas:
        if replica.configuration is not None and not replica.configuration.in_force:
            console.print(f"replica {replica.replica} has an older configuration, which is not in force")

    queues = make_table("queue", "weight", "waiting", "running", "oldest", "most waiting", "wait limit")
    for queue in state.queues:
        wait = seconds(queue.max_wait_ms) if queue.max_wait_ms else "-"
        most = queue.max_length or "-"
        name = queue.queue + _paused(queue.paused)
        oldest = seconds(queue.oldest_wait_ms) if queue.oldest_wait_ms else "-"
        add_row(queues, name, f"{queue.weight:g}", queue.waiting, queue.running, oldest, most, wait)
    print_table(queues)

    for model in state.models:
        if model.unserved:
            lost = f"{model.waiting} tasks wait for {model.model}, which no worker offers"
            console.print(plain(lost, style="bold red"))
        for upstream in model.upstreams:
            if upstream.breaker != "closed" or upstream.forced:
                through = f" through {upstream.upstream}" if upstream.upstream else ""
                since = f", begun {seconds(max(state.now - upstream.since, 0))} ago" if upstream.since else ""
                cause = f": {upstream.why}" if upstream.why else ""
                said = f"the breaker of {model.model}{through} is {breaker_condition(upstream, state.now)}{since}{cause}"
                console.print(plain(said, style="bold red"))
    called = any(model.endpoint for model in state.models)
    models = make_table(
        "model", "running", "limit", "waiting", "workers", "slots", *(("T", "Q") if called else ())
    )
    for model in state.models:
        limit = model.limit or "-"
        name = model.model + _paused(model.paused)
        pace = model.pace if called else ()
        add_row(models, name, model.running, limit, model.waiting, model.workers, model.slots, *pace)
    if state.models:
        print_table(models)
    else:
        console.print("no models yet")

    for worker in state.workers:
        if worker.unhealthy:
            ill = f"{worker.name or worker.worker_id} is unhealthy: {worker.unhealthy}"
            console.print(plain(ill, style="bold red"))
        if (worker.task_silent_ms or 0) >= SILENT_MS:
            lasts = seconds(worker.task_silent_ms or 0)
            silent = (
                f"a task on {worker.name or worker.worker_id} has shown no output and no progress for {lasts}"
            )
            console.print(plain(silent, style="bold red"))
    workers = make_table("worker", "replica", "running", "slots", "silent", "models", "last seen")
    for worker in state.workers:
        heard = "-" if worker.heartbeat_age_ms is None else f"{seconds(worker.heartbeat_age_ms)} ago"
        offers = " ".join(worker.models) + (f" (and {worker.more_models} more)" if worker.more_models else "")
        name = worker.name or worker.worker_id
        name += " (draining)" if worker.draining else " (unhealthy)" if worker.unhealthy else ""
        silent = "-" if worker.task_silent_ms is None else seconds(worker.task_silent_ms)
        add_row(workers, name, worker.replica, worker.running, worker.slots, silent, offers, heard)
    if state.workers:
        print_table(workers)
    else:
        console.print("no workers are connected")

    replicas = make_table("replica", "host", "pid", "version", "heard of")
    for replica in state.replicas:
        where = (replica.host or "-", replica.pid or "-", replica.version or "-")
        add_row(replicas, replica.replica, *where, f"{seconds(replica.age_ms)} ago")
    print_table(replicas)


def _print_differences(state: State, console: Console) -> None:
    """Which replicas have which keys, and routes, where these differ; and who did not take its configuration over."""
    names: dict[str, list[str]] = {}
    routes: dict[str, list[str]] = {}
    for replica in state.replicas:
        if replica.keys_hash:
            names.setdefault(replica.keys_hash, []).append(replica.replica)
        if replica.routes_hash:
            routes.setdefault(replica.routes_hash, []).append(replica.replica)
        if refused := replica.reload_refused:
            ago = seconds(max(state.now - refused.at, 0))
            said = (
                f"replica {replica.replica} refused to read its configuration again {ago} ago: {refused.why}"
            )
            console.print(plain(said, style="bold red"))
    if len(names) > 1:
        groups = " | ".join(" ".join(group) for group in names.values())
        said = (
            f"replicas differ in keys or worker tokens ({groups}): what was removed at one still works at others; "
            "give all the same file, and send SIGHUP to each"
        )
        console.print(plain(said, style="bold red"))
    if len(routes) > 1:
        groups = " | ".join(" ".join(group) for group in routes.values())
        said = (
            f"replicas differ in routes, templates, chains, endpoints or fallbacks ({groups}): "
            "callers get what the one says that they reach; "
            "give all the same file, and send SIGHUP to each"
        )
        console.print(plain(said, style="bold red"))


def _paused(paused: bool) -> str:
    return " (paused)" if paused else ""
