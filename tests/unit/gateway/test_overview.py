"""Rows of the operator's view, from the hashes that Redis keeps."""

from fairlane.gateway.overview import charged_by_queue, fields_of, model_row, overrides_of, queue_row
from fairlane.gateway.settings import DEFAULT_QUEUES

NOW = 1_700_000_000_000


def test_a_reply_to_hgetall_becomes_text() -> None:
    assert fields_of([b"a", b"1", b"b", "ü".encode()]) == {"a": "1", "b": "ü"}


def test_overrides_are_found_by_queue_and_model_whatever_the_models_name() -> None:
    changed = {
        "q:paid_stream:weight": "4.0",
        "q:paid_stream:paused": "1",
        "m:org/model:7b:concurrency": "8",
        "m:m:of_a_newer_version": "1",
    }
    assert overrides_of(changed) == {
        ("queue", "paid_stream"): {"weight": 4.0, "paused": True},
        ("model", "org/model:7b"): {"concurrency": 8},
    }


def test_a_queue_shows_what_holds_and_what_waits() -> None:
    fields = {"weight": "4.0", "max_length": "1000", "n": "7", "paused": "1", "reserved": "2", "strict": "1"}
    row = queue_row("paid_stream", DEFAULT_QUEUES["paid_stream"], fields, {"weight": 4.0, "paused": True})
    assert row == {
        "queue": "paid_stream",
        "tier": "paid",
        "mode": "stream",
        "weight": 4.0,
        "waiting": 7,
        "maxLength": 1000,
        "maxWaitMs": None,
        "maxRunning": None,
        "reserved": 2,
        "lendable": None,
        "borrow": None,
        "admission": "fixed",
        "paused": True,
        "overrides": {"weight": 4.0, "paused": True},
    }


def test_a_model_shows_what_holds_and_what_waits_in_all_queues() -> None:
    fields = {"concurrency": "8", "n:paid_stream": "2", "n:free_batch": "3", "ms": "1234.5", "out": "80"}
    row = model_row("m", fields, 5, NOW, {})
    assert (row["running"], row["limit"], row["waiting"]) == (5, 8, 5)
    assert (row["cost"], row["paused"], row["meanRunMs"]) == ("tokens", False, 1234)
    assert (row["heldUntil"], row["nextStartAt"], row["overrides"]) == (None, None, {})
    assert model_row("m", {}, 0, NOW, {})["limit"] is None


def test_a_model_that_may_not_begin_shows_until_when() -> None:
    soon_us = str((NOW + 2500) * 1000)
    row = model_row("m", {"held": str(NOW + 9000), "tat": soon_us, "requests_per_minute": "60"}, 0, NOW, {})
    assert (row["heldUntil"], row["nextStartAt"]) == (NOW + 9000, NOW + 2500)
    later_us = str((NOW + 7000) * 1000)
    paced = {"tat": soon_us, "ttat": later_us, "requests_per_minute": "60", "tokens_per_minute": "9"}
    assert model_row("m", paced, 0, NOW, {})["nextStartAt"] == NOW + 7000


def test_what_is_over_or_no_longer_set_holds_nothing_up() -> None:
    past_us = str((NOW - 1) * 1000)
    row = model_row("m", {"held": str(NOW - 1), "tat": past_us, "requests_per_minute": "60"}, 0, NOW, {})
    assert (row["heldUntil"], row["nextStartAt"]) == (None, None)
    row = model_row("m", {"tat": str((NOW + 2500) * 1000)}, 0, NOW, {})
    assert row["nextStartAt"] is None


def test_costs_are_added_over_models_and_tokens_over_those_that_count_them() -> None:
    models = [
        {"c:paid_stream": "1500", "c:free_stream": "500", "n:free_stream": "9"},
        {"c:paid_stream": "2000", "cost": "requests"},
    ]
    assert charged_by_queue(models) == {"paid_stream": 3.5, "free_stream": 0.5}
    assert charged_by_queue(models, tokens_only=True) == {"paid_stream": 1.5, "free_stream": 0.5}
