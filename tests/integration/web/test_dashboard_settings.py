"""The dashboard's view of every setting, in a real browser."""

from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.integration.native.keys import key, secret
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser, accessible, fits
from tests.integration.web.test_dashboard import cell, row
from tests.support.talk import talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)
SMALL = {"width": 360, "height": 780}
KEYS = [key("ops", admin=True), key("eyes", scopes=["viewer"])]
WEIGHT = "queues.paid_stream.weight"


async def test_a_viewer_finds_what_was_changed_and_by_whom(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS, drain_ms=1234) as talk:
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await page.get_by_label("Key", exact=True).fill(secret("eyes"))
        await page.get_by_role("button", name="Use this key").click()
        await page.get_by_role("link", name="Settings", exact=True).click()
        await expect(cell(page, "settings", "drain_ms", "Value")).to_have_text("1234")
        await expect(cell(page, "settings", "keys.ops.sha256", "Value")).to_have_text("set, not shown")
        await expect(row(page, "settings", WEIGHT)).to_have_count(0)
        assert KEYS[0]["sha256"] not in await page.content()
        await accessible(page)

        await talk.http.patch("/api/admin/queues/paid_stream", json={"weight": 5})
        await expect(cell(page, "settings", WEIGHT, "Value")).to_contain_text("5")
        await expect(cell(page, "settings", WEIGHT, "Value")).to_contain_text("else 8 (default)")
        await expect(cell(page, "settings", WEIGHT, "Source")).to_contain_text(
            "changed while runningoverride o"
        )
        await page.get_by_label("Source", exact=True).select_option("changed")
        await expect(page.locator("#settings tbody tr")).to_have_count(1)
        await page.get_by_label("Source", exact=True).select_option("any source")
        await page.get_by_label("Also those that have their defaults").check()
        await page.get_by_label("Part of the name or value").fill("LEASE_")
        await expect(page.locator("#settings tbody th")).to_have_text(["lease_ms"])
        assert page.url.endswith("#/settings?text=LEASE_&all=1")
        await page.get_by_label("Part of the name or value").fill("no such setting")
        await expect(page.locator("#settings .empty")).to_be_visible()


async def test_it_fits_a_small_telephone_in_chinese(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    long = {"m" * 120: {"concurrency": 3}}
    async with talking(redis_url, tmp_path, models=long) as talk:
        browser = await open_browser(talk.served.url, viewport=SMALL, locale="zh-CN", color_scheme="dark")
        page = await browser.open("/dashboard#/settings?all=1")
        await expect(page.locator("#settings h2")).to_have_text("生效的设置")
        await expect(page.locator("#settings tbody tr").first).to_be_visible()
        await accessible(page)
        await fits(page)
