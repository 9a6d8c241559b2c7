"""Reads the lines of a batch's file, a block at a time: nothing stays open between, however long the batch takes."""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from msgspec import Raw

from fairlane.gateway.batches.lines import (
    AROUND_BODY,
    Asked,
    Findings,
    Problem,
    Unfit,
    model_in,
    not_json,
    read_line,
)
from fairlane.gateway.batches.splitting import Line, LineTooLong, Splitter
from fairlane.gateway.calls.bodies import Bodies, Members
from fairlane.gateway.errors import ApiError
from fairlane.streaming.turns import Caller as Opener

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
        """How many lines have been read and not asked for yet."""
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


async def members_of(line: Line, bodies: Bodies, opener: Opener) -> Members:
    """The members of a line. Raises Unfit, and ApiError (503) when too many large ones wait."""
    try:
        return await bodies.parse(line.text, "The line", caller=opener)
    except ApiError as error:
        if error.status == 400:
            raise not_json(error) from None
        raise


async def asked_in(line: Line, endpoint: str, bodies: Bodies, opener: Opener) -> Asked:
    """What a line asks for. Raises as `members_of`."""
    return read_line(await members_of(line, bodies, opener), endpoint)


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


async def look_at(
    lines: FileLines, endpoint: str, most_lines: int, bodies: Bodies, opener: Opener
) -> Findings:
    """What a whole file holds, and what is wrong with it. It takes about half of the time that there is. Raises ApiError: 404 for
    a file that is gone, 503."""
    findings, pace = Findings(most_lines), Pace()
    while not findings.full:
        try:
            line = await lines.next()
        except LineTooLong as long:
            sentence = f"The line is longer than {long.most} bytes; nothing behind it was looked at"
            findings.wrong(Problem("line_too_long", sentence, long.number))
            return findings
        if line is None:
            break
        try:
            asked = await asked_in(line, endpoint, bodies, opener)
        except Unfit as unfit:
            findings.wrong(unfit.at(line.number))
            findings.total += 1
        else:
            findings.add(line.number, asked)
            if findings.total == 1:
                findings.model = await _model(asked.body, bodies, opener)
        await pace.step()
    findings.end()
    return findings


async def _model(body: Raw, bodies: Bodies, opener: Opener) -> str:
    try:
        return model_in(await bodies.parse(body, caller=opener))
    except ApiError:
        return ""


def longest_line(max_body_bytes: int) -> int:
    """Bytes that a line may have."""
    return max_body_bytes + AROUND_BODY
