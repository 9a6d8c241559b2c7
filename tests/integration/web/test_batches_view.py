"""Batches and files from the playground: uploaded, made, watched, cancelled, read."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, accessible, fits
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

CHAT = "/v1/chat/completions"


def line(number: int, url: str = CHAT, **body: Any) -> str:
    asked = {"model": "m", "messages": [{"role": "user", "content": f"Question {number}"}], **body}
    return json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": url, "body": asked})


def text_of(path: Path) -> str:
    return path.read_text()


async def serve(worker: RawWorker) -> None:
    """Answer whatever comes with what was asked."""
    while True:
        task = await worker.recv(None)
        if task["type"] == "task":
            said = task["payload"]["messages"][-1]["content"]
            await worker.answer(
                task, {"content": f"<b>{said}</b>"}, usage={"inputTokens": 2, "outputTokens": 2}
            )


async def open_batches(open_browser: OpenBrowser, talk: Talk, **options: Any) -> Page:
    page = await (await open_browser(talk.served.url, **options)).open("/#batches")
    await expect(page.locator("#files-title")).to_be_visible()
    return page


async def test_a_batch_is_made_of_prompts_and_its_answers_are_read(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"], slots=2) as worker:
        page = await open_batches(open_browser, talk, accept_downloads=True)
        await page.locator("#batch-model option[value=m]").wait_for(state="attached")
        await expect(page.locator("#batches")).to_contain_text("No batches yet.")
        await page.locator("#batch-prompts").fill("One?\n\n  Two?  \nThree?")
        await expect(page.locator("#batch-hint")).to_have_text("3 requests.")
        await page.locator("#batch-send").click()
        await expect(page.locator("#batches tbody tr")).to_have_count(1)
        await expect(page.locator("#files tbody")).to_contain_text("prompts.jsonl")
        talk.later(serve(worker))
        await expect(page.locator("[data-batch=completed]")).to_be_visible()
        await expect(page.locator("#batches .gauge")).to_have_text("3 of 3")
        await accessible(page)
        await page.locator("#batches [data-action=results]").click()
        rows = page.locator(".results tbody tr")
        await expect(rows).to_have_text(
            ["prompt-1<b>One?</b>", "prompt-2<b>Two?</b>", "prompt-3<b>Three?</b>"]
        )
        await accessible(page)
        async with page.expect_download() as saved:
            await page.locator("#results-save").click()
        lines = text_of(await (await saved.value).path()).splitlines()
        assert sorted(json.loads(one)["custom_id"] for one in lines) == ["prompt-1", "prompt-2", "prompt-3"]
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog")).to_have_count(0)
        await expect(page.locator("#files tbody tr")).to_have_count(2)  # the answers are a file, too
        await expect(page.locator("#batch-code")).to_contain_text("/v1/batches")


async def test_a_file_is_uploaded_made_a_batch_of_downloaded_and_deleted(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    text = "".join(f"{line(number)}\n" for number in range(2))
    async with talk.worker2(["m"]) as worker:
        talk.later(serve(worker))
        page = await open_batches(open_browser, talk, accept_downloads=True)
        await page.locator("#file-input").set_input_files(
            {"name": "<i>two.jsonl", "mimeType": "application/jsonl", "buffer": text.encode()}
        )
        await page.locator("#file-send").click()
        await expect(page.locator("#files tbody .name")).to_have_text("<i>two.jsonl")
        await page.locator("input[name=batch-source][value=file]").check(force=True)
        known = page.locator("#batch-file option", has_text="two")
        await expect(known).to_have_count(1)
        await page.locator("#batch-file").select_option(await known.get_attribute("value"))
        await expect(page.locator("#batch-upload")).to_be_hidden()
        await page.locator("#batch-send").click()
        await expect(page.locator("[data-batch=completed]")).to_be_visible()
        row = page.locator("#files tbody tr", has_text="two")
        async with page.expect_download() as saved:
            await row.locator("[data-action=download]").click()
        assert text_of(await (await saved.value).path()) == text
        await row.locator("[data-action=delete]").click()
        await expect(page.locator("dialog")).to_contain_text("<i>two.jsonl will be gone for good.")
        await page.locator("dialog button.danger").click()
        await expect(row).to_have_count(0)


async def test_a_file_that_is_no_batch_is_refused_with_its_lines(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]):
        page = await open_batches(open_browser, talk)
        await page.locator("input[name=batch-source][value=file]").check(force=True)
        await page.locator("#batch-send").click()
        await expect(page.locator("#batch-problem")).to_have_text("Choose a file first.")
        wrong = "\n".join([line(0), line(0), line(2, url="/v1/embeddings"), "{", ""])
        await page.locator("#batch-input").set_input_files(
            {"name": "wrong.jsonl", "mimeType": "application/jsonl", "buffer": wrong.encode()}
        )
        await page.locator("#batch-send").click()
        await expect(page.locator("[data-batch=failed]")).to_be_visible()
        await expect(page.locator("#batches .sub.bad").first).to_contain_text("Line 2: ")
        await accessible(page)


async def test_a_batch_is_cancelled(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await open_batches(open_browser, talk)
        await page.locator("#batch-model option[value=m]").wait_for(state="attached")
        await page.locator("#batch-send").click()
        await worker.take()
        await page.locator("#batches [data-action=cancel]").click()
        await page.locator("dialog button.danger").click()
        await expect(
            page.locator(":is([data-batch=cancelled], [data-batch=cancelling])").first
        ).to_be_visible()
        frame = await worker.recv()
        assert frame["type"] == "cancel"


async def test_an_upload_shows_how_far_it_is_and_can_be_stopped(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    page = await open_batches(open_browser, talk)

    async def never(route: Route) -> None:
        if route.request.method != "POST":
            await route.continue_()

    await page.route("**/v1/files*", never)
    await page.locator("#file-input").set_input_files(
        {"name": "large.jsonl", "mimeType": "application/jsonl", "buffer": b"x" * 1_000_000}
    )
    await page.locator("#file-send").click()
    await expect(page.locator("#file-progress progress")).to_be_visible()
    await expect(page.locator("#file-progress")).to_contain_text("large.jsonl")
    await accessible(page)
    await page.locator("#file-progress [data-action=stop]").click()
    await expect(page.locator("#file-progress")).to_be_hidden()
    await expect(page.locator("#files-problem")).to_be_hidden()
    await expect(page.locator("#file-send")).to_be_enabled()


async def test_the_view_fits_a_phone_and_is_used_by_keyboard(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        talk.later(serve(worker))
        page = await (await open_browser(talk.served.url, viewport=PHONE, color_scheme="dark")).open()
        await page.locator("#tab-ask").focus()
        for _ in range(2):
            await page.keyboard.press("ArrowRight")
        await expect(page.locator("#tab-batches")).to_be_focused()
        await page.locator("#batch-model option[value=m]").wait_for(state="attached")
        await page.locator("#batch-send").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("[data-batch=completed]")).to_be_visible()
        await fits(page)
        await accessible(page)
        await page.locator("#batches [data-action=results]").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".results tbody tr")).to_have_count(4)
        await fits(page)
        await page.keyboard.press("Escape")
        await page.locator("#language").select_option("zh")
        await expect(page.locator("#batches-title")).to_have_text("您的批处理")
        await expect(page.locator("[data-batch=completed]")).to_have_text("已完成")
