"""Overrides on the dashboard, in a real browser: created, changed, promoted, rolled back."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from tests.integration.admin.test_overrides import TRIAL, create, listed
from tests.integration.native.keys import key, secret
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser, accessible, fits
from tests.support.talk import talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

ROUTES: dict[str, Any] = {"routes": {"chat": {"model": "a"}}}


async def test_an_override_is_created_changed_promoted_and_rolled_back(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, **ROUTES) as talk:
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await page.get_by_role("link", name="Overrides").click()
        await page.get_by_role("button", name="Create override").click()
        await page.get_by_label("Name").fill("chat")
        await page.get_by_label("Values").fill('modl=<b>\ntiers.paid.fallbacks=["a"]')
        await page.get_by_label("Percent of tasks").fill("50")
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("dialog")).to_contain_text("did you mean model?")
        await accessible(page)
        await page.get_by_label("Values").fill('model=<b>\ntiers.paid.fallbacks=["a"]')
        await page.locator("dialog [type=submit]").click()
        row = page.locator("#overrides tbody tr")
        await expect(row).to_contain_text("<b>")
        await expect(row).to_contain_text("50%")
        [override] = await listed(talk)
        assert override["values"] == {"model": "<b>", "tiers.paid.fallbacks": ["a"]}
        await accessible(page)

        await row.get_by_role("button", name="Change").click()
        await page.get_by_label("Percent of tasks").fill("80")
        await page.locator("dialog [type=submit]").click()
        await expect(row).to_contain_text("80%")
        await row.get_by_role("button", name="Promote").click()
        await page.locator("dialog").get_by_role("button", name="Promote").click()
        await expect(row).to_contain_text("promoted")
        await row.get_by_role("button", name="Roll back").click()
        await page.locator("dialog").get_by_role("button", name="Roll back").click()
        await expect(page.locator("#overrides .empty")).to_be_visible()
        assert await listed(talk) == []


async def test_a_viewer_has_no_buttons_and_a_phone_shows_all_of_it_in_chinese_too(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    keys = [key("ops", admin=True), key("eye", scopes=["viewer"])]
    async with talking(redis_url, tmp_path, keys=keys, **ROUTES) as talk:
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        await create(talk, TRIAL)
        small = {"width": 360, "height": 740}
        browser = await open_browser(talk.served.url, viewport=small, locale="zh-CN")
        page = await browser.open("/dashboard#/overrides")
        await page.locator("#api-key, dialog input").first.fill(secret("eye"))
        await page.locator("dialog [type=submit], dialog .primary").first.click()
        await expect(page.locator("#overrides tbody tr .flag")).to_have_text("生效中")
        await expect(page.locator("#overrides [data-action]").first).to_be_hidden()
        await fits(page)
        await accessible(page)
