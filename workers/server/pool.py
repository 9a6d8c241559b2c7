"""The workers connected to this replica and their slots. Pure: which are free, and which is next.

The next worker is found without looking at all of them: workers with the same offer share a `WorkerGroup`, which keeps its free
workers in the order of their turns, and groups are found by model. So a task costs the same with ten workers and with thousands,
busy or free. The cost grows with the number of different offers that include its model.
"""

import enum
import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from fairlane.queues.keys import is_reserved
from fairlane.workers.protocol import DEFAULT_MAX_MESSAGE_BYTES, ModelInfo
from fairlane.workers.server.suspects import Suspicion
from fairlane.workers.tasktypes import ANY_TYPE, covers, takes

ANY = "*"
LOSSES_TO_HOLD = 5
LOSS_WINDOW_S = 600.0
LOSS_HOLD_S = 60.0
RETRY_REST_MS = 100
"""After a failure that a retry can fix, the worker pauses long enough that an idle one, here or elsewhere, is first."""
MAX_REMEMBERED = 256
MAX_LOSSES = 4096
MAX_CLOSED = 1000
MAX_UPSTREAMS = 128
"""Upstreams of a model that are reported to the store: more than can be shut at a time (upstreams.lua, MAX_OF_MODEL), so
where there are more, something may start through one of these."""

_UNUSED = 1 << 62
"""Puts the turns of workers that had no task yet before all others."""

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


def _nobody() -> None:
    """Do nothing: the `on_change` of a worker that is in no pool."""


class Mismatch(enum.StrEnum):
    """Why a worker cannot run a task that another one may take."""

    TYPE = "task type not taken"
    SIZE = "too large"
    REJECTED = "rejected as unsupported"
    CLOSED = "closed its connection over it"


class AttemptTable(dict[Any, Any]):
    """The attempts that take a worker's slots (see `attempts_on`); calls `on_change` when one is added or removed."""

    __slots__ = ("on_change",)

    def __init__(self) -> None:
        super().__init__()
        self.on_change: Callable[[], None] = _nobody
        """The worker's own."""

    def __setitem__(self, key: Any, attempt: Any) -> None:
        super().__setitem__(key, attempt)
        self.on_change()

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.on_change()


class WorkerGroup:
    """Workers of the same version and upstream that offer the same models and take the same task types.

    `members`: those that do not drain; `unhealthy`: the unhealthy ones of them. `free`: those for which tasks are requested;
    `resting`: those that only get tasks which are at hand. Both hold (turn, worker), the next worker first.
    """

    __slots__ = ("free", "members", "models", "offer", "resting", "task_types", "unhealthy", "upstream")

    def __init__(self, offer: "Offer") -> None:
        self.offer = offer
        self.models, self.task_types, _, self.upstream = offer
        self.members: dict[str, Worker] = {}
        self.unhealthy: set[str] = set()
        self.free: list[tuple[int, Worker]] = []
        self.resting: list[tuple[int, Worker]] = []

    def takes(self, task_type: str) -> bool:
        return not task_type or takes(self.task_types, task_type)

    def supports(self, task_types: frozenset[str] | None, version: int) -> bool:
        """Return whether a healthy member takes all that a worker of these task types and this version takes."""
        able = covers(self.task_types, task_types)
        return able and self.offer[2] >= version and len(self.members) > len(self.unhealthy)


MAX_LOGGED = 8
"""Models of a worker that a log line names."""


