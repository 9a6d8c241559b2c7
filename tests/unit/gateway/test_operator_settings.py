"""What a change of a queue's or a model's limits may say, and what its refusal says."""

import json
from typing import Any

import pytest
from tests.unit.gateway.refused import refused

from fairlane.gateway.admin.changes import (
    Values,
    changeable,
    check_name,
    configured,
    described,
    effective_values,
    read_change,
)
from fairlane.gateway.settings import ModelSettings, QueueSettings, Settings, external_name
from fairlane.queues.rules import Kind

SETTINGS = Settings.model_validate(
    {
        "queues": {"paid_stream": {"reserved": 2}, "free_batch": {"max_length": 5}},
        "models": {"m": {"concurrency": 4, "first_output_ms": 9000}},
    }
)


KINDS: tuple[Kind, ...] = ("queue", "model")


def change(kind: Kind, name: str, fields: Values) -> Values:
    return read_change(SETTINGS, kind, name, fields)


def test_every_limit_is_a_setting_and_everything_configured_is_told_to_the_scheduler() -> None:
    assert set(changeable("queue")) == set(QueueSettings.model_fields) - {"tier", "mode"}
    assert set(changeable("model")) == set(ModelSettings.model_fields) - {
        *("first_output_ms", "silence_ms", "adaptive_timeouts", "fallbacks", "fallback_after_ms", "pool")
    }
    queues, models = configured(SETTINGS)
    assert queues.keys() == SETTINGS.queues.keys()
    assert queues["paid_stream"] == {
        "weight": 8,
        "max_length": 1000,
        "max_wait_ms": None,
        "max_running": None,
        "reserved": 2,
        "admission": "fixed",
    }
    assert models == {
        "m": {
            "concurrency": 4,
            "cost": "tokens",
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "windows": None,
            "max_running_per_user": None,
            "max_waiting_per_user": None,
            "breaker_failures": None,
            "breaker_open_ms": None,
        }
    }


@pytest.mark.parametrize(
    ("kind", "name", "fields"),
    [
        ("queue", "paid_stream", {"weight": 4, "max_running": 10}),
        ("model", "m", {"windows": "50/1s, 1000/1m"}),
        ("queue", "paid_stream", {"weight": 0.5}),
        ("queue", "paid_stream", {"paused": True}),
        ("queue", "paid_stream", {"weight": None, "paused": None, "max_running": None}),
        ("queue", "paid_stream", {"reserved": 0}),
        ("model", "m", {"concurrency": 8, "cost": "slot_seconds"}),
        ("model", "nobody/offers:this", {"requests_per_minute": 60, "tokens_per_minute": 10**9}),
        ("model", "m", {}),
    ],
)
def test_a_change_that_makes_sense_is_taken_as_it_is(kind: Kind, name: str, fields: Values) -> None:
    assert change(kind, name, fields) == fields


