"""What the settings are: defaults, ranges, and what does not fit together."""

from typing import Any

import pytest
from pydantic import ValidationError

from fairlane.gateway.settings import CallerKey, QueueSettings, Settings, hide_password
from fairlane.workers.hosts import is_loopback

SHA = "a" * 64


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1


def test_run_limit_is_the_longest_timeout_unless_set() -> None:
    assert Settings().run_limit_ms == 600_000
    assert Settings(worker_timeout_ms=7_000).run_limit_ms == 7_000


def test_partial_queue_keeps_the_rest_of_its_default() -> None:
    settings = Settings.model_validate({"queues": {"paid_stream": {"max_wait_ms": 30_000}}})
    assert settings.queues["paid_stream"] == QueueSettings(
        tier="paid", mode="stream", weight=8, max_wait_ms=30_000
    )
    assert len(settings.queues) == 6


def test_a_new_tier_has_its_own_queues() -> None:
    vip = {
        f"vip_{mode}": {"tier": "vip", "mode": mode, "weight": 16} for mode in ("stream", "batch", "vision")
    }
    settings = Settings.model_validate({"queues": vip})
    assert settings.tiers == {"vip", "paid", "free"}
    assert settings.queue_for("vip", "batch") == "vip_batch"
    assert settings.queue_for("free", "vision") == "free_vision"
    with pytest.raises(KeyError):
        settings.queue_for("gold", "stream")


def test_queue_limits_fall_back_to_the_gateways() -> None:
    settings = Settings.model_validate(
        {"max_queue_length": 5, "max_queue_wait_ms": 9, "queues": {"paid_batch": {"max_length": 2}}}
    )
    assert [settings.queue_max_length(name) for name in ("paid_batch", "free_batch")] == [2, 5]
    assert settings.queue_max_wait_ms("paid_batch") == 9
    assert Settings().queue_max_wait_ms("paid_batch") is None


def test_unlisted_model_has_the_defaults_and_an_empty_entry_too() -> None:
    settings = Settings.model_validate({"models": {"m": {"concurrency": 8}, "n": None}})
    assert settings.model("m").concurrency == 8
    assert settings.model("n") == settings.model("whatever")
    assert settings.model("whatever").cost == "tokens"


@pytest.mark.parametrize(
    "values",
    [
        {"port": 65_536},
        {"max_queue_length": 0},
        {"task_timeout_ms": -1},
        {"stream_flush_interval_ms": 1001},
        {"queues": {"paid_stream": {"weight": 0}}},
        {"queues": {"paid_stream": {"weight": float("nan")}}},
        {"queues": {"paid_stream": {"weight": float("inf")}}},
        {"queues": {"a:b": {"tier": "free", "mode": "stream"}}},
        {"models": {"m": {"concurrency": 0}}},
        {"models": {"m": {"requests_per_minute": 0}}},
        {"models": {"m": {"tokens_per_minute": -1}}},
        {"models": {"m": {"windows": "50"}}},
        {"models": {"m": {"windows": 50}}},
        {"models": {"m": {"max_running_per_user": 0}}},
        {"models": {"m": {"max_waiting_per_user": "many"}}},
        {"models": {"m": {"paused": True}}},
        {"queues": {"paid_stream": {"reserved": -1}}},
        {"queues": {"paid_stream": {"reserved": None}}},
        {"queues": {"paid_stream": {"max_running": 0}}},
        {"queues": {"paid_stream": {"admission": "sometimes"}}},
        {"models": {"m": {"cost": "euros"}}},
        {"keys": [{"id": "a b", "sha256": SHA}]},
        {"keys": [{"id": "a\n", "sha256": SHA}]},
        {"keys": [{"id": "a", "sha256": SHA[1:]}]},
        {"keys": [{"id": "a", "sha256": SHA[1:] + "g"}]},
        {"redis_url": "http://localhost"},
        {"redis_url": "redis://[::1"},
        {"redis_url": "redis://"},
        {"redis_url": "redis://:secret@a,b:6379"},
        {"stream_token_secret": "short"},
        {"cors_origins": ["https://app.example/"]},
        {"cors_origins": ["app.example"]},
        {"log_level": "loud"},
        {"unknown": 1},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_task_timeout_ms": 700_000}, "min_task_timeout_ms"),
        ({"lease_ms": 1000}, "lease_ms"),
        ({"queues": {"x": {"tier": "paid", "mode": "stream"}}}, "same tier and mode"),
        ({"queues": {"x": {"tier": "vip", "mode": "stream"}}}, "no queue of mode batch and vision"),
        ({"keys": [{"id": "a", "sha256": SHA, "tier": "gold"}]}, "no queue has the tier 'gold'"),
        ({"keys": [{"id": "a", "sha256": SHA}, {"id": "a", "sha256": "b" * 64}]}, "used more than once"),
        ({"keys": [{"id": "a", "sha256": SHA}], "workers": [{"id": "w", "sha256": "A" * 64}]}, "sha256"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Settings.model_validate(values)


def test_key_hash_is_compared_in_lower_case() -> None:
    assert CallerKey(id="a", sha256="AB" * 32).sha256 == "ab" * 32


def test_repr_shows_neither_passwords_nor_secrets() -> None:
    settings = Settings.model_validate(
        {"redis_url": "redis://:hunter2@db:6379", "stream_token_secret": "correct horse battery"}
    )
    assert "hunter2" not in repr(settings)
    assert "horse" not in repr(settings)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LocalHost"])
def test_loopback_hosts(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.com", "", "localhost.example.com"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_hidden_password_leaves_the_rest_of_the_url() -> None:
    assert hide_password("rediss://me:pw@db:6379/1?password=x") == "rediss://***@db:6379/1?***"
    assert hide_password("unix:///run/redis.sock") == "unix:///run/redis.sock"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("task_timeout_ms", "90s", 90_000),
        ("archive_ttl_ms", "7d", 604_800_000),
        ("drain_ms", "500ms", 500),
        ("max_body_bytes", "32MiB", 32 << 20),
        ("max_queued_bytes", "2 GiB", 2 << 30),
    ],
)
def test_durations_and_sizes_may_have_units(name: str, text: str, value: int) -> None:
    assert getattr(Settings.model_validate({name: text}), name) == value


@pytest.mark.parametrize("text", ["90 secs", "1.5h", "s", "32MB", "-1s"])
def test_other_units_are_rejected(text: str) -> None:
    for name in ("task_timeout_ms", "max_body_bytes"):
        with pytest.raises(ValidationError):
            Settings.model_validate({name: text})
