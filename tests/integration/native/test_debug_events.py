"""LLM_DEBUG: what a worker got is shown in the log, outside production only."""

import json
from pathlib import Path

import pytest
import websockets
from tests.support.serving import http_client, serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("environment", "shown"), [("development", True), ("production", False)])
async def test_the_payload_is_logged_outside_production_only(
    redis_url: str, tmp_path: Path, environment: str, shown: bool
) -> None:
    async with (
        serving(redis_url, tmp_path, llm_debug=True, environment=environment) as served,
        http_client(served.url) as client,
        websockets.connect(served.ws) as worker,
    ):
        body = {"async": True, "messages": [{"role": "user", "content": "a secret plan"}]}
        accepted = (await client.post("/api/openai", json=body)).json()
        task = json.loads(await worker.recv())
        await worker.send(json.dumps({"type": "taskResult", "taskId": task["taskId"], "result": {"ok": 1}}))
        events = (await client.get(accepted["streamUrl"])).text
    assert ("event: debug" in events) is shown
    assert ("a secret plan" in events) is shown
