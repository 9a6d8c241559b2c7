"""Frames with halves of characters in them, which are replaced; and frames that cost much to read."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.protocol import TaskChunk, TaskResult
from fairlane.workers.server.sessions.frames import LARGE, MAX_REPAIRED, explain, read_frame


def chunk(delta: str) -> str:
    return json.dumps({"type": "taskChunk", "taskId": "t", "delta": delta})


def test_an_ordinary_frame_is_just_decoded() -> None:
    frame = read_frame(chunk("a 😀 \\ud83d \n"))
    assert isinstance(frame, TaskChunk)
    assert frame.delta == "a 😀 \\ud83d \n"
    assert read_frame(chunk("😀").encode()) == read_frame(chunk("😀"))


def test_halves_become_replacement_characters() -> None:
    frame = read_frame(
        json.dumps(
            {"type": "taskResult", "taskId": "t", "result": ["\ud83d", "😀", "\\ud83d"], "error": "\ude00"}
        )
    )
    assert isinstance(frame, TaskResult)
    assert frame.error == "\ufffd"
    assert msgspec.json.decode(bytes(frame.result)) == ["\ufffd", "😀", "\\ud83d"]


@pytest.mark.parametrize("data", [b"\xff", "{", "[" * 100_000, '{"type":"taskChunk","taskId":"\\ud83d', ""])
def test_what_cannot_be_read_raises_value_error_or_recursion_error(data: str | bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_frame(data)


def test_what_is_read_can_still_be_read_from_deeper_down() -> None:
    def deepest(depth: int) -> int:
        try:
            read_frame('{"type":"taskResult","taskId":"t","result":' + "[" * depth + "]" * depth + "}")
        except RecursionError:
            return 0
        return depth

    def from_below(levels: int, text: str) -> None:
        if levels:
            from_below(levels - 1, text)
        else:
            msgspec.json.Decoder(msgspec.Raw).decode(text)

    depth = max(deepest(depth) for depth in range(1, 20_000, 20))
    assert depth >= 300
    from_below(50, '{"result":' + "[" * depth + "]" * depth + "}")


# ---- large frames, and those that cost much ----


def halves_replaced(text: str) -> str:
    """What a strict decoder makes of JSON text in which every half is replaced: slow and plain."""
    decoded: str = json.loads(text)
    return decoded.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


escapes = st.sampled_from(
    ["\\ud83d", "\\ude00", "\\uD83D", "\\uDE00", "\\\\", "\\n", '\\"', "u", "ud83d", "a", "é"]
)


@given(st.lists(escapes, max_size=12))
def test_halves_are_found_wherever_backslashes_stand(pieces: list[str]) -> None:
    text = '"' + "".join(pieces) + '"'
    frame = read_frame(f'{{"type":"taskResult","taskId":"t","result":{text}}}')
    assert isinstance(frame, TaskResult)
    assert msgspec.json.decode(bytes(frame.result)) == halves_replaced(text)


def test_in_a_very_large_frame_a_half_is_an_error_and_a_whole_character_is_not() -> None:
    def result(end: str) -> str:
        return '{"type":"taskResult","taskId":"t","result":"' + "\\n" * (MAX_REPAIRED // 2) + end + '"}'

    read_frame(result("\\ud83d\\ude00"))
    with pytest.raises(msgspec.DecodeError):
        read_frame(result("\\ud83d"))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ({"type": "register", "models": ["m"] * LARGE}, f"at most {LARGE} characters"),
        ({"type": "heartbeat", "running": [{}] * LARGE}, f"at most {LARGE} characters"),
        ({"type": "taskChunk", "taskId": "t", "deltas": [{}] * 4097}, "length <= 4096"),
    ],
    ids=["register", "heartbeat", "deltas"],
)
def test_a_frame_that_would_build_very_much_is_refused(frame: dict[str, object], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        read_frame(json.dumps(frame))


def test_large_output_and_large_results_are_read() -> None:
    text = '{"a":1}' * 100_000
    frame = read_frame(chunk(text))
    assert isinstance(frame, TaskChunk)
    assert frame.delta == text
    frame = read_frame(json.dumps({"type": "taskResult", "taskId": "t", "result": [{}] * 500_000}))
    assert isinstance(frame, TaskResult)


def test_what_is_wrong_with_a_name_is_said_in_words() -> None:
    frame = {"type": "register", "instanceId": "i", "name": "n\0", "models": ["m"]}
    with pytest.raises(msgspec.ValidationError) as error:
        read_frame(json.dumps(frame))
    assert explain(error.value) == "Expected a text without control characters - at `$.name`"
