"""Official clients whose connection is cut: their retry joins the first try, as it carries the same key."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from tests.support.proxy import Proxy
from tests.support.rawworkers import RawWorker
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.queues.metrics import TASKS_RESUBMITTED

from .asking import KEY, MESSAGES

pytestmark = pytest.mark.anyio

Cut = tuple[Talk, Proxy, openai.AsyncOpenAI]
NAMED = {"Idempotency-Key": KEY}


@pytest.fixture
async def cut(redis_url: str, tmp_path: Path) -> AsyncIterator[Cut]:
    """A gateway, a proxy before it that a test may cut, and an official client of that, with retries as it has them."""
    async with talking(redis_url, tmp_path) as talk:
        port = httpx2.URL(talk.served.url).port
        assert port is not None
        async with (
            Proxy(port) as proxy,
            httpx2.AsyncClient(trust_env=False) as http,
            openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{proxy.port}/v1", api_key="none", http_client=http
            ) as client,
        ):
            yield talk, proxy, client


async def cut_and_joined(talk: Talk, proxy: Proxy) -> None:
    """Cut the connection, and wait until the retry has come."""
    proxy.reset()
    metrics = talk.served.gateway.metrics
    await until(lambda: metrics.values[TASKS_RESUBMITTED.name]["joined",] == 1, "the retry to join")


async def finish(worker: RawWorker, task: dict[str, Any]) -> None:
    await worker.chunk(task, "two", 2)
    await worker.answer(task, None, lastSeq=2)


@pytest.mark.parametrize("by", ["header", "client"])
async def test_a_call_that_is_cut_is_answered_by_its_first_try(cut: Cut, by: str) -> None:
    talk, proxy, client = cut
    more: dict[str, Any] = {"extra_headers": NAMED}
    if by == "client":
        client._idempotency_header, more = "Idempotency-Key", {}
    async with talk.worker2(["m"]) as worker:
        call = talk.later(
            client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, **more)  # type: ignore[arg-type]
        )
        task = await worker.take()
        await worker.chunk(task, "one ", 1)
        await cut_and_joined(talk, proxy)
        await finish(worker, task)
        raw = await call
        assert raw.headers["idempotency-replayed"] == "true"
        completion: Any = raw.parse()
        assert completion.id == f"chatcmpl-{task['taskId']}"
        assert completion.choices[0].message.content == "one two"
        await worker.expect("resultAck")
        await worker.nothing_more()


async def test_a_stream_that_is_cut_is_read_again_from_its_first_event(cut: Cut) -> None:
    """By the program: the client itself repeats no stream that has begun."""
    talk, proxy, client = cut

    async def read(chunks: list[Any]) -> None:
        stream = await client.chat.completions.create(
            model="m",
            messages=MESSAGES,  # type: ignore[arg-type]
            stream=True,
            extra_headers=NAMED,
        )
        async for chunk in stream:
            chunks.append(chunk)

    async with talk.worker2(["m"]) as worker:
        begun: list[Any] = []
        whole: list[Any] = []
        first = talk.later(read(begun))
        task = await worker.take()
        await worker.chunk(task, "one ", 1)
        await until(lambda: bool(begun), "its first chunk")
        proxy.reset()
        with pytest.raises((httpx2.TransportError, openai.APIConnectionError)):
            await first
        second = talk.later(read(whole))
        await finish(worker, task)
        await second
    assert {chunk.id for chunk in whole} == {f"chatcmpl-{task['taskId']}"}
    assert whole[: len(begun)] == begun
    assert "".join(chunk.choices[0].delta.content or "" for chunk in whole) == "one two"
