"""The answers under way in a gateway."""

from collections.abc import Callable

from fairlane.streaming.hub import LiveLog


class OpenAnswers:
    """The answers under way in a gateway: each ends when the gateway stops."""

    def __init__(self) -> None:
        self.now = False
        self._answers: dict[Callable[[], None], LiveLog | None] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def patience(self, queued: bool) -> bool:
        """Return whether a client that cannot resume waits for a task that runs, here or elsewhere, or, with `queued`, waits."""
        feeds = self._answers.values()
        return any(feed is not None and (feed.top or queued) and not feed.ended for feed in feeds)

    def add(self, wake: Callable[[], None], last_chance: LiveLog | None = None) -> None:
        """Call `wake` when the gateway stops. `last_chance`: the task's feed, when the answer cannot be resumed."""
        self._answers[wake] = last_chance
        if self.now:
            wake()

    def discard(self, wake: Callable[[], None]) -> None:
        self._answers.pop(wake, None)

    def begin(self) -> None:
        """End every answer as soon as possible."""
        self.now = True
        for wake in list(self._answers):
            wake()
