"""Results that the gateway has not acknowledged yet."""

from dataclasses import dataclass

from fairlane.workers.sdk.values import Key

KEEP_S = 120.0
"""How long a result is kept for the next connection. The gateway has given the task up by then."""


@dataclass(slots=True)
class _Kept:
    frame: bytes
    since: float
    owner: object | None  # the session that sends it; None when that session is gone


class Ledger:
    """Keeps each result from its task's end until `resultAck` or 120 s, across connections. One per worker.

    Each result belongs to the session that carries it, and to no session once that one has ended: the next
    session adopts it and sends it again. So no two sessions send the same result.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, key: Key, frame: bytes, owner: object, now: float) -> None:
        """Take a finished task's `taskResult` into custody."""
        self._kept[key] = _Kept(frame, now, owner)

    def frame(self, key: Key) -> bytes | None:
        """The kept result, to be sent once more."""
        kept = self._kept.get(key)
        return None if kept is None else kept.frame

    def forget(self, key: Key) -> bool:
        """The gateway has answered. False when nothing was kept."""
        return self._kept.pop(key, None) is not None

    def release(self, owner: object) -> None:
        """`owner` has ended: its results wait for another session to adopt them."""
        for kept in self._kept.values():
            if kept.owner is owner:
                kept.owner = None

    def adopt(self, owner: object) -> list[bytes]:
        """Give the results without an owner to `owner`, which sends the frames that it gets here."""
        orphans = [kept for kept in self._kept.values() if kept.owner is None]
        for kept in orphans:
            kept.owner = owner
        return [kept.frame for kept in orphans]

    def owned_by(self, owner: object) -> int:
        """How many results `owner` still waits for."""
        return sum(kept.owner is owner for kept in self._kept.values())

    def expire(self, now: float) -> list[Key]:
        """Forget results older than 120 s. Return their keys."""
        old = [key for key, kept in self._kept.items() if now - kept.since > KEEP_S]
        for key in old:
            del self._kept[key]
        return old
