"""Rows of the operator's view, from a survey."""

import json
from typing import Any

from fairlane.gateway.admin.rows import model_row, queue_row, task_row
from fairlane.gateway.settings.model import DEFAULT_QUEUES
from fairlane.queues.inspect.inspector import Model, Queue
from fairlane.queues.rules import EffectiveSettings


def test_a_queue_shows_what_holds_and_what_waits() -> None:
    settings = EffectiveSettings(
        {"weight": 4.0, "max_length": 1000, "paused": True, "reserved": 2}, {"weight": 4.0, "paused": True}
    )
    queue = Queue("paid_stream", settings, 7, running=3, oldest_wait_ms=1500, tokens_charged=12, share=0.25)
    assert queue_row(DEFAULT_QUEUES["paid_stream"], queue) == {
        "queue": "paid_stream",
        "tier": "paid",
        "mode": "stream",
        "weight": 4.0,
        "waiting": 7,
        "maxLength": 1000,
        "maxWaitMs": None,
        "maxRunning": None,
        "reserved": 2,
        "admission": "fixed",
        "paused": True,
        "overrides": {"weight": 4.0, "paused": True},
        "running": 3,
        "oldestWaitMs": 1500,
        "share": 0.25,
        "tokensCharged": 12,
        "blocked": None,
    }


def test_a_model_shows_what_holds_and_what_holds_it_up() -> None:
    model = Model(
        "m", EffectiveSettings({"concurrency": 8}, {}), 5, 6, 1, 16, cooldown_until=9, next_start_at=7
    )
    row = model_row(model)
    assert (row["running"], row["limit"], row["waiting"], row["workers"], row["slots"]) == (5, 8, 6, 1, 16)
    assert (row["cost"], row["paused"], row["meanRunMs"]) == ("tokens", False, None)
    assert (row["cooldownUntil"], row["nextStartAt"], row["overrides"]) == (9, 7, {})
    assert model_row(Model("m", EffectiveSettings({}, {})))["limit"] is None


def _json(*entries: dict[str, Any]) -> str:
    return json.dumps(entries)


def _attempt(granted: int, ended: int, why: str) -> dict[str, Any]:
    return {"worker": "w1", "granted_at": granted, "ended_at": ended, "why": why}


def test_a_task_shows_which_model_each_attempt_was_of() -> None:
    fields = {
        "state": "completed",
        "model": "c",
        "route": "route",
        "history": _json(_attempt(100, 150, "UPSTREAM_ERROR"), _attempt(160, 180, "MODEL_TOO_BUSY")),
    }
    fields |= {
        "fallback_history": _json(
            {"model": "a", "at": 150, "why": "UPSTREAM_ERROR"},
            {"model": "b", "at": 300, "why": "model_paused"},
        ),
        "granted_at": "300",
        "worker": "w3",
        "ended_at": "400",
    }
    row = task_row("t", fields)
    assert (row["requestedModel"], row["model"]) == ("route", "c")
    assert [attempt["model"] for attempt in row["attempts"]] == ["a", "b", "c"]
    assert row["moves"] == [
        {"model": "a", "at": 150, "reason": "UPSTREAM_ERROR"},
        {"model": "b", "at": 300, "reason": "model_paused"},
    ]
    stayed = task_row(
        "t", {"state": "queued", "model": "a", "history": _json(_attempt(100, 150, "UPSTREAM_ERROR"))}
    )
    assert (stayed["requestedModel"], stayed["moves"], stayed["attempts"][0]["model"]) == (None, [], "a")
