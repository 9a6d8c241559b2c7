"""Redis is killed and comes back from an older save while the playground shows a task: the page discards what did not happen."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.integration.web.conftest import OpenBrowser
from tests.integration.web.playground import ask, plain, say, shows, state
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.streams import RawStream
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio

OLD, NEW = [f"A{n} " for n in range(1, 5)], [f"B{n} " for n in range(1, 10)]


@pytest.fixture
async def talk(own_redis: Server, tmp_path: Path) -> AsyncIterator[Talk]:
    settings = {"stream_flush_interval_ms": 0, "stream_flush_size": 1, "no_worker_grace_ms": 60_000}
    async with talking(own_redis.url, tmp_path, **settings) as talk:
        yield talk


def save(server: Server) -> None:
    with server.client() as store:
        store.save()


def come_back(server: Server) -> None:
    """SIGKILL, and a start from the last save."""
    server.stop()
    server.start()


async def cancelled(talk: Talk, task_id: str) -> None:
    """Cancel a task, as soon as the gateway is connected again."""

    async def accepted() -> bool:
        return (await talk.http.post(f"/api/task/{task_id}/cancel")).status_code == 200

    await until(accepted, "the task to be cancelled")


async def counts(talk: Talk, page: Page, task_id: str) -> None:
    """The page has got exactly the events of the log."""
    async with await RawStream.open(talk.served.url, f"/api/task/{task_id}/events") as stream:
        frames = await stream.log()
    number = len([frame for frame in frames if frame.id])
    await expect(page.locator("#integrity")).to_contain_text(f"{number} events over")
    await expect(page.locator("#integrity")).to_contain_text("None lost, none repeated.")


async def test_a_task_that_is_run_again_is_shown_as_it_was_run_last(
    talk: Talk, own_redis: Server, open_browser: OpenBrowser
) -> None:
    page = await (await open_browser(talk.served.url)).open()
    async with talk.worker2(["m"]):
        await page.locator("#model option[value=m]").wait_for(state="attached")
    await until(lambda: not len(talk.served.gateway.dispatcher.pool), "the worker to be gone")
    await ask(page)
    await state(page, "queued")
    save(own_redis)
    async with talk.worker2(["m"], slots=2) as worker:
        old = await worker.take()
        await say(worker, old, OLD)
        await plain(page)
        await shows(page, "".join(OLD))
        come_back(own_redis)
        new = await worker.recv()
        while new["type"] != "task":
            new = await worker.recv()
        seq = await say(worker, new, NEW)
        await worker.answer(new, None, lastSeq=seq - 1)
        await shows(page, "".join(NEW))
        await state(page, "completed")
        await counts(talk, page, new["taskId"])


async def test_a_link_that_names_a_discarded_event_is_not_used_again(
    talk: Talk, own_redis: Server, open_browser: OpenBrowser
) -> None:
    """The page came back behind an event that is still in the log when what it saw then is not."""
    page = await (await open_browser(talk.served.url)).open()
    async with talk.worker2(["m"]) as worker:
        await ask(page)
        task = await worker.take()
        seq = await say(worker, task, OLD[:1])
        await plain(page)
        await shows(page, OLD[0])
        await page.locator("#cut").click()
        await page.locator("#resume").click()
        save(own_redis)
        await say(worker, task, OLD[1:], seq)
        await shows(page, "".join(OLD))
        come_back(own_redis)
        await cancelled(talk, task["taskId"])
        await state(page, "cancelled")
        await shows(page, OLD[0])
        await counts(talk, page, task["taskId"])
