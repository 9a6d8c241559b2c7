"""Splitting a file into its lines, whatever pieces it comes in."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.batches.lines import BOM, Line, LineTooLong, Splitter

TEXT = b'{"a":1}\n\n  \r\n{"b":2}\r\nlast'


def lines_of(pieces: list[bytes], most: int = 100) -> list[Line]:
    splitter = Splitter(most)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return [*found, *splitter.end()]


def test_blank_lines_count_and_are_not_told() -> None:
    assert lines_of([TEXT]) == [Line(1, 0, b'{"a":1}'), Line(4, 13, b'{"b":2}\r'), Line(5, 22, b"last")]
    assert lines_of([b"\n\n"]) == []
    assert lines_of([]) == []


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b" ", b"def\n"])), st.data())
def test_how_a_file_is_cut_into_pieces_does_not_matter(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    ends = [0, *cuts, len(whole)]
    pieces = [whole[at:end] for at, end in itertools.pairwise(ends)]
    found = lines_of(pieces)
    assert found == lines_of([whole])
    rows = whole.split(b"\n")
    assert [line.text for line in found] == [row for row in rows if row.strip()]
    for line in found:
        assert whole[line.offset : line.offset + len(line.text)] == line.text
        assert rows[line.number - 1] == line.text


def test_it_goes_on_where_a_line_begins() -> None:
    first, second, third = lines_of([TEXT])
    splitter = Splitter(100, second.number, second.offset)
    assert [*splitter.feed(TEXT[second.offset :]), *splitter.end()] == [second, third]
    assert first.number == 1


def test_a_mark_of_byte_order_is_no_part_of_the_first_line() -> None:
    assert lines_of([BOM + b"{}\n"]) == [Line(1, 0, b"{}")]
    assert lines_of([b"{}\n" + BOM + b"{}"])[1].text == BOM + b"{}"


def test_a_long_line_is_noticed_before_it_is_whole() -> None:
    splitter = Splitter(10)
    assert list(splitter.feed(b"short\n12345")) == [Line(1, 0, b"short")]
    with pytest.raises(LineTooLong) as raised:
        list(splitter.feed(b"678901"))
    assert raised.value.number == 2
    assert len(lines_of([b"1234567890\n"], most=10)) == 1
