"""The workers connected to this replica and their slots. Pure: who is free, and who is next."""

import enum
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from fairlane.workers.server.attempt import Attempt

ANY = "*"
LOSSES_TO_HOLD = 5
LOSS_WINDOW_S = 600.0
LOSS_HOLD_S = 60.0
RETRY_REST_MS = 100
"""After a failure that a retry may mend, the worker pauses so long that an idle one, here or elsewhere, is first."""
REMEMBERED = 256
LOSSES_REMEMBERED = 4096

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The newest `most` keys that were put in, with their values."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, key: Key) -> Value | None:
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]


class Misfit(enum.StrEnum):
    """Why a worker cannot run a task that others may take."""

    TYPE = "task type not taken"
    SIZE = "too large for version 1"
    REJECTED = "rejected as unsupported"


class Worker:
    """One connected worker as the gateway sees it.

    A slot is `reserved` before the scheduler is asked, and either becomes an attempt or is given back. While it rests
    (`rest_until`) no task is asked for, but one that is at hand may be given. `send` queues a frame; `close` ends the connection
    with a code and a reason. `past` tells of attempts that are over on this connection until when late frames are no fault (0:
    the result has come); `refused` are tasks that it cannot run and why, `avoided` those that another one should try first.
    """

    def __init__(
        self,
        worker_id: str,
        name: str,
        version: int,
        models: Iterable[str],
        slots: int,
        *,
        task_types: Iterable[str] | None = None,
        instance_id: str = "",
        key_id: str = "",
        send: Callable[[bytes], None],
        close: Callable[[int, str], None],
    ) -> None:
        self.id = worker_id
        self.name = name
        self.version = version
        self.slots = slots
        self.task_types: frozenset[str] | None = None
        self.instance_id = instance_id
        self.key_id = key_id
        self.send = send
        self.close = close
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.reserved = 0
        self.draining = False
        self.hold_until = 0.0
        self.rest_until = 0.0
        self.suspended = False
        self.heard_at = 0.0
        self.missed_acks = 0
        self.past: Recent[tuple[str, int], float] = Recent(max(REMEMBERED, 2 * slots))
        self.refused: Recent[str, Misfit] = Recent(REMEMBERED)
        self.avoided: Recent[str, bool] = Recent(REMEMBERED)
        self.models: tuple[str, ...] = ()
        self.set_models(models, task_types)

    def set_models(self, models: Iterable[str], task_types: Iterable[str] | None = None) -> None:
        """Change what it can run: `*` stands for every model and swallows the others; no task types: every type."""
        names = tuple(dict.fromkeys(models))
        self.models = (ANY,) if ANY in names else names
        self.task_types = frozenset(task_types) if task_types else None

    @property
    def identity(self) -> str:
        """The same over all connections of a worker's process, as far as it says which it is."""
        return f"{self.key_id}/{self.instance_id or self.id}"

    def serves(self, model: str) -> bool:
        return model in self.models or self.models[0] == ANY

    def takes(self, task_type: str, task_id: str) -> bool:
        """Whether it can run this task of a model that it serves."""
        return self.misfit(task_type, task_id) is None

    def misfit(self, task_type: str, task_id: str) -> Misfit | None:
        """Why it cannot run this task of a model that it serves; None when it can."""
        if self.task_types is not None and task_type not in self.task_types:
            return Misfit.TYPE
        return self.refused.get(task_id)

    def free(self, now: float) -> int:
        """Slots for which a task may be asked now."""
        return 0 if now < self.rest_until else self.spare(now)

    def spare(self, now: float) -> int:
        """Slots that may be given a task which is at hand: also of a worker that rests from asking."""
        if self.draining or self.suspended or now < self.hold_until:
            return 0
        return max(self.slots - len(self.attempts) - self.reserved, 0)


class Pool:
    """All workers of this replica. Of several that are free for a task, the one whose last task began first gets it."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._workers: dict[str, Worker] = {}
        self._unused: dict[str, Worker] = {}
        self._used: dict[str, Worker] = {}
        """The least recently used first."""
        self._losses: Recent[str, list[float]] = Recent(LOSSES_REMEMBERED)

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def same_instance(self, worker: Worker) -> list[Worker]:
        """Other connections of the same process here. Only those with the same token: an id alone proves nothing."""
        if not worker.instance_id:
            return []
        key = (worker.key_id, worker.instance_id)
        return [w for w in self if (w.key_id, w.instance_id) == key and w is not worker]

    def add(self, worker: Worker) -> None:
        self._workers[worker.id] = self._unused[worker.id] = worker
        self._rest(worker)

    def count_loss(self, worker: Worker) -> None:
        """A task, or a connection with tasks, was lost on it; the fifth time in ten minutes begins a minute's rest."""
        now = self._time()
        key = worker.identity
        losses = [at for at in self._losses.get(key) or [] if now - at < LOSS_WINDOW_S]
        self._losses.put(key, [*losses, now][-LOSSES_TO_HOLD:])
        self._rest(worker)

    def _rest(self, worker: Worker) -> None:
        """No tasks for a worker that lost too many, also when it has connected again since."""
        losses = self._losses.get(worker.identity) or []
        if len(losses) >= LOSSES_TO_HOLD and losses[-1] - losses[0] < LOSS_WINDOW_S:
            worker.hold_until = max(worker.hold_until, losses[-1] + LOSS_HOLD_S)

    def remove(self, worker: Worker) -> bool:
        """False when it had been removed before."""
        if self._workers.get(worker.id) is not worker:
            return False
        del self._workers[worker.id]
        self._unused.pop(worker.id, None)
        self._used.pop(worker.id, None)
        return True

    def models(self) -> set[str]:
        """Every model that some worker offers; `*` for any."""
        return {model for worker in self._workers.values() if not worker.draining for model in worker.models}

    def pick(self, model: str, task_type: str = "", task_id: str = "") -> Worker | None:
        """The least recently used free worker for a model, or for one task of it.

        Given a task: never a worker that does not take it, and one that should avoid it only if there is no other.
        """
        now = self._time()
        second_best: Worker | None = None
        for worker in itertools.chain(self._unused.values(), self._used.values()):
            if (worker.spare(now) if task_id else worker.free(now)) <= 0:
                continue
            if not worker.serves(model) or (task_type and not worker.takes(task_type, task_id)):
                continue
            if task_id not in worker.avoided:
                return worker
            second_best = second_best or worker
        return second_best

    def anybody_takes(self, model: str, task_type: str, task_id: str) -> bool:
        """Whether some worker here can run the task, now or when it is free."""
        return any(w.serves(model) and w.takes(task_type, task_id) and not w.draining for w in self)

    def reserve(self, model: str, want: int = 1, task_type: str = "") -> tuple[Worker, int] | None:
        """Reserve up to `want` slots of one worker for a model; the caller gives them back or makes attempts of them."""
        worker = self.pick(model, task_type)
        if worker is None:
            return None
        count = min(want, worker.free(self._time()))
        self.hold(worker, count)
        return worker, count

    def hold(self, worker: Worker, count: int) -> None:
        """Reserve slots of a given worker."""
        worker.reserved += count

    def touch(self, worker: Worker) -> None:
        """A task begins on it: it is the most recently used one now."""
        known = self._unused.pop(worker.id, None) or self._used.pop(worker.id, None)
        if known is not None:
            self._used[worker.id] = known
