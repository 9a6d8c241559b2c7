"""JSON bodies, looked into no further than needed.

A JSON text of 16 MiB becomes up to 400 MB of Python objects. So a body is split into its members, which stay the bytes that came;
what the gateway must know of them is read from there. A large body (LARGE bytes and more, or MANY values and more) is checked and
split in steps, one body at a time, so that others get their turn.
"""

import asyncio
import codecs
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from fairlane.gateway.errors import ApiError, bad_request
from fairlane.streaming.jsontext import kind_of, too_deep, too_deep_in_steps
from fairlane.streaming.turns import Caller, Turns

Made = TypeVar("Made")
Members = dict[str, Raw]
"""The members of a JSON object, values unparsed. They keep the whole text alive."""


class Split(Members):
    """The members of a large body. `image`: whether its messages hold one, which was looked for while it was split."""

    image = False


LARGE = 256 * 1024
MANY = 16_384
SMALL_BESIDE = 64 * 1024
"""Bytes that belong to a body and were read elsewhere: it is not known how many values they are."""
MAX_MEMBERS = 10_000
"""Of a body, and of the payload in one. Those below them are not looked at."""
MAX_VALUE = 8192
"""Bytes of a member that the gateway reads itself: names, numbers, flags. None that is longer is valid."""
REST = 2.0
SHORT_S = 0.01
"""After a large body that held others up for longer than that, no other one for so many times as long: that time is theirs."""
TURN_S = 30.0
MAX_WAITING = 256 << 20
"""Bytes of large bodies that may wait for their turn; one caller may have half of what the others leave, as of MAX_ARRIVING."""

MAX_ARRIVING = 256 << 20
"""Bytes of bodies that are not whole yet."""
LARGEST = 64 << 20
"""Bytes of one body for which these are enough, also with as much again of what was read beside it. Where bodies may be larger
they are as many times more."""

_any = msgspec.json.Decoder()
_members = msgspec.json.Decoder(Members)
_skip = msgspec.json.Decoder(Raw)
_name = msgspec.json.Decoder(str)
_WRONG = (RecursionError, UnicodeDecodeError, msgspec.MsgspecError)
_BEFORE_NAME = re.compile(rb"[\s{,]*+")
_COLON = re.compile(rb"\s*+:\s*+")
_WHITE = b" \t\r\n"
_IMAGE = re.compile(rb'"type"\s*:\s*"(?:image_url|image|input_image)"')
_END = re.compile(r"trailing characters \(byte (\d+)\)")
_PIECE = 1 << 20
_OVERLAP = 4096
"""Bytes of the next piece in which a type may end that began in the one before."""
_WHITE_AT_ONCE = 4096


class _Oversized:
    """Stands for a value that is too long to be read; it is of no type that any field takes."""


OVERSIZED = _Oversized()


def parse_object(body: bytes, what: str = "The body") -> Members:
    """The members of a JSON object that is not large. Raises ApiError as `parse_values`.

    Of larger ones `Bodies.parse` makes the same, but does not look for numbers out of range.
    """
    parse_values(body, what)
    if too_deep(body):
        raise _deep(what)
    return _members.decode(body)


def is_large(body: bytes) -> bool:
    """Whether looking at a whole JSON text at once would hold others up."""
    return len(body) >= LARGE or body.count(b",") + body.count(b"[") + body.count(b"{") >= MANY


def parse_values(body: bytes, what: str = "The body") -> dict[str, Any]:
    """A JSON object that is not large as Python values. Raises ApiError(400) with what is wrong: malformed, not an object,
    out of range, too many members. `what` begins its sentences.
    """
    try:
        value = _any.decode(body)
        if not body.isascii():
            body.decode()
    except _WRONG as error:
        raise _explained(error, body, what) from None
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be a JSON object")
    if len(value) > MAX_MEMBERS:
        raise _too_many(what)
    return value


