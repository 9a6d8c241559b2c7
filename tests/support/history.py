"""What readers have seen over a pool's whole life, whatever the store has forgotten since; and what writers remember."""

from collections.abc import Sequence
from typing import Any

from tests.contract.store.store import Grant


class History:
    """Every event that ever stood in a log. An id names one event for ever."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, bytes], Any] = {}

    def saw(self, task_id: str, log: Sequence[Any]) -> None:
        """Take a log as it is now: nothing in it may contradict what was seen before."""
        for event_id, fields in log:
            first = self._seen.setdefault((task_id, event_id), fields)
            assert first == fields, (task_id, event_id, first, fields)


class Written:
    """What the writer of one grant has written: it numbers by its own count, and writes again what the store lost.

    Once `closed` it writes nothing more, also if the store forgets that the attempt is over.
    """

    def __init__(self, grant: Grant) -> None:
        self.closed = False
        self.opened = -1
        """How often the store had lost something when it let this writer append without a script."""
        self._first = grant.start_seq + 1
        self._events: list[bytes] = []

    @property
    def next_seq(self) -> int:
        return self._first + len(self._events)

    def add(self, events: Sequence[bytes]) -> None:
        """These were acknowledged."""
        self._events += events

    def behind(self, top: int) -> list[bytes]:
        """What it has written behind a place of the log."""
        return self._events[top + 1 - self._first :]
