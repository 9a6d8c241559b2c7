"""When operators are told that a batch stands still: once that has lasted, and again from time to time. Pure."""

from typing import Final

TOLD_AFTER_S: Final = 60.0
TOLD_AGAIN_S: Final = 600.0


class Standing:
    """One batch. Times in seconds."""

    def __init__(self, now: float) -> None:
        self._since = now
        """When it moved last."""
        self._told: float | None = None

    def moves(self, now: float) -> bool:
        """It does; whether it was told that it does not."""
        told = self._told is not None
        self._since, self._told = now, None
        return told

    def for_s(self, now: float) -> float:
        """For how long it has not moved."""
        return now - self._since

    def still(self, now: float) -> float | None:
        """It does not: since when, in seconds, if that is to be told now."""
        since_s = self.for_s(now)
        if since_s < TOLD_AFTER_S or (self._told is not None and now - self._told < TOLD_AGAIN_S):
            return None
        self._told = now
        return since_s
