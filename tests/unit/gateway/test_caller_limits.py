"""Limits as callers are told of them, and as the configuration may set them."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from fairlane.gateway.accounts.callers import Callers, digest
from fairlane.gateway.core.submit import rate_limited
from fairlane.gateway.errors import duration, native_answer, openai_answer
from fairlane.gateway.http.rate_limits import limit_headers
from fairlane.gateway.settings import CallerKey, KeyLimits, Settings, SettingsError, load_settings
from fairlane.gateway.settings.flatten import flatten
from fairlane.queues.limits import RateLimitStatus, Remaining, pack
from fairlane.queues.tasks import LimitHit, Rejection

SHA = digest("secret")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *((0, "0s"), (1, "1ms"), (999, "999ms"), (1000, "1s"), (1500, "1.5s"), (41_724, "41.724s")),
        *((60_000, "1m0s"), (179_560, "2m59.56s"), (360_000, "6m0s"), (3_600_000, "1h0m0s")),
        *((86_400_000, "24h0m0s"), (86_399_998, "23h59m59.998s")),
    ],
)
def test_durations_are_written_as_go_writes_them(ms: int, text: str) -> None:
    assert duration(ms) == text


def refused(setting: str, retry_ms: int, asked: int = 1) -> Rejection:
    reached = LimitHit(setting, 100, 98, asked)
    return Rejection("rate_limited", retry_ms=retry_ms, reached=reached)


@pytest.mark.parametrize(
    ("setting", "retry_ms", "asked", "kind", "sentence"),
    [
        (
            *("tokens_per_minute", 41_724, 50, "tokens"),
            "Rate limit reached for this key on tokens per min (TPM): Limit 100, Used 98, Requested 50. "
            "Please try again in 41.724s.",
        ),
        (
            *("requests_per_day", 864_000, 1, "requests"),
            "Rate limit reached for this key on requests per day (RPD): Limit 100, Used 98, Requested 1. "
            "Please try again in 14m24s.",
        ),
        (
            *("max_waiting", 1500, 1, "requests"),
            "Rate limit reached for this key on waiting tasks: Limit 100, Waiting 98. Please try again in 1.5s.",
        ),
    ],
)
def test_a_refusal_has_openais_words_and_ours(
    setting: str, retry_ms: int, asked: int, kind: str, sentence: str
) -> None:
    error = rate_limited(refused(setting, retry_ms, asked))
    openai, native = openai_answer(error), native_answer(error)
    assert (openai.status, native.status) == (429, 429)
    body = {"message": sentence, "type": kind, "param": None, "code": "rate_limit_exceeded"}
    body["docs_url"] = "/docs#RATE_LIMITED"
    assert json.loads(openai.body) == {"error": body}
    assert json.loads(native.body) == {
        "error": sentence,
        "code": "RATE_LIMITED",
        "docsUrl": "/docs#RATE_LIMITED",
        "rateLimited": True,
        "retryAfterMs": retry_ms,
        "retryAfter": -(-retry_ms // 1000),
    }


@pytest.mark.parametrize(
    ("retry_ms", "seconds", "hopeless"),
    [(1, b"1", False), (60_000, b"60", False), (60_001, b"61", True), (80_000_000, b"80000", True)],
)
def test_the_time_of_a_days_limit_is_told_whole(retry_ms: int, seconds: bytes, hopeless: bool) -> None:
    for answer in (openai_answer, native_answer):
        headers = dict(answer(rate_limited(refused("tokens_per_day", retry_ms))).headers)
        assert headers.get(b"retry-after") == seconds
        assert headers.get(b"retry-after-ms") == b"%d" % retry_ms
        assert headers.get(b"x-should-retry") == (b"false" if hopeless else None)


def test_the_log_says_whose_limit_it_was() -> None:
    of_user = Rejection(
        "rate_limited", retry_ms=1, reached=LimitHit("requests_per_day", 1, 1, 1, of_user=True)
    )
    assert rate_limited(of_user).facts == {"limit": "user_limits.requests_per_day"}
    assert str(rate_limited(of_user)).startswith(
        "Rate limit reached for this user on requests per day (RPD): "
    )
    assert rate_limited(refused("max_waiting", 1)).facts == {"limit": "limits.max_waiting"}


def test_headers_tell_of_what_has_a_limit_and_of_nothing_else() -> None:
    assert limit_headers(RateLimitStatus(None, None)) == []
    assert limit_headers(RateLimitStatus(Remaining(60, 59, 1000), Remaining(100_000, 0, 360_000))) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"100000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"6m0s"),
    ]


def test_limits_are_packed_and_none_are_nothing() -> None:
    assert pack(KeyLimits().model_dump()) == ""
    assert pack(KeyLimits(max_running=3, tokens_per_day=9).model_dump()) == "0 0 0 9 0 3"


def test_a_caller_carries_the_limits_of_its_key_and_those_of_each_user() -> None:
    keys = [
        CallerKey(id="site", sha256=SHA, delegating=True, user_limits=KeyLimits(max_waiting=1)),
        CallerKey(id="acme", sha256=digest("other"), limits=KeyLimits(requests_per_day=5)),
    ]
    callers = Callers(Settings(keys=keys))
    headers = {b"authorization": "Bearer secret", b"x-fairlane-user": "ann"}
    ann = callers.authenticate(headers.get)
    assert (ann.user, ann.key_limits, ann.user_limits) == ("site/ann", "", "0 0 0 0 1 0")
    acme = callers.authenticate({b"authorization": "Bearer other"}.get)
    assert (acme.key_limits, acme.user_limits) == ("0 5 0 0 0 0", "")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "limits: {requests_per_minute: 0}",
            "limits.requests_per_minute: Input should be greater than or equal to 1",
        ),
        ("limits: {tokens_per_day: many}", "limits.tokens_per_day: Input should be a valid integer"),
        (
            "limits: {request_per_minute: 5}",
            "limits.request_per_minute: unknown setting; did you mean requests_per_minute?",
        ),
        (
            "limits: 5",
            "limits: Input should be settings by their names: requests_per_minute, requests_per_day",
        ),
        (
            "user_limits: {max_waiting: 5}",
            "user_limits: only a delegating key has several users: set `limits`, or make the key delegating",
        ),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_at_its_place(
    tmp_path: Path, said: str, sentence: str
) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(f"keys:\n  - {{id: acme, sha256: {SHA}, {said}}}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {}, {})
    (problem,) = caught.value.problems
    assert f"keys[0].{sentence}" in str(problem)


def test_an_empty_or_missing_limit_is_none() -> None:
    for said in ({}, {"limits": {}}, {"limits": {"max_running": None}}):
        settings = Settings.model_validate({"keys": [{"id": "acme", "sha256": SHA, **said}]})
        assert Callers(settings).authenticate({b"authorization": "Bearer secret"}.get).key_limits == ""
    with pytest.raises(ValidationError):
        KeyLimits(max_running=-1)


def test_the_settings_in_force_show_limits_where_there_are_any() -> None:
    keys = [CallerKey(id="a", sha256=SHA, limits=KeyLimits(max_running=2, requests_per_day=5))]
    found = flatten(Settings(keys=[*keys, CallerKey(id="b", sha256=digest("b"))]))
    limits = {leaf.name: leaf.value for leaf in found if "limits." in leaf.name and leaf.value is not None}
    assert limits == {"keys.a.limits.requests_per_day": 5, "keys.a.limits.max_running": 2}
