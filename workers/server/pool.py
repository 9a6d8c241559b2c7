"""The workers connected to this replica and their slots. Pure: who is free, and who is next."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlane.workers.server.attempt import Attempt

ANY = "*"
LOSSES_TO_HOLD = 5
LOSS_WINDOW_S = 600.0
LOSS_HOLD_S = 60.0


class Worker:
    """One connected worker as the gateway sees it.

    A slot is `reserved` before the scheduler is asked, and either becomes an attempt or is given back. `send` queues a frame;
    `close` ends the connection with a code and a reason.
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
        self.task_types = frozenset(task_types) if task_types else None
        self.instance_id = instance_id
        self.key_id = key_id
        self.send = send
        self.close = close
        self.attempts: dict[str, Attempt] = {}
        self.reserved = 0
        self.draining = False
        self.hold_until = 0.0
        self.suspended = False
        self.last_grant = 0
        self.heard_at = 0.0
        self.missed_acks = 0
        self._losses: list[float] = []
        self.models: tuple[str, ...] = ()
        self.set_models(models)

    def set_models(self, models: Iterable[str]) -> None:
        """Change what it can run; `*` stands for every model and swallows the others."""
        names = tuple(dict.fromkeys(models))
        self.models = (ANY,) if ANY in names else names

    def serves(self, model: str) -> bool:
        return model in self.models or self.models[0] == ANY

    def free(self, now: float) -> int:
        """Slots that may be given a task now."""
        if self.draining or self.suspended or now < self.hold_until:
            return 0
        return max(self.slots - len(self.attempts) - self.reserved, 0)

    def lost_task(self, now: float) -> None:
        """A task was lost on it; five in ten minutes give it a minute's rest."""
        self._losses = [at for at in self._losses if now - at < LOSS_WINDOW_S]
        self._losses.append(now)
        if len(self._losses) >= LOSSES_TO_HOLD:
            self.hold_until = max(self.hold_until, now + LOSS_HOLD_S)
            self._losses.clear()


class Pool:
    """All workers of this replica, by model; of several that are free the least recently used one is picked."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._workers: dict[str, Worker] = {}
        self._grants = 0

    def __len__(self) -> int:
        return len(self._workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def get(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def by_instance(self, instance_id: str) -> Worker | None:
        """The connected worker of a process, if it is connected here."""
        return next((w for w in self._workers.values() if w.instance_id == instance_id), None)

    def add(self, worker: Worker) -> None:
        self._workers[worker.id] = worker

    def remove(self, worker: Worker) -> bool:
        """False when it had been removed before."""
        if self._workers.get(worker.id) is not worker:
            return False
        del self._workers[worker.id]
        return True

    def models(self) -> set[str]:
        """Every model that some worker offers; `*` for any."""
        return {model for worker in self._workers.values() if not worker.draining for model in worker.models}

    def pick(self, model: str, *, version: int = 1) -> Worker | None:
        """The least recently used free worker for a model, of at least a protocol version."""
        now = self._time()
        best: Worker | None = None
        for worker in self._workers.values():
            if worker.version >= version and worker.serves(model) and worker.free(now) > 0:
                if best is None or worker.last_grant < best.last_grant:
                    best = worker
        return best

    def reserve(self, model: str, want: int = 1) -> tuple[Worker, int] | None:
        """Reserve up to `want` slots of one worker for a model; give back with `unreserve` or turn into attempts."""
        worker = self.pick(model)
        if worker is None:
            return None
        count = min(want, worker.free(self._time()))
        self.hold(worker, count)
        return worker, count

    def hold(self, worker: Worker, count: int) -> None:
        """Reserve slots of a given worker."""
        worker.reserved += count
        self._grants += 1
        worker.last_grant = self._grants
