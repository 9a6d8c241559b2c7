"""The lines of a batch's file: reading, parsing and validating them.

The file is read a block at a time, and is not open between blocks, however long the batch takes.
"""

import asyncio
import contextlib
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from msgspec import Raw

from fairlane.gateway.batches.models import Problem
from fairlane.gateway.calls.bodies import Bodies, RawObject, value_of
from fairlane.gateway.calls.task_builder import read_model
from fairlane.gateway.errors import ApiError
from fairlane.streaming.jsontext import kind_of

METHOD: Final = "POST"
MAX_CUSTOM_ID = 256
"""Characters."""
MAX_ERRORS = 100
"""Errors of one file that are reported."""
AROUND_BODY = 4096
"""Bytes of a line in addition to its body."""
BLOCK = 1 << 20
"""Bytes that are read together, up to the end of a line."""
MAX_HELD_S = 0.005
"""How long `Pace` lets lines be processed before other tasks of the event loop run."""
BOM = b"\xef\xbb\xbf"

_LINE = re.compile(rb"^[^\S\n]*\S[^\n]*", re.MULTILINE)
"""A line that is not blank. It takes time in proportion to the text, however many blank lines there are."""


# ---- what a line asks for ----------


class ParsedLine(NamedTuple):
    """The request of a line."""

    custom_id: str
    body: Raw


class InvalidLine(Exception):
    """A line that cannot be part of a batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


async def parse_line(text: bytes, endpoint: str, bodies: Bodies) -> ParsedLine:
    """Parse a line of a batch over `endpoint`. Raises InvalidLine, and ApiError if it cannot be parsed now."""
    try:
        fields = await bodies.parse(text, "The line")
    except ApiError as error:
        if error.status == 400:
            raise InvalidLine("invalid_json_line", error.message) from None
        raise
    custom_id = _text(fields, "custom_id")
    if not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        sentence = f"custom_id must have 1 to {MAX_CUSTOM_ID} characters"
        raise InvalidLine("invalid_custom_id", sentence, "custom_id")
    method = _text(fields, "method")
    if method != METHOD:
        raise InvalidLine("invalid_method", f"method must be {METHOD}, not {method[:20]!r}", "method")
    url = _text(fields, "url")
    if url != endpoint:
        sentence = f"url must be the batch's endpoint, {endpoint}, not {url[:100]!r}"
        raise InvalidLine("mismatched_endpoint", sentence, "url")
    body = fields.get("body")
    if body is None or kind_of(body) != "{":
        raise InvalidLine("invalid_body", "body must be the request's body, a JSON object", "body")
    return ParsedLine(custom_id, body)


def _text(fields: RawObject, name: str) -> str:
    try:
        value = value_of(fields, name)
    except ApiError as error:
        raise InvalidLine("invalid_json_line", error.message, name) from None
    if value is None:
        raise InvalidLine("missing_required_parameter", f"{name} is missing", name)
    if not isinstance(value, str):
        raise InvalidLine("invalid_type", f"{name} must be a string", name)
    return value


def model_in(fields: RawObject) -> str:
    """Return the model that a body names; '' if it is none."""
    try:
        return read_model(fields, "")
    except ApiError:
        return ""


# ---- reading ----------


class Line(NamedTuple):
    """One line of a file."""

    number: int
    """From 1; blank lines count."""
    offset: int
    """Of its first byte in the file."""
    text: bytes


class Unreadable(Exception):
    """The file is gone, or a line is too long: nothing more is read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _too_long(number: int, most: int) -> Unreadable:
    sentence = f"The line is longer than {most} bytes; nothing behind it was looked at"
    return Unreadable(Problem("line_too_long", sentence, number))


Open = Callable[[int], AsyncIterator[bytes]]
"""Opens the file at an offset; raises Unreadable and ApiError."""


