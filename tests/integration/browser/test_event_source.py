"""The browser's own EventSource, and our client, on a page of another origin, while the gateway is killed and started again."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.rawworkers import worker_v1
from tests.support.servers import Server
from tests.support.serving import http_client, until
from tests.support.streams import RawStream

pytestmark = pytest.mark.anyio

BROWSER_S = 60.0
SETTINGS = {"stream_flush_interval_ms": 0, "stream_flush_size": 1, "drain_ms": 5000}
READERS = ["EventSource", "client"]
WORDS = ["Once", " upon", " a\n\ntime", " \U0001f600", " \u2028", " there", " was", " one", " end"]

Frame = tuple[str, str, dict[str, Any]]
Pages = dict[str, Page]
"""Pages that read the same task, by what they read it with."""


@contextlib.asynccontextmanager
async def browser_page(browser: Browser, url: str) -> AsyncIterator[Page]:
    """A page of a visitor of its own."""
    async with await browser.new_context() as context:
        page = await context.new_page()
        await page.goto(url)
        yield page


@contextlib.asynccontextmanager
async def reading(browser: Browser, origin: str) -> AsyncIterator[Pages]:
    async with contextlib.AsyncExitStack() as stack:
        yield {reader: await stack.enter_async_context(browser_page(browser, origin)) for reader in READERS}


async def log(page: Page) -> dict[str, Any]:
    """What the page has noted; each frame as id, name, data."""
    seen: dict[str, Any] = await page.evaluate("log")
    seen["frames"] = [(event_id, name, json.loads(data)) for event_id, name, data in seen["frames"]]
    return seen


def text(frames: list[Frame]) -> str:
    return "".join(data["delta"] for _, name, data in frames if name == "chunk")


async def show(pages: Pages, words: list[str]) -> None:
    """Return when each page has got these words."""
    for reader, page in pages.items():

        async def enough(page: Page = page) -> bool:
            return text((await log(page))["frames"]) == "".join(words)

        await until(enough, f"{words} in the browser, by {reader}", BROWSER_S)


async def ask(pages: Pages, gateway: GatewayProcess) -> str:
    """Submit a task from a page and let all of them read the events by the link it was given; the task's id."""
    body = {"messages": [], "async": True, "stream": True}
    answer = await pages[READERS[0]].evaluate("([url, body]) => ask(url, body)", [gateway.url, body])
    for reader, page in pages.items():
        await page.evaluate("asked => read(...asked)", [gateway.url, answer["streamUrl"], reader])
    return str(answer["taskId"])


async def known(gateway: GatewayProcess) -> None:
    """Return when this gateway knows of a worker, of whichever replica."""
    async with http_client(gateway.url) as http:

        async def is_known() -> bool:
            return bool((await http.get("/api/admin/overview")).json()["workers"])

        await until(is_known, "the worker to be known")


async def transcript(gateway: GatewayProcess, task_id: str) -> list[Frame]:
    """What the log holds, as a page would have got it."""
    async with await RawStream.open(gateway.url, f"/api/task/{task_id}/events") as stream:
        frames = await stream.log()
    return [(f.id or "", f.event, json.loads(f.partition(b"data: ")[2])) for f in frames]


async def closed(page: Page) -> dict[str, Any]:
    """What the page has noted when the browser has given up coming back: the stream was at its end."""

    async def is_closed() -> bool:
        return bool((await log(page))["closed"])

    await until(is_closed, "the browser to stop", BROWSER_S)
    return await log(page)


async def test_it_reconnects_by_itself_through_a_killed_and_a_stopped_gateway(
    own_redis: Server, browser: Browser, page_origin: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "cors_origins": [page_origin]}
    async with (
        gateway_process(tmp_path / "a", own_redis.url, **settings) as a,
        gateway_process(tmp_path / "b", own_redis.url, **settings) as b,
        reading(browser, page_origin) as pages,
        worker_v1(b.ws) as worker,
    ):
        await known(a)
        task_id = await ask(pages, a)
        task = await worker.take()
        assert task["taskId"] == task_id
        for word in WORDS[:3]:
            await worker.chunk(task, word)
        await show(pages, WORDS[:3])

        await a.kill()
        await worker.chunk(task, WORDS[3])
        await a.start()
        await worker.chunk(task, WORDS[4])
        await show(pages, WORDS[:5])

        a.signal(15)  # in order this time: the page is told when to come back
        await worker.chunk(task, WORDS[5])
        assert await a.ended() == 0
        await worker.chunk(task, WORDS[6])
        await a.start()
        for word in WORDS[7:]:
            await worker.chunk(task, word)
        await worker.answer(task)

        whole = await transcript(b, task_id)
        for page in pages.values():
            seen = await closed(page)
            assert "bye" in [name for _, name, _ in seen["frames"]]
            logged = [frame for frame in seen["frames"] if frame[1] != "bye"]
            assert logged == whole
            assert text(logged) == "".join(WORDS)
            assert seen["opened"] == 3
