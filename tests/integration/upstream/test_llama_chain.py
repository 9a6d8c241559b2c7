"""A chain with an image, whose texts are written by llama.cpp's own server."""

import asyncio
import json
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from tests.support.processes import process
from tests.support.serving import DEADLINE_S, http_client, until

from .conftest import MODEL

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("upstream")]
SIMULATED = ("-m", "fairlane.gateway.cli.main", "worker", "simulate", "--name", "eyes", "--model", "eyes")
ASK = {"chain": "match", "variables": {"image": "data:image/png;base64,iVBORw0KGgo=", "resume": "a cook"}}


async def events_of(http: httpx2.AsyncClient, url: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(DEADLINE_S), http.stream("GET", url) as answer:
        lines = [line async for line in answer.aiter_lines()]
    names = [line[7:] for line in lines if line.startswith("event: ")]
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return [{"event": name, **said} for name, said in zip(names, data, strict=True)]


async def test_a_chain_with_an_image_ends_in_what_the_server_writes(
    sdk: AsyncOpenAI, llama: httpx2.AsyncClient
) -> None:
    url = str(sdk.base_url).removesuffix("/v1/")
    async with process(*SIMULATED, "--gateway", url, stderr=None), http_client(url) as http:

        async def offered() -> bool:
            return "eyes" in [model.id async for model in sdk.models.list()]

        await until(offered, "the simulated worker")
        accepted = (await http.post("/api/tasks", json=ASK)).json()
        assert accepted["stageStatus"] == "OCR_PENDING"
        events = await events_of(http, accepted["streamUrl"])
        starts = [event["stage"] for event in events if event["event"] == "start"]
        assert starts == ["ocr", "summary", "match"]
        text = "".join(event["delta"] for event in events if event.get("kind") == "text")
        told = (await http.get(accepted["statusUrl"])).json()
        assert told["stageStatus"] == "COMPLETED"
        assert text == told["result"]["content"] != ""
        question = f"Does a cook match {told['results']['summary']['choices'][0]['message']['content']}?"
        direct = await llama.post(
            "/v1/chat/completions",
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": question}],
                "temperature": 0,
                "seed": 3,
                "max_tokens": 30,
            },
        )
        assert text == direct.json()["choices"][0]["message"]["content"]