class Worker:
    """One connected worker as the gateway sees it.

    A slot is `reserved` before the scheduler is asked, and then becomes an attempt or is released. Until `rest_until` no task is
    requested for the worker, but it may get one that is at hand. `send` queues a frame; `close` ends the connection with a
    code and a reason. `finished_attempts` holds the attempts that are over on this connection, and until when late frames
    about them are no fault (0: the result has arrived); `unknown_attempts` holds those that the worker listed and never had.
    `refused` holds the tasks that it cannot run and why, `avoided` those that another worker should try first. `failures`
    counts its failures in a row, `failed_endpoint` is the model of the last one if that is an endpoint's, and `upstream` the
    server behind the worker ('': none named). `health.py` keeps `reported`, why the worker says that it cannot work,
    `failure_reason`, the failure that it had too often in a row (both are empty while it is healthy), `backoffs`, how often it
    backed off since, and `probe_at`, until when. `max_message_bytes`: the largest frame that it takes. `held`: attempts that are
    not sent yet, in their order, because one of them or the one `alone` here is a suspect (suspects.py). `process_known`: its
    instance id is one process's, as the SDK makes it.

    The worker calls `on_change` when something about its slots has changed. `turn`, `group` and `line` belong to the pool.
    """

    __slots__ = (
        "_cap",
        "_draining",
        "_hold_until",
        "_pool",
        "_reserved",
        "_rest_until",
        "_slots",
        "_suspended",
        "alone",
        "attempts",
        "avoided",
        "backoffs",
        "changed",
        "close",
        "failed_endpoint",
        "failure_reason",
        "failures",
        "finished_attempts",
        "group",
        "heard_at",
        "held",
        "id",
        "instance_id",
        "key_id",
        "line",
        "max_message_bytes",
        "missed_acks",
        "model_info",
        "models",
        "name",
        "on_change",
        "probe_at",
        "process_known",
        "refused",
        "reported",
        "send",
        "tags",
        "task_types",
        "turn",
        "unknown_attempts",
        "upstream",
        "usable",
        "version",
        "wakes_at",
        "wants_user",
    )

    def __init__(
        self,
        worker_id: str,
        name: str,
        version: int,
        models: Iterable[str],
        slots: int,
        *,
        task_types: Iterable[str] | None = None,
        model_info: Mapping[str, ModelInfo] | None = None,
        tags: Mapping[str, str] | None = None,
        instance_id: str = "",
        key_id: str = "",
        upstream: str = "",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        process_known: bool = False,
        send: Callable[[bytes], None],
        close: Callable[[int, str], None],
    ) -> None:
        self._pool: Pool | None = None
        self.on_change: Callable[[], None] = _nobody
        self.id = worker_id
        self.name = name
        self.version = version
        self.instance_id = instance_id
        self.key_id = key_id
        self.upstream = upstream  # as the store knows it: within the worker's token
        self.max_message_bytes = max_message_bytes
        self.process_known = process_known
        self.send = send
        self.close = close
        self._slots = slots
        self.attempts = AttemptTable()
        """By their names in the worker's messages; each takes a slot."""
        self.held: list[Any] = []
        self.alone: Any = None
        self._cap: int | None = None
        self.usable = slots
        """Slots that may be used."""
        self._reserved = 0
        self._draining = self._suspended = False
        self._hold_until = self._rest_until = 0.0
        self.changed = False
        """Its offer has changed since some of its slots were filled: see `Slots.fill_changed`."""
        self.heard_at = 0.0
        self.missed_acks = 0
        self.failures = 0
        self.failed_endpoint = self.reported = self.failure_reason = ""
        self.backoffs = 0
        self.probe_at = 0.0
        self.finished_attempts: Recent[tuple[str, int], float] = Recent(max(MAX_REMEMBERED, 2 * slots))
        self.unknown_attempts: Recent[tuple[str, int], bool] = Recent(max(MAX_REMEMBERED, 2 * slots))
        self.refused: Recent[str, Mismatch] = Recent(MAX_REMEMBERED)
        self.avoided: Recent[str, bool] = Recent(MAX_REMEMBERED)
        self.turn = 0
        self.group: WorkerGroup | None = None
        self.line: list[tuple[int, Worker]] | None = None
        self.wakes_at = 0.0
        self.task_types: frozenset[str] | None = None
        self.model_info, self.tags = model_info, tags
        self.wants_user = False
        self.models: tuple[str, ...] = ()
        self.set_models(models, task_types)

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
        if self._pool is not None:
            self._pool.sort(self)

    # ---- changes that the pool follows ----------

    @property
    def reserved(self) -> int:
        return self._reserved

    def reserve(self, count: int) -> None:
        """Reserve this many slots."""
        self._reserved += count
        self.on_change()

    def give_back(self, count: int) -> None:
        """This many reserved slots are free again, or about to become attempts."""
        self._reserved -= count
        self.on_change()

    @property
    def slots(self) -> int:
        return self._slots

    @slots.setter
    def slots(self, count: int) -> None:
        self._slots = count
        self._fit()

    @property
    def cap(self) -> int | None:
        """The most of its slots that are used: 0 while it is unhealthy and rests, 1 for a probe. None: all."""
        return self._cap

    @cap.setter
    def cap(self, count: int | None) -> None:
        self._cap = count
        self._fit()

    def _fit(self) -> None:
        self.usable = self._slots if self._cap is None else min(self._slots, self._cap)
        self.on_change()

    @property
    def unhealthy_reason(self) -> str:
        """Return why it is unhealthy; empty while it is healthy."""
        return self.reported or self.failure_reason

    @property
    def hold_until(self) -> float:
        return self._hold_until

    @hold_until.setter
    def hold_until(self, at: float) -> None:
        self._hold_until = at
        self.on_change()

    @property
    def rest_until(self) -> float:
        return self._rest_until

    @rest_until.setter
    def rest_until(self, at: float) -> None:
        self._rest_until = at
        self.on_change()

    @property
    def suspended(self) -> bool:
        return self._suspended

    @suspended.setter
    def suspended(self, yes: bool) -> None:
        self._suspended = yes
        self.on_change()

    @property
    def draining(self) -> bool:
        return self._draining

    @draining.setter
    def draining(self, yes: bool) -> None:
        self._draining = yes
        if self._pool is not None:
            self._pool.sort(self)

    def join(self, pool: "Pool | None") -> None:
        """Its pool's: follow it from now on. None: no more."""
        self._pool = pool
        self.on_change = self.attempts.on_change = _nobody if pool is None else partial(pool.place, self)

    # ---- abilities ----------

    @property
    def identity(self) -> str:
        """Return an id that is the same over all connections of a worker's process, if the worker names one."""
        return f"{self.key_id}/{self.instance_id or self.id}"

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
        return max(self.usable - len(self.attempts) - self._reserved, 0)


