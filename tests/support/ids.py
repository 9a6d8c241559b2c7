"""Event ids as tests read them: the first part is long and new each time, so it is counted."""

from collections.abc import Iterable

from fairlane.queues.tasks import Grant


def id_of(grant: Grant, seq: int) -> str:
    """The id of an event that the attempt of a grant has logged."""
    return f"{grant.epoch}-{seq}"


def numbered(ids: Iterable[str]) -> list[str]:
    """Ids of one log, each epoch replaced by its place among those that came so far: `1-1`, `1-2`, `2-3`."""
    epochs: dict[str, int] = {}
    short = []
    for id_ in ids:
        epoch, _, seq = id_.partition("-")
        short.append(f"{epochs.setdefault(epoch, len(epochs) + 1)}-{seq}")
    return short
