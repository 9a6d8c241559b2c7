"""`fairlane status`: asks a running gateway what it does and prints it as tables."""

from urllib.parse import urlsplit

import httpx
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlane.gateway.settings import is_loopback

TIMEOUT_S = 10.0


class StatusError(Exception):
    """The state cannot be had; the message is a sentence that says what to do."""


class QueueRow(msgspec.Struct, rename="camel"):
    """A queue in the answer of GET /api/admin/state."""

    queue: str
    weight: float
    waiting: int
    running: int
    max_length: int | None = None
    max_wait_ms: int | None = None


class ModelRow(msgspec.Struct, rename="camel"):
    """A model in that answer. `limit` None: bounded by the workers' slots only."""

    model: str
    running: int
    waiting: int
    workers: int
    slots: int
    limit: int | None = None


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


class State(msgspec.Struct, rename="camel"):
    """The parts of that answer that are printed; others are passed over."""

    queues: list[QueueRow]
    models: list[ModelRow]
    workers: list[WorkerRow]
    counts: dict[str, int]


def state_url(gateway: str) -> str:
    """Where to ask: `gateway` is http(s)://host:port, or a worker's ws(s)://host:port/ws. Raises StatusError."""
    parts = urlsplit(gateway if "://" in gateway else f"http://{gateway}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.hostname:
        raise StatusError(f"{gateway!r} is not the address of a gateway; write http://host:port")
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/ws')}/api/admin/state"


def fetch_state(gateway: str, admin_key: str | None) -> tuple[str, State]:
    """The gateway's answer, as it came and decoded. Raises StatusError."""
    url = state_url(gateway)
    headers = {"Authorization": f"Bearer {admin_key}"} if admin_key else {}
    proxies = not is_loopback(urlsplit(url).hostname or "")
    try:
        answer = httpx.get(url, headers=headers, timeout=TIMEOUT_S, trust_env=proxies)
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as problem:
        raise StatusError(
            f"no gateway answers at {gateway} ({problem or problem.__class__.__name__})"
        ) from None
    if answer.status_code in (401, 403):
        raise StatusError("the gateway wants the key of an admin: set FAIRLANE_ADMIN_KEY")
    try:
        if answer.status_code != 200:
            raise ValueError(f"status {answer.status_code}")
        return answer.text, msgspec.json.decode(answer.content, type=State)
    except (ValueError, msgspec.MsgspecError) as problem:
        raise StatusError(f"what answers at {gateway} is no gateway of this version ({problem})") from None


def print_state(state: State, console: Console) -> None:
    """Counts and three tables."""
    shown = [f"{state.counts.get(name, 0)} {name}" for name in ("queued", "executing")]
    shown += [f"{state.counts.get(name, 0)} {name}" for name in ("completed", "failed", "cancelled")]
    console.print("tasks: " + ", ".join(shown), highlight=False)

    queues = _table("queue", "weight", "waiting", "running", "most waiting", "longest wait")
    for queue in state.queues:
        wait = _seconds(queue.max_wait_ms) if queue.max_wait_ms else "-"
        most = queue.max_length or "-"
        _row(queues, queue.queue, f"{queue.weight:g}", queue.waiting, queue.running, most, wait)
    console.print(queues)

    models = _table("model", "running", "limit", "waiting", "workers", "slots")
    for model in state.models:
        limit = model.limit or "-"
        _row(models, model.model, model.running, limit, model.waiting, model.workers, model.slots)
    console.print(models if state.models else "no models yet")

    workers = _table("worker", "replica", "running", "slots", "models", "heard of")
    for worker in state.workers:
        heard = "-" if worker.heartbeat_age_ms is None else f"{_seconds(worker.heartbeat_age_ms)} ago"
        name = (worker.name or worker.worker_id) + (" (draining)" if worker.draining else "")
        _row(workers, name, worker.replica, worker.running, worker.slots, " ".join(worker.models), heard)
    console.print(workers if state.workers else "no workers are connected")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        numeric = column in ("weight", "waiting", "running", "slots", "limit", "workers", "most waiting")
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    """Names come from workers and callers: shown as they are, without control characters or markup."""
    table.add_row(*(Text("".join(char for char in str(cell) if char.isprintable())) for cell in cells))


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
