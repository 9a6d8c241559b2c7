"""When operators are told that a batch stands still: once that has lasted, and again from time to time. Pure."""

from typing import Final

TOLD_AFTER_S: Final = 60.0
TOLD_AGAIN_S: Final = 600.0


class Standing:
    """One batch, as one leader knows it. Times in seconds. All who lead it know since when it stands still; who told it last none
    knows, so whoever leads it next tells it once more, at once where it is to be told."""

    def __init__(self, now: float, since: float | None = None) -> None:
        """`since`: when it moved last, by whoever led it before; None: now."""
        self._here = now
        """Since when it is led here, or has moved here last."""
        self._since = now if since is None else since
        self._tell_at = self._since + TOLD_AFTER_S
        """When it is to be told that it does not move."""
        self._told = self._tell_at <= now
        """Whether that was told: here, or by others, as far as that can be known."""

    def moves(self, now: float) -> bool:
        """It does; whether it was told that it does not."""
        told = self._told
        self._here, self._since, self._tell_at, self._told = now, now, now + TOLD_AFTER_S, False
        return told

    def for_s(self, now: float) -> float:
        """For how long it has not moved."""
        return now - self._since

    def lasts(self, now: float) -> bool:
        """Whether it has not moved here for so long that it would be told."""
        return now - self._here >= TOLD_AFTER_S

    def still(self, now: float) -> float | None:
        """It does not: since when, in seconds, if that is to be told now."""
        if now < self._tell_at:
            return None
        self._tell_at, self._told = now + TOLD_AGAIN_S, True
        return self.for_s(now)
