"""Redis goes away and comes back, but not as it was: what is to be done is told to whoever looks."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import talking

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("maxmemory-policy", "allkeys-lru", "run CONFIG SET maxmemory-policy noeviction"),
        ("requirepass", "hunter2", "wants a password"),
        ("maxmemory", "1mb", "command not allowed when used memory"),
    ],
)
async def test_a_redis_that_returns_with_wrong_settings_is_reported_with_the_reason(
    own_redis: Server, tmp_path: Path, setting: str, value: str, reason: str
) -> None:
    with own_redis.client() as store, capture_logs() as lines:
        if setting == "maxmemory-policy":
            store.config_set("maxmemory", "1gb")
        async with talking(own_redis.tcp_url, tmp_path) as talk:
            gateway = talk.served.gateway
            store.config_set(setting, value)
            store.client_kill_filter(_type="normal", skipme=True)
            await until(lambda: bool(told(lines, reason)), "the reason in the log")
            ready = await talk.http.get("/readyz")
            assert ready.status_code == 503
            assert reason in ready.json()["missing"][0]
            assert str(own_redis.port) not in ready.text
            answer = (await talk.http.get("/api/admin/overview")).json()
            assert answer["error"] == "Store unavailable"
            assert f"Redis (127.0.0.1:{own_redis.port}) for " in answer["reason"]
            assert reason in answer["reason"]
            assert "reason" not in (await talk.sync()).json()
            store.config_set(setting, {"maxmemory-policy": "noeviction", "maxmemory": "0"}.get(setting, ""))
            await until(lambda: gateway.link.up, "the connection")
    assert [line["event"] for line in told(lines, reason)] == ["still no connection to Redis"]
    *_, back = [line for line in lines if line["event"] == "connected to Redis"]
    assert back["address"] == f"127.0.0.1:{own_redis.port}"
    assert back["away_s"] > 0


def told(lines: Any, reason: str) -> list[Any]:
    return [line for line in lines if line["log_level"] == "warning" and reason in line.get("reason", "")]
