"""The workers connected to this replica and their slots. Pure: who is free, and who is next.

Who is next is found without looking at the others: workers that offer the same stand together (`Kind`), those of them that are
free in the order of their turns, and the kinds are found by model. So a task costs the same with ten workers and with
thousands, be they busy or free. It grows with the number of different offers that hold its model.
"""

import enum
import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from fairlane.queues.keys import is_reserved
from fairlane.workers.protocol import ModelInfo
from fairlane.workers.tasktypes import ANY_TYPE, covers, takes

ANY = "*"
LOSSES_TO_HOLD = 5
LOSS_WINDOW_S = 600.0
LOSS_HOLD_S = 60.0
RETRY_REST_MS = 100
"""After a failure that a retry can fix, the worker pauses long enough that an idle one, here or elsewhere, is first."""
REMEMBERED = 256
LOSSES_REMEMBERED = 4096
SHUT_REMEMBERED = 1000
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
    """The listener of a worker's slots while it is in no pool."""


class Mismatch(enum.StrEnum):
    """Why a worker cannot run a task that others may take."""

    TYPE = "task type not taken"
    SIZE = "too large for version 1"
    REJECTED = "rejected as unsupported"


class Held(dict[Any, Any]):
    """What takes a worker's slots (its attempts, see `attempts_on`); notifies its pool when one is added or removed."""

    __slots__ = ("moved",)

    def __init__(self) -> None:
        super().__init__()
        self.moved: Callable[[], None] = _nobody
        """The worker's own."""

    def __setitem__(self, key: Any, attempt: Any) -> None:
        super().__setitem__(key, attempt)
        self.moved()

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.moved()


