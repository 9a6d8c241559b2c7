"""One connected worker as the gateway sees it: its offer, its slots, and what became of its tasks. Pure."""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import Grant
from fairlane.workers.protocol import DEFAULT_MAX_MESSAGE_BYTES, ModelInfo
from fairlane.workers.server.pool.suspects import Suspicion
from fairlane.workers.tasktypes import ANY_TYPE, covers, takes

ANY = "*"
MAX_REMEMBERED = 256
MAX_LOGGED = 8
"""Models of a worker that a log line names."""

AttemptKey = tuple[str, int]
"""How a worker's messages name an attempt: the task, and the number on the wire. Version 1 has no number: it is 0."""
Offer = tuple[tuple[str, ...], frozenset[str] | None, int, str]
"""Models, task types, version of the protocol, upstream."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(dict[Key, Value]):
    """The newest `most` keys that were put in, with their values. Only `put` keeps to that."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: Key, value: Value) -> None:
        self.pop(key, None)
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]


class Mismatch(enum.StrEnum):
    """Why a worker cannot run a task that another one may take."""

    TYPE = "task type not taken"
    SIZE = "too large"
    REJECTED = "rejected as unsupported"
    CLOSED = "closed its connection over it"


class WorkerGroup:
    """Workers of the same version and upstream that offer the same models and take the same task types.

    `members`: those that do not drain. `free`: those for which tasks are requested;
    `resting`: those that only get tasks which are at hand. Both hold (turn, worker), the next worker first.
    """

    __slots__ = ("free", "members", "models", "offer", "resting", "task_types", "upstream")

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.models, self.task_types, _, self.upstream = offer
        self.members: dict[str, Worker] = {}
        self.free: list[tuple[int, Worker]] = []
        self.resting: list[tuple[int, Worker]] = []

    def takes(self, task_type: str) -> bool:
        return not task_type or takes(self.task_types, task_type)

    def supports(self, task_types: frozenset[str] | None, version: int) -> bool:
        """Return whether a healthy member takes all that a worker of these task types and this version takes."""
        able = covers(self.task_types, task_types) and self.offer[2] >= version
        return able and any(not member.unhealthy_reason for member in self.members.values())


class Places(Protocol):
    """The pool, as a worker sees it."""

    def sort(self, worker: "Worker") -> None:
        """Move a worker to where it belongs after a change of its offer, its slots or its pauses."""
        ...

    def place(self, worker: "Worker") -> None:
        """The same, if its offer is as it was."""
        ...


