"""Pages of a response's input items, as OpenAI's clients ask for them. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from fairlane.gateway.errors import bad_request
from fairlane.streaming.jsontext import items, join_object, members, string_or_none

PAGE = 20
MOST_OF_PAGE = 100
_KINDS = {
    b'"message"': "msg",
    b'"reasoning"': "rs",
    b'"function_call"': "fc",
    b'"function_call_output"': "fco",
}
"""How the ids of items of these types begin."""


class Asked(NamedTuple):
    """Which items."""

    limit: int = PAGE
    newest_first: bool = True
    after: str | None = None
    """The id of the item behind which they come."""


def read_asked(limit: str | None, order: str | None, after: str | None) -> Asked:
    """What a query asks for. Raises ApiError(400)."""
    limit = limit or str(PAGE)
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and 1 <= int(limit) <= MOST_OF_PAGE):
        raise bad_request(f"limit must be a whole number from 1 to {MOST_OF_PAGE}", "limit")
    if order not in (None, "asc", "desc"):
        raise bad_request("order must be asc or desc", "order")
    return Asked(int(limit), order != "asc", after)


def page_of(task_id: str, input_items: bytes, asked: Asked) -> bytes:
    """A page of a list of items as its JSON. Raises ApiError(400) where none of them is `after`."""
    found = list(_named(task_id, items(input_items) or []))
    if asked.newest_first:
        found.reverse()
    if asked.after is not None:
        at = next((at for at, (name, _) in enumerate(found) if name == asked.after), None)
        if at is None:
            raise bad_request("after must be the id of one of these items", "after")
        found = found[at + 1 :]
    shown = found[: asked.limit]
    ends = (shown[0][0], shown[-1][0]) if shown else (None, None)
    pairs = (
        ("object", b'"list"'),
        ("data", b"[%b]" % b",".join(item for _, item in shown)),
        ("first_id", msgspec.json.encode(ends[0])),
        ("last_id", msgspec.json.encode(ends[1])),
        ("has_more", b"true" if len(found) > len(shown) else b"false"),
    )
    return join_object(pairs)


def _named(task_id: str, found: list[bytes]) -> Iterator[tuple[str, bytes]]:
    """Each item and its id: the one that its caller gave it, else one that is made of its place."""
    for at, item in enumerate(found):
        said = members(item) or {}
        told = string_or_none(said.get("id"))
        if told is not None:
            yield msgspec.json.decode(told, type=str), item
            continue
        kind = _KINDS.get(bytes(said.get("type", b'"message"')), "item")
        name = f"{kind}_{task_id}_in{at}"
        rest = [(member, bytes(value)) for member, value in said.items() if member != "id"]
        yield name, join_object([("id", msgspec.json.encode(name)), *rest])
