"""Which Redis servers are refused, and what the operator is told."""

from typing import Any

import pytest

from fairlane.queues.embedded.server import verify_server

FULL = {"redis_version": "7.2.4", "maxmemory": 1_000_000, "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("changed", "policy"),
    [
        ({}, None),
        ({}, "noeviction"),
        ({"redis_version": "7.0.15"}, None),
        ({"redis_version": "10.0.0"}, None),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": 0}, None),
        ({"maxmemory": "0"}, "volatile-lru"),
    ],
)
def test_servers_that_keep_tasks_are_accepted(changed: dict[str, Any], policy: str | None) -> None:
    assert verify_server({**FULL, **changed}, policy) is None


def test_server_that_tells_nothing_about_its_memory_is_accepted() -> None:
    assert verify_server({"redis_version": "7.2.4"}) is None


@pytest.mark.parametrize("version", ["6.2.14", "5.0.0", "6.9.9", "", "unknown"])
def test_old_servers_are_rejected(version: str) -> None:
    assert "use Redis 7.0 or Valkey 7.2" in str(verify_server({**FULL, "redis_version": version}))


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl", "allkeys-random"])
def test_servers_that_may_evict_are_rejected_with_the_command_to_run(policy: str) -> None:
    for refusal in (
        verify_server({**FULL, "maxmemory_policy": policy}),
        verify_server(FULL, policy),
        verify_server({"redis_version": "7.2.4"}, policy),
    ):
        assert policy in str(refusal)
        assert "CONFIG SET maxmemory-policy noeviction" in str(refusal)
