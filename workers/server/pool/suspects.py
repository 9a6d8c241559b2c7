"""Which tasks may have made their worker close its connection, crash or hang, and how they are tried again. Pure.

When a worker is lost, the tasks that it got last and that have no output are suspects. A suspect is tried once more, alone on
its worker until it has output or has run for longer than before. If its worker is lost again the task ends. So no task ends the
tasks of other clients twice, whichever worker, replica or connection it comes to.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

MAX_SUSPECTS = 3
"""Tasks of a lost worker that are tried alone: those that it got last, and the first one that it did not acknowledge."""
SUSPECT_S = 10.0
"""A task that its worker had for longer than this is no suspect."""
MARGIN_S = 2.0
ORDERLY = frozenset({1001, 1012, 4401})
"""Close codes of workers and gateways that stop, and of revoked tokens: no task is the cause."""
BROKEN = frozenset({1005, 1006, 4409})
"""Close codes of connections that broke, or that the worker has replaced."""
TOO_LARGE = 1009

Kind = Literal["closed", "lost", "cut"]


class Suspicion(NamedTuple):
    """What is suspected of a task, as its record keeps it (`last_lost`).

    `closed`: the worker closed its connection over this task, so that worker does not get it again. `lost`: it may have made
    its worker crash or hang. `cut`: the same, unless the same worker is back: it neither crashed nor hung. `worker` is the
    identity of that worker, `ran_ms` how long it had the task, `why` how the connection ended.
    """

    kind: Kind
    ran_ms: int
    worker: str
    why: str

    def excludes(self, identity: str) -> bool:
        """Return whether this worker must not get the task."""
        return self.kind == "closed" and self.worker == identity

    def isolates(self, identity: str) -> bool:
        """Return whether the task runs alone on this worker."""
        return self.kind != "cut" or self.worker != identity

    @property
    def alone_s(self) -> float:
        """For how long a suspect without output runs alone."""
        return self.ran_ms / 1000 + MARGIN_S

    def packed(self) -> str:
        return f"{self.kind}\t{self.ran_ms}\t{self.worker}\t{self.why}"


def read_suspicion(packed: str) -> Suspicion | None:
    """Return the suspicion of a record's field; None if it is empty."""
    if not packed:
        return None
    kind, ran_ms, worker, why = packed.split("\t", 3)
    return Suspicion(kind, int(ran_ms), worker, why)  # type: ignore[arg-type]


class Candidate(NamedTuple):
    """A task without output that a lost worker had: when it was sent (s), and the bytes of its payload."""

    key: tuple[str, int]
    sent_at: float
    acknowledged: bool
    size: int


class Loss(NamedTuple):
    """How a connection ended, and when the worker gave its last sign (s). `by_worker`: it closed the connection itself.
    `process_known`: a worker of the same identity is the same process.
    """

    code: int
    reason: str
    by_worker: bool
    at: float
    process_known: bool = False

    def __str__(self) -> str:
        return f"{self.code} {self.reason}".strip()


def suspects(candidates: Sequence[Candidate], worker: str, loss: Loss) -> dict[tuple[str, int], Suspicion]:
    """Return what is suspected of the tasks of a lost worker, by their keys.

    A worker takes its frames in their order, so if it closed the connection the cause is the first task that it did not
    acknowledge (of a message that is too large, the largest), or the only task.
    """
    if loss.code in ORDERLY:
        return {}
    recent = sorted((c for c in candidates if loss.at - c.sent_at <= SUSPECT_S), key=lambda c: c.sent_at)
    unread = [c for c in recent if not c.acknowledged]
    cause = unread[0] if unread else recent[0] if len(recent) == 1 else None
    if loss.code == TOO_LARGE and recent:
        cause = max(unread or recent, key=lambda c: c.size)
    found: dict[tuple[str, int], Suspicion] = {}
    for one in {*recent[-MAX_SUSPECTS:], *([cause] if cause else [])}:
        ran_ms = round(max(loss.at - one.sent_at, 0.0) * 1000)
        kind: Kind = "closed" if loss.by_worker and one is cause else "lost"
        if loss.process_known and loss.code in BROKEN and not loss.by_worker:
            kind = "cut"
        found[one.key] = Suspicion(kind, ran_ms, worker, str(loss).replace("\t", " "))
    return found
