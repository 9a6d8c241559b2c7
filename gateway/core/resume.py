"""The place where a reader of a task's log begins: behind the last event that it has seen, if the log holds that."""

from typing import Literal, NamedTuple

from fairlane.queues.tasks import TERMINAL, Record
from fairlane.streaming.events import parse_event_id
from fairlane.streaming.hub import Hub, Reader

Place = tuple[int, int]
"""Epoch and number of an event."""
NOT_OURS: Place = (-1, -1)
"""The place of an invalid event id."""


class ResumePoint(NamedTuple):
    """The place where a reader begins."""

    after: Place | None
    """The event behind which it reads on; None: the whole log."""
    missing: Literal["", "ahead", "lost"] = ""
    """Why it cannot resume: the store never had the event, or lost it."""
    asked: str = ""
    """The id that is missing; '' when it was not understood."""
    seen_all: bool = False
    """The reader has seen the end."""


def read_cursor(text: str | None) -> Place | None:
    """Return the event that a reader has seen last; for an invalid id a place that no log holds."""
    if not text:
        return None
    try:
        return parse_event_id(text)
    except ValueError:
        return NOT_OURS


async def resume(
    hub: Hub, reader: Reader, record: Record, after: Place | None, from_latest: bool
) -> ResumePoint:
    """Put a reader in its place. Raise StoreError.

    1 It wants only what comes from now on, or the end. 2 It has seen nothing; an id with the number 0 stands before the first
    event. 3 It has seen the end. 4 The log does not hold what it has seen. 5 It resumes behind that.
    """
    end = record.fields.get("end_id")
    top = record.number("top")
    if after is None:
        if not from_latest:  # 2
            return ResumePoint(None)
        after = parse_event_id(end) if end else (record.epoch, top)  # 1
        ended = record.state in TERMINAL
        if ended:
            after = (after[0], top - 1)  # an event of another epoch may stand there
        reader.begin_behind(*after, held=not ended)
        return ResumePoint(after)
    if not after[1]:  # 2
        return ResumePoint(None)
    text = "" if after == NOT_OURS else f"{after[0]}-{after[1]}"
    if text and text == end:  # 3
        return ResumePoint(after, seen_all=True)
    if after == NOT_OURS or not await hub.holds(reader.feed, *after):  # 4
        return ResumePoint(None, "ahead" if after[1] > top else "lost", text)
    reader.begin_behind(*after)  # 5
    return ResumePoint(after)
