"""Who has a seat to be sent to, where more webhooks have something to be done than are sent to at a time. Pure."""

from collections import Counter
from collections.abc import Sequence

from fairlane.gateway.webhooks.owed import Candidate
from fairlane.workers.adapters.endpoints.names import MOST_QUESTIONS


class Seats:
    """Who has one of the `seats` now. One receiver that does not answer keeps a seat for as long as a request may take, so of
    those that are doubtful, of one key, and of one owner there may be no more than a share."""

    def __init__(self, seats: int) -> None:
        self.seats = seats
        self._taken: dict[str, Candidate] = {}

    @property
    def full(self) -> bool:
        return len(self._taken) >= self.seats

    @property
    def of_key(self) -> int:
        return max(self.seats * 3 // 4, 1)

    @property
    def of_owner(self) -> int:
        return max(self.seats // 8, 1)

    @property
    def doubtful(self) -> int:
        """(Nor do they need more than half of the threads in which names are asked for.)"""
        return max(min(self.seats, MOST_QUESTIONS) // 2, 1)

    @property
    def full_keys(self) -> list[str]:
        """Keys that have all the seats they may have."""
        keys = Counter(one.key_id for one in self._taken.values())
        return [key for key, number in keys.items() if number >= self.of_key]

    @property
    def may_doubt(self) -> bool:
        """Whether one that is doubtful may have a seat, too."""
        return sum(one.doubtful for one in self._taken.values()) < self.doubtful

    def choose(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Who may come, in the order in which they stand."""
        keys = Counter(one.key_id for one in self._taken.values())
        owners = Counter((one.key_id, one.user_name) for one in self._taken.values())
        doubtful = sum(one.doubtful for one in self._taken.values())
        chosen: list[Candidate] = []
        for one in candidates:
            owner = one.key_id, one.user_name
            if len(self._taken) + len(chosen) >= self.seats:
                break
            if one.id in self._taken or keys[one.key_id] >= self.of_key or owners[owner] >= self.of_owner:
                continue
            if one.doubtful and doubtful >= self.doubtful:
                continue
            keys[one.key_id] += 1
            owners[owner] += 1
            doubtful += one.doubtful
            chosen.append(one)
        return chosen

    def take(self, candidate: Candidate) -> None:
        """It has a seat."""
        self._taken[candidate.id] = candidate

    def leave(self, webhook: str) -> None:
        """It has none any more."""
        self._taken.pop(webhook, None)
