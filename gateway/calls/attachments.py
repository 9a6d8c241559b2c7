"""Files of the caller's that a request names by their ids: where it does, and the same request with their data instead. Pure.

Only ids that this gateway may have made are looked at; what else stands there is left to whoever reads the request.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Raw, json

from fairlane.gateway.calls.reading import LARGE, MOST_AT_ONCE, MOST_PARTS, refused
from fairlane.gateway.files.names import is_file_id
from fairlane.streaming.jsontext import count_parts, items, join_object, json_string, kind_of, members

MOST_FILES = 100
"""Of one request."""
MOST_MEMBERS = 100
"""Of an item, and of a part: what has more names no file."""
PREFIX: Final = b"data:%b;base64,"
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What models see."""
UNKNOWN: Final = "application/octet-stream"
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)
_OFFICE = "application/vnd.openxmlformats-officedocument"
_ENDINGS = {
    "csv": "text/csv",
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "htm": "text/html",
    "html": "text/html",
    "json": "application/json",
    "md": "text/markdown",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "rtf": "application/rtf",
    "txt": "text/plain",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "xml": "application/xml",
}
_MARK = b'"file_id"'
_text = json.Decoder(str).decode


class Reference(NamedTuple):
    """A part of a request that names a file."""

    place: str
    file_id: str
    image: bool
    """It is to be seen, not read."""


class Attached(NamedTuple):
    """A file as data."""

    name: str
    kind: str
    """Its media type."""
    url: bytes
    """A data URL."""


Groups = Sequence[tuple[str, Sequence[bytes]]]
"""Lists of items, each with the place where it stands."""
Use = Callable[[Reference], Attached | None]
"""What is put in for a reference; None: it stays."""
Part = Callable[[bytes, str, Use], bytes]


class Form(NamedTuple):
    """How one kind of request names files."""

    lists: tuple[str, ...]
    """Members of its items in which parts stand."""
    part: Part
    """A part as `Use` leaves it."""


def media_type_of(head: bytes, name: str) -> str:
    """What a file is that begins so, and has this name."""
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if known := _ENDINGS.get(name.rpartition(".")[2].lower()):
        return known
    return UNKNOWN if b"\0" in head or not _is_text(head) else "text/plain"


def _is_text(head: bytes) -> bool:
    """Whether it may be the beginning of a text: its last character may be cut."""
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3 and error.reason == "unexpected end of data"
    return True


def base64_bytes(size: int) -> int:
    """How many bytes a file of `size` takes as data."""
    return (size + 2) // 3 * 4


def url_bytes(size: int) -> int:
    """The same as a data URL, at most."""
    return base64_bytes(size) + len(PREFIX) + 100


def named_steps(groups: Groups, form: Form) -> Iterator[list[Reference] | None]:
    """The references in some lists of items, each with the place where it stands; others may run after some. The last step yields
    them. Raises ApiError(400) where they are of too many files."""
    found: list[Reference] = []

    def note(reference: Reference) -> None:
        found.append(reference)
        if len(found) > MOST_FILES:
            raise refused(f"{reference.place}.file_id", f"a request may name {MOST_FILES} files")

    for place, listed in groups:
        yield from _each(listed, place, form, note, [])
    yield found


def put_in_steps(groups: Groups, form: Form, use: Use) -> Iterator[list[list[bytes]] | None]:
    """These lists with what `use` puts in. The last step yields them."""
    made: list[list[bytes]] = []
    for place, listed in groups:
        made.append([])
        yield from _each(listed, place, form, use, made[-1])
    yield made


def _each(listed: Sequence[bytes], place: str, form: Form, use: Use, made: list[bytes]) -> Iterator[None]:
    held = 0
    for number, item in enumerate(listed):
        made.append(_item(item, f"{place}[{number}]", form, use) if _MARK in item else item)
        held += len(made[-1])
        if held >= LARGE or number % MOST_AT_ONCE == MOST_AT_ONCE - 1:
            held = 0
            yield


def _item(item: bytes, place: str, form: Form, use: Use) -> bytes:
    found = _members(item)
    if found is None:
        return item
    changed: dict[str, bytes | Raw] = {}
    for name in form.lists:
        raw = found.get(name)
        if raw is None or kind_of(raw) != "[" or count_parts(raw, MOST_PARTS) > MOST_PARTS:
            continue  # whoever reads it refuses too many
        listed = items(raw) or []
        told = [
            form.part(part, f"{place}.{name}[{number}]", use) if _MARK in part else part
            for number, part in enumerate(listed)
        ]
        if any(new is not old for new, old in zip(told, listed, strict=True)):
            changed[name] = b"[%b]" % b",".join(told)
    return _joined({**found, **changed}) if changed else item


def _members(raw: bytes | None) -> dict[str, Raw] | None:
    """The members of an object that has few: one of a million would hold up all others."""
    return members(raw) if count_parts(raw, MOST_MEMBERS) <= MOST_MEMBERS else None


def _joined(pairs: dict[str, bytes | Raw]) -> bytes:
    return join_object((name, bytes(raw)) for name, raw in pairs.items())


def _string(raw: Raw | None) -> str:
    return _text(raw) if kind_of(raw) == '"' and raw is not None else ""


def _id_in(found: dict[str, Raw], *instead: str) -> str:
    """The id that stands in an object, beside none of the members in place of which it stands; '' there is none of ours."""
    if any(kind_of(found.get(name)) for name in instead):
        return ""
    file_id = _string(found.get("file_id"))
    return file_id if is_file_id(file_id) else ""


def _file(found: dict[str, Raw], attached: Attached) -> bytes:
    """An object that has a file's data in place of its id."""
    pairs: dict[str, bytes | Raw] = {name: raw for name, raw in found.items() if name != "file_id"}
    pairs["file_data"] = b'"%b"' % attached.url
    if not kind_of(found.get("filename")):
        pairs["filename"] = json_string(attached.name)
    return _joined(pairs)


def _responses_part(part: bytes, place: str, use: Use) -> bytes:
    """`input_image` and `input_file`."""
    found = _members(part) or {}
    kind = _string(found.get("type"))
    if kind == "input_image" and (file_id := _id_in(found, "image_url")):
        attached = use(Reference(place, file_id, True))
        if attached is not None:
            pairs: dict[str, bytes | Raw] = {name: raw for name, raw in found.items() if name != "file_id"}
            return _joined({**pairs, "image_url": b'"%b"' % attached.url})
    if kind == "input_file" and (file_id := _id_in(found, "file_data", "file_url")):
        attached = use(Reference(place, file_id, False))
        if attached is not None:
            return _file(found, attached)
    return part


def _chat_part(part: bytes, place: str, use: Use) -> bytes:
    """`file`."""
    found = _members(part) or {}
    file = _members(found.get("file"))
    if file is None or _string(found.get("type")) != "file" or not (file_id := _id_in(file, "file_data")):
        return part
    attached = use(Reference(f"{place}.file", file_id, False))
    return part if attached is None else _joined({**found, "file": _file(file, attached)})


RESPONSES: Final = Form(("content", "output"), _responses_part)
CHAT: Final = Form(("content",), _chat_part)
