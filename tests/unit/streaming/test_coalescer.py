import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.streaming.coalesce import Coalescer, Piece


def test_the_first_token_is_due_at_once_and_the_next_after_the_interval() -> None:
    coalescer = Coalescer(interval_ms=40)
    coalescer.add(0, "text", "a", 1000)
    assert coalescer.due(1000) == 1000
    assert coalescer.take(1000) == [Piece(0, "text", b'"a"', 1)]
    coalescer.add(0, "text", "b", 1010)
    coalescer.add(0, "text", "c", 1020)
    assert coalescer.due(1020) == 1040
    assert coalescer.take(1040) == [Piece(0, "text", b'"bc"', 2)]


@pytest.mark.parametrize(
    ("deltas", "due"), [(["x"] * 7, 40), (["x"] * 8, 1), (["y" * 1023], 40), (["y" * 1024], 1)]
)
def test_size_makes_output_due(deltas: list[str], due: float) -> None:
    coalescer = Coalescer(interval_ms=40, max_chunks=8, max_chars=1024)
    coalescer.add(0, "text", "a", 0)
    coalescer.take(0)
    for delta in deltas:
        coalescer.add(0, "text", delta, 1)
    assert coalescer.due(1) == due


@pytest.mark.parametrize(("kind", "delta"), [("finish", "stop"), ("extra", b'{"logprobs":null}')])
def test_what_is_not_text_is_due_at_once_and_takes_the_rest_along(kind: str, delta: Any) -> None:
    coalescer = Coalescer(interval_ms=40)
    coalescer.add(0, "text", "a", 0)
    coalescer.take(0)
    coalescer.add(0, "text", "b", 1)
    coalescer.add(0, kind, delta, 2)
    assert coalescer.due(2) == 2
    assert [piece.kind for piece in coalescer.take(2)] == ["text", kind]


def test_only_neighbours_of_the_same_choice_and_kind_are_joined() -> None:
    coalescer = Coalescer()
    for index, kind, delta in [
        (0, "reasoning", "r"),
        (0, "text", "a"),
        (0, "text", "b"),
        (1, "text", "c"),
        (0, "text", "d"),
        (0, "finish", "stop"),
        (0, "finish", "stop"),
    ]:
        coalescer.add(index, kind, delta, 0)
    assert coalescer.take(0) == [
        Piece(0, "reasoning", b'"r"', 1),
        Piece(0, "text", b'"ab"', 2),
        Piece(1, "text", b'"c"', 1),
        Piece(0, "text", b'"d"', 1),
        Piece(0, "finish", b'"stop"', 1),
        Piece(0, "finish", b'"stop"', 1),
    ]


def test_tool_call_lists_are_put_in_a_row_and_never_merged() -> None:
    coalescer = Coalescer()
    coalescer.add(0, "tool", b'[{"index":0,"id":"a"}]', 0)
    coalescer.add(0, "tool", b" [ ] ", 0)
    coalescer.add(0, "tool", b'[{"index":0,\r\n"function":{}}, {"index":1}]', 0)
    coalescer.add(1, "tool", b'[{"index":0}]', 0)
    coalescer.add(1, "tool", b'{"index":0}', 0)
    first, second, third = coalescer.take(0)
    assert (first.n, b"\n" in first.delta_json) == (3, False)
    assert json.loads(first.delta_json) == [
        {"index": 0, "id": "a"},
        {"index": 0, "function": {}},
        {"index": 1},
    ]
    assert [(piece.index, piece.delta_json) for piece in (second, third)] == [
        (1, b'[{"index":0}]'),
        (1, b'{"index":0}'),
    ]


def test_halves_of_a_surrogate_pair_meet_and_lone_ones_are_replaced() -> None:
    coalescer = Coalescer()
    for delta in ("\ud83d", "\ude00", "a\udc00"):
        coalescer.add(0, "text", delta, 0)
    (piece,) = coalescer.take(0)
    assert json.loads(piece.delta_json) == "😀a\ufffd"


@pytest.mark.parametrize(
    ("kind", "delta"), [("text", b'"a"'), ("tool", "[]"), ("music", b"{}"), ("music", "x")]
)
def test_a_delta_of_the_wrong_sort_is_refused(kind: str, delta: Any) -> None:
    coalescer = Coalescer()
    with pytest.raises(ValueError, match="text"):
        coalescer.add(0, kind, delta, 0)
    assert coalescer.due(0) is None


TEXT = st.tuples(
    st.integers(0, 2), st.sampled_from(["text", "reasoning", "refusal", "finish"]), st.text(max_size=40)
)
TOOL = st.tuples(
    st.integers(0, 2),
    st.just("tool"),
    st.lists(st.dictionaries(st.sampled_from("ab"), st.integers()), max_size=3).map(
        lambda v: json.dumps(v).encode()
    ),
)
EXTRA = st.tuples(st.integers(0, 2), st.just("extra"), st.just(b'{"x":1}'))
STEPS = st.lists(st.tuples(TEXT | TOOL | EXTRA, st.integers(0, 60)), max_size=60)


@given(STEPS, st.integers(0, 50), st.integers(1, 10), st.integers(1, 60))
def test_order_and_content_are_kept_and_nothing_is_held_longer_than_the_interval(
    steps: list[tuple[tuple[int, str, Any], int]], interval: int, max_chunks: int, max_chars: int
) -> None:
    coalescer = Coalescer(interval, max_chunks, max_chars)
    now = 0.0
    added: list[float] = []
    pieces: list[Piece] = []

    def flush_until(then: float) -> None:
        nonlocal now
        due = coalescer.due(now)
        if due is not None and due <= then:
            now = max(now, due)
            assert all(now - at <= interval for at in added)
            added.clear()
            pieces.extend(coalescer.take(now))
        now = then

    for (index, kind, delta), wait in steps:
        flush_until(now + wait)
        coalescer.add(index, kind, delta, now)
        added.append(now)
    flush_until(now + interval)
    assert coalescer.due(now) is None

    def shown(entries: list[tuple[int, str, Any]]) -> list[Any]:
        """One entry per character and per JSON value, so that joining does not matter."""
        out: list[Any] = []
        for index, kind, value in entries:
            whole = kind in ("finish", "extra")
            out += [(index, kind, part) for part in ([value] if whole else value)]
        return out

    given_ = [(i, k, d if isinstance(d, str) else json.loads(d)) for (i, k, d), _ in steps]
    assert shown([(p.index, p.kind, json.loads(p.delta_json)) for p in pieces]) == shown(given_)
    assert sum(piece.n for piece in pieces) == len(steps)
