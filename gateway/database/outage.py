"""When the log says that the database is away, and that it is back. Pure.

One that takes some connections and not others (it has too many) would fill the log: it is away from the first failure on, and
back when the last one is STEADY_S ago.
"""

STEADY_S = 3.0


class Outage:
    """See the module. `now` in seconds of any clock that only grows."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._failed_at = 0.0

    def failed(self, now: float) -> bool:
        """It has not done what it was asked for; whether that is to be told."""
        news = self._since is None
        if self._since is None:
            self._since = now
        self._failed_at = now
        return news

    def over(self, now: float) -> float | None:
        """It does what it is asked for: how long it failed (s), if it is to be told that it is back now; else None."""
        if self._since is None or now < self._failed_at + STEADY_S:
            return None
        lasted, self._since = self._failed_at - self._since, None
        return lasted
