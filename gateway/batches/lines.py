"""The lines of a batch's file: reading, parsing and validating them.

The file is read a block at a time, and is not open between blocks, however long the batch takes.
"""

import asyncio
import contextlib
import hashlib
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from msgspec import Raw

from fairlane.gateway.batches.models import Problem
from fairlane.gateway.core.bodies import Bodies, RawObject, value_of
from fairlane.gateway.core.spec import read_model
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
    """The lines of a file that are not blank. `most`: bytes of a line."""

    def __init__(self, open_at: Open, most: int) -> None:
        self._open = open_at
        self._most = most
        self._ready = deque[Line]()
        """Lines that are read, up to the end of a block."""
        self._number, self._offset = 1, 0
        """The line behind them, and its place in the file."""
        self._at_end = False

    async def next(self) -> Line | None:
        """Return the next line; None behind the last one. Raises Unreadable, and ApiError: then it can be called again."""
        while not self._ready:
            if self._at_end:
                return None
            await self._read()
        line = self._ready.popleft()
        if len(line.text) > self._most:
            self._ready.appendleft(line)
            raise _too_long(line.number, self._most)
        return line

    async def _read(self) -> None:
        """Read a block: whole lines, or the rest of the file."""
        block, end = bytearray(), 0
        async with contextlib.aclosing(self._open(self._offset)) as opened:  # type: ignore[type-var]
            async for piece in opened:
                end = len(block) + piece.rfind(b"\n") + 1 if b"\n" in piece else end
                block += piece
                if end and (len(block) >= BLOCK or len(block) - end > self._most):
                    break
                if len(block) - end > self._most:
                    raise _too_long(self._number, self._most)
            else:
                self._at_end, end = True, len(block)
        whole, counted = bytes(block[:end]), 0
        for found in _LINE.finditer(whole):
            self._number += whole.count(b"\n", counted, found.start())
            counted, text = found.start(), found[0]
            if counted == self._offset == 0:
                text = text.removeprefix(BOM)
            if text.strip():
                self._ready.append(Line(self._number, text))
        self._number += whole.count(b"\n", counted)
        self._offset += end


# ---- validation ----------

MAX_REQUESTS = 50_000
"""Of a batch, as at OpenAI."""


class Findings(NamedTuple):
    """The result of a validation: how many requests a file has, the model of the first one, and its errors."""

    total: int
    model: str
    problems: list[Problem]


async def validate_lines(lines: FileLines, endpoint: str, most_lines: int, bodies: Bodies) -> Findings:
    """Validate a whole file. Raises ApiError: 503."""
    total, model, problems, seen = 0, "", list[Problem](), dict[bytes, int]()
    while len(problems) < MAX_ERRORS:
        try:
            line = await lines.next()
        except Unreadable as end:
            problems.append(end.problem)
            break
        if line is None:
            if not total:
                problems.append(Problem("empty_file", "The file holds no request"))
            break
        total += 1
        if total > most_lines:
            sentence = f"A batch may have at most {most_lines} requests: this line is one more"
            problems.append(Problem("too_many_lines", sentence, line.number))
            break
        try:
            parsed = await parse_line(line.text, endpoint, bodies)
        except InvalidLine as invalid:
            problems.append(Problem(invalid.code, invalid.message, line.number, invalid.param))
            continue
        name = parsed.custom_id.encode("utf-8", "surrogatepass")
        first = seen.setdefault(hashlib.blake2b(name, digest_size=16).digest(), line.number)
        if first != line.number:
            sentence = f"The custom_id {parsed.custom_id[:64]!r} was used in line {first} already"
            problems.append(Problem("duplicate_custom_id", sentence, line.number, "custom_id"))
        if total == 1:
            with contextlib.suppress(ApiError):
                model = model_in(await bodies.parse(parsed.body))
        await asyncio.sleep(0)
    return Findings(total, model, problems)
