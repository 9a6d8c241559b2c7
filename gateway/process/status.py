"""`fairlane status`: asks a running gateway what it does and prints it as tables."""

from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import msgspec
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fairlane.gateway.settings import is_loopback

TIMEOUT_S = 10.0
_NUMERIC = frozenset({"weight", "waiting", "running", "slots", "limit", "workers", "most waiting"})


class StatusError(Exception):
    """The gateway does not do what was asked; the message is a sentence that says why, or what to do."""


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
    overrides: dict[str, Any] = {}


class ModelRow(msgspec.Struct, rename="camel"):
    """A model in that answer. `limit` None: bounded by the workers' slots only."""

    model: str
    running: int
    waiting: int
    workers: int
    slots: int
    limit: int | None = None
    cost: str = "tokens"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_running_per_user: int | None = None
    max_waiting_per_user: int | None = None
    paused: bool = False
    held_until: float | None = None
    next_start_at: float | None = None
    jain: float | None = None
    overrides: dict[str, Any] = {}


class WorkerRow(msgspec.Struct, rename="camel"):
    """A worker in that answer."""

    worker_id: str
    models: list[str]
    slots: int
    running: int
    name: str | None = None
    replica: str = ""
    heartbeat_age_ms: int | None = None
    draining: bool = False
    unhealthy: str | None = None


class ConfigurationRow(msgspec.Struct, rename="camel"):
    """The configuration of a replica in that answer."""

    in_force: bool


class ReplicaRow(msgspec.Struct, rename="camel"):
    """A replica in that answer."""

    replica: str
    host: str | None = None
    pid: int | None = None
    version: str | None = None
    age_ms: int = 0
    configuration: ConfigurationRow | None = None


class StoreRow(msgspec.Struct, rename="camel", frozen=True):
    """What the gateway sees of Redis, in that answer."""

    refuses: bool = False
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
) -> httpx.Response:
    """An answer to GET, to PATCH with `change`, or to another `method`, that is good. Raises StatusError."""
    url = base_url(gateway)
    headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
    proxies = not is_loopback(urlsplit(url).hostname or "")
    method = method or ("GET" if change is None else "PATCH")
    try:
        with httpx.Client(timeout=TIMEOUT_S, trust_env=proxies) as client:
            answer = client.request(method, url + path, headers=headers, json=change)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as problem:
        raise StatusError(
            f"no gateway answers at {gateway} ({problem or problem.__class__.__name__})"
        ) from None
    if answer.status_code in (401, 403):
        raise StatusError("the gateway wants the key of an admin: set FAIRLANE_ADMIN_KEY")
    if answer.status_code == 200:
        return answer
    try:
        refusal = msgspec.json.decode(answer.content, type=_Refusal)
        raise StatusError(f"{refusal.error}: {refusal.why}" if refusal.why else refusal.error)
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


def print_state(state: State, console: Console) -> None:
    """Counts and three tables; before them what is wrong with Redis."""
    if state.store.refuses:
        lasts = seconds(max(state.now - (state.store.since or state.now), 0))
        why = Text(f"Redis has refused writes for {lasts}: {state.store.why}", style="bold red")
        console.print(why, soft_wrap=True)
    shown = [f"{state.counts.get(name, 0)} {name}" for name in ("queued", "executing")]
    shown += [f"{state.counts.get(name, 0)} {name}" for name in ("completed", "failed", "cancelled")]
    console.print("tasks: " + ", ".join(shown), highlight=False)
    kept, dropped = state.counts.get("retainedBytes", 0), state.counts.get("droppedEarly", 0)
    early = f", {dropped} dropped before their time" if dropped else ""
    console.print(f"results kept: {kept / (1 << 20):.1f} MiB{early}", highlight=False)
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
    console.print(queues)

    for model in state.models:
        if model.waiting and not model.workers:
            lost = f"{model.waiting} tasks wait for {model.model}, which no worker offers"
            console.print(Text(lost, style="bold red"), soft_wrap=True)
    models = make_table("model", "running", "limit", "waiting", "workers", "slots")
    for model in state.models:
        limit = model.limit or "-"
        name = model.model + _paused(model.paused)
        add_row(models, name, model.running, limit, model.waiting, model.workers, model.slots)
    console.print(models if state.models else "no models yet")

    for worker in state.workers:
        if worker.unhealthy:
            ill = f"{worker.name or worker.worker_id} is unhealthy: {worker.unhealthy}"
            console.print(Text(ill, style="bold red"), soft_wrap=True)
    workers = make_table("worker", "replica", "running", "slots", "models", "last seen")
    for worker in state.workers:
        heard = "-" if worker.heartbeat_age_ms is None else f"{seconds(worker.heartbeat_age_ms)} ago"
        name = worker.name or worker.worker_id
        name += " (draining)" if worker.draining else " (unhealthy)" if worker.unhealthy else ""
        add_row(workers, name, worker.replica, worker.running, worker.slots, " ".join(worker.models), heard)
    console.print(workers if state.workers else "no workers are connected")

    replicas = make_table("replica", "host", "pid", "version", "heard of")
    for replica in state.replicas:
        where = (replica.host or "-", replica.pid or "-", replica.version or "-")
        add_row(replicas, replica.replica, *where, f"{seconds(replica.age_ms)} ago")
    console.print(replicas)


def _paused(paused: bool) -> str:
    return " (paused)" if paused else ""


def make_table(*columns: str) -> Table:
    """An empty table; columns of numbers are set to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _NUMERIC else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def wide_enough(table: Table) -> Console:
    """A console that breaks no cell of this table, only headings of several words, however narrow the terminal is (which may
    break lines then), and in a pipe."""
    console = Console()
    for column in table.columns:
        heading = str(column.header)
        widths = [cell.cell_len for cell in column.cells if isinstance(cell, Text)]
        column.min_width = max([*widths, *map(len, heading.split())])
        column.no_wrap = column.min_width >= len(heading)
    needed = Measurement.get(console, console.options.update(width=10_000), table).minimum
    return Console(width=max(console.width, needed))


def add_row(table: Table, *cells: object) -> None:
    """Names come from workers and callers: shown as they are, without control characters or markup."""
    table.add_row(*(Text("".join(char for char in str(cell) if char.isprintable())) for cell in cells))


def seconds(ms: float) -> str:
    """A duration for people."""
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