class FileLines:
    """The lines of a file that are not blank, from line `number` on, which begins at `offset`. `most`: bytes of a line."""

    def __init__(self, open_at: Open, most: int, number: int = 1, offset: int = 0) -> None:
        self._open = open_at
        self._most = most
        self._number = number
        self._base = offset
        """The offset of the block in the file."""
        self._block = b""
        self._at = 0
        self._at_end = False

    @property
    def place(self) -> tuple[int, int]:
        """The number of the next line, and its offset."""
        return self._number, self._base + self._at

    async def next(self) -> Line | None:
        """Return the next line; None behind the last one. Raises Unreadable, and ApiError: then it can be called again."""
        while (found := _LINE.search(self._block, self._at)) is None:
            self._skip(len(self._block))
            if self._at_end:
                return None
            await self._read()
        self._skip(found.start())
        number, offset, text = self._number, self._base + self._at, found[0]
        if len(text) > self._most:
            raise _too_long(number, self._most)
        self._skip(found.end() + 1)
        if offset == 0:
            text = text.removeprefix(BOM)
        return Line(number, offset, text) if text.strip() else await self.next()

    def _skip(self, to: int) -> None:
        to = min(to, len(self._block))
        self._number += self._block.count(b"\n", self._at, to)
        self._at = to

    async def _read(self) -> None:
        pieces, size, rest, whole = list[bytes](), 0, 0, False
        async with contextlib.aclosing(self._open(self._base + self._at)) as opened:  # type: ignore[type-var]
            async for piece in opened:
                pieces.append(piece)
                size += len(piece)
                end = piece.rfind(b"\n") + 1
                rest = len(piece) - end if end else rest + len(piece)
                whole = whole or end > 0
                if whole and (size >= BLOCK or rest > self._most):
                    break
                if rest > self._most:
                    raise _too_long(self._number, self._most)
            else:
                self._at_end = True
        block = b"".join(pieces)
        self._base += self._at
        self._block, self._at = block if self._at_end else block[: block.rfind(b"\n") + 1], 0


class Pace:
    """Lets other tasks of the event loop run between the steps of something long."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def step(self) -> None:
        """End a step: sleep as long as the last steps took, if they took long."""
        spent = time.perf_counter() - self._since
        if spent >= MAX_HELD_S:
            await asyncio.sleep(min(spent, 0.1))
            self._since = time.perf_counter()


# ---- validation ----------

MAX_REQUESTS = 50_000
"""Of a batch, as at OpenAI."""


class Findings:
    """The result of a validation: how many requests a file has, and its errors."""

    def __init__(self, most_lines: int) -> None:
        self._most_lines = most_lines
        self._seen: dict[bytes, int] = {}
        self.total = 0
        self.problems: list[Problem] = []
        self.model = ""
        """The model of the first line."""

    @property
    def full(self) -> bool:
        """Whether the rest of the file does not matter."""
        return len(self.problems) >= MAX_ERRORS or self.total > self._most_lines

    def add(self, number: int, parsed: ParsedLine) -> None:
        """Count a request."""
        self.total += 1
        if self.total > self._most_lines:
            sentence = f"A batch may have at most {self._most_lines} requests: this line is one more"
            self.problems.append(Problem("too_many_lines", sentence, number))
            return
        digest = hashlib.blake2b(parsed.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            sentence = f"The custom_id {parsed.custom_id[:64]!r} was used in line {first} already"
            self.problems.append(Problem("duplicate_custom_id", sentence, number, "custom_id"))


async def validate_lines(lines: FileLines, endpoint: str, most_lines: int, bodies: Bodies) -> Findings:
    """Validate a whole file. Raises ApiError: 503."""
    findings, pace = Findings(most_lines), Pace()
    while not findings.full:
        try:
            line = await lines.next()
        except Unreadable as end:
            findings.problems.append(end.problem)
            return findings
        if line is None:
            break
        try:
            parsed = await parse_line(line.text, endpoint, bodies)
        except InvalidLine as invalid:
            problem = Problem(invalid.code, invalid.message, line.number, invalid.param)
            findings.problems.append(problem)
            findings.total += 1
        else:
            findings.add(line.number, parsed)
            if findings.total == 1:
                with contextlib.suppress(ApiError):
                    findings.model = model_in(await bodies.parse(parsed.body))
        await pace.step()
    if not findings.total and not findings.problems:
        findings.problems.append(Problem("empty_file", "The file holds no request"))
    return findings
