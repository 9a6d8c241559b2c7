"""Puts the caller's files into the requests that name them: read when a task is submitted, as nobody behind the gateway knows
their ids. Knows nothing of HTTP."""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Raw

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.signing import TokenForbids
from fairlane.gateway.calls.attachments import (
    CHAT,
    IMAGES,
    PREFIX,
    RESPONSES,
    UNKNOWN,
    Attached,
    Form,
    Groups,
    Reference,
    base64_bytes,
    media_type_of,
    named_steps,
    put_in_steps,
    url_bytes,
)
from fairlane.gateway.calls.bodies import Bodies, Members, copy_of
from fairlane.gateway.calls.reading import MOST_PARTS, refused
from fairlane.gateway.errors import ApiError, too_large
from fairlane.gateway.files.files import Files
from fairlane.gateway.files.rows import FileRow
from fairlane.streaming.jsontext import count_parts, items
from fairlane.streaming.turns import Caller as Opener

MARK = b'"file_id"'
"""What names a file has it."""
HEAD = 4096
"""Bytes by which a file is known."""
LARGE = 64 * 1024
"""From so many bytes on a file is encoded in a thread."""


class Size(NamedTuple):
    """Bytes that a request has more with its files as data: at least, and at most."""

    least: int
    most: int


NO_FILES = Size(0, 0)
Lists = list[list[bytes]]
Look = Callable[[Members, Sequence[bytes], Size], Awaitable[bool]]
"""Looks at a request, and the items before its input, before its files are read: nothing is in their place, and they take so many
bytes. Whether they are needed; raises for what would be refused all the same."""


class Asker:
    """On whose behalf files are read, and how many bytes his request may have."""

    __slots__ = ("caller", "look", "most", "named", "opener")

    def __init__(
        self,
        caller: Caller | None,
        opener: Opener,
        most: int,
        look: Look | None = None,
        *,
        named: bool = False,
    ) -> None:
        """`caller`: None: nobody needs the files, and nothing is read. `opener`: whose turn something large is. `named`: an
        idempotency key may name the task of the request already, which then needs no file, be it gone meanwhile."""
        self.caller = caller
        self.opener = opener
        self.most = most
        self.look = look
        self.named = named


