import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.core.links import TICKET_CHARS, Tickets

SECRET = b"0123456789abcdef"
TASK = "018bcfe5-6800-8000-8000-000000000001"
NOW = 1_800_000_000_000


def test_ticket_tells_when_its_time_ends() -> None:
    tickets = Tickets(SECRET)
    assert tickets.expiry(tickets.issue(TASK, NOW), TASK) == NOW


def test_another_replica_with_the_same_secret_accepts_it() -> None:
    assert Tickets(SECRET).expiry(Tickets(SECRET).issue(TASK, NOW), TASK)


def test_another_task_or_another_secret_refuses_it() -> None:
    token = Tickets(SECRET).issue(TASK, NOW + 1000)
    assert Tickets(SECRET).expiry(token, TASK[:-1] + "2") is None
    assert Tickets(SECRET + b"!").expiry(token, TASK) is None


def test_ticket_is_short_and_needs_no_escaping_in_a_url() -> None:
    token = Tickets(SECRET).issue(TASK, NOW)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert len(token) == TICKET_CHARS


def test_any_changed_character_breaks_it() -> None:
    tickets = Tickets(SECRET)
    token = tickets.issue(TASK, NOW + 1000)
    for at, char in enumerate(token):
        other = "A" if char != "A" else "B"
        assert tickets.expiry(token[:at] + other + token[at + 1 :], TASK) is None


@given(st.text(max_size=40) | st.text("ABCab01-_=", min_size=32, max_size=32), st.text(max_size=40))
def test_arbitrary_text_is_refused_and_never_raises(token: str, task_id: str) -> None:
    assert Tickets(SECRET).expiry(token, task_id) is None


def test_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes"):
        Tickets(b"short")
