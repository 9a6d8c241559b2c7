"""The lines of a batch's file: splitting, parsing and validating them.

The file is read a block at a time, and nothing stays open between blocks, however long the batch takes.
"""

import asyncio
import contextlib
import hashlib
import itertools
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
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
"""Of a file that are told: who mends them may try again."""
AROUND_BODY = 4096
"""Bytes that a line may have beside its body."""


class ParsedLine(NamedTuple):
    """What a line asks for."""

    custom_id: str
    body: Raw


class InvalidLine(Exception):
    """A line that is none of a batch."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def at(self, line: int) -> Problem:
        """The same as it is told."""
        return Problem(self.code, self.message, line, self.param)


def not_json(error: ApiError) -> InvalidLine:
    """A line that is no JSON object, of which `parse_object` says why."""
    return InvalidLine("invalid_json_line", error.message)


def read_line(fields: RawObject, endpoint: str) -> ParsedLine:
    """What a line of these members asks for, of a batch over `endpoint`. Raises InvalidLine."""
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


def model_in(fields: RawObject) -> str:
    """The model that a body of these members names; '' of none."""
    try:
        return read_model(fields, "")
    except ApiError:
        return ""


def _text(fields: RawObject, name: str) -> str:
    if name not in fields:
        raise InvalidLine("missing_required_parameter", f"{name} is missing", name)
    try:
        value = value_of(fields, name)
    except ApiError as error:
        raise InvalidLine("invalid_json_line", error.message, name) from None
    if not isinstance(value, str):
        raise InvalidLine("invalid_type", f"{name} must be a string", name)
    return value


class Findings:
    """What is found in a file, line by line: how many requests it holds, and what is wrong."""

    def __init__(self, most_lines: int) -> None:
        self._most_lines = most_lines
        self._seen: dict[bytes, int] = {}
        self.total = 0
        self.problems: list[Problem] = []
        self.model = ""
        """The one that the first line names."""

    @property
    def full(self) -> bool:
        """Whether nothing more needs to be looked at."""
        return len(self.problems) >= MAX_ERRORS or self.total > self._most_lines

    def add_problem(self, problem: Problem) -> None:
        """Note what is wrong."""
        self.problems.append(problem)

    def add(self, number: int, parsed: ParsedLine) -> None:
        """Count a request."""
        self.total += 1
        if self.total > self._most_lines:
            sentence = f"A batch may have at most {self._most_lines} requests: this line is one more"
            self.add_problem(Problem("too_many_lines", sentence, number))
            return
        digest = hashlib.blake2b(parsed.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            sentence = f"The custom_id {parsed.custom_id[:64]!r} was used in line {first} already"
            self.add_problem(Problem("duplicate_custom_id", sentence, number, "custom_id"))

    def end(self) -> None:
        """The whole file was looked at."""
        if not self.total and not self.problems:
            self.add_problem(Problem("empty_file", "The file holds no request"))


BOM = b"\xef\xbb\xbf"
_NOT_BLANK = re.compile(rb"\S")


class Line(NamedTuple):
    """One line of a file."""

    number: int
    """From 1; blank lines count."""
    offset: int
    """Where it begins, bytes."""
    text: bytes
    """Without its end."""


class LineTooLong(Exception):
    """A line that is longer than may be; nothing behind it is read."""

    def __init__(self, number: int, most: int) -> None:
        super().__init__(f"line {number} is longer than {most} bytes")
        self.number = number
        self.most = most


class Splitter:
    """Feed it the pieces of a file in order: it gives the lines that are not blank, and keeps of the others what has no end yet.

    `number`, `offset`: where it begins in the file.
    """

    def __init__(self, most: int, number: int = 1, offset: int = 0) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._size = 0
        self.number = number
        """Of the next line."""
        self.offset = offset
        """Where that begins."""

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that end in this piece. Raises LineTooLong."""
        at = 0
        while (end := piece.find(b"\n", at := self._behind_blank(piece, at))) >= 0:
            yield from self._line(piece[at:end], ended=True)
            at = end + 1
        rest = piece[at:]
        if rest:
            self._keep(rest)

    def end(self) -> Iterator[Line]:
        """The last line, where the file does not end with a line's end. Raises LineTooLong."""
        if self._parts:
            yield from self._line(b"", ended=False)

    def _behind_blank(self, piece: bytes, at: int) -> int:
        """Where the blank lines end that begin here: a file may hold millions, which cost no step each."""
        if self._parts:
            return at
        found = _NOT_BLANK.search(piece, at)
        behind = piece.rfind(b"\n", at, found.start() if found else len(piece)) + 1
        if not behind:
            return at
        self.number += piece.count(b"\n", at, behind)
        self.offset += behind - at
        return behind

    def _keep(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._most:
            raise LineTooLong(self.number, self._most)

    def _line(self, last: bytes, *, ended: bool) -> Iterator[Line]:
        self._keep(last)
        text = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        number, offset = self.number, self.offset
        self.number += 1
        self.offset += len(text) + ended
        self._parts, self._size = [], 0
        if offset == 0:
            text = text.removeprefix(BOM)
        if text.strip():
            yield Line(number, offset, text)


BLOCK = 1 << 20
"""Bytes that are read at once, and a line more at most."""
LINES = 4096
"""That are split off at once: short ones would be hundreds of thousands in a block."""
HELD_UP_S = 0.005
"""For so long others wait at most while lines are looked at; about as long they have for themselves then."""
AGAIN_S = 1.0

Open = Callable[[int], AsyncIterator[bytes]]
"""Opens the file at an offset; raises ApiError."""


class FileLines:
    """The lines of a file, from one on. `most`: bytes that a line may have."""

    def __init__(self, open_at: Open, most: int, number: int = 1, offset: int = 0) -> None:
        self._open = open_at
        self._most = most
        self._lines: deque[Line] = deque()
        self._at = (number, offset)
        self._all = False

    @property
    def place(self) -> tuple[int, int]:
        """The number of the next line, and where it begins."""
        return (self._lines[0].number, self._lines[0].offset) if self._lines else self._at

    @property
    def held(self) -> int:
        """How many lines have been read and not parsed for yet."""
        return len(self._lines)

    async def next(self) -> Line | None:
        """The next line that is not blank; None behind the last one. Raises LineTooLong, and ApiError: call again
        then, nothing is lost."""
        while not self._lines and not self._all:
            await self._read()
        return self._lines.popleft() if self._lines else None

    async def _read(self) -> None:
        splitter, size, found = Splitter(self._most, *self._at), 0, list[Line]()
        async with contextlib.aclosing(self._open(self._at[1])) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                found += itertools.islice(splitter.feed(piece), LINES - len(found))
                size += len(piece)
                if len(found) >= LINES or (size >= BLOCK and splitter.offset > self._at[1]):
                    break  # the next block begins where the splitter stands
            else:
                found += splitter.end()
                self._all = True
        self._lines.extend(found)
        self._at = (splitter.number, splitter.offset)


async def members_of(line: Line, bodies: Bodies) -> RawObject:
    """The members of a line. Raises InvalidLine."""
    try:
        return await bodies.parse(line.text, "The line")
    except ApiError as error:
        if error.status == 400:
            raise not_json(error) from None
        raise


async def parse_line(line: Line, endpoint: str, bodies: Bodies) -> ParsedLine:
    """What a line asks for. Raises as `members_of`."""
    return read_line(await members_of(line, bodies), endpoint)


class Pace:
    """Lets others run between the steps of something long."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def step(self) -> None:
        """A step is done."""
        spent = time.perf_counter() - self._since
        if spent >= HELD_UP_S:
            await asyncio.sleep(min(spent, 0.1))
            self._since = time.perf_counter()


async def validate_lines(lines: FileLines, endpoint: str, most_lines: int, bodies: Bodies) -> Findings:
    """What a whole file holds, and what is wrong with it. It takes about half of the time that there is. Raises ApiError: 404 for
    a file that is gone, 503."""
    findings, pace = Findings(most_lines), Pace()
    while not findings.full:
        try:
            line = await lines.next()
        except LineTooLong as long:
            sentence = f"The line is longer than {long.most} bytes; nothing behind it was looked at"
            findings.add_problem(Problem("line_too_long", sentence, long.number))
            return findings
        if line is None:
            break
        try:
            parsed = await parse_line(line, endpoint, bodies)
        except InvalidLine as unfit:
            findings.add_problem(unfit.at(line.number))
            findings.total += 1
        else:
            findings.add(line.number, parsed)
            if findings.total == 1:
                findings.model = await _model(parsed.body, bodies)
        await pace.step()
    findings.end()
    return findings


async def _model(body: Raw, bodies: Bodies) -> str:
    try:
        return model_in(await bodies.parse(body))
    except ApiError:
        return ""
