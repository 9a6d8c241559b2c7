"""Policies to compare with, in plain Python: first come first served, round robin by request, VTC, LCF."""

from collections import deque
from collections.abc import Sequence

from bench.fairness.simulator import Task

INPUT_PRICE, OUTPUT_PRICE = 1, 2
"""What a token of the prompt and one of the output count for; the paper's prices, and Fairlane's."""


class _Plain:
    """What all of them do: `_add` a task, `_next` one for a free slot."""

    name = ""
    report_us = 3_600_000_000

    def clock(self, now_us: int) -> None:
        pass

    def submit(self, task: Task, slots: int) -> Sequence[Task]:
        self._add(task)
        return self._take(slots)

    def finish(self, task: Task, output: int, slots: int) -> Sequence[Task]:
        self._over(task, output)
        return self._take(slots)

    def cancel(self, task: Task, output: int, slots: int) -> Sequence[Task]:
        if output < 0:
            self._remove(task)
        else:
            self._over(task, output)
        return self._take(slots)

    def renew(self, running: Sequence[tuple[Task, int]]) -> None:
        pass

    def _take(self, slots: int) -> Sequence[Task]:
        taken: list[Task] = []
        while len(taken) < slots and (task := self._next()):
            taken.append(task)
        return taken

    def _add(self, task: Task) -> None:
        raise NotImplementedError

    def _remove(self, task: Task) -> None:
        raise NotImplementedError

    def _next(self) -> Task | None:
        raise NotImplementedError

    def _over(self, task: Task, output: int) -> None:
        pass


class Fcfs(_Plain):
    """First come, first served, over all clients."""

    name = "FCFS"

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()

    def _add(self, task: Task) -> None:
        self._waiting.append(task)

    def _remove(self, task: Task) -> None:
        self._waiting.remove(task)

    def _next(self) -> Task | None:
        return self._waiting.popleft() if self._waiting else None


class RoundRobin(_Plain):
    """One request of each waiting client in turn, however long it is."""

    name = "Round robin"

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Task]] = {}

    def _add(self, task: Task) -> None:
        self._waiting.setdefault(task.client, deque()).append(task)

    def _remove(self, task: Task) -> None:
        self._waiting[task.client].remove(task)
        if not self._waiting[task.client]:
            del self._waiting[task.client]

    def _next(self) -> Task | None:
        if not self._waiting:
            return None
        client = next(iter(self._waiting))
        tasks = self._waiting.pop(client)
        task = tasks.popleft()
        if tasks:
            self._waiting[client] = tasks  # behind all others
        return task


class Vtc(_Plain):
    """The virtual token counter without prediction (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024).

    The waiting client with the smallest counter is served. Its counter grows by the prompt when the task starts and by each
    token as it comes out, divided by the client's weight. A client that returns is lifted to the smallest counter of those that
    wait, or, when no client does, to that of the client that was the last to leave the queue.
    """

    name = "VTC"
    report_us = 0
    lifts = True

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Task]] = {}
        self._counters: dict[str, float] = {}
        self._charged: dict[Task, int] = {}
        self._last_to_leave = ""

    def renew(self, running: Sequence[tuple[Task, int]]) -> None:
        for task, output in running:
            self._charge(task, OUTPUT_PRICE * (output - self._charged[task]))
            self._charged[task] = output

    def _charge(self, task: Task, cost: float) -> None:
        self._counters[task.client] += cost / task.request.weight

    def _add(self, task: Task) -> None:
        client = task.client
        own = self._counters.setdefault(client, 0)
        if client not in self._waiting and self.lifts:
            if self._waiting:
                least = min(self._counters[other] for other in self._waiting)
            else:
                least = self._counters.get(self._last_to_leave, 0)
            self._counters[client] = max(own, least)
        self._waiting.setdefault(client, deque()).append(task)

    def _remove(self, task: Task) -> None:
        self._waiting[task.client].remove(task)
        self._leave_if_empty(task.client)

    def _leave_if_empty(self, client: str) -> None:
        if not self._waiting[client]:
            del self._waiting[client]
            self._last_to_leave = client

    def _next(self) -> Task | None:
        if not self._waiting:
            return None
        client = min(self._waiting, key=lambda name: (self._counters[name], name))
        task = self._waiting[client].popleft()
        self._leave_if_empty(client)
        self._charge(task, INPUT_PRICE * task.request.input)
        self._charged[task] = 0
        return task

    def _over(self, task: Task, output: int) -> None:
        self.renew([(task, output)])
        del self._charged[task]


class Lcf(Vtc):
    """Least counter first: VTC without the lift. A client that returns is served alone until it has caught up."""

    name = "LCF"
    lifts = False
