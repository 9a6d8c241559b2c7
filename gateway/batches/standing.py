"""When operators are told that a batch stands still: once that has lasted, and again from time to time. Pure."""

from typing import Final

TOLD_AFTER_S: Final = 60.0
TOLD_AGAIN_S: Final = 600.0


class Standing:
    """One batch. Times in seconds. Who leads it may change: all know since when it stands still, and the one who leads it when it
    is to be told does so."""

    def __init__(self, now: float, since: float | None = None) -> None:
        """`since`: when it moved last, by whoever led it before; None: now."""
        self._here = now
        """Since when it is led here, or has moved here last."""
        self._since = now if since is None else since
        self._told = self._tellings(now)
        """How often it was told that it does not move."""

    def _tellings(self, now: float) -> int:
        """How often that is to have been told."""
        late_s = self.for_s(now) - TOLD_AFTER_S
        return 0 if late_s < 0 else 1 + int(late_s // TOLD_AGAIN_S)

    def moves(self, now: float) -> bool:
        """It does; whether it was told that it does not."""
        told = self._told > 0
        self._here, self._since, self._told = now, now, 0
        return told

    def for_s(self, now: float) -> float:
        """For how long it has not moved."""
        return now - self._since

    def lasts(self, now: float) -> bool:
        """Whether it has not moved here for so long that it would be told."""
        return now - self._here >= TOLD_AFTER_S

    def still(self, now: float) -> float | None:
        """It does not: since when, in seconds, if that is to be told now."""
        due = self._tellings(now)
        if due <= self._told:
            return None
        self._told = due
        return self.for_s(now)
