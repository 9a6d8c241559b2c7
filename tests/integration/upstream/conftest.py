"""Fixtures: llama.cpp's server, a gateway, and `fairlane worker start --provider openai` between them, once for the module."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from tests.support.processes import process
from tests.support.servers import running_server
from tests.support.serving import DEADLINE_S, NO_TLS, http_client, serving, until

from fairlane.gateway.openai import answers

from .tiny_model import write_model

MODEL = "tiny"
START_S = 60.0
IMAGE = {"type": "image_url", "image_url": {"url": "{{ image }}"}}
CHAIN: dict[str, Any] = {
    "stages": [
        {"name": "ocr", "when": "image", "model": "eyes", "messages": [{"role": "user", "content": [IMAGE]}]},
        {
            "name": "summary",
            "model": MODEL,
            "parameters": {"max_tokens": 12},
            "messages": [{"role": "user", "content": "Sum up: {{ stages.ocr.content }}"}],
        },
        {
            "name": "match",
            "model": MODEL,
            "stream": True,
            "parameters": {"temperature": 0, "seed": 3, "max_tokens": 30},
            "messages": [
                {"role": "user", "content": "Does {{ resume }} match {{ stages.summary.content }}?"}
            ],
        },
    ]
}


@pytest.fixture(scope="module")
async def llama(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of llama.cpp's server itself."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path)
    async with process(str(Path(__file__).parent / "llama_server.py"), str(path), stderr=None) as child:
        assert child.stdout is not None
        async with asyncio.timeout(START_S):
            url = (await child.stdout.readline()).decode().strip()
        assert url.startswith("http://"), "llama.cpp's server did not start"
        async with http_client(url) as http:
            yield http


@pytest.fixture(scope="module")
async def sdk(
    llama: httpx2.AsyncClient, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AsyncOpenAI]:
    """The official SDK, a gateway, and a worker process in front of llama.cpp.

    Lease and linger are long, so that a caller's departure itself has to reach the server.
    """
    directory = tmp_path_factory.mktemp("gateway")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "HOLD_HEAD_S", DEADLINE_S)  # however slow the machine is
        with running_server() as redis:
            async with _through_the_gateway(redis.url, directory, llama) as client:
                yield client


@contextlib.asynccontextmanager
async def _through_the_gateway(
    redis_url: str, directory: Path, llama: httpx2.AsyncClient
) -> AsyncIterator[AsyncOpenAI]:
    async with serving(
        redis_url, directory, lease_ms=120_000, linger_ms=120_000, chains={"match": CHAIN}
    ) as served:
        command = (
            "-m",
            "fairlane.gateway.cli.main",
            "worker",
            "start",
            "--provider",
            "openai",
            "--slots",
            "2",
            "--model",
            MODEL,
        )
        base_url = str(llama.base_url).rstrip("/") + "/v1"
        async with (
            process(*command, "--base-url", base_url, "--gateway", served.url, stderr=None),
            AsyncOpenAI(
                base_url=f"{served.url}/v1",
                api_key="none",
                max_retries=0,
                http_client=DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS, timeout=60.0),
            ) as client,
        ):

            async def offered() -> bool:
                return MODEL in [model.id async for model in client.models.list()]

            await until(offered, "the worker", START_S)
            yield client
