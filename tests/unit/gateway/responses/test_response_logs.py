"""A log comes out of SQL as it went in."""

import pytest

from fairlane.gateway.responses.log_archive import pack, unpack
from fairlane.streaming.events import Event


def test_a_part_of_a_log_is_the_same_events_again() -> None:
    events = [
        Event(1_790_000_000_000_000, 1, "start", b'{"taskId":"a","ts":1}'),
        Event(1_790_000_000_000_000, 2, "chunk", '{"delta":"ü\\u0000"}'.encode()),
        Event(1_790_000_000_000_009, 3, "done", b"{}"),
    ]
    assert unpack(pack(events)) == events


@pytest.mark.parametrize("packed", [b"", b"rubbish", pack([])[:-3]])
def test_what_is_no_part_is_said_to_be_none(packed: bytes) -> None:
    with pytest.raises(ValueError, match="part of a log"):
        unpack(packed)
