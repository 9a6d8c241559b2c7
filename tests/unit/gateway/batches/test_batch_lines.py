"""What a line of a batch must be, and what is told of one that is not."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.gateway.batches.lines import LINES, MAX_ERRORS, FileLines, Findings, validate_lines
from fairlane.gateway.calls.bodies import Bodies

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
        (line(custom_id=""), "invalid_custom_id", "1 to 256 characters"),
        (line(custom_id="x" * 257), "invalid_custom_id", "1 to 256 characters"),
        (line(custom_id="x" * 9000), "invalid_type", "custom_id must be a string"),
        (line(method="GET"), "invalid_method", "must be POST"),
        (line(url="/v1/embeddings"), "mismatched_endpoint", CHAT),
        (line(body=...), "invalid_body", "body must be"),
        (line(body="text"), "invalid_body", "body must be"),
        (line(custom_id="first"), "duplicate_custom_id", "was used in line 1 already"),
    ],
)
async def test_a_bad_line_is_told_with_its_number(text: bytes, code: str, says: str) -> None:
    findings = await found(line(custom_id="first") + b"\n\n" + text + b"\n" + line(custom_id="last"))
    assert [(problem.code, problem.line) for problem in findings.problems] == [(code, 3)]
    assert says in findings.problems[0].message


async def test_truncated_utf8_at_the_end_of_the_file() -> None:
    whole = line(custom_id="é").replace(b"\\u00e9", "é".encode())
    cut = whole[: whole.index("é".encode()) + 1]
    findings = await found(line() + b"\n" + cut)
    assert [(problem.code, problem.line) for problem in findings.problems] == [("invalid_json_line", 2)]


async def test_a_line_that_does_not_end_is_not_read_to_its_end() -> None:
    asked_for = []

    async def pieces(start: int) -> AsyncIterator[bytes]:
        yield line() + b"\n"
        while True:  # a gigabyte, or more
            asked_for.append(start)
            yield b"x" * 1000

    bodies = Bodies()
    lines = FileLines(pieces, 50_000)
    findings = await validate_lines(lines, CHAT, 1000, bodies)
    assert [(problem.code, problem.line) for problem in findings.problems] == [("line_too_long", 2)]
    assert len(asked_for) < 60


async def test_too_many_lines_and_none_at_all() -> None:
    findings = await found(b"\n".join(line(custom_id=str(number)) for number in range(12)), most_lines=10)
    assert [(problem.code, problem.line) for problem in findings.problems] == [("too_many_lines", 11)]
    assert [problem.code for problem in (await found(b"\n \n")).problems] == ["empty_file"]


async def test_of_many_bad_lines_some_are_told() -> None:
    findings = await found(b"{\n" * 1000)
    assert len(findings.problems) == MAX_ERRORS


async def test_the_lines_of_a_file_are_read_from_any_of_them_on_and_nothing_stays_open() -> None:
    text = b"\n".join(line(custom_id=str(number)) for number in range(100))
    open_now = 0

    async def pieces(start: int) -> AsyncIterator[bytes]:
        nonlocal open_now
        open_now += 1
        try:
            for at in range(start, len(text), 77):
                yield text[at : at + 77]
        finally:
            open_now -= 1

    lines, seen = FileLines(pieces, 10_000), []
    while (one := await lines.next()) is not None:
        assert open_now == 0
        seen.append(one)
    assert [one.number for one in seen] == list(range(1, 101))
    assert lines.place == (101, len(text))
    again = FileLines(pieces, 10_000, seen[40].number, seen[40].offset)
    assert again.place == (41, seen[40].offset)
    assert await again.next() == seen[40]
    assert again.place == (42, seen[41].offset)


async def test_many_short_lines_are_split_off_a_part_at_a_time() -> None:
    text = b"\n" * 300_000 + b"1\n" * 10_000
    most_held = 0

    async def pieces(start: int) -> AsyncIterator[bytes]:
        for at in range(start, len(text), 262_144):
            yield text[at : at + 262_144]

    lines, seen = FileLines(pieces, 10_000), []
    while (one := await lines.next()) is not None:
        most_held = max(most_held, lines.held)
        seen.append((one.number, one.offset))
    assert seen == [(300_001 + number, 300_000 + 2 * number) for number in range(10_000)]
    assert most_held < LINES
    assert lines.place == (310_001, len(text))
