"""Changes outlive what they were made with: reloads, restarts of gateways, and crashes of the store."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.serving import http_client, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CONFIG = "queues: {paid_stream: {weight: %s, max_length: 50}}\nmodels: {m: {concurrency: %s}}\n"


async def call(gateway: GatewayProcess, method: str, path: str, body: Any = None) -> dict[str, Any]:
    async with http_client(gateway.url) as http:
        answer = await http.request(method, path, json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def change(gateway: GatewayProcess, kind: str, name: str, **values: Any) -> dict[str, Any]:
    return await call(gateway, "PATCH", f"/api/admin/{kind}s/{name}", values)


async def values(gateway: GatewayProcess, kind: str, name: str, *wanted: str) -> list[Any]:
    held = (await change(gateway, kind, name))["values"]
    return [held[field] for field in wanted]


async def test_changes_survive_sighup_restarts_and_a_kill_until_they_are_taken_back(tmp_path: Path) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(CONFIG % (8, 4))
    async with gateway_process(tmp_path) as gateway:
        await change(gateway, "queue", "paid_stream", weight=3, paused=True)
        await change(gateway, "model", "m", concurrency=9, requests_per_minute=60)

        file.write_text((CONFIG % (16, 2)).replace("max_length: 50", "max_length: 70"))
        gateway.signal(signal.SIGHUP)

        async def reread() -> bool:
            return await values(gateway, "queue", "paid_stream", "max_length") == [70]

        await until(reread, "the new configuration")
        assert await values(gateway, "queue", "paid_stream", "weight", "paused") == [3, True]
        assert await values(gateway, "model", "m", "concurrency", "requests_per_minute") == [9, 60]

        record = (await call(gateway, "GET", "/api/admin/audit"))["entries"]
        assert len(record) == 2
        gateway.signal(signal.SIGTERM)
        await gateway.ended()
        await gateway.start()
        assert await values(gateway, "queue", "paid_stream", "weight", "paused") == [3, True]

        await gateway.kill()  # its Redis dies with it
        await gateway.start()
        assert await values(gateway, "model", "m", "concurrency", "requests_per_minute") == [9, 60]
        assert (await call(gateway, "GET", "/api/admin/audit"))["entries"] == record

        await change(gateway, "queue", "paid_stream", weight=None, paused=None)
        await change(gateway, "model", "m", concurrency=None, requests_per_minute=None)
        assert await values(gateway, "queue", "paid_stream", "weight", "paused") == [16, False]
        assert await values(gateway, "model", "m", "concurrency", "requests_per_minute") == [2, None]