class _Placed(Generic[Value]):
    """A field whose change moves its worker in the pool."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = "_" + name

    def __get__(self, worker: "Worker", owner: type) -> Value:
        value: Value = getattr(worker, self._name)
        return value

    def __set__(self, worker: "Worker", value: Value) -> None:
        setattr(worker, self._name, value)
        worker.usable = worker._slots if worker._cap is None else min(worker._slots, worker._cap)
        if worker.pool is not None:
            worker.pool.sort(worker)


@dataclass(slots=True, eq=False)
class Worker:
    """One connected worker.

    A slot is `reserved` before the scheduler is asked, and then becomes an attempt or is released. Until `rest_until` no task is
    requested for the worker, but it may get one that is at hand. `send` queues a frame; `close` ends the connection with a
    code and a reason.
    """

    id: str
    name: str
    version: int
    models: tuple[str, ...]
    _slots: int
    _: KW_ONLY
    send: Callable[[bytes], None]
    close: Callable[[int, str], None]
    task_types: frozenset[str] | None = None
    model_info: Mapping[str, ModelInfo] | None = None
    tags: Mapping[str, str] | None = None
    instance_id: str = ""
    key_id: str = ""
    upstream: str = ""
    """The server behind it, as the store knows it: within the worker's token. '': none is named."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """The largest frame that it takes."""
    process_known: bool = False
    """Its instance id is one process's, as the SDK makes it."""
    wants_user: bool = False

    attempts: dict[AttemptKey, Any] = field(default_factory=dict)
    """Those that take its slots. `Pool.begin` and `Pool.end` change it."""
    reserved: int = 0
    held: list[Any] = field(default_factory=list)
    """Attempts that are not sent yet, in their order, because one of them or the one `alone` here is a suspect."""
    alone: Any = None
    usable: int = 0
    """Slots that may be used."""
    changed: bool = False
    """Its offer has changed since some of its slots were filled: see `Dispatcher.changed`."""
    heard_at: float = 0.0
    missed_acks: int = 0
    finished_attempts: Recent[AttemptKey, float] = field(init=False)
    """Those that are over on this connection, and until when late frames about them are no fault (0: the result has arrived)."""
    unknown_attempts: Recent[AttemptKey, bool] = field(init=False)
    """Those that it listed and never had."""
    refused: Recent[str, Mismatch] = field(default_factory=lambda: Recent(MAX_REMEMBERED))
    """Tasks that it cannot run, and why."""
    avoided: Recent[str, bool] = field(default_factory=lambda: Recent(MAX_REMEMBERED))
    """Tasks that another worker should try first."""

    # health.py
    failures: int = 0
    """In a row."""
    failed_endpoint: str = ""
    """The model of the last one, if that is an endpoint's."""
    reported: str = ""
    """Why it says that it cannot work; empty while it can. So is the next."""
    failure_reason: str = ""
    """The failure that it had too often in a row."""
    backoffs: int = 0
    """How often it backed off since, and until when."""
    probe_at: float = 0.0

    # pool.py
    pool: "Places | None" = None
    turn: int = 0
    group: WorkerGroup | None = None
    line: list[tuple[int, "Worker"]] | None = None
    wakes_at: float = 0.0
    _cap: int | None = None
    _hold_until: float = 0.0
    _rest_until: float = 0.0
    _suspended: bool = False
    _draining: bool = False

    slots = _Placed[int]()
    cap = _Placed[int | None]()
    """The most of its slots that are used: 0 while it is unhealthy and rests, 1 for a probe. None: all."""
    hold_until = _Placed[float]()
    rest_until = _Placed[float]()
    suspended = _Placed[bool]()
    draining = _Placed[bool]()

    def __post_init__(self) -> None:
        self.finished_attempts = Recent(max(MAX_REMEMBERED, 2 * self._slots))
        self.unknown_attempts = Recent(max(MAX_REMEMBERED, 2 * self._slots))
        self.usable = self._slots
        self.set_models(self.models, self.task_types)

    @property
    def logged_models(self) -> tuple[str, ...]:
        """Return its first few models for a log line, and how many more there are: 256 long names take 50 KB."""
        more = len(self.models) - MAX_LOGGED
        return self.models if more <= 0 else (*self.models[:MAX_LOGGED], f"… and {more} more")

    def set_models(self, models: Iterable[str], task_types: Iterable[str] | None = None) -> None:
        """Change the offer: `*` means every model except endpoints, and includes the other names; no task types, or `*` alone,
        means every type except those that must be named."""
        names = tuple(dict.fromkeys(models))
        self.models = (ANY,) if ANY in names else names
        types = frozenset(task_types or (ANY_TYPE,))
        self.task_types = None if types == {ANY_TYPE} else types
        if self.pool is not None:
            self.pool.sort(self)

    def reserve(self, count: int) -> None:
        """Reserve this many slots; negative: release them."""
        self.reserved += count
        if self.pool is not None:
            self.pool.place(self)

    # ---- abilities ----------

    @property
    def unhealthy_reason(self) -> str:
        """Return why it is unhealthy; empty while it is healthy."""
        return self.reported or self.failure_reason

    @property
    def identity(self) -> str:
        """Return an id that is the same over all connections of a worker's process, if the worker names one."""
        return f"{self.key_id}/{self.instance_id or self.id}"

    def key_of(self, grant: Grant) -> AttemptKey:
        """Return how this worker names an attempt of this grant."""
        return grant.task_id, grant.epoch if self.version >= 2 else 0

    def serves(self, model: str) -> bool:
        return model in self.models or (self.models[0] == ANY and not is_reserved(model))

    def mismatch(self, task_type: str, task_id: str) -> Mismatch | None:
        """Return why it cannot run this task of a model that it serves; None if it can."""
        if not takes(self.task_types, task_type):
            return Mismatch.TYPE
        return self.refused.get(task_id)

    def can_run(self, task_id: str, size: int, suspicion: Suspicion | None) -> bool:
        """Return whether it takes a task of its type, whose frame has this size (0: unknown)."""
        excluded = suspicion is not None and suspicion.excludes(self.identity)
        return task_id not in self.refused and size <= self.max_message_bytes and not excluded

    def suits(self, suspicion: Suspicion | None) -> bool:
        """Return whether a task can begin here without a risk for others; true for a task that is no suspect."""
        if suspicion is None or not suspicion.isolates(self.identity):
            return True
        return not (self.attempts or self.reserved or suspicion.worker == self.identity)

    def free(self, now: float) -> int:
        """Return the slots for which a task may be requested now."""
        return 0 if now < self._rest_until else self.spare(now)

    def spare(self, now: float) -> int:
        """Return the slots that may get a task which is at hand, also while no task is requested for the worker."""
        if self._draining or self._suspended or now < self._hold_until:
            return 0
        return max(self.usable - len(self.attempts) - self.reserved, 0)
