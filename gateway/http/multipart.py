"""Forms (`multipart/form-data`), read part by part as they come: nothing of them is held.

What a client decides is bounded: how many parts, how long their heads and fields, and by the body's limit the rest. A form that
is cut off, or is none, is a 400 that says what is wrong.
"""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from fairlane.gateway.errors import ApiError, bad_request, too_large
from fairlane.gateway.http.request import Request

MAX_PARTS = 64
"""Maximum number of parts of a form. OpenAI's have less than twenty."""
MAX_PART_HEADERS = 8
MAX_HEADER_BYTES = 4096
MAX_FIELD_BYTES = 64 * 1024
"""Maximum size of a part that is no file."""
FRAMING_BYTES = 256 * 1024
"""Bytes of a form in addition to its largest part: boundaries, heads and fields."""
_ENCODINGS = ("", "binary", "8bit", "7bit")
_ESCAPED = (("%22", '"'), ("%0D", "\r"), ("%0A", "\n"))
"""Escapes of clients in names; nothing else is escaped."""


class Head(NamedTuple):
    """The head of a part."""

    name: str
    filename: str | None
    """None: it is a field. Never trusted: it is what the client calls it."""
    content_type: str
    """As the client sends it; '' if absent."""


class FormReader:
    """Splits the bytes of a form into its parts. Pure.

    `feed` gives what came, in order: a Head begins a part, bytes belong to it, None ends it.
    """

    def __init__(self, boundary: bytes) -> None:
        self.ended = False
        """The form is whole; whatever follows is dropped."""
        self._found: list[Head | bytes | None] = []
        self._parts = 0
        self._name = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._on_name,
                "on_header_value": self._on_value,
                "on_header_end": self._on_header,
                "on_headers_finished": self._on_head,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end_of_part,
                "on_end": self._on_end,
            },
            max_header_count=MAX_PART_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )

    def feed(self, data: bytes) -> list[Head | bytes | None]:
        """Return the parts and bytes that these bytes complete. Raise ApiError(400)."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise bad_request(f"The body is not a valid multipart/form-data form: {error}") from None
        found, self._found = self._found, []
        return found

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise bad_request(f"The form has more than {MAX_PARTS} parts")
        self._headers, self._name, self._value = {}, b"", b""

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        name = self._name.lower()
        if name in self._headers:
            raise bad_request(f"A part of the form has two headers {name.decode('latin-1')}")
        self._headers[name], self._name, self._value = self._value, b"", b""

    def _on_head(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise bad_request(
                'A part of the form has no name: Content-Disposition: form-data; name="…" is needed'
            )
        encoding = self._headers.get(b"content-transfer-encoding", b"").decode("latin-1").strip().lower()
        if encoding not in _ENCODINGS:
            raise bad_request("Content-Transfer-Encoding is not supported: send the bytes as they are")
        filename = options.get(b"filename")
        self._found.append(
            Head(
                _text(name),
                None if filename is None else _text(filename),
                self._headers.get(b"content-type", b"").decode("latin-1").strip(),
            )
        )

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self._found.append(data[start:end])

    def _on_end_of_part(self) -> None:
        self._found.append(None)

    def _on_end(self) -> None:
        self.ended = True


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    for escaped, character in _ESCAPED:
        text = text.replace(escaped, character)
    return text


class Part:
    """A part of a form that is being read. Bytes that are not read are dropped when the next part is requested."""

    __slots__ = ("_form", "content_type", "filename", "name")

    def __init__(self, head: Head, form: "Form") -> None:
        self.name, self.filename, self.content_type = head
        self._form = form

    async def pieces(self, most: int | None = None) -> AsyncIterator[bytes]:
        """Yield its bytes as they arrive. Raise ApiError as `Form`, and 413 beyond `most`."""
        size = 0
        while True:
            piece = await self._form.more()
            if piece is None:
                return
            size += len(piece)
            if most is not None and size > most:
                raise ApiError(
                    413,
                    "BODY_TOO_LARGE",
                    f"{self.name} is larger than the limit of {most} bytes",
                    param=self.name,
                )
            yield piece

    async def value(self, most: int = MAX_FIELD_BYTES) -> bytes:
        """Return all bytes. Raise as `pieces`."""
        return b"".join([piece async for piece in self.pieces(most)])

    async def text(self, most: int = MAX_FIELD_BYTES) -> str:
        """Return the bytes as text. Raise as `pieces`, and ApiError(400) if they are not UTF-8."""
        try:
            return (await self.value(most)).decode()
        except UnicodeDecodeError:
            raise bad_request(f"{self.name} is not valid UTF-8", self.name) from None


class Form:
    """The form of a request. `async for part in form` reads it once, to the end of the body.

    Raises ApiError: 415 when it says that it is none, 400 when it is none or is cut off, 413, 408, 401, and ClientGone.
    """

    def __init__(self, request: Request, limit: int) -> None:
        """`limit`: bytes of the whole body."""
        self._reader = FormReader(_boundary(request))
        self._body = request.body_parts(limit)
        self._found: deque[Head | bytes | None] = deque()
        self._inside = False
        """A part has begun and not ended."""

    async def __aiter__(self) -> AsyncIterator[Part]:
        async with aclosing(self._body):
            while await self._fill():
                found = self._found.popleft()
                if isinstance(found, Head):
                    self._inside = True
                    yield Part(found, self)
                    while await self.more() is not None:
                        pass

    async def more(self) -> bytes | None:
        """Return the next bytes of the current part; None at its end."""
        found = self._found.popleft() if self._inside and await self._fill() else None
        if isinstance(found, bytes):
            return found
        self._inside = False
        return None

    async def _fill(self) -> bool:
        """Read the body until there is something of the form; return False at its end. Raise ApiError(400) if it is cut off."""
        while not self._found:
            data = await anext(self._body, None)
            if data is None:
                if not self._reader.ended:
                    raise bad_request("The form is cut off: its closing boundary is missing")
                return False
            self._found.extend(self._reader.feed(data))
        return True


class WholePart(NamedTuple):
    """A part of a form that was small enough to be held."""

    name: str
    filename: str | None
    content_type: str
    data: bytes


async def read_whole(request: Request, limit: int) -> list[WholePart]:
    """Return all parts of a form, at most `limit` bytes of them together. Raise ApiError (as `Form`) and ClientGone."""
    parts: list[WholePart] = []
    held = 0
    async for part in Form(request, limit + FRAMING_BYTES):
        pieces = []
        async for piece in part.pieces(MAX_FIELD_BYTES if part.filename is None else limit):
            held += len(piece)
            if held > limit:
                raise too_large(limit)
            pieces.append(piece)
        parts.append(WholePart(part.name, part.filename, part.content_type, b"".join(pieces)))
    return parts


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.header(b"content-type"))
    if kind != b"multipart/form-data":
        raise ApiError(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            "Send a form with the header Content-Type: multipart/form-data; boundary=…",
        )
    boundary = options.get(b"boundary")
    if not boundary or len(boundary) > 200:
        raise bad_request("The header Content-Type of a form must name its boundary, of at most 200 bytes")
    return boundary