class Attachments:
    """All raises ApiError: 400 that names the place of a file that is not there or is somebody else's, 413 for more bytes than a
    request may have, 404 for a file of which the bytes are gone, 503; and DatabaseUnavailable."""

    def __init__(self, files: Files, bodies: Bodies) -> None:
        self._files = files
        self._bodies = bodies

    async def in_responses(
        self, asker: Asker, fields: Members, history: Sequence[bytes]
    ) -> tuple[Members, Sequence[bytes]]:
        """The members of a Responses request, and the items that come before its input, with the data of the files that they
        name. The same objects where they name none."""
        raw = fields.get("input")
        said = raw is not None and MARK in bytes(raw)
        if not said and not any(MARK in item for item in history):
            return fields, history
        listed = _listed(raw, "input") if said else []
        beside = sum(len(bytes(value)) for name, value in fields.items() if name != "input")

        def with_these(put: Lists) -> tuple[Members, Sequence[bytes]]:
            return {**fields, "input": _joined(put[1])} if listed else fields, put[0]

        groups = [("previous_response_id", history), ("input", listed)]
        put = await self._put_in(asker, groups, RESPONSES, beside, with_these)
        return (fields, history) if put is None else with_these(put)

    async def in_chat(self, asker: Asker, fields: Members) -> Members:
        """The members of a chat request likewise."""
        raw = fields.get("messages")
        if raw is None or MARK not in bytes(raw):
            return fields
        beside = sum(len(bytes(value)) for name, value in fields.items() if name != "messages")

        def with_these(put: Lists) -> tuple[Members, Sequence[bytes]]:
            made = copy_of(fields)
            made["messages"] = _joined(put[0])
            return made, ()

        put = await self._put_in(asker, [("messages", _listed(raw, "messages"))], CHAT, beside, with_these)
        return fields if put is None else with_these(put)[0]

    async def _put_in(
        self,
        asker: Asker,
        groups: Groups,
        form: Form,
        beside: int,
        with_these: Callable[[Lists], tuple[Members, Sequence[bytes]]],
    ) -> Lists | None:
        """These lists with data, or where it is not needed with none; None: they name no files. `beside`: bytes that the request
        has besides. `with_these`: the request as `look` is given it."""
        size = sum(len(item) for _, listed in groups for item in listed)
        named = await self._bodies.take_steps(
            b"", named_steps(groups, form), beside=size, caller=asker.opener
        )
        if not named:
            return None

        async def put_in(use: Callable[[Reference], Attached], data: int) -> Lists:
            steps = put_in_steps(groups, form, use)
            return await self._bodies.take_steps(b"", steps, beside=size + data, caller=asker.opener)

        if asker.caller is None:
            return await put_in(lambda _: _nothing(), 0)
        if asker.caller.claims is not None:
            raise TokenForbids("A token is for tasks, not for files: use a key", f"{named[0].place}.file_id")
        rows = {
            row.id: row
            for row in await self._files.find_all(asker.caller.owner, {one.file_id for one in named})
        }

        async def unless_needed(look: Look, data: Size) -> Lists | None:
            """The lists with no data, where it is not needed."""
            without = await put_in(lambda one: _nothing(rows.get(one.file_id)), 0)
            return None if await look(*with_these(without), data) else without

        try:
            data = _check(named, rows, asker.most - size - beside, asker.most)
        except ApiError:
            if asker.look is None or not asker.named:
                raise
            if (without := await unless_needed(asker.look, NO_FILES)) is None:
                raise
            return without
        if asker.look is not None and (without := await unless_needed(asker.look, data)) is not None:
            return without
        arriving = self._bodies.arriving
        arriving.take(asker.opener, 2 * data.most)
        try:
            read = {one.file_id: one for one in named}  # the last place of each
            await self._check_images(named, rows)
            attached = {file_id: await self._attach(rows[file_id], one) for file_id, one in read.items()}
            return await put_in(lambda one: attached[one.file_id], data.most)
        finally:
            arriving.give(asker.opener, 2 * data.most)

    async def _check_images(self, named: Iterable[Reference], rows: Mapping[str, FileRow]) -> None:
        """Raise ApiError(400) for one that is to be seen, and cannot be. Of each no more is read than how it begins."""
        seen: set[str] = set()
        for one in named:
            if not one.image or one.file_id in seen:
                continue
            seen.add(one.file_id)
            row = rows[one.file_id]
            head = b"".join(await self._read(row, one, HEAD))
            if media_type_of(head, row.name) not in IMAGES:
                raise refused(f"{one.place}.file_id", f"the file is no image of {', '.join(sorted(IMAGES))}")

    async def _attach(self, row: FileRow, reference: Reference) -> Attached:
        pieces = await self._read(row, reference, row.bytes)
        if row.bytes < LARGE:
            return _encoded(row.name, pieces)
        return await asyncio.to_thread(_encoded, row.name, pieces)

    async def _read(self, row: FileRow, reference: Reference, end: int) -> list[bytes]:
        """The bytes of a file to before `end`, in pieces."""
        try:
            async with contextlib.aclosing(self._files.pieces(row, 0, end)) as stored:
                return [piece async for piece in stored]
        except ApiError as error:
            if error.status == 404:
                error.param = f"{reference.place}.file_id"
            raise


def _listed(raw: Raw | None, name: str) -> list[bytes]:
    """The items of a list. Raises ApiError(400) before more than can be read are taken apart: 16 MiB may hold millions."""
    if count_parts(raw, MOST_PARTS) > MOST_PARTS:
        raise refused(name, f"has more than {MOST_PARTS} items")
    return items(raw) or []


def _check(named: Iterable[Reference], rows: Mapping[str, FileRow], room: int, limit: int) -> Size:
    """How many bytes the files take that a request names. Raises ApiError where one is not there, or all are too large."""
    least = most = 0
    for one in named:
        row = rows.get(one.file_id)
        if row is None:
            raise refused(
                f"{one.place}.file_id", f"No such file: {one.file_id}. Bring it with POST /v1/files first"
            )
        least += base64_bytes(row.bytes)
        most += url_bytes(row.bytes)
        if most > room:
            raise too_large(limit)
    return Size(least, most)


def _nothing(row: FileRow | None = None) -> Attached:
    return Attached(row.name if row else "", UNKNOWN, PREFIX % UNKNOWN.encode())


def _encoded(name: str, pieces: Sequence[bytes]) -> Attached:
    data = b"".join(pieces)
    kind = media_type_of(data[:HEAD], name)
    return Attached(name, kind, PREFIX % kind.encode() + b64encode(data))


def _joined(listed: Sequence[bytes]) -> Raw:
    return Raw(b"[%b]" % b",".join(listed))
