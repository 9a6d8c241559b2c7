"""Changes of settings on the dashboard, in a real browser: compared, widened, kept, taken back."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from tests.integration.admin.test_planned_changes import CHANGES, make, ran, serve, shown
from tests.integration.native.keys import key, secret
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser, accessible, fits
from tests.support.serving import until
from tests.support.talk import talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

ROUTES: dict[str, Any] = {"routes": {"chat": {"model": "a"}}}


async def test_old_and_new_stand_side_by_side_and_a_change_is_widened_kept_and_taken_back(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, **ROUTES) as talk, talk.worker2(["a", "b"], slots=4) as worker:
        talk.later(serve(worker))
        body = {"route": "chat", "set": {"model": "b"}, "rollout": 50, "note": "<b>the larger one</b>"}
        change = await make(talk, body)
        tasks = await ran(talk, 12)
        new = sum(task["change"]["side"] == "new" for task in tasks)

        async def recorded() -> bool:
            compared = (await shown(talk, change))["comparison"]
            return bool(compared["old"]["tasks"] + compared["new"]["tasks"] == 12)

        await until(recorded, "the tasks to be recorded")
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await page.get_by_role("link", name="Changes").click()
        row = page.locator("#changes tbody tr")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text("<b>the larger one</b>")
        await accessible(page)
        await row.get_by_role("link").click()
        compared = page.locator("#comparison")
        await expect(compared.locator("tbody tr").first).to_have_text(f"Tasks{12 - new}{new}")
        await expect(compared.locator(".notice")).to_contain_text("Too few tasks")
        await expect(compared.get_by_role("row", name="Completed")).to_contain_text("(100%)")
        await accessible(page)
        assert change["id"] in await page.title()

        await page.get_by_role("button", name="Change share").click()
        await page.get_by_label("Percent of the tasks").fill("101")
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("dialog [role=alert]")).to_have_text(
            "It must be a whole number from 1 to 100."
        )
        await accessible(page)
        await page.get_by_label("Percent of the tasks").fill("80")
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("#change dl")).to_contain_text("80% of tasks")
        await page.get_by_role("button", name="Keep for all").click()
        await page.locator("dialog").get_by_role("button", name="Keep for all").click()
        await expect(page.locator("#change dl")).to_contain_text("100% of tasks")
        await expect(row).to_contain_text("100% of tasks")
        await page.get_by_role("button", name="Take back").click()
        await page.locator("dialog").get_by_role("button", name="Take back").click()
        await expect(page.locator("#change .flag")).to_have_text("taken back")
        await expect(page.locator("#change button")).to_have_count(0)
        assert (await shown(talk, change))["state"] == "taken_back"

        side = tasks[0]["change"]["side"]
        await page.evaluate("id => { location.hash = `#/tasks/${id}`; }", tasks[0]["taskId"])
        await page.get_by_role("link", name=f"{change['id']} ({side.title()})").click()
        await expect(page.locator("#change h3")).to_have_text(change["id"])


async def test_who_only_looks_has_no_buttons_and_a_phone_shows_it_all_in_chinese_too(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    keys = [key("ops", admin=True), key("eye", scopes=["viewer"])]
    async with talking(redis_url, tmp_path, keys=keys, **ROUTES) as talk:
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        change = await make(talk, {"route": "chat", "set": {"model": "b"}, "rollout": 10, "tier": "paid"})
        await make(talk, {"model": "m", "set": {"concurrency": 3}, "at": change["madeAt"] + 10**7})
        small = {"width": 360, "height": 740}
        browser = await open_browser(talk.served.url, viewport=small, locale="zh-CN")
        page = await browser.open(f"/dashboard#/changes/{change['id']}")
        await page.locator("#api-key, dialog input").first.fill(secret("eye"))
        await page.locator("dialog [type=submit], dialog .primary").first.click()
        await expect(page.locator("#changes tbody tr")).to_have_count(2)
        await expect(page.locator("#change .flag")).to_have_text("生效中")
        await expect(page.locator("#change [data-action]").first).to_be_hidden()
        await expect(page.locator("#change button:visible")).to_have_count(0)
        await expect(page.locator("#comparison")).to_contain_text("还没有受其影响的任务结束。")
        await fits(page)
        await accessible(page)
        assert (await talk.http.get(CHANGES)).json()["changes"][0]["state"] == "scheduled"
