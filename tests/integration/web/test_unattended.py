"""What operators see of work that nobody waits for: batches, responses in the background, webhooks and their deliveries."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.integration.native.keys import key, secret
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, Watched, accessible, fits
from tests.support.receivers import LOCAL, receiving
from tests.support.serving import until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

KEYS = [key("ops", admin=True), key("eyes", scopes=["viewer"]), key("acme"), key("shop")]


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking(redis_url, tmp_path, keys=KEYS, webhooks=LOCAL) as talk:
        yield talk


async def open_as(watched: Watched, who: str, view: str) -> Page:
    page = await watched.open("/dashboard")
    await page.evaluate("key => sessionStorage.setItem('fairlane.key', key)", secret(who))
    await page.goto(f"{watched.base}/dashboard#{view}")
    await page.reload()
    return page


async def make_batch(talk: Talk, who: str, *questions: str) -> str:
    asked = [{"model": "m", "messages": [{"role": "user", "content": question}]} for question in questions]
    lines = [
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(asked)
    ]
    async with talk.client(secret(who)) as caller:
        text = "\n".join(json.dumps(line) for line in lines)
        files = {"file": ("questions.jsonl", text.encode())}
        file = await caller.post("/v1/files", data={"purpose": "batch"}, files=files)
        assert file.status_code == 200, file.text
        body: dict[str, Any] = {"input_file_id": file.json()["id"], "endpoint": "/v1/chat/completions"}
        batch = await caller.post("/v1/batches", json={**body, "completion_window": "24h"})
        assert batch.status_code == 200, batch.text
        return str(batch.json()["id"])


async def test_batches_of_everybody_are_seen_narrowed_and_cancelled(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"], slots=2) as worker:
        first = await make_batch(talk, "acme", "One?", "Two?")
        for _ in range(2):
            await worker.answer(await worker.take(), {"content": "ok"})
        watched = await open_browser(talk.served.url)
        page = await open_as(watched, "ops", "/batches")
        row = page.locator("#batches tbody tr")
        await expect(row.locator("[data-batch=completed]")).to_be_visible()
        await expect(row).to_contain_text("2 of 2")
        await expect(row).to_contain_text("acme")
        second = await make_batch(talk, "shop", "Three?", "Four?", "Five?")
        running = [await worker.take() for _ in range(2)]
        await worker.answer(running[0], {"content": "ok"})
        await expect(page.locator(f"tr[data-key={second}] .gauge")).to_have_text("1 of 3")
        await accessible(page)

        await page.locator("#batches-state").select_option("unended")
        await expect(row).to_have_count(1)
        assert page.url.endswith("#/batches?state=unended")
        await page.locator("#batches-state").select_option("")
        await page.get_by_role("link", name="acme").first.click()
        await expect(row).to_have_count(1)
        await expect(page.locator(f"tr[data-key={first}]")).to_be_visible()
        await page.locator(".chips a").click()
        await expect(row).to_have_count(2)

        await page.locator(f"tr[data-key={second}] [data-action=cancel-batch]").click()
        await expect(page.locator("dialog")).to_contain_text(second)
        await page.locator("dialog button.danger").click()
        await expect(page.locator("#toasts")).to_contain_text("The batch is being cancelled.")
        await expect(
            page.locator(f"tr[data-key={second}] :is([data-batch=cancelled], [data-batch=cancelling])")
        ).to_be_visible()

        viewer = await open_as(await open_browser(talk.served.url, viewport=PHONE), "eyes", "/batches")
        await expect(viewer.locator("#batches tbody tr")).to_have_count(2)
        await expect(viewer.locator("[data-action]:visible")).to_have_count(0)
        await fits(viewer)
        await accessible(viewer)


async def test_webhooks_and_their_deliveries_are_seen(talk: Talk, open_browser: OpenBrowser) -> None:
    async with receiving() as good, receiving() as bad, talk.worker2(["m"]) as worker:
        bad.reply = lambda _: 500
        async with talk.client(secret("acme")) as acme:
            made = [
                (await acme.post("/api/webhooks", json={"url": one.url})).json()["id"] for one in (good, bad)
            ]
            task = (
                await acme.post("/api/openai", json={"model": "m", "messages": [], "async": True})
            ).json()["taskId"]
        await worker.answer(await worker.take(), {"content": "ok"})
        await until(lambda: bool(good.got and bad.got), "both to be told")
        page = await open_as(await open_browser(talk.served.url), "ops", "/webhooks")
        await expect(page.locator("#webhooks tbody tr")).to_have_count(2)
        await expect(page.locator(f"tr[data-key={made[0]}] [data-webhook=on]")).to_be_visible()
        await expect(page.locator(f"tr[data-key={made[1]}] [data-webhook=failing]")).to_be_visible()
        log = page.locator("#deliveries tbody tr")
        await expect(log).to_have_count(2)
        await expect(log.locator("[data-delivery=delivered]")).to_have_count(1)
        await expect(log.locator("[data-delivery=waiting]")).to_have_count(1)
        await expect(log.first).to_contain_text("task.completed")
        await accessible(page)
        for told in await page.locator(".sub.whole").all():  # its end says what to do
            assert await told.evaluate("e => e.scrollHeight <= e.clientHeight + 1")
        await page.locator("#deliveries-state").select_option("waiting")
        await expect(log).to_have_count(1)
        await expect(log).to_contain_text("500")
        await log.get_by_role("link", name=task).click()
        await expect(page.locator(".task-head h2")).to_have_text(task)

        await page.goto(f"{talk.served.url}/dashboard#/webhooks?webhook={made[1]}")
        await expect(page.locator("#deliveries .chips")).to_contain_text(made[1])
        await expect(log).to_have_count(1)
        await page.locator(f"tr[data-key={made[1]}] [data-action=webhook-off]").click()
        await page.locator("dialog button.danger").click()
        await expect(page.locator(f"tr[data-key={made[1]}] [data-webhook=off]")).to_be_visible()
        await page.set_viewport_size(PHONE)
        await fits(page)
        await accessible(page)


async def test_responses_in_the_background_are_seen(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        ids = []
        for who in ("acme", "shop"):
            async with talk.client(secret(who)) as caller:
                body = {"model": "m", "input": "<b>Why?</b>", "background": True}
                ids.append((await caller.post("/v1/responses", json=body)).json()["id"])
        running = await worker.take()
        page = await open_as(await open_browser(talk.served.url), "ops", "/batches")
        rows = page.locator("#responses tbody tr")
        await expect(rows).to_have_count(2)
        await expect(page.locator(f"tr[data-key={ids[0]}] [data-response=in_progress]")).to_be_visible()
        await expect(page.locator(f"tr[data-key={ids[1]}] [data-response=queued]")).to_be_visible()
        await worker.answer(running, {"content": "Because."})
        await expect(page.locator(f"tr[data-key={ids[0]}] [data-response=completed]")).to_be_visible()
        await accessible(page)
        await page.locator("#responses-state").select_option("completed")
        await expect(rows).to_have_count(1)
        await expect(page.locator(f"tr[data-key={ids[0]}]")).to_be_visible()
        await page.locator("#responses-state").select_option("")
        await page.locator(f"tr[data-key={ids[1]}]").get_by_role("link", name="shop").click()
        await expect(rows).to_have_count(1)
        await page.get_by_role("link", name=ids[1]).click()
        await expect(page.locator(".task-head h2")).to_have_text(ids[1].removeprefix("resp_"))
