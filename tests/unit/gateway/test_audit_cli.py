"""What `fairlane audit` tells of a change."""

from typing import Any

import pytest

from fairlane.gateway.process.audit_cli import _changes


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"tier": "paid", "note": "", "quota": None, "admin": False}, "tier: paid, admin: false"),
        ({}, {"limits": {"max_running": None}}, ""),
        ({"balance": 50}, {"balance": 0, "credits": -50}, "balance: 50 -> 0, credits: -50"),
        ({"expires": 1_896_048_000_000}, {"expires": None}, "expires: 2030-01-31 00:00Z -> -"),
        ({"until": None}, {"until": 1_896_048_000_000}, "until: - -> 2030-01-31 00:00Z"),
        (
            {"limits": {"max_running": 4, "max_waiting": None}},
            {"limits": {"max_running": 4, "max_waiting": 2}},
            "limits: max_running=4 -> max_running=4 max_waiting=2",
        ),
    ],
)
def test_only_what_was_set_is_shown(before: dict[str, Any], after: dict[str, Any], told: str) -> None:
    assert _changes(before, after) == told
