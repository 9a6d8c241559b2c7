"""The queue of one task: order, batches, bounds."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers import protocol
from fairlane.workers.sdk.session.output import MAX_BATCH_BYTES, MAX_WAITING_DELTAS, TaskOutput


def delta(text: str) -> bytes:
    return protocol.encoder.encode(protocol.Delta(content=text))


def chunk(frame: bytes | None) -> protocol.TaskChunk:
    assert frame is not None
    message = msgspec.json.decode(frame, type=protocol.TaskChunk)
    assert message.attempt == 3
    return message


def texts(frame: bytes | None) -> list[str | None]:
    return [d.content for d in chunk(frame).deltas]


def test_the_first_delta_goes_out_alone() -> None:
    output = TaskOutput(("id", 3))
    output.add_delta(delta("a"))
    first = chunk(output.next_frame())
    assert (first.task_id, first.seq) == ("id", 1)
    assert [d.content for d in first.deltas] == ["a"]
    assert output.next_frame() is None


def test_deltas_that_wait_share_the_next_frame_one_by_one() -> None:
    output = TaskOutput(("id", 3))
    for text in "abc":
        output.add_delta(delta(text))
    assert texts(output.next_frame()) == ["a", "b", "c"]
    output.add_delta(delta("d"))
    assert chunk(output.next_frame()).seq == 2


def test_other_messages_keep_their_place_among_the_deltas() -> None:
    output = TaskOutput(("id", 3))
    output.add_frame(b"ack")
    output.add_delta(delta("a"))
    output.add_frame(b"progress")
    output.add_delta(delta("b"))
    output.add_frame(b"result", is_result=True)
    assert output.final_seq() == 2
    assert output.next_frame() == b"ack"
    assert texts(output.next_frame()) == ["a"]
    assert output.next_frame() == b"progress"
    assert texts(output.next_frame()) == ["b"]
    assert not output.result_sent
    assert output.next_frame() == b"result"
    assert output.result_sent


def test_a_full_queue_says_so_and_tells_when_there_is_room() -> None:
    output = TaskOutput(("id", 3))
    told: list[bool] = []
    for _ in range(MAX_WAITING_DELTAS):
        assert not output.full
        output.add_delta(delta("x"))
    assert output.full
    output.on_room = lambda: told.append(output.full)
    output.next_frame()
    assert told == [False]


def test_a_batch_is_bounded_but_a_larger_delta_is_not_split() -> None:
    output = TaskOutput(("id", 3))
    big = "x" * MAX_BATCH_BYTES
    for text in ("a", big, "b"):
        output.add_delta(delta(text))
    assert output.final_seq() == 3
    assert [texts(output.next_frame()) for _ in range(3)] == [["a"], [big], ["b"]]


@given(
    st.lists(
        st.one_of(st.text(max_size=20), st.just(None), st.just("x" * 40_000), st.just("take")), max_size=60
    )
)
def test_nothing_is_lost_reordered_or_misnumbered(steps: list[str | None]) -> None:
    output = TaskOutput(("id", 3))
    sent: list[str | None] = []
    seqs: list[int] = []

    def take() -> bool:
        frame = output.next_frame()
        if frame is None:
            return False
        if frame == b"other":
            sent.append(None)
        else:
            sent.extend(texts(frame))
            seqs.append(chunk(frame).seq)
        return True

    added: list[str | None] = []
    for step in steps:
        if step == "take":
            take()
        elif step is None:
            added.append(None)
            output.add_frame(b"other")
        else:
            added.append(step or None)
            output.add_delta(delta(step) if step else protocol.encoder.encode(protocol.Delta()))
    expected_last = output.final_seq()
    while take():
        pass
    assert sent == added
    assert seqs == list(range(1, len(seqs) + 1))
    assert output.last_seq == expected_last == len(seqs)
    assert not output.full
