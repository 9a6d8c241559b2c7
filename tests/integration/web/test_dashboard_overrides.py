"""Overrides on the dashboard, in a real browser: created, changed, promoted, rolled back."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect
from tests.integration.admin.test_overrides import listed
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser, accessible
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
