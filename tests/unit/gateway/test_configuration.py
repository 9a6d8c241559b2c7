"""What a gateway takes over while it runs, and what it says of it."""

from typing import Any

from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.settings import Settings


def settings(keys: dict[str, str], workers: dict[str, str], **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "keys": [{"id": name, "sha256": sha * 64} for name, sha in keys.items()],
            "workers": [{"id": name, "sha256": sha * 64} for name, sha in workers.items()],
            **more,
        }
    )


def test_what_changed_is_named_and_what_waits_for_a_restart() -> None:
    before = settings(
        {"a": "1", "b": "2", "c": "3"},
        {"gpu": "4"},
        models={"m": {"concurrency": 1}, "old": {}},
        queues={"free_batch": {"weight": 2}},
        redis_url="redis://u:secret@one",
    )
    after = settings(
        {"c": "5", "a": "1", "d": "2"},
        {"cpu": "4"},
        models={"m": {"concurrency": 2}, "new": {}},
        queues={"free_batch": {"weight": 3}},
        redis_url="redis://u:secret@two",
        drain_ms=5000,
        max_queue_length=7,
    )
    current = ActiveConfig(before)
    assert current.replace(after) == {
        "keys_removed": ["b"],
        "keys_added": ["d"],
        "keys_changed": ["c"],
        "tokens_removed": ["gpu"],
        "tokens_added": ["cpu"],
        "models_removed": ["old"],
        "models_added": ["new"],
        "models_changed": ["m"],
        "queues_changed": ["free_batch"],
        "settings_changed": ["max_queue_length"],
        "needs_restart": ["redis_url", "drain"],
    }
    assert (current.settings.max_queue_length, current.settings.drain_ms) == (7, before.drain_ms)
    assert current.replace(after) == {"needs_restart": ["redis_url", "drain"]}, "still"
    assert current.replace(before).get("needs_restart") is None
    assert current.replace(before) == {}
