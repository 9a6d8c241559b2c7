"""JSON of upstreams, read leniently: no answer is lost because of an invalid byte or number in it. Pure."""

import json
from typing import Any

import msgspec
from msgspec import Raw

LARGE = 1 << 20
MAX_DIGITS = 1000
MAX_NUMBER = 10**15
SUBJECTS = frozenset({"input", "messages", "prompt"})
MAX_PARTS = 250_000
"""In a large text: at least as many as the objects that it would become."""


class NotJsonError(ValueError):
    """The text is not JSON, also for a lenient reader."""


def lenient(raw: bytes) -> Any:
    """Return the value of JSON that may have invalid UTF-8, control characters or halves of surrogate pairs in its texts (the
    halves stay), NaN, Infinity or a whole number of more than MAX_DIGITS (None), or a byte order mark. Raise NotJsonError."""
    text = raw.decode(errors="replace").removeprefix("\ufeff")
    try:
        return json.loads(text, strict=False, parse_constant=lambda _: None, parse_int=_whole_number)
    except ValueError as error:
        raise NotJsonError(str(error)) from error


def _whole_number(digits: str) -> int | None:
    return int(digits) if len(digits) <= MAX_DIGITS else None


def number(value: Any) -> int | float | None:
    """Return a number from 0 to below MAX_NUMBER, also one that a text has (servers write `7.0`, and `"7"`); None for any other
    value."""
    if isinstance(value, str) and len(value) <= MAX_DIGITS and value.isascii() and value.isdigit():
        value = int(value)
    return value if isinstance(value, int | float) and 0 <= value < MAX_NUMBER else None


def count(value: Any) -> int | None:
    """Return a `number` that is whole, as an integer."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def check_size(raw: bytes, max_parts: int = MAX_PARTS) -> None:
    """Raise ValueError for JSON that would become too many objects."""
    if len(raw) > LARGE and max(raw.count(b":"), raw.count(b"{"), raw.count(b",") // 8) > max_parts:
        raise ValueError(f"JSON of more than {max_parts} parts")


def encoded(value: Any) -> Raw:
    """Return a value as JSON; halves of surrogate pairs are joined, or become U+FFFD."""
    try:
        return Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:
        return Raw(msgspec.json.encode(json.loads(joined(json.dumps(value, ensure_ascii=False)))))


def joined(text: str) -> str:
    """Return a text whose halves of surrogate pairs are joined; one without its other half becomes U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def given_members(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return the members of a request, without null, empty texts and empty lists, but for the text or list that it is about."""
    return {
        name: raw
        for name, raw in members.items()
        if bytes(memoryview(raw)[:5]) not in (b"null", b'""', b"[]")
        or (name in SUBJECTS and bytes(raw) != b"null")
    }


def without_nulls(value: Any) -> Any:
    """Return a value whose objects have no members that are null or an empty list."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None and item != []}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