class Kind:
    """Workers of the same version and upstream that offer the same models and take the same task types.

    `members`: those that do not drain; `unhealthy`: those of them that have an ailment. `free`: those that may be asked for;
    `resting`: those that may only be given what is at hand; both as (turn, worker), the one that is next first.
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

    def does(self, task_types: frozenset[str] | None, version: int) -> bool:
        """Whether one of them is well, and takes all that a worker of these task types and this version takes."""
        able = covers(self.task_types, task_types)
        return able and self.offer[2] >= version and len(self.members) > len(self.unhealthy)


MAX_TOLD = 8
"""Models of a worker that a line in the log names."""


class Worker:
    """One connected worker as the gateway sees it.

    A slot is `reserved` before the scheduler is asked, and either becomes an attempt or is given back. While it rests
    (`rest_until`) no task is asked for, but one that is at hand may be given. `send` queues a frame; `close` ends the connection
    with a code and a reason. `past` holds, for attempts that are over on this connection, until when late frames are no fault (0:
    the result has come); `strange` are those that it said to hold and never had; `refused` are tasks that it cannot run and
    why, `avoided` those that another one should try first; `failures` how many in a row failed through it, `failed_endpoint`
    the model of the last, if that is an endpoint's; `upstream` the server behind it, '' where it names none. What `health.py`
    knows of it: `reported` is why it cannot work, as it says itself, `failing` with what its tasks failed when there were too
    many in a row (both are empty while it is well), `rests` how often it rested since, and `probe_at` until when.

    Its pool follows every change by itself: `moved` notifies it that something about the slots has changed. `turn`, `kind` and
    `line` are the pool's.
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
        "attempts",
        "avoided",
        "changed",
        "close",
        "failed_endpoint",
        "failing",
        "failures",
        "heard_at",
        "id",
        "instance_id",
        "key_id",
        "kind",
        "line",
        "missed_acks",
        "model_info",
        "models",
        "moved",
        "name",
        "past",
        "probe_at",
        "refused",
        "reported",
        "rests",
        "send",
        "strange",
        "task_types",
        "turn",
        "upstream",
        "usable",
        "version",
        "wakes_at",
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
        instance_id: str = "",
        key_id: str = "",
        upstream: str = "",
        send: Callable[[bytes], None],
        close: Callable[[int, str], None],
    ) -> None:
        self._pool: Pool | None = None
        self.moved: Callable[[], None] = _nobody
        self.id = worker_id
        self.name = name
        self.version = version
        self.instance_id = instance_id
        self.key_id = key_id
        self.upstream = upstream
        self.send = send
        self.close = close
        self._slots = slots
        self.attempts = Held()
        """By how the worker's messages name them; each takes a slot. What they are is no matter of the pool."""
        self._cap: int | None = None
        self.usable = slots
        """Slots that may be used."""
        self._reserved = 0
        self._draining = False
        self._suspended = False
        self._hold_until = 0.0
        self._rest_until = 0.0
        self.changed = False
        """It offers something else since some of its slots were asked for: see `Slots.fill_changed`."""
        self.heard_at = 0.0
        self.missed_acks = 0
        self.failures = 0
        self.failed_endpoint = ""
        self.reported = ""
        self.failing = ""
        self.rests = 0
        self.probe_at = 0.0
        self.past: Recent[tuple[str, int], float] = Recent(max(REMEMBERED, 2 * slots))
        self.strange: Recent[tuple[str, int], bool] = Recent(max(REMEMBERED, 2 * slots))
        self.refused: Recent[str, Mismatch] = Recent(REMEMBERED)
        self.avoided: Recent[str, bool] = Recent(REMEMBERED)
        self.turn = 0
        self.kind: Kind | None = None
        self.line: list[tuple[int, Worker]] | None = None
        self.wakes_at = 0.0
        self.task_types: frozenset[str] | None = None
        self.model_info = model_info
        self.models: tuple[str, ...] = ()
        self.set_models(models, task_types)

    @property
    def told_models(self) -> tuple[str, ...]:
        """Its models for a line in the log: the first few, and how many more there are. (256 long names are 50 KB.)"""
        more = len(self.models) - MAX_TOLD
        return self.models if more <= 0 else (*self.models[:MAX_TOLD], f"… and {more} more")

    def set_models(self, models: Iterable[str], task_types: Iterable[str] | None = None) -> None:
        """Change what it can run: `*` stands for every model but those of endpoints, and swallows the others; no task types, or
        `*` alone: every type but those that must be named."""
        names = tuple(dict.fromkeys(models))
        self.models = (ANY,) if ANY in names else names
        types = frozenset(task_types or (ANY_TYPE,))
        self.task_types = None if types == {ANY_TYPE} else types
        if self._pool is not None:
            self._pool.sort(self)

    # ---- what its pool follows ----------

    @property
    def reserved(self) -> int:
        return self._reserved

    def reserve(self, count: int) -> None:
        """Reserve this many slots."""
        self._reserved += count
        self.moved()

    def give_back(self, count: int) -> None:
        """This many reserved slots are free again, or about to become attempts."""
        self._reserved -= count
        self.moved()

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
        self.moved()

    @property
    def ailment(self) -> str:
        """Why it is unhealthy; empty when it is well."""
        return self.reported or self.failing

    @property
    def hold_until(self) -> float:
        return self._hold_until

    @hold_until.setter
    def hold_until(self, at: float) -> None:
        self._hold_until = at
        self.moved()

    @property
    def rest_until(self) -> float:
        return self._rest_until

    @rest_until.setter
    def rest_until(self, at: float) -> None:
        self._rest_until = at
        self.moved()

    @property
    def suspended(self) -> bool:
        return self._suspended

    @suspended.setter
    def suspended(self, yes: bool) -> None:
        self._suspended = yes
        self.moved()

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
        self.moved = self.attempts.moved = _nobody if pool is None else partial(pool.place, self)

    # ---- what it can do ----------

    @property
    def identity(self) -> str:
        """The same over all connections of a worker's process, as far as it says which it is."""
        return f"{self.key_id}/{self.instance_id or self.id}"

    def serves(self, model: str) -> bool:
        return model in self.models or (self.models[0] == ANY and not is_reserved(model))

    def mismatch(self, task_type: str, task_id: str) -> Mismatch | None:
        """Why it cannot run this task of a model that it serves; None when it can."""
        if not takes(self.task_types, task_type):
            return Mismatch.TYPE
        return self.refused.get(task_id)

    def free(self, now: float) -> int:
        """Slots for which a task may be asked now."""
        return 0 if now < self._rest_until else self.spare(now)

    def spare(self, now: float) -> int:
        """Slots that may be given a task which is at hand: also of a worker that rests from asking."""
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
        self._kinds: dict[Offer, Kind] = {}
        self.unhealthy: dict[str, Worker] = {}
        """Those that are (`Worker.ailment`)."""
        self.kinds_changed = False
        """Some kind has come or gone since this was last set to False."""
        self._by_model: dict[str, list[Kind]] = {}
        self._through: dict[str, dict[str, int]] = {}
        """By model and upstream, the number of kinds."""
        self._news: set[str] = set()
        self._instances: dict[tuple[str, str], dict[str, Worker]] = {}
        self._turn = 0
        self._asleep: list[tuple[float, str]] = []
        """A heap: when to check which worker again, of those that are to get nothing, or to rest, until then."""
        self._losses: Recent[str, list[float]] = Recent(LOSSES_REMEMBERED)
        self._closed_until: Recent[tuple[str, str], float] = Recent(SHUT_REMEMBERED)
        """Model and upstream through which nothing of it starts, and until when."""

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
        """Its turn comes after those that have had no task either, and before all that had one."""
        if self.draining:
            worker.draining = True
        self._workers[worker.id] = worker
        if worker.instance_id:
            self._instances.setdefault((worker.key_id, worker.instance_id), {})[worker.id] = worker
        self._turn += 1
        worker.turn = self._turn - _UNUSED
        worker.join(self)
        self._rest(worker)
        self.sort(worker)

    def remove(self, worker: Worker) -> bool:
        """False when it had been removed before."""
        if worker not in self:
            return False
        self._leave_kind(worker)
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
        """A task, or a connection with tasks, was lost on it; the fifth time in ten minutes begins a minute's rest."""
        now = self.time()
        key = worker.identity
        losses = [at for at in self._losses.get(key) or [] if now - at < LOSS_WINDOW_S]
        self._losses.put(key, [*losses, now][-LOSSES_TO_HOLD:])
        self._rest(worker)

    def _rest(self, worker: Worker) -> None:
        """No tasks for a worker that lost too many, also when it has connected again since."""
        losses = self._losses.get(worker.identity) or []
        if len(losses) >= LOSSES_TO_HOLD and losses[-1] - losses[0] < LOSS_WINDOW_S:
            worker.hold_until = max(worker.hold_until, losses[-1] + LOSS_HOLD_S)

    # ---- who stands where ----------

    def sort(self, worker: Worker) -> None:
        """A worker has come, changed its offer or begun to drain: bring it among its like."""
        if worker not in self:
            return
        offer = (worker.models, worker.task_types, worker.version, worker.upstream)
        if worker.kind is not None and worker.kind.offer == offer and not worker.draining:
            worker.models, worker.task_types = worker.kind.models, worker.kind.task_types
            return  # where it is: its kind, and what that offers, is neither removed nor added
        self._leave_kind(worker)
        if worker.draining:
            return
        kind = self._kinds.get(offer)
        if kind is None:
            kind = self._kinds[offer] = Kind(offer)
            self.kinds_changed = True
            for model in kind.models:
                self._by_model.setdefault(model, []).append(kind)
                through = self._through.setdefault(model, {})
                if kind.upstream not in through:
                    self._news.add(model)
                through[kind.upstream] = through.get(kind.upstream, 0) + 1
        worker.models, worker.task_types = kind.models, kind.task_types  # thousands share one tuple
        kind.members[worker.id] = worker
        worker.kind = kind
        self.mark(worker)
        self.place(worker)

    def mark(self, worker: Worker) -> None:
        """A worker is well, or unhealthy, from now on."""
        if worker not in self:
            return
        if worker.ailment:
            self.unhealthy[worker.id] = worker
        else:
            self.unhealthy.pop(worker.id, None)
        if worker.kind is not None:
            (worker.kind.unhealthy.add if worker.ailment else worker.kind.unhealthy.discard)(worker.id)

    def others_do(self, models: Iterable[str], task_types: frozenset[str] | None, version: int) -> bool:
        """Whether for each of these models some worker here is well that takes all of these task types."""
        return all(any(kind.does(task_types, version) for kind in self._serving(model)) for model in models)

    def _leave_kind(self, worker: Worker) -> None:
        self._stand(worker, None)
        kind, worker.kind = worker.kind, None
        if kind is None:
            return
        del kind.members[worker.id]
        kind.unhealthy.discard(worker.id)
        if not kind.members:
            del self._kinds[kind.offer]
            self.kinds_changed = True
            for model in kind.models:
                self._by_model[model].remove(kind)
                through = self._through[model]
                through[kind.upstream] -= 1
                if not through[kind.upstream]:
                    del through[kind.upstream]
                    self._news.add(model)
                if not through:
                    del self._by_model[model], self._through[model]

    def place(self, worker: Worker) -> None:
        """A worker's slots, or its rests, have changed: into the line where it belongs, or out of any.

        It comes four times a task, so it reads fields instead of calling properties.
        """
        kind = worker.kind
        line = None
        has_room = worker.usable > len(worker.attempts) + worker._reserved
        if has_room and kind is not None and not worker._suspended:
            line = kind.free
            wakes_at = max(worker._hold_until, worker._rest_until)
            if wakes_at > 0 and wakes_at > (now := self.time()):
                line = None if worker._hold_until > now else kind.resting
                if line is None and worker._rest_until > worker._hold_until:
                    wakes_at = worker._hold_until
                if worker.wakes_at != wakes_at:
                    worker.wakes_at = wakes_at
                    heapq.heappush(self._asleep, (wakes_at, worker.id))
        if line is not worker.line:
            self._stand(worker, line)

    @staticmethod
    def _stand(worker: Worker, line: list[tuple[int, Worker]] | None) -> None:
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

    # ---- who is next ----------

    def models(self) -> set[str]:
        """Every model that some worker offers; `*` for any."""
        return set(self._by_model)

    def unknown(self, models: Iterable[str]) -> int:
        """Return how many of these names no worker offers."""
        return sum(model not in self._by_model for model in set(models))

    def is_new(self, upstream: str) -> bool:
        """Whether no worker here names this upstream."""
        return bool(upstream) and all(kind.upstream != upstream for kind in self._kinds.values())

    def untold(self, models: Iterable[str], upstream: str) -> int:
        """Return how many of these names are offered, but by no worker through this upstream: the store would get as many."""
        return sum(model in self._through and upstream not in self._through[model] for model in set(models))

    def take_news(self) -> dict[str, bool]:
        """Models that began or ceased to be offered since the last call, or both, or whose upstreams are others now: whether they
        are offered now."""
        news, self._news = self._news, set()
        return {model: model in self._by_model for model in news}

    def shut(self, model: str, upstream: str, ms: int) -> None:
        """For so long nothing of a model is asked for through an upstream."""
        self._closed_until.put((model, upstream), self.time() + ms / 1000)

    def reopen(self, model: str, upstream: str) -> None:
        """Something may be asked for again."""
        self._closed_until.pop((model, upstream), None)

    def upstreams(self, models: Iterable[str]) -> list[tuple[str, str]]:
        """Each of these models and each upstream by which it is offered here, the first MAX_UPSTREAMS: of those for which one
        has a name."""
        found = []
        for model in models:
            names = self._through.get(model, {})
            if names.keys() != {""}:
                found += [(model, name) for name in sorted(islice(names, MAX_UPSTREAMS))]
        return found

    def pick(
        self, model: str, task_type: str = "", task_id: str = "", upstream: str | None = None
    ) -> Worker | None:
        """The least recently used free worker for a model, or for one task of it.

        Given a task: never a worker that does not take it, and one that should avoid it only if there is no other; of its
        `upstream`, through which it was granted. Without: of those through which something may start.
        """
        now = self.time()
        if self._asleep:
            self._wake(now)
        best: Worker | None = None
        second_best: Worker | None = None
        for kind in self._serving(model):
            if upstream is not None and kind.upstream != upstream:
                continue
            if task_type and not takes(kind.task_types, task_type):
                continue
            if upstream is None and self._closed_until and now < self._closed(model, kind.upstream):
                continue
            for line in (kind.free, kind.resting) if task_id else (kind.free,):
                for turn, worker in line:
                    if best is not None and turn > best.turn:
                        break
                    if task_id and task_id in worker.refused:
                        continue
                    if not task_id or task_id not in worker.avoided:
                        best = worker
                        break
                    if second_best is None or turn < second_best.turn:
                        second_best = worker
        return best or second_best

    def _closed(self, model: str, upstream: str) -> float:
        return self._closed_until.get((model, upstream)) or 0.0

    def anybody_takes(self, model: str, task_type: str, task_id: str) -> bool:
        """Whether some worker here can run the task, now or when it is free."""
        return any(
            task_id not in worker.refused
            for kind in self._serving(model)
            if kind.takes(task_type)
            for worker in kind.members.values()
        )

    def offers(self, models: Iterable[str] | None, task_type: str) -> bool:
        """Whether a worker here takes tasks of a type ('': any), of one of these models (None: of any), now or later."""
        if models is None:
            return any(kind.takes(task_type) for kind in self._kinds.values())
        return any(kind.takes(task_type) for model in models for kind in self._serving(model))

    def _serving(self, model: str) -> Sequence[Kind]:
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

        `leaving`: how many of its attempts that still stand there are over then. A worker that has fewer slots now gets nothing
        until they suffice.
        """
        taken = len(worker.attempts) + worker._reserved - leaving
        if worker.kind is None or worker._suspended or taken >= worker.usable:
            return 0
        return 1 if self.time() >= max(worker._hold_until, worker._rest_until) else 0

    def silent_ms(self, worker: Worker) -> int:
        """How long ago a worker was last heard of."""
        return int((self.time() - worker.heard_at) * 1000)

    def touch(self, worker: Worker) -> None:
        """A task begins on it: it is the most recently used one now."""
        line = worker.line
        if line is not None:
            del line[bisect_left(line, (worker.turn,))]
        self._turn += 1
        worker.turn = self._turn
        if line is not None:
            line.append((worker.turn, worker))
