"""The attempts of a replica that are not over."""

from collections.abc import Iterator

from fairlane.queues.tasks import Grant
from fairlane.workers.server.tasks.attempt import Attempt


class Attempts:
    """See the module. Of each task the newest counts; older ones wait for their workers to stop."""

    def __init__(self) -> None:
        self._newest: dict[str, Attempt] = {}
        self._older: dict[str, Attempt] = {}  # by grant token

    def __len__(self) -> int:
        return len(self._newest) + len(self._older)

    def values(self) -> Iterator[Attempt]:
        """All of them; not while some are added or removed."""
        yield from self._newest.values()
        yield from self._older.values()

    def silent_since(self) -> dict[str, float]:
        """By model: since when the one of its attempts that is silent for longest has given no sign."""
        silent: dict[str, float] = {}
        for attempt in self.values():
            if (since := attempt.silent_since) is not None:
                silent[attempt.grant.model] = min(since, silent.get(attempt.grant.model, since))
        return silent

    def newest(self, task_id: str) -> Attempt | None:
        """The attempt of a task that counts, if it is here."""
        return self._newest.get(task_id)

    def of(self, grant: Grant) -> Attempt | None:
        """The attempt of a grant."""
        attempt = self._newest.get(grant.task_id)
        if attempt is not None and attempt.grant.token == grant.token:
            return attempt
        return self._older.get(grant.token)

    def add(self, attempt: Attempt) -> None:
        """Take a new attempt in; an older one of the same task counts no more."""
        older = self._newest.get(attempt.grant.task_id)
        if older is not None:
            self._older[older.grant.token] = older
        self._newest[attempt.grant.task_id] = attempt

    def remove(self, attempt: Attempt) -> None:
        """Forget an attempt that is over."""
        if self._newest.get(attempt.grant.task_id) is attempt:
            del self._newest[attempt.grant.task_id]
        elif self._older.get(attempt.grant.token) is attempt:
            del self._older[attempt.grant.token]
