"""What the values of one task may hold: parts that views take apart, levels, bytes of usage."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.streaming import jsontext
from fairlane.streaming.jsontext import MAX_DEPTH, count_parts, too_deep
from fairlane.workers.server.tasks.bounds import excess_of_extra, excess_of_result, excess_of_tools


def listed(item: str, count: int) -> str:
    return "[" + ",".join([item] * count) + "]"


def named(count: int) -> str:
    return "{" + ",".join(f'"{number}":1' for number in range(count)) + "}"


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("text", "most", "count"),
    [
        ("[]", 5, 0),
        ("[1,2,3]", 2, 3),
        (" [ [1,2] , {\"a\":[3,4]} ] ", 2, 2),
        ('["a,b,c,d"]', 1, 1),
        ('{"a":"1,2,3","b" : [1,2,3]}', 2, 2),
        (listed("[]", 1000), 10, 11),
        (named(1000), 10, 11),
        ('"a,b,c"', 1, 0),
        ("null", 1, 0),
    ],
)  # fmt: skip
def test_parts_are_counted_up_to_one_too_many(text: str, most: int, count: int) -> None:
    assert min(count_parts(text.encode(), most), most + 1) >= count
    assert count_parts(text.encode(), most) <= max(most + 1, count)
    assert (count_parts(text.encode(), most) > most) == (count > most)


@pytest.mark.parametrize(
    ("result", "excess"),
    [
        ('{"choices":' + listed("[]", 1025) + "}", "more than 1024 choices"),
        ('{"choices":' + listed('{"index":0}', 100_000) + "}", "more than 1024 choices"),
        ('{"choices":[{"message":{"tool_calls":' + listed('{"id":""}', 1025) + "}}]}", "more than 1024 tool calls"),
        ('{"tool_calls":' + listed('{"id":""}', 1025) + "}", "more than 1024 tool calls"),
        (named(10_001), "more than 10000 members"),
        ('{"choices":[' + named(10_000) + "]}", "more than 10000 parts"),
        ('{"choices":' + listed(named(100), 1000) + "}", "more than 10000 parts"),
        ('{"content":"","usage":' + named(5000) + "}", "more than 16384 bytes of usage"),
        (deep(MAX_DEPTH + 1), "more than 128 levels"),
    ],
)  # fmt: skip
def test_a_result_that_views_would_take_apart_at_length_has_too_much(result: str, excess: str) -> None:
    assert excess_of_result(result.encode(), "openaiLike") == excess


@pytest.mark.parametrize(
    "result",
    [
        "null",
        json.dumps("[],{}," * 500_000),
        json.dumps({"content": "a,b:c" * 100_000}),
        listed("[]", 500_000),
        '{"choices":' + listed('{"message":{"content":"x"},"finish_reason":"stop"}', 128) + "}",
        '{"choices":[{"logprobs":{"content":' + listed(named(20), 20_000) + "}}]}",
        deep(MAX_DEPTH),
        '{"data":' + listed("[]", 100_000) + "}",
    ],
    ids=["null", "text", "content", "lists", "choices", "logprobs", "levels", "data"],
)
def test_what_is_only_passed_on_may_hold_many_values(result: str) -> None:
    assert excess_of_result(result.encode(), "openaiLike") is None


@pytest.mark.parametrize(
    ("result", "excess"),
    [
        (listed("[]", 8193), "more than 8192 vectors"),
        ('{"data":' + listed("[]", 8193) + "}", "more than 8192 vectors"),
        ('{"data":' + listed('{"embedding":[1]}', 8193) + "}", "more than 8192 vectors"),
        ('{"data":[' + named(70_000) + "]}", "more than 65536 members"),
        (listed("1", 70_000), "more than 65536 numbers in a vector"),
        (listed("1", 2_000_002), "more than 2000000 numbers"),
        ('{"data":' + listed('{"embedding":' + listed("1", 768) + ',"index":1,"object":"e"}', 2048) + "}", None),
        (listed(listed("1", 768), 2048), None),
    ],
    ids=["lists", "data", "objects", "members", "vector", "numbers", "openai", "vectors"],
)  # fmt: skip
def test_embeddings_have_bounds_of_their_own(result: str, excess: str | None) -> None:
    assert excess_of_result(result.encode(), "openaiEmbedding") == excess


def test_a_delta_has_at_most_1024_tool_calls() -> None:
    call = '{"index":0,"function":{"arguments":"{\\"a\\":[1,2,3,4]}"}}'
    assert excess_of_tools(listed(call, 1024).encode()) is None
    assert excess_of_tools(listed(call, 1025).encode()) == "more than 1024 tool calls"
    assert excess_of_tools(listed("1", 1_000_000).encode()) == "more than 1024 tool calls"
    assert excess_of_tools(listed(named(500), 1000).encode()) == "more than 10000 parts"
    assert excess_of_tools(json.dumps([{"arguments": "1,2:3" * 100_000}]).encode()) is None
    assert excess_of_tools(f"[{deep(MAX_DEPTH)}]".encode()) == "more than 128 levels"


def test_a_delta_has_at_most_1024_further_members() -> None:
    assert excess_of_extra(named(1024).encode()) is None
    assert excess_of_extra(named(1025).encode()) == "more than 1024 members"
    assert excess_of_extra(f'{{"delta":{named(1025)}}}'.encode()) == "more than 1024 members of a member"
    logprobs = '{"logprobs":{"content":' + listed(named(20), 1000) + "}}"
    assert excess_of_extra(logprobs.encode()) is None


STRINGS = st.text(st.sampled_from('[]{}"\\\\,a'), max_size=6)
VALUES = st.recursive(
    STRINGS | st.just(1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=60,
)


def depth_of(value: Any) -> int:
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if within is None else 1 + max(map(depth_of, within), default=0)


@given(VALUES, st.integers(0, 12), st.sampled_from([1, 2, 3, 7, 64]))
def test_levels_are_counted_over_all_pieces(value: Any, around: int, piece: int) -> None:
    text = "[" * around + json.dumps(value) + "]" * around
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jsontext, "_PIECE", piece)
        for most in range(1, 16):
            patched.setattr(jsontext, "MAX_DEPTH", most)
            assert too_deep(text.encode()) == (around + depth_of(value) > most)


def test_levels_are_counted_wherever_the_caller_stands() -> None:
    def below(frames: int, levels: int, beside: int) -> bool:
        if frames:
            return below(frames - 1, levels, beside)
        return too_deep(f"[{deep(levels - 1)},{listed('[]', beside)}]".encode())

    for frames, beside in ((0, 100), (0, 50_000), (300, 50_000)):
        assert not below(frames, MAX_DEPTH, beside)
        assert below(frames, MAX_DEPTH + 1, beside)
    for text in ("[" * 5000, '"[\\"' * 5000, "\\[" * 50_000):
        assert not too_deep(json.dumps([text]).encode())
