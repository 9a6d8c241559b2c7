"""Reading the lines of a batch's file, and the errors of invalid ones."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.batches.lines import (
    BOM,
    MAX_ERRORS,
    FileLines,
    Findings,
    Line,
    Unreadable,
    validate_lines,
)
from fairlane.gateway.core.bodies import Bodies

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
GOOD: dict[str, Any] = {
    "custom_id": "a",
    "method": "POST",
    "url": CHAT,
    "body": {"model": "m", "messages": []},
}


def line(**changes: Any) -> bytes:
    fields = {name: value for name, value in (GOOD | changes).items() if value is not ...}
    return json.dumps(fields).encode()


async def found(text: bytes, *, most_lines: int = 1000, most: int = 10_000, piece: int = 100) -> Findings:
    """What is found in a file of this text, which comes in small pieces."""

    async def pieces(start: int) -> AsyncIterator[bytes]:
        for at in range(start, len(text), piece):
            yield text[at : at + piece]

    bodies = Bodies()
    return await validate_lines(FileLines(pieces, most), CHAT, most_lines, bodies)


async def test_a_good_file() -> None:
    findings = await found(b"\n".join(line(custom_id=f"id {number}") for number in range(50)) + b"\n")
    assert (findings.total, findings.problems, findings.model) == (50, [], "m")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"{", "invalid_json_line", "is not valid JSON"),
        (b"[1]", "invalid_json_line", "must be a JSON object"),
        (line()[:-3] + b"\xc3", "invalid_json_line", "is not valid"),
        (b'{"custom_id":"\xc3"}', "invalid_json_line", "is not valid UTF-8"),
        (line(custom_id=...), "missing_required_parameter", "custom_id is missing"),
        (line(custom_id=7), "invalid_type", "custom_id must be a string"),
        (line(custom_id=""), "missing_required_parameter", "custom_id is missing"),
        (line(custom_id="x" * 257), "invalid_custom_id", "1 to 256 characters"),
        (line(custom_id="x" * 9000), "invalid_type", "custom_id must be a string"),
        (line(method="GET"), "invalid_method", "must be POST"),
        (line(url="/v1/embeddings"), "mismatched_endpoint", CHAT),
        (line(body=...), "invalid_body", "body must be"),
        (line(body="text"), "invalid_body", "body must be"),
        (line(custom_id="first"), "duplicate_custom_id", "was used in line 1 already"),
    ],
)
async def test_an_invalid_line_is_reported_with_its_number(text: bytes, code: str, says: str) -> None:
    findings = await found(line(custom_id="first") + b"\n\n" + text + b"\n" + line(custom_id="last"))
    assert [(problem.code, problem.line) for problem in findings.problems] == [(code, 3)]
    assert says in findings.problems[0].message


async def test_truncated_utf8_at_the_end_of_the_file() -> None:
    whole = line(custom_id="é").replace(b"\\u00e9", "é".encode())
    cut = whole[: whole.index("é".encode()) + 1]
    findings = await found(line() + b"\n" + cut)
    assert [(problem.code, problem.line) for problem in findings.problems] == [("invalid_json_line", 2)]


async def test_an_endless_line_is_not_read_to_its_end() -> None:
    asked_for = []

    async def pieces(start: int) -> AsyncIterator[bytes]:
        if not start:
            yield line() + b"\n"
        while True:  # a gigabyte, or more
            asked_for.append(start)
            yield b"x" * 1000

    bodies = Bodies()
    lines = FileLines(pieces, 50_000)
    findings = await validate_lines(lines, CHAT, 1000, bodies)
    assert [(problem.code, problem.line) for problem in findings.problems] == [("line_too_long", 2)]
    assert len(asked_for) < 110


async def test_too_many_lines_and_none_at_all() -> None:
    findings = await found(b"\n".join(line(custom_id=str(number)) for number in range(12)), most_lines=10)
    assert [(problem.code, problem.line) for problem in findings.problems] == [("too_many_lines", 11)]
    assert [problem.code for problem in (await found(b"\n \n")).problems] == ["empty_file"]


async def test_the_number_of_reported_errors_is_limited() -> None:
    findings = await found(b"{\n" * 1000)
    assert len(findings.problems) == MAX_ERRORS


TEXT = b'{"a":1}\n\n  \r\n{"b":2}\r\nlast'


async def lines_of(pieces: list[bytes], most: int = 100) -> list[Line]:
    """Return the lines of a file that arrives in these pieces."""
    open_now = 0

    async def opened(offset: int) -> AsyncIterator[bytes]:
        nonlocal open_now
        open_now += 1
        try:
            at = 0
            for piece in pieces:
                if rest := piece[max(offset - at, 0) :]:
                    yield rest
                at += len(piece)
        finally:
            open_now -= 1

    lines, found = FileLines(opened, most), list[Line]()
    while (line := await lines.next()) is not None:
        assert open_now == 0, "nothing stays open between lines"
        found.append(line)
    return found


async def test_blank_lines_count_and_are_left_out() -> None:
    assert await lines_of([TEXT]) == [Line(1, b'{"a":1}'), Line(4, b'{"b":2}\r'), Line(5, b"last")]
    assert await lines_of([b"\n\n"]) == await lines_of([]) == []
    many = b"\n" * 300_000 + b" " * 300_000 + b"\n1\n2\n"
    assert [line.number for line in await lines_of([many], most=10**6)] == [300_002, 300_003]


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b" ", b"def\n"])), st.data(), st.integers(1, 9))
def test_the_pieces_in_which_a_file_arrives_do_not_matter(
    parts: list[bytes], data: st.DataObject, block: int
) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    ends = [0, *cuts, len(whole)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fairlane.gateway.batches.lines.BLOCK", block)
        found = asyncio.run(lines_of([whole[at:end] for at, end in itertools.pairwise(ends)]))
    rows = whole.split(b"\n")
    assert [line.text for line in found] == [row for row in rows if row.strip()]
    assert all(rows[line.number - 1] == line.text for line in found)


async def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert await lines_of([BOM + b"{}\n"]) == [Line(1, b"{}")]
    assert await lines_of([BOM + b"\n{}"]) == [Line(2, b"{}")]
    assert (await lines_of([b"{}\n" + BOM + b"{}"]))[1].text == BOM + b"{}"


async def test_a_long_line_ends_the_reading() -> None:
    for pieces in ([b"short\n12345678901\n"], [b"short\n12345", b"678901"]):
        with pytest.raises(Unreadable) as raised:
            await lines_of(pieces, most=10)
        assert raised.value.problem.line == 2
    assert len(await lines_of([b"1234567890\n"], most=10)) == 1