def value_of(fields: Members, name: str) -> Any:
    """A member as Python values; None when it is absent or null, OVERSIZED when it is too long to be anything that we know."""
    raw = fields.get(name)
    if raw is None:
        return None
    text = memoryview(raw)
    if len(text) > MAX_VALUE:
        return OVERSIZED if kind_of(raw) else None
    try:
        return _any.decode(text)
    except _WRONG as error:
        raise _explained(error, raw, "The body") from None


class _Budget:
    """Bytes that many hold, and each of them at most half of what the others leave."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._held: dict[Caller, int] = {}
        self.total = 0

    def take(self, caller: Caller, size: int) -> None:
        """Hold so many more, until `give`. Raises ApiError(503)."""
        own = self._held.get(caller, 0)
        if 2 * (own + size) > self._most() - (self.total - own):
            raise _busy()
        self._held[caller] = own + size
        self.total += size

    def give(self, caller: Caller, size: int) -> None:
        self.total -= size
        left = self._held[caller] - size
        if left:
            self._held[caller] = left
        else:
            del self._held[caller]


class Bodies:
    """The bodies of one process that are being read. `time` in seconds, as the event loop's; `largest`: bytes that one body may
    have now."""

    def __init__(self, time: Callable[[], float], largest: Callable[[], int] = lambda: LARGEST) -> None:
        self._time = time
        self._turns = Turns(1)
        self._free_at = 0.0
        self._waiting = _Budget(lambda: _for_bodies_of(largest(), MAX_WAITING))
        self.arriving = _Budget(lambda: _for_bodies_of(largest(), MAX_ARRIVING))
        """The bytes of bodies that are not whole yet."""

    async def parse(self, body: bytes | Raw, what: str = "The body", *, caller: Caller = None) -> Members:
        """What `parse_object` makes of a body of any size. Raises ApiError: 400, and 503 when too many large ones wait."""
        text = bytes(body)
        if not is_large(text):
            return parse_object(text, what)
        async with self.turn(len(text), caller) as spent:
            return await _in_steps(text, what, spent)

    async def take_steps(
        self, body: bytes, steps: Iterator[Made | None], *, beside: int = 0, caller: Caller = None
    ) -> Made:
        """What the last of these steps yields, which say a body in other words, with so many bytes `beside` it. Those of a large
        one are taken in its turn. Raises what they raise, and as `turn`."""
        if beside < SMALL_BESIDE and not is_large(body):
            return next(made for made in steps if made is not None)
        async with self.turn(len(body) + beside, caller) as spent:
            while True:
                with spent():
                    made = next(steps, None)
                if made is not None:
                    return made
                await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def turn(self, size: int, caller: Caller = None) -> AsyncIterator["Spent"]:
        """Do what takes long with a body of `size` bytes: alone, callers in turns, and for about a third of the time, as far as
        it tells what it spent. Raises ApiError(503).
        """
        self._waiting.take(caller, size)
        try:
            try:
                async with asyncio.timeout(TURN_S):
                    await self._turns.acquire(caller)
            except TimeoutError:
                raise _busy() from None
            try:
                await asyncio.sleep(max(self._free_at - self._time(), 0.0))
                spent = Spent(self._time)
                try:
                    yield spent
                finally:
                    self._free_at = self._time() + REST * max(spent.seconds - SHORT_S, 0.0)
            finally:
                self._turns.release()
        finally:
            self._waiting.give(caller, size)


class Spent:
    """How long the steps of one turn held others up, in seconds: `with spent():` around each."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.seconds = 0.0

    @contextlib.contextmanager
    def __call__(self, share: float = 1.0) -> Iterator[None]:
        """Count what happens inside, or a share of it."""
        began = self._time()
        try:
            yield
        finally:
            self.seconds += share * (self._time() - began)


def copy_of(fields: Members) -> Members:
    """Members that may be changed without changing these."""
    if not isinstance(fields, Split):
        return dict(fields)
    made = Split(fields)
    made.image = fields.image
    return made


