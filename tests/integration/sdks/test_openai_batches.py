"""Batches with openai-python: files up, a batch to its end, its files down."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from .openais import Sdk
from .stage import MESSAGES, PATIENT, Stage, staged

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ENDED = ("completed", "failed", "expired", "cancelled")
CHAT = "/v1/chat/completions"


@pytest.fixture
async def stage(redis_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway for each test: they list all batches and files that there are."""
    async with staged(redis_url, tmp_path, **PATIENT) as stage:
        yield stage


def line(number: int, model: str) -> dict[str, Any]:
    return {
        "custom_id": f"id-{number}",
        "method": "POST",
        "url": CHAT,
        "body": {"model": model, "messages": MESSAGES},
    }


async def create(sdk: Sdk, lines: list[dict[str, Any]], **more: Any) -> Any:
    data = "\n".join(json.dumps(one) for one in lines).encode()
    file = await sdk.call("files.create", file=("lines.jsonl", data), purpose="batch")
    return await sdk.call(
        "batches.create", input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more
    )


async def ended(sdk: Sdk, batch_id: str) -> Any:
    async with asyncio.timeout(30):
        while (batch := await sdk.call("batches.retrieve", batch_id=batch_id)).status not in ENDED:
            await asyncio.sleep(0.05)
    return batch


async def test_a_batch_to_its_end_in_python(sdk: Sdk) -> None:
    made = await create(sdk, [line(1, "talk"), line(2, "refuses"), line(3, "talk")], metadata={"job": "x"})
    assert (made.status, made.metadata, made.errors) == ("validating", {"job": "x"}, None)
    batch = await ended(sdk, made.id)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == ("completed", 3, 2, 1)
    output = await sdk.call("files.content", file_id=batch.output_file_id)
    records = [json.loads(text) for text in output.text.splitlines()]
    assert [record["custom_id"] for record in records] == ["id-1", "id-3"]
    assert records[0]["response"]["body"]["choices"][0]["message"]["content"] == "Hello wörld"
    errors = await sdk.call("files.content", file_id=batch.error_file_id)
    assert json.loads(errors.text)["response"]["status_code"] == 400
    page = await sdk.call("batches.list", limit=1)
    assert [one.id for one in page.data] == [batch.id]
    assert page.has_more is False


async def test_a_bad_file_and_a_cancelled_batch_in_python(sdk: Sdk) -> None:
    bad = await ended(sdk, (await create(sdk, [line(1, "talk"), line(1, "talk")])).id)
    assert [(error.code, error.line) for error in bad.errors.data] == [("duplicate_custom_id", 2)]
    made = await create(sdk, [line(1, "patient")])
    assert (await sdk.call("batches.cancel", batch_id=made.id)).status in ("cancelling", "cancelled")
    assert (await ended(sdk, made.id)).status == "cancelled"
    with pytest.raises(openai.NotFoundError):
        await sdk.call("batches.retrieve", batch_id="batch_none")
