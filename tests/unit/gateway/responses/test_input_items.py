"""Pages of input items: order, limits, ids."""

import json
from typing import Any

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.responses.items import ItemPage, page_of, read_page

ITEMS = json.dumps(
    [
        {"type": "message", "role": "user", "content": "one"},
        {"role": "user", "content": "two"},
        {"type": "function_call", "id": "fc_mine", "name": "f", "call_id": "c", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3", "id": None},
    ]
).encode()
IDS = ["item_t_0", "item_t_1", "fc_mine", "item_t_3"]


def page(**asked: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(page_of("t", ITEMS, ItemPage(**asked)))
    return told


def test_every_item_has_an_id_and_the_newest_comes_first() -> None:
    told = page()
    assert [item["id"] for item in told["data"]] == IDS[::-1]
    assert (told["object"], told["first_id"], told["last_id"], told["has_more"]) == (
        *("list", IDS[3], IDS[0]),
        False,
    )
    assert told["data"][0] == {"id": IDS[3], "type": "function_call_output", "call_id": "c", "output": "3"}
    assert told["data"][3] == {"id": IDS[0], "type": "message", "role": "user", "content": "one"}


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_pages_hold_each_item_once(limit: int, newest_first: bool) -> None:
    found: list[str] = []
    more = True
    while more:
        after = found[-1] if found else None
        told = page(limit=limit, newest_first=newest_first, after=after)
        found += [item["id"] for item in told["data"]]
        more = told["has_more"]
        assert told["last_id"] == found[-1]
    assert found == (IDS[::-1] if newest_first else IDS)


def test_behind_the_last_there_is_nothing() -> None:
    told = page(after=IDS[0])
    assert told == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_an_unknown_item_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        page(after="msg_other")
    assert (refused.value.status, refused.value.param) == (400, "after")


def test_what_is_asked_for_is_read() -> None:
    assert read_page(None, None, None) == ItemPage(20, True, None)
    assert read_page("100", "asc", "x") == ItemPage(100, False, "x")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        (("0", None, None), "limit"),
        (("101", None, None), "limit"),
        (("-1", None, None), "limit"),
        (("٣", None, None), "limit"),
        ((None, "newest", None), "order"),
    ],
)
def test_what_makes_no_sense_is_refused(query: tuple[str | None, str | None, str | None], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_page(*query)
    assert (refused.value.status, refused.value.param) == (400, param)