def _for_bodies_of(largest: int, most: int) -> int:
    return max(most, most * largest // LARGEST)


def _busy() -> ApiError:
    return ApiError(503, "BUSY", "Too many large requests at once", retry_after_ms=1000)


async def _in_steps(body: bytes, what: str, spent: Spent) -> Members:
    """Check and split a large body; others run between the steps, each of which is one pass over a part of it."""
    try:
        with spent():
            _skip.decode(body)
        await asyncio.sleep(0)
        if not body.isascii():
            check = codecs.getincrementaldecoder("utf-8")()
            for at in range(0, len(body), _PIECE):
                with spent():
                    check.decode(body[at : at + _PIECE], final=at + _PIECE >= len(body))
                await asyncio.sleep(0)
        if kind_of(body) != "{":
            raise bad_request(f"{what} must be a JSON object")
        pieces = too_deep_in_steps(body)
        while True:
            with spent():
                deep = next(pieces, None)
            if deep:
                raise _deep(what)
            await asyncio.sleep(0)
            if deep is None:
                break
        found = Split()
        text, at, count, since = memoryview(body), 0, 0, 0
        while True:
            with spent():
                name = _BEFORE_NAME.match(body, at).end()  # type: ignore[union-attr]
                if body[name : name + 1] != b'"':
                    break
                colon = _end_of_value(text, name)
                value = _COLON.match(body, colon).end()  # type: ignore[union-attr]
                at = _end_of_value(text, value)
                found[_name.decode(text[name:colon])] = Raw(text[value:at])
            count += 1
            if count > MAX_MEMBERS:
                raise _too_many(what)
            if at - since > LARGE:
                since = at
                await asyncio.sleep(0)
        messages = bytes(found.get("messages") or b"")
        for at in range(0, len(messages), _PIECE):
            with spent():
                found.image = found.image or _image_in(messages, at, at + _PIECE + _OVERLAP)
            await asyncio.sleep(0)
        return found
    except _WRONG as error:
        raise _explained(error, body, what) from None


def has_image(fields: Members) -> bool:
    """True when the messages, or the items of a Responses request, hold an image: an object of such a type. They are searched,
    not parsed."""
    if isinstance(fields, Split):
        return fields.image
    messages = bytes(fields.get("messages") or fields.get("input") or b"")
    return _image_in(messages, 0, len(messages))


def _image_in(messages: bytes, begin: int, end: int) -> bool:
    """Whether a part of a list of messages holds an image."""
    if messages.find(b'"image', begin, end) < 0 and messages.find(b'"input_image"', begin, end) < 0:
        return False
    if kind_of(messages) != "[":
        return False
    return _IMAGE.search(messages, begin, end) is not None


def _end_of_value(text: memoryview, at: int) -> int:
    """Where the value (or name) that begins at `at` ends, in a JSON object that is known to be valid.

    msgspec reads no value out of a longer text, but when it is asked to it says where the next token begins: no object is built.
    """
    try:
        _skip.decode(text[at:])
    except msgspec.DecodeError as error:
        if end := _END.search(str(error)):
            return _without_white(text, at, at + int(end[1]) - 1)
        raise
    raise AssertionError("a member is followed by a comma or a brace")


def _without_white(text: memoryview, begin: int, end: int) -> int:
    """The end of a part of a text, without the white space before it."""
    while end > begin:
        piece = bytes(text[max(end - _WHITE_AT_ONCE, begin) : end])
        solid = len(piece.rstrip(_WHITE))
        end -= len(piece) - solid
        if solid:
            break
    return end


def _deep(what: str) -> ApiError:
    return bad_request(f"{what} is nested too deeply")


def _too_many(what: str) -> ApiError:
    return bad_request(f"{what} has more than {MAX_MEMBERS} members")


def _explained(error: Exception, body: bytes, what: str) -> ApiError:
    """The answer to what is wrong with a JSON text."""
    match error:
        case RecursionError():
            sentence = "is nested too deeply"
        case UnicodeDecodeError():
            sentence = "is not valid UTF-8"
        case msgspec.ValidationError():
            sentence = f"holds a number that is out of range: {error}"
        case _ if not bytes(body).strip():
            sentence = "is empty; a JSON object is expected"
        case _:
            sentence = f"is not valid JSON: {error}"
    return bad_request(f"{what} {sentence}")
