"""OpenAI's pages of a response's input items. Pure."""

from typing import NamedTuple

import msgspec

from fairlane.gateway.errors import bad_request
from fairlane.gateway.http.paging import read_limit, read_newest_first
from fairlane.gateway.responses.request.stored_input import with_id
from fairlane.streaming.jsontext import items, join_object

PAGE = 20
MAX_OF_PAGE = 100


class _Named(msgspec.Struct):
    id: str | None = None


_named = msgspec.json.Decoder(_Named).decode


class ItemPage(NamedTuple):
    """The parameters of a page."""

    limit: int = PAGE
    newest_first: bool = True
    after: str | None = None
    """The id of the item before the page."""


def read_page(limit: str | None, order: str | None, after: str | None) -> ItemPage:
    """Return the page that a query wants. Raise ApiError(400)."""
    return ItemPage(read_limit(limit, MAX_OF_PAGE, PAGE), read_newest_first(order), after)


def page_of(task_id: str, input_items: bytes, page: ItemPage) -> bytes:
    """Return a page of a list of items as JSON. Raise ApiError(400) if `after` is not one of them."""
    listed = items(input_items) or []
    found = [*enumerate(listed)]
    if page.newest_first:
        found.reverse()
    if page.after is not None:
        names = (_id_of(item, task_id, number) for number, item in found)
        at = next((at for at, name in enumerate(names) if name == page.after), None)
        if at is None:
            raise bad_request("after must be the id of one of these items", "after")
        found = found[at + 1 :]
    shown = [(_id_of(item, task_id, number), item) for number, item in found[: page.limit]]
    ends = (shown[0][0], shown[-1][0]) if shown else (None, None)
    pairs = (
        ("object", b'"list"'),
        ("data", b"[%b]" % b",".join(with_id(item, name) for name, item in shown)),
        ("first_id", msgspec.json.encode(ends[0])),
        ("last_id", msgspec.json.encode(ends[1])),
        ("has_more", b"true" if len(found) > len(shown) else b"false"),
    )
    return join_object(pairs)


def _id_of(item: bytes, task_id: str, number: int) -> str:
    """Return the item's own id, or one made of its number."""
    return _named(item).id or f"item_{task_id}_{number}"
