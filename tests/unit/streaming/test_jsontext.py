"""Counting the parts and the levels of JSON texts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.streaming import jsontext
from fairlane.streaming.jsontext import MAX_DEPTH, too_deep


def listed(item: str, count: int) -> str:
    return "[" + ",".join([item] * count) + "]"


def named(count: int) -> str:
    return "{" + ",".join(f'"{number}":1' for number in range(count)) + "}"


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


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
            assert too_deep(text.encode(), most) == (around + depth_of(value) > most)


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
