"""What `fairlane key …` makes of words, before any gateway is asked."""

import time
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlane.gateway.process import keys_cli
from fairlane.gateway.process.cli import app


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["tier=paid", "weight=2.5", "admin=true"], {"tier": "paid", "weight": 2.5, "admin": True}),
        (["models=a, b/c,*"], {"models": ["a", "b/c", "*"]}),
        (['models=["a,b"]'], {"models": ["a,b"]}),
        (
            ["note=5", "user_from=body.user", "tier=null"],
            {"note": "5", "user_from": "body.user", "tier": None},
        ),
        (["expires=2030-01-31"], {"expires": 1_896_048_000_000}),
        (["expires=2030-01-31T01:00+01:00"], {"expires": 1_896_048_000_000}),
        (["expires=null"], {"expires": None}),
        (
            ["limits.requests_per_minute=5", "limits.max_running=null", "user_limits.max_waiting=2"],
            {"limits": {"requests_per_minute": 5, "max_running": None}, "user_limits": {"max_waiting": 2}},
        ),
        (
            ["quota.of=user", "quota.budget=12.340000000000000001", "quota.per=day", "quota.otherwise=5"],
            {"quota": {"of": "user", "budget": "12.340000000000000001", "per": "day", "otherwise": "5"}},
        ),
        (["quota=null"], {"quota": None}),
        (["quota={}"], {"quota": {}}),
        (["limits=null", "user.x=1"], {"limits": None, "user.x": 1}),
        (['limits={"a": 1}', "other=x"], {"limits": {"a": 1}, "other": "x"}),
    ],
)
def test_words_become_a_body(words: list[str], body: dict[str, Any]) -> None:
    assert keys_cli._read(words) == body


def test_a_time_from_now_is_one() -> None:
    days = (keys_cli._read(["expires=30d"])["expires"] / 1000 - time.time()) / 86_400
    assert 29.9 < days <= 30


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "b", "tier"], "'tier' is no value; write name=value"),
        (["create", "b", "tier="], "'tier=' is no value; write name=value"),
        (["create", "tier=a", "tier=b"], "tier is given twice"),
        (["create", "b", "limits.a=1", "limits.a=2"], "limits.a is given twice"),
        (["change", "b", "limits=null", "limits.a=2"], "limits is given twice"),
        (["change", "b", "limits.a=2", "limits=null"], "limits is given twice"),
        (["create", "b", "expires=soon"], "expires must be a time from now"),
        (["rotate", "b", "--keep", "long"], "--keep must be a time such as 30m, 24h or 7d, or 0"),
        (["show", "b", "--gateway", "http://127.0.0.1:1"], "no gateway answers at http://127.0.0.1:1"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["key", *arguments])
    assert done.exit_code == 2
    assert sentence in done.output
