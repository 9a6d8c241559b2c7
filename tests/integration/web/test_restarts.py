"""A gateway that is killed and started again while the page watches: the browser's own EventSource comes back."""

from pathlib import Path

import httpx2
import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import OpenBrowser
from tests.integration.web.playground import WORDS, plain, shows, state
from tests.support.processes import gateway_process
from tests.support.rawworkers import worker_v1
from tests.support.serving import http_client, until
from tests.support.streams import RawStream, joined_text

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SETTINGS = {"stream_flush_interval_ms": 0, "stream_flush_size": 1, "drain_ms": 3000}


async def is_offered(http: httpx2.AsyncClient) -> bool:
    """Whether some model is: a version 1 worker's is called `default`."""
    return bool((await http.get("/v1/models")).json()["data"])


async def test_the_page_outlives_a_killed_and_a_stopped_gateway(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with (
        gateway_process(tmp_path / "a", redis_url, **SETTINGS) as a,
        gateway_process(tmp_path / "b", redis_url, **SETTINGS) as b,
        worker_v1(b.ws) as worker,
    ):
        page = await (await open_browser(a.url)).open()
        asked = []
        page.on("request", lambda request: asked.append(request) if "/events" in request.url else None)
        async with http_client(a.url) as http:
            await until(lambda: is_offered(http), "the worker to be known")
        await page.locator("#send").click()
        task = await worker.take()
        for word in WORDS[:3]:
            await worker.chunk(task, word)
        await state(page, "executing")
        await plain(page)
        await shows(page, "".join(WORDS[:3]))

        await a.kill()
        await expect(page.locator("#connection")).to_contain_text("Connection lost after event ")
        last = await page.locator("#connection").inner_text()
        await worker.chunk(task, WORDS[3])
        await a.start()
        await shows(page, "".join(WORDS[:4]))
        await expect(page.locator("#connection")).to_be_hidden()

        a.signal(15)  # in order this time
        await worker.chunk(task, WORDS[4])
        assert await a.ended() == 0
        await worker.chunk(task, WORDS[5])
        await a.start()
        for word in WORDS[6:]:
            await worker.chunk(task, word)
        await worker.answer(task)
        await state(page, "completed")
        await shows(page, "".join(WORDS))
        await expect(page.locator("#integrity")).to_contain_text("None lost, none repeated.")

        async with await RawStream.open(b.url, f"/api/task/{task['taskId']}/events") as stream:
            frames = await stream.log()
        assert joined_text(frames) == "".join(WORDS)
        events = await page.locator("#integrity").inner_text()
        assert events.startswith(f"{len([frame for frame in frames if frame.id])} events")
        cursors = [(await request.all_headers()).get("last-event-id") for request in asked]
        assert cursors[0] is None
        assert last.split("event ")[1].split(".")[0] in [cursor.split("-")[1] for cursor in cursors if cursor]
