"""What tasks cost, from the configuration to their records: by the price that held when they were submitted."""

import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import NO_TLS, until
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import PriceSettings

pytestmark = pytest.mark.anyio
KEYS = [key("ops", scopes=["admin"]), key("acme", tier="paid")]
BODY = {"model": "m", "messages": []}
USAGE = {"inputTokens": 1000, "outputTokens": 300, "cachedTokens": 200, "reasoningTokens": 50}


def price(model: str, **amounts: Any) -> PriceSettings:
    return PriceSettings.model_validate({"model": model, **amounts})


M = price("m", input=0.27, cached_input="0.07", output=1.1, reasoning=2, request=0.000001)
COST = Decimal("0.000606")
"""1 + 800 x 0.27 + 200 x 0.07 + 250 x 1.1 + 50 x 2 micro-credits."""


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    async with talking(redis_url, tmp_path, keys=KEYS, database_url=database_url, prices=[M]) as talk:
        talk.http.headers.update({"Authorization": f"Bearer {secret('ops')}"})
        yield talk


async def recorded(talk: Talk, tasks: int) -> list[dict[str, Any]]:
    """The records, the last one first, once there are so many."""
    found: list[dict[str, Any]] = []

    async def so() -> bool:
        answer = await talk.http.get("/api/admin/usage/tasks")
        found[:] = json.loads(answer.text, parse_float=Decimal)["tasks"]
        return len(found) == tasks

    await until(so, f"{tasks} records")
    return found


async def test_a_task_costs_what_it_used_by_the_price_of_its_submission(talk: Talk) -> None:
    gateway = talk.served.gateway
    async with talk.worker2(["m"]) as worker, talk.client(secret("acme")) as acme:
        native = talk.later(acme.post("/api/openai", json=BODY))
        task = await worker.take()
        dearer = gateway.current.settings.model_copy(update={"prices": [price("m", input=900, output=900)]})
        await gateway.reconfigure(dearer)
        await worker.answer(task, result={"content": "hi"}, usage=USAGE)
        assert (await native).status_code == 200
        (first,) = await recorded(talk, 1)
        assert (first["cost"], first["price"]) == (COST, "0.27/0.07/1.1/2/0.000001")
        client = openai.AsyncOpenAI(
            base_url=f"{talk.served.url}/v1",
            api_key=secret("acme"),
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(verify=NO_TLS, trust_env=False),
        )
        call = talk.later(client.chat.completions.create(model="m", messages=[]))
        await worker.answer(await worker.take(), "hi", usage=USAGE, lastSeq=0)
        await call
        await client.close()
        last, _ = await recorded(talk, 2)
        assert (last["cost"], last["price"]) == (Decimal("1.17"), "900/900/900/900/0")
        total = (await talk.http.get("/api/admin/usage")).json()["total"]
        assert total["cost"] == 1.170606


async def test_what_came_to_nothing_costs_nothing(talk: Talk) -> None:
    async with talk.worker2(["m"]) as worker, talk.client(secret("acme")) as acme:
        failed = talk.later(acme.post("/api/openai", json=BODY))
        task = await worker.take()
        await worker.answer(task, error="no", usage=USAGE)
        assert (await failed).status_code >= 500
        waits = await acme.post("/api/openai", json={**BODY, "async": True})
        task = await worker.take()
        assert (await acme.post(f"/api/task/{waits.json()['taskId']}/cancel")).status_code == 200
        await worker.answer(task, error="stopped")
        rows = await recorded(talk, 2)
        assert [(row["status"], row["cost"], row["price"]) for row in rows] == [
            ("cancelled", 0, "0.27/0.07/1.1/2/0.000001"),
            ("failed", 0, "0.27/0.07/1.1/2/0.000001"),
        ]
