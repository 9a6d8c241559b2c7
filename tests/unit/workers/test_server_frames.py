"""Frames with halves of characters in them: mended, or kept until the other half comes."""

import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.protocol import TaskChunk, TaskResult
from fairlane.workers.server.sessions.frames import LARGE, MENDED, MOST_OBJECTS, explain, read_frame
from fairlane.workers.server.tasks.characters import SplitCharacters


def chunk(delta: str) -> str:
    return json.dumps({"type": "taskChunk", "taskId": "t", "delta": delta})


def test_an_ordinary_frame_is_just_decoded() -> None:
    frame, halves = read_frame(chunk("a 😀 \\ud83d \n"))
    assert isinstance(frame, TaskChunk)
    assert (frame.delta, halves) == ("a 😀 \\ud83d \n", False)
    assert read_frame(chunk("😀").encode()) == read_frame(chunk("😀"))


@pytest.mark.parametrize(
    "text", ["\ud83d", "a\ud83d", "\ude00b", "\ud83dx\ude00", "\ude00\ud83d", "\\\ud83d"]
)
def test_halves_in_output_text_are_kept(text: str) -> None:
    frame, halves = read_frame(chunk(text))
    assert isinstance(frame, TaskChunk)
    assert (frame.delta, halves) == (text, True)


def test_halves_in_deltas_are_kept_and_the_rest_is_mended() -> None:
    deltas = [
        {"index": 3, "content": "\ud83d", "extra": {"note": "\ud83d"}},
        {"reasoning": "\ude00", "refusal": "whole"},
        {"toolCalls": [{"name": "\ud83d"}], "content": None},
    ]
    frame, halves = read_frame(
        json.dumps({"type": "taskChunk", "taskId": "t", "attempt": 1, "seq": 1, "deltas": deltas})
    )
    assert isinstance(frame, TaskChunk)
    assert halves
    assert [(d.index, d.content, d.reasoning, d.refusal) for d in frame.deltas] == [
        (3, "\ud83d", None, None),
        (0, None, "\ude00", "whole"),
        (0, None, None, None),
    ]
    assert msgspec.json.decode(bytes(frame.deltas[0].extra)) == {"note": "\ufffd"}  # type: ignore[arg-type]
    assert msgspec.json.decode(bytes(frame.deltas[2].tool_calls)) == [{"name": "\ufffd"}]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "many", [[{"content": "x"}] * 200, [{"content": "[{" * 200}]], ids=["deltas", "code"]
)
def test_halves_are_kept_beside_many_brackets(many: list[dict[str, str]]) -> None:
    deltas = [*many, {"content": "\ud83d"}, {"content": "\ude00"}]
    text = json.dumps({"type": "taskChunk", "taskId": "t", "attempt": 1, "seq": 1, "deltas": deltas})
    frame, halves = read_frame(text)
    assert isinstance(frame, TaskChunk)
    assert halves
    assert [delta.content for delta in frame.deltas] == [delta["content"] for delta in deltas]


def test_halves_anywhere_else_become_replacement_characters() -> None:
    frame, halves = read_frame(
        json.dumps(
            {"type": "taskResult", "taskId": "t", "result": ["\ud83d", "😀", "\\ud83d"], "error": "\ude00"}
        )
    )
    assert isinstance(frame, TaskResult)
    assert halves
    assert frame.error == "\ufffd"
    assert msgspec.json.decode(bytes(frame.result)) == ["\ufffd", "😀", "\\ud83d"]


@pytest.mark.parametrize("data", [b"\xff", "{", "[" * 100_000, '{"type":"taskChunk","taskId":"\\ud83d', ""])
def test_what_cannot_be_read_raises_value_error_or_recursion_error(data: str | bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        read_frame(data)


@given(st.text(), st.data())
def test_text_cut_anywhere_comes_out_as_it_was(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=6)))
    edges = [0, *cuts, len(units) // 2]
    halves, joined = SplitCharacters(), ""
    for start, end in itertools.pairwise(edges):
        piece = units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")
        frame, _ = read_frame(chunk(piece))
        assert isinstance(frame, TaskChunk)
        assert frame.delta is not None
        whole = halves.join(0, "text", frame.delta)
        whole.encode()
        joined += whole
    joined += "\ufffd" * len(halves.rest())
    assert joined == units.decode("utf-16-le", "replace")


def test_a_frame_with_a_half_may_be_nested_as_deeply_as_any_other() -> None:
    def is_read(depth: int, error: str) -> bool:
        inner = "[" * depth + "]" * depth
        try:
            read_frame(f'{{"type":"taskResult","taskId":"t","error":"{error}","result":{inner}}}')
        except RecursionError:
            return False
        return True

    depths = [depth for depth in range(1, 3000) if is_read(depth, "whole")]
    assert len(depths) >= 300
    assert depths == [depth for depth in range(1, 3000) if is_read(depth, "\\ud83d")]


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


def test_choices_and_kinds_have_their_own_halves() -> None:
    halves = SplitCharacters()
    assert halves.join(0, "text", "\ud83d") == ""
    assert halves.join(1, "text", "\ude00") == "\ufffd"
    assert halves.join(0, "reasoning", "x") == "x"
    assert halves.join(0, "text", "\ude00!") == "😀!"
    assert halves.join(2, "text", "a\ud83d") == "a"
    assert halves.rest() == [(2, "text")]
    assert halves.rest() == []


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
    frame, _ = read_frame(f'{{"type":"taskResult","taskId":"t","result":{text}}}')
    assert isinstance(frame, TaskResult)
    assert msgspec.json.decode(bytes(frame.result)) == halves_replaced(text)


def test_in_a_very_large_frame_a_half_is_an_error_and_a_whole_character_is_not() -> None:
    def result(end: str) -> str:
        return '{"type":"taskResult","taskId":"t","result":"' + "\\n" * (MENDED // 2) + end + '"}'

    assert read_frame(result("\\ud83d\\ude00"))[1] is False
    with pytest.raises(msgspec.DecodeError):
        read_frame(result("\\ud83d"))


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ({"type": "register", "models": ["m"] * LARGE}, f"at most {LARGE} characters"),
        ({"type": "heartbeat", "running": [{}] * LARGE}, f"at most {LARGE} characters"),
        (
            {"type": "taskChunk", "taskId": "t", "deltas": [{}] * (MOST_OBJECTS + 1)},
            f"at most {MOST_OBJECTS} objects",
        ),
        ({"type": "taskChunk", "taskId": "t", "deltas": [{}] * 4097}, "length <= 4096"),
    ],
    ids=["register", "heartbeat", "objects", "deltas"],
)
def test_a_frame_that_would_build_very_much_is_refused(frame: dict[str, object], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        read_frame(json.dumps(frame))


def test_large_output_and_large_results_are_read() -> None:
    text = '{"a":1}' * 100_000
    frame, _ = read_frame(chunk(text))
    assert isinstance(frame, TaskChunk)
    assert frame.delta == text
    frame, _ = read_frame(json.dumps({"type": "taskResult", "taskId": "t", "result": [{}] * 500_000}))
    assert isinstance(frame, TaskResult)


def test_what_is_wrong_with_a_name_is_said_in_words() -> None:
    frame = {"type": "register", "instanceId": "i", "name": "n\0", "models": ["m"]}
    with pytest.raises(msgspec.ValidationError) as error:
        read_frame(json.dumps(frame))
    assert explain(error.value) == "Expected a text without control characters - at `$.name`"
