"""What a query says of a page."""

import pytest

from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.paging import read_limit, read_newest_first


@pytest.mark.parametrize(("text", "limit"), [(None, 20), ("", 20), ("1", 1), ("007", 7), ("100", 100)])
def test_a_page_has_as_many_as_are_asked_for(text: str | None, limit: int) -> None:
    assert read_limit(text, 100, 20) == limit


@pytest.mark.parametrize("text", ["0", "101", "-1", "1.0", "ten", "\u0663", "0001", "1" * 5000])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="from 1 to 100"):
        read_limit(text, 100, 20)


def test_a_page_begins_with_the_newest_unless_it_is_to_be_the_oldest() -> None:
    assert read_newest_first(None)
    assert read_newest_first("desc")
    assert not read_newest_first("asc")
    with pytest.raises(ApiError, match="asc or desc"):
        read_newest_first("up")
