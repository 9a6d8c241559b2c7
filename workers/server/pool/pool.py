"""The workers connected to this replica. Pure: which are free, and which is next.

The next worker is found without looking at all of them: workers with the same offer share a `WorkerGroup`, which keeps its free
workers in the order of their turns, and groups are found by model. So a task costs the same with ten workers and with thousands,
busy or free. The cost grows with the number of different offers that include its model.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fairlane.queues.keys import is_reserved
from fairlane.workers.server.pool.suspects import Suspicion
from fairlane.workers.server.pool.worker import ANY, AttemptKey, Offer, Recent, Worker, WorkerGroup
from fairlane.workers.tasktypes import takes

LOSSES_TO_HOLD = 5
LOSS_WINDOW_S = 600.0
LOSS_HOLD_S = 60.0
MAX_LOSSES = 4096
MAX_CLOSED = 1000
MAX_UPSTREAMS = 128
"""Upstreams of a model that are reported to the store: more than can be shut at a time (upstreams.lua, MAX_OF_MODEL), so
where there are more, something may start through one of these."""

_UNUSED = 1 << 62
"""Puts the turns of workers that had no task yet before all others."""


class Pool:
    """All workers of this replica. Of several that are free for a task, the one whose last task began first gets it."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.time = time
        self.draining = False
        """Drain: no worker gets a task any more, new ones included."""
        self._workers: dict[str, Worker] = {}
        self._groups: dict[Offer, WorkerGroup] = {}
        self.groups_changed = False
        """A group was added or removed since this was last set to False."""
        self._by_model: dict[str, list[WorkerGroup]] = {}
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
        worker.pool = self
        self._back_off(worker)
        self.sort(worker)

    def remove(self, worker: Worker) -> bool:
        """Remove a worker. Return False if it had been removed before."""
        if worker not in self:
            return False
        self._leave_group(worker)
        worker.pool = None
        del self._workers[worker.id]
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
        """Move a worker to where it belongs after a change of its offer, its slots or its pauses."""
        if worker not in self:
            return
        offer = (worker.models, worker.task_types, worker.version, worker.upstream)
        if worker.group is not None and worker.group.offer == offer and not worker.draining:
            worker.models, worker.task_types = worker.group.models, worker.group.task_types
            self.place(worker)
            return  # it stays in its group, whose offer is neither removed nor added
        self._leave_group(worker)
        if worker.draining:
            return
        group = self._groups.get(offer)
        if group is None:
            group = self._groups[offer] = WorkerGroup(offer)
            self.groups_changed = True
            for model in group.models:
                others = self._by_model.setdefault(model, [])
                if all(other.upstream != group.upstream for other in others):
                    self._changed_models.add(model)
                others.append(group)
        worker.models, worker.task_types = group.models, group.task_types  # thousands share one tuple
        group.members[worker.id] = worker
        worker.group = group
        self.place(worker)

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
        if not group.members:
            del self._groups[group.offer]
            self.groups_changed = True
            for model in group.models:
                others = self._by_model[model]
                others.remove(group)
                if all(other.upstream != group.upstream for other in others):
                    self._changed_models.add(model)
                if not others:
                    del self._by_model[model]

    def place(self, worker: Worker) -> None:
        """Put a worker whose slots or pauses have changed into the list where it belongs, or into none.

        A worker that stays in its list as a slot becomes free need not be placed again.
        """
        group = worker.group
        line = None
        has_room = worker.usable > len(worker.attempts) + worker.reserved
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

    def begin(self, worker: Worker, key: AttemptKey, attempt: Any) -> None:
        """An attempt takes a slot of a worker, which becomes the most recently used one."""
        worker.attempts[key] = attempt
        if worker.line is not None:
            del worker.line[bisect_left(worker.line, (worker.turn,))]
            worker.line = None
        self._turn += 1
        worker.turn = self._turn
        self.place(worker)

    def end(self, worker: Worker, key: AttemptKey) -> None:
        """A slot of a worker is free again."""
        del worker.attempts[key]
        if worker.line is None:
            self.place(worker)

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
            names = {group.upstream for group in self._by_model.get(model, ())}
            if names != {""}:
                found += [(model, name) for name in sorted(names)[:MAX_UPSTREAMS]]
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
            if (
                upstream is None
                and self._closed_until
                and now < self._closed_until.get((model, group.upstream), 0.0)
            ):
                continue
            for line in (group.free, group.resting) if task_id else (group.free,):
                for turn, worker in line:
                    if best is not None and turn > best.turn:
                        break
                    if task_id and not worker.can_run(task_id, size, suspicion):
                        continue
                    if not task_id or (
                        task_id not in worker.avoided and (suspicion is None or worker.suits(suspicion))
                    ):
                        best = worker
                        break
                    if second_best is None or turn < second_best.turn:
                        second_best = worker
        return best or second_best

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
        room = worker.usable - len(worker.attempts) - worker.reserved  # it has some, as it was picked
        worker.reserved += min(want, room)
        if want >= room:
            self.place(worker)
        return worker, min(want, room)

    def wanted(self, worker: Worker, leaving: int = 0) -> int:
        """How many tasks to ask for when an attempt of this worker ends: one for its slot, or none.

        `leaving`: how many of its present attempts are over then. A worker that has fewer slots now gets nothing until they
        suffice.
        """
        taken = len(worker.attempts) + worker.reserved - leaving
        if worker.group is None or worker._suspended or taken >= worker.usable:
            return 0
        return 1 if self.time() >= max(worker._hold_until, worker._rest_until) else 0

    def silent_ms(self, worker: Worker) -> int:
        """Return the time since a worker's last frame."""
        return int((self.time() - worker.heard_at) * 1000)