def test_a_duration_has_a_unit_and_is_stored_in_milliseconds() -> None:
    assert change("queue", "paid_stream", {"max_wait": "30s", "admission": None}) == {
        "max_wait_ms": 30_000,
        "admission": None,
    }
    error = refused(lambda: change("queue", "paid_stream", {"max_wait": 30}))
    assert error.message == "max_wait should be a duration such as 500ms, 30s, 5m, 12h or 7d; got 30"


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("queue", {"wieght": 1}, "'wieght' is no setting of a queue; did you mean weight?"),
        ("queue", {"concurrency": 1}, "'concurrency' is no setting of a queue"),
        ("model", {"weight": 1}, "'weight' is no setting of a model"),
        ("queue", {"tier": "free"}, "tier can only be changed in the configuration"),
        ("model", {"silence": "5s"}, "silence is set with `fairlane override create model NAME silence="),
        ("queue", {"weight": 0}, "weight should be greater than or equal to 0.001; got 0"),
        ("queue", {"weight": "4"}, "weight should be a valid number; got '4'"),
        ("queue", {"weight": True}, "weight should be a valid number; got True"),
        ("queue", {"max_length": 2.5}, "max_length should be a valid integer; got 2.5"),
        ("queue", {"max_length": [1]}, "max_length should be a valid integer; got [1]"),
        ("queue", {"max_running": 0}, "max_running should be greater than or equal to 1; got 0"),
        ("queue", {"admission": "never"}, "admission should be 'fixed' or 'adaptive'; got 'never'"),
        ("queue", {"paused": 1}, "paused should be true or false; got 1"),
        ("queue", {"paused": "yes"}, "paused should be true or false; got 'yes'"),
        ("model", {"concurrency": 0}, "concurrency should be greater than or equal to 1; got 0"),
        ("model", {"cost": "euros"}, "cost should be 'tokens', 'requests' or 'slot_seconds'; got 'euros'"),
        (
            "model",
            {"windows": "50/s"},
            "windows should be like `50/1s` or `50/1s, 1000/1m` (ms, s, m or h); got '50/s'",
        ),
        ("model", {"windows": ""}, "windows should be like `50/1s`"),
        ("model", {"windows": 50}, "windows should be a valid string; got 50"),
        ("model", {"windows": ["50/1s"]}, "windows should be a valid string; got ['50/1s']"),
        ("model", {"windows": "0/1s"}, "windows should hold 1 to 10,000 requests in each window; got '0/1s'"),
        ("model", {"windows": "1/1s" + 60 * ", 1/1s"}, "windows should have at most 100 characters"),
        ("model", {"concurrency": 10**400}, "concurrency should be less than or equal to 10000000; got 1000"),
        (
            "model",
            {"concurrency": 0, "colour": 1, "paused": "x"},
            "'colour' is no setting of a model; paused should be true or false; got 'x'; "
            "concurrency should be greater than or equal to 1; got 0",
        ),
    ],
)
def test_a_change_that_makes_none_is_refused_with_a_sentence(
    kind: Kind, fields: dict[str, Any], sentence: str
) -> None:
    error = refused(lambda: change(kind, "paid_stream" if kind == "queue" else "m", fields))
    assert (error.status, error.code) == (400, "INVALID_REQUEST")
    assert error.message.startswith(sentence)
    assert len(error.message) < 400
    json.dumps(error.message)


def test_queues_without_limits_of_their_own_are_configured_with_the_gateways() -> None:
    settings = SETTINGS.model_copy(update={"max_queue_length": 7, "max_queue_wait_ms": 9000})
    queues, _ = configured(settings)
    assert (queues["free_batch"]["max_length"], queues["paid_batch"]["max_length"]) == (5, 7)
    assert {values["max_wait_ms"] for values in queues.values()} == {9000}


def test_what_is_not_stored_holds_as_if_nothing_were_configured() -> None:
    assert effective_values("queue", {"weight": 8.0, "paused": True, "reserved": None}) == {
        "weight": 8.0,
        "max_length": None,
        "max_wait_ms": None,
        "max_running": None,
        "reserved": 0,
        "admission": "fixed",
        "paused": True,
    }
    model = effective_values("model", {})
    assert (model["concurrency"], model["cost"], model["paused"]) == (None, "tokens", False)


def test_an_unknown_queue_is_404_and_any_sensible_name_is_a_model() -> None:
    error = refused(lambda: check_name(SETTINGS, "queue", "vip"))
    assert (error.status, error.code) == (404, "QUEUE_NOT_FOUND")
    assert error.message.startswith("There is no queue 'vip'; there are paid_stream, ")
    check_name(SETTINGS, "queue", "paid_stream")
    check_name(SETTINGS, "model", "whatever/it:is")
    check_name(SETTINGS, "model", "*")
    for name in ("", "x" * 201, "a\nb"):
        assert refused(lambda name=name: check_name(SETTINGS, "model", name)).status == 400  # type: ignore[misc]


def test_every_setting_is_described_with_its_bounds() -> None:
    for kind in KINDS:
        assert list(described(kind)) == [external_name(name) for name in changeable(kind)]
        for name, about in described(kind).items():
            assert 10 < len(about["help"]) < 200, name
            assert about["choices"] or about["minimum"] is not None or about["type"] == "string", name
    assert described("queue")["weight"] == {
        "help": "Share of a contended model, relative to the other queues with waiting tasks.",
        "type": "number",
        "minimum": 0.001,
        "maximum": 1_000_000,
        "choices": None,
    }
    assert described("model")["cost"]["choices"] == ["tokens", "requests", "slot_seconds"]


def test_a_refusal_tells_what_is_wrong_with_each_setting() -> None:
    error = refused(lambda: change("queue", "free_batch", {"weight": 0, "max_runing": 1}))
    assert error.fields.keys() == {"weight", "max_runing"}
