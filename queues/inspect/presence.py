"""What replicas publish of their workers, in the store: a hash per replica (the map: PRESENCE). Pure.

A worker is written when it comes, changes or goes, and nothing of the others then; what moves all the time stands in one field
that is written every few seconds.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

LIVE = "live"
"""The field of what moves: worker id -> [running tasks, ms since it was last heard of]."""
SILENT = "silent"
"""Its other member: worker id -> for how long a task of it has given no sign, ms."""
WORKER = "worker:"
"""Begins the field of a worker, before its id."""
MAX_PER_MESSAGE = 500
"""Workers in one message: a script must not hold the store for long."""

Row = dict[str, Any]
"""A worker, as the admin view shows it."""


class PresenceUpdate(NamedTuple):
    """What is to be written: `fields` by name; `reset`: everything that was stored before is removed first."""

    fields: dict[str, str]
    gone: list[str]
    reset: bool


class Presence:
    """Knows what was stored of the workers here, and what is to be stored next."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._changed: dict[str, None] = {}
        self._reset = False

    def __bool__(self) -> bool:
        """Whether there is something to store."""
        return bool(self._changed) or self._reset

    @property
    def fields(self) -> int:
        """How many fields the store should know."""
        return len(self._known)

    def changed(self, worker_id: str) -> None:
        """A worker has come, changed or gone."""
        self._changed[worker_id] = None

    def forget(self, workers: Collection[str]) -> None:
        """The store may have lost what it had: store all of it again."""
        self._reset = True
        self._changed = dict.fromkeys(workers)

    def next_update(self, describe: Callable[[str], Row | None]) -> PresenceUpdate:
        """Return the next message: at most MAX_PER_MESSAGE workers. `describe`: None for a worker that is gone."""
        ids = list(self._changed)[:MAX_PER_MESSAGE]
        rows, gone = {}, []
        if self._reset:
            self._known.clear()
        for worker_id in ids:
            del self._changed[worker_id]
            row = describe(worker_id)
            if row is not None:
                rows[f"{WORKER}{worker_id}"] = msgspec.json.encode(row).decode()
                self._known.add(worker_id)
            elif worker_id in self._known:
                gone.append(f"{WORKER}{worker_id}")
                self._known.discard(worker_id)
        reset, self._reset = self._reset, False
        return PresenceUpdate(rows, gone, reset)

    def live(self, moving: Mapping[str, tuple[int, int]], silent: Mapping[str, int]) -> PresenceUpdate:
        """What moves, of all workers; `silent` of those that run tasks."""
        self._known.add(LIVE)
        return PresenceUpdate(
            {LIVE: msgspec.json.encode({**moving, SILENT: silent}).decode()}, [], reset=False
        )


def read_presence(reply: Sequence[bytes]) -> list[Row]:
    """The workers of a replica, from the reply to HGETALL of its presence."""
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    moving = msgspec.json.decode(fields.pop(LIVE.encode(), b"{}"))
    silent = moving.get(SILENT, {})
    rows: list[Row] = msgspec.json.decode(b"[%b]" % b",".join(fields.values()))
    for row in rows:
        row["running"], row["heartbeatAgeMs"] = moving.get(row["workerId"], (0, 0))
        row["taskSilentMs"] = silent.get(row["workerId"])
    return rows