class Pool:
    """All workers of this replica. Of several that are free for a task, the one whose last task began first gets it."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.time = time
        self.draining = False
        """Drain: no worker gets a task any more, new ones included."""
        self._workers: dict[str, Worker] = {}
        self._groups: dict[Offer, WorkerGroup] = {}
        self.unhealthy: dict[str, Worker] = {}
        """Workers with an `unhealthy_reason`."""
        self.groups_changed = False
        """A group was added or removed since this was last set to False."""
        self._by_model: dict[str, list[WorkerGroup]] = {}
        self._through: dict[str, dict[str, int]] = {}
        """By model and upstream, the number of groups."""
        self._changed_models: set[str] = set()
        self._instances: dict[tuple[str, str], dict[str, Worker]] = {}
        self._turn = 0
        self._asleep: list[tuple[float, str]] = []
        """A heap of the workers that get no tasks for a while: when to check each again."""
        self._losses: Recent[str, list[float]] = Recent(MAX_LOSSES)
        self._closed_until: Recent[tuple[str, str], float] = Recent(MAX_CLOSED)
        """Until when nothing of a model starts through an upstream."""

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def __contains__(self, worker: Worker) -> bool:
        return self._workers.get(worker.id) is worker

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def same_instance(self, worker: Worker) -> list[Worker]:
        """Other connections of the same process here. Only those with the same token: an id alone proves nothing."""
        if not worker.instance_id:
            return []
        same = self._instances.get((worker.key_id, worker.instance_id), {})
        return [other for other in same.values() if other is not worker]

    def add(self, worker: Worker) -> None:
        """Add a worker. Its turn comes after those that have had no task either, and before all that had one."""
        if self.draining:
            worker.draining = True
        self._workers[worker.id] = worker
        if worker.instance_id:
            self._instances.setdefault((worker.key_id, worker.instance_id), {})[worker.id] = worker
        self._turn += 1
        worker.turn = self._turn - _UNUSED
        worker.join(self)
        self._back_off(worker)
        self.sort(worker)

    def remove(self, worker: Worker) -> bool:
        """Remove a worker. Return False if it had been removed before."""
        if worker not in self:
            return False
        self._leave_group(worker)
        worker.join(None)
        del self._workers[worker.id]
        self.unhealthy.pop(worker.id, None)
        key = (worker.key_id, worker.instance_id)
        if same := self._instances.get(key):
            same.pop(worker.id, None)
            if not same:
                del self._instances[key]
        return True

    def count_loss(self, worker: Worker) -> None:
        """Count a task, or a connection with tasks, that a worker lost; the fifth in ten minutes begins a minute without
        tasks."""
        now = self.time()
        key = worker.identity
        losses = [at for at in self._losses.get(key) or [] if now - at < LOSS_WINDOW_S]
        self._losses.put(key, [*losses, now][-LOSSES_TO_HOLD:])
        self._back_off(worker)

    def _back_off(self, worker: Worker) -> None:
        """Hold tasks back from a worker that lost too many, also after it has reconnected."""
        losses = self._losses.get(worker.identity) or []
        if len(losses) >= LOSSES_TO_HOLD and losses[-1] - losses[0] < LOSS_WINDOW_S:
            worker.hold_until = max(worker.hold_until, losses[-1] + LOSS_HOLD_S)

    # ---- groups ----------

    def sort(self, worker: Worker) -> None:
        """Move a worker that has connected, changed its offer or begun to drain into the group of its offer."""
        if worker not in self:
            return
        offer = (worker.models, worker.task_types, worker.version, worker.upstream)
        if worker.group is not None and worker.group.offer == offer and not worker.draining:
            worker.models, worker.task_types = worker.group.models, worker.group.task_types
            return  # it stays in its group, whose offer is neither removed nor added
        self._leave_group(worker)
        if worker.draining:
            return
        group = self._groups.get(offer)
        if group is None:
            group = self._groups[offer] = WorkerGroup(offer)
            self.groups_changed = True
            for model in group.models:
                self._by_model.setdefault(model, []).append(group)
                through = self._through.setdefault(model, {})
                if group.upstream not in through:
                    self._changed_models.add(model)
                through[group.upstream] = through.get(group.upstream, 0) + 1
        worker.models, worker.task_types = group.models, group.task_types  # thousands share one tuple
        group.members[worker.id] = worker
        worker.group = group
        self.mark(worker)
        self.place(worker)

    def mark(self, worker: Worker) -> None:
        """Record that a worker has become healthy or unhealthy."""
        if worker not in self:
            return
        if worker.unhealthy_reason:
            self.unhealthy[worker.id] = worker
        else:
            self.unhealthy.pop(worker.id, None)
        if worker.group is not None:
            (worker.group.unhealthy.add if worker.unhealthy_reason else worker.group.unhealthy.discard)(
                worker.id
            )

    def peers_support(self, models: Iterable[str], task_types: frozenset[str] | None, version: int) -> bool:
        """Return whether, for each of these models, a healthy worker here takes all of these task types."""
        return all(
            any(group.supports(task_types, version) for group in self._serving(model)) for model in models
        )

    def _leave_group(self, worker: Worker) -> None:
        self._move_to_list(worker, None)
        group, worker.group = worker.group, None
        if group is None:
            return
        del group.members[worker.id]
        group.unhealthy.discard(worker.id)
        if not group.members:
            del self._groups[group.offer]
            self.groups_changed = True
            for model in group.models:
                self._by_model[model].remove(group)
                through = self._through[model]
                through[group.upstream] -= 1
                if not through[group.upstream]:
                    del through[group.upstream]
                    self._changed_models.add(model)
                if not through:
                    del self._by_model[model], self._through[model]

    def place(self, worker: Worker) -> None:
        """Put a worker whose slots or pauses have changed into the list where it belongs, or into none.

        This is called four times per task, so it reads fields instead of calling properties.
        """
        group = worker.group
        line = None
        has_room = worker.usable > len(worker.attempts) + worker._reserved
        if has_room and group is not None and not worker._suspended:
            line = group.free
            wakes_at = max(worker._hold_until, worker._rest_until)
            if wakes_at > 0 and wakes_at > (now := self.time()):
                line = None if worker._hold_until > now else group.resting
                if line is None and worker._rest_until > worker._hold_until:
                    wakes_at = worker._hold_until
                if worker.wakes_at != wakes_at:
                    worker.wakes_at = wakes_at
                    heapq.heappush(self._asleep, (wakes_at, worker.id))
        if line is not worker.line:
            self._move_to_list(worker, line)

    @staticmethod
    def _move_to_list(worker: Worker, line: list[tuple[int, Worker]] | None) -> None:
        if worker.line is not None:
            del worker.line[bisect_left(worker.line, (worker.turn,))]
        if line is not None:
            insort(line, (worker.turn, worker))
        worker.line = line

    def _wake(self, now: float) -> None:
        while self._asleep and self._asleep[0][0] <= now:
            worker = self._workers.get(heapq.heappop(self._asleep)[1])
            if worker is not None:
                worker.wakes_at = 0.0
                self.place(worker)

    # ---- the next worker ----------

    def models(self) -> set[str]:
        """Every model that some worker offers; `*` for any."""
        return set(self._by_model)

    def pop_offer_changes(self) -> dict[str, bool]:
        """Return the models whose offer or upstreams have changed since the last call, each with whether it is offered now."""
        news, self._changed_models = self._changed_models, set()
        return {model: model in self._by_model for model in news}

    def shut(self, model: str, upstream: str, ms: int) -> None:
        """Request nothing of a model through an upstream for this long."""
        self._closed_until.put((model, upstream), self.time() + ms / 1000)

    def reopen(self, model: str, upstream: str) -> None:
        """Allow requests for a model through an upstream again."""
        self._closed_until.pop((model, upstream), None)

    def upstreams(self, models: Iterable[str]) -> list[tuple[str, str]]:
        """Return each of these models with each upstream that offers it here, MAX_UPSTREAMS at most; models without a named
        upstream are left out."""
        found = []
        for model in models:
            names = self._through.get(model, {})
            if names.keys() != {""}:
                found += [(model, name) for name in sorted(islice(names, MAX_UPSTREAMS))]
        return found

    def pick(
        self,
        model: str,
        task_type: str = "",
        task_id: str = "",
        upstream: str | None = None,
        *,
        size: int = 0,
        suspicion: Suspicion | None = None,
    ) -> Worker | None:
        """Return the least recently used free worker for a model, or for one task of it.

        Given a task: never a worker that does not take it, or a frame of its `size`, and one that should avoid it, or runs others
        while the task is suspect, only if there is no other; only workers of its `upstream`, through which it was granted.
        Without a task: only workers of upstreams through which something may start.
        """
        now = self.time()
        if self._asleep:
            self._wake(now)
        best: Worker | None = None
        second_best: Worker | None = None
        for group in self._serving(model):
            if upstream is not None and group.upstream != upstream:
                continue
            if task_type and not takes(group.task_types, task_type):
                continue
            if upstream is None and self._closed_until and now < self._closed(model, group.upstream):
                continue
            for line in (group.free, group.resting) if task_id else (group.free,):
                for turn, worker in line:
                    if best is not None and turn > best.turn:
                        break
                    if task_id and not worker.can_run(task_id, size, suspicion):
                        continue
                    if not task_id or (task_id not in worker.avoided and worker.suits(suspicion)):
                        best = worker
                        break
                    if second_best is None or turn < second_best.turn:
                        second_best = worker
        return best or second_best

    def _closed(self, model: str, upstream: str) -> float:
        return self._closed_until.get((model, upstream)) or 0.0

    def any_takes(
        self, model: str, task_type: str, task_id: str, size: int = 0, suspicion: Suspicion | None = None
    ) -> bool:
        """Whether some worker here can run the task, now or when it is free."""
        return any(
            worker.can_run(task_id, size, suspicion)
            for group in self._serving(model)
            if group.takes(task_type)
            for worker in group.members.values()
        )

    def max_message_bytes(self, model: str) -> int:
        """Return what the workers here that serve a model take in one frame, at most."""
        members = (worker for group in self._serving(model) for worker in group.members.values())
        return max((worker.max_message_bytes for worker in members), default=0)

    def offers(self, models: Iterable[str] | None, task_type: str) -> bool:
        """Whether a worker here takes tasks of a type ('': any), of one of these models (None: of any), now or later."""
        if models is None:
            return any(group.takes(task_type) for group in self._groups.values())
        return any(group.takes(task_type) for model in models for group in self._serving(model))

    def _serving(self, model: str) -> Sequence[WorkerGroup]:
        named = self._by_model.get(model, ())
        of_any = self._by_model.get(ANY, ())
        if not of_any or model == ANY or is_reserved(model):
            return named
        return [*named, *of_any]

    def reserve(self, model: str, want: int = 1, task_type: str = "") -> tuple[Worker, int] | None:
        """Reserve up to `want` slots of one worker for a model; the caller gives them back or makes attempts of them."""
        worker = self.pick(model, task_type)
        if worker is None:
            return None
        count = min(
            want, worker.usable - len(worker.attempts) - worker._reserved
        )  # it was picked, so it is free
        worker.reserve(count)
        return worker, count

    def wanted(self, worker: Worker, leaving: int = 0) -> int:
        """How many tasks to ask for when an attempt of this worker ends: one for its slot, or none.

        `leaving`: how many of its present attempts are over then. A worker that has fewer slots now gets nothing until they
        suffice.
        """
        taken = len(worker.attempts) + worker._reserved - leaving
        if worker.group is None or worker._suspended or taken >= worker.usable:
            return 0
        return 1 if self.time() >= max(worker._hold_until, worker._rest_until) else 0

    def silent_ms(self, worker: Worker) -> int:
        """Return the time since a worker's last frame."""
        return int((self.time() - worker.heard_at) * 1000)

    def touch(self, worker: Worker) -> None:
        """Make a worker the most recently used one: a task begins on it."""
        line = worker.line
        if line is not None:
            del line[bisect_left(line, (worker.turn,))]
        self._turn += 1
        worker.turn = self._turn
        if line is not None:
            line.append((worker.turn, worker))
