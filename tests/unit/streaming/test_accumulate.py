import json
import tracemalloc
from typing import Any

import pytest

from fairlane.streaming.views.accumulate import ToolCalls, Value


def joined(*pieces: Any, join: bool = True) -> Any:
    """What pieces make up."""
    value = Value(b"null")
    for piece in pieces:
        value.add(json.dumps(piece).encode(), join=join)
    return json.loads(value.json())


@pytest.mark.parametrize(
    ("pieces", "join", "whole"),
    [
        (["a", "b"], True, "ab"),
        (["a", "b"], False, "b"),
        ([[1], [], [2, 3]], False, [1, 2, 3]),
        ([[], []], False, []),
        ([{"a": "x"}, {"a": "y", "b": 1}], True, {"a": "xy", "b": 1}),
        ([{"a": "x"}, {"a": "y"}], False, {"a": "y"}),
        ([{"id": "x"}, {"id": "y"}], True, {"id": "y"}),
        ([{"a": {"b": [1]}}, {"a": {"b": [2], "c": None}}], False, {"a": {"b": [1, 2], "c": None}}),
        ([{"a": 1}, {"a": None}, None], False, {"a": 1}),
        ([None, {"a": 1}], False, {"a": 1}),
        ([{"a": 1}, [2], "x", 3.5], True, 3.5),
        (['say "', '\\"hi"\n'], True, 'say "\\"hi"\n'),
    ],
)
def test_pieces_are_put_together_by_their_kind(pieces: list[Any], join: bool, whole: Any) -> None:
    assert joined(*pieces, join=join) == whole


def test_white_space_around_values_is_no_part_of_them() -> None:
    value = Value(b" [ 1 ]\n")
    value.add(b"\t[ ] ", join=False)
    value.add(b" [2 , 3 ] ", join=False)
    assert json.loads(value.json()) == [1, 2, 3]


@pytest.mark.parametrize(("said", "whole"), [("", "{}"), ('{"a":1}', '{"a":1}')])
def test_arguments_of_a_call_are_json_also_where_nothing_was_said(said: str, whole: str) -> None:
    calls = ToolCalls()
    for function in ({"name": "f", "arguments": ""}, {"arguments": said}):
        calls.add(json.dumps([{"index": 0, "function": function}]).encode())
    assert [json.loads(call) for call in calls.finished()] == [
        {"function": {"name": "f", "arguments": whole}}
    ]


def test_a_value_takes_about_as_much_memory_as_its_pieces() -> None:
    """As Python values these are twenty times as large as their text."""
    piece = b'{"logprobs":{"content":[' + b",".join([b"{}"] * 300_000) + b"]}}"
    tracemalloc.start()
    try:
        value = Value(b"{}")
        for _ in range(4):
            value.add(piece, join=False)
        text = value.json()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text.count(b"{}") == 1_200_000
    assert peak < 8 * 4 * len(piece)
