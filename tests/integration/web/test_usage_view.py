"""The dashboard's view of what was used, in a real browser."""

import csv
import time
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, accessible, fits
from tests.support.records import entry
from tests.support.talk import Talk

from fairlane.gateway.records.usage import DAY_MS, UsageTable

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

HOSTILE = "=<img src=x onerror=alert(1)>"


async def fill(talk: Talk) -> None:
    """A month of three models, two keys and a few users."""
    now = time.time_ns() // 1_000_000
    packed = []
    for day in range(30):
        for n in range(6):
            model, user = ("qwen3-32b", "llama-70b", HOSTILE)[n % 3], f"site/user-{n % 4}"
            tokens = (900 + 40 * n + 13 * day, 2000 + 300 * n + 50 * (day % 7))
            state, code = ("failed", "TOTAL_TIMEOUT") if (day + n) % 9 == 0 else ("completed", "")
            own = {"user": user, "key": "site"} if n else {"user": "acme", "key": "acme"}
            ended = now - day * DAY_MS
            packed.append(
                entry(f"{day}-{n}", ended=ended, model=model, tokens=tokens, state=state, code=code, **own)
            )
    async with talk.served.gateway.database.writing() as connection:
        assert await UsageTable(lambda queue: "paid").write(connection, packed) == 180


async def test_what_was_used_is_shown_filtered_and_saved(
    talk: Talk, open_browser: OpenBrowser, tmp_path: Path
) -> None:
    await fill(talk)
    browser = await open_browser(talk.served.url)
    page = await browser.open("/dashboard#/usage")
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("180")
    await expect(page.locator('.views [aria-current="page"]')).to_have_text("Usage")
    await expect(page.locator("#usage canvas")).to_have_count(2)
    heads = page.locator("#usage tbody th")
    await expect(heads).to_have_count(3)
    assert set(await heads.all_inner_texts()) == {"qwen3-32b", "llama-70b", HOSTILE}
    await accessible(page)

    await page.get_by_role("link", name="llama-70b").click()
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("60")
    await expect(page.get_by_role("radio", name="User")).to_be_checked()
    assert "model=llama-70b" in page.url
    await page.get_by_role("button", name="Model: llama-70b ✕").click()
    await page.get_by_role("radio", name="Outcome").check()
    await expect(heads).to_have_text(["completed", "TOTAL_TIMEOUT"])
    await page.get_by_role("radio", name="7 days").check()
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("42")
    await page.get_by_role("radio", name="Model").check()
    await expect(heads).to_have_count(3)

    async with page.expect_download() as download:
        await page.locator("#save-usage").click()
    saved = tmp_path / "usage.csv"
    await (await download.value).save_as(saved)
    with saved.open(newline="") as file:
        found = {row["model"]: int(row["tasks"]) for row in csv.DictReader(file)}
    assert found == {"qwen3-32b": 14, "llama-70b": 14, f"'{HOSTILE}": 14}


async def test_usage_of_routes_is_shown(talk: Talk, open_browser: OpenBrowser) -> None:
    await fill(talk)
    now = time.time_ns() // 1_000_000
    routed = [entry(f"r{n}", ended=now, model=f"m{n % 2}", route="summary") for n in range(4)]
    async with talk.served.gateway.database.writing() as connection:
        await UsageTable(lambda queue: "paid").write(connection, routed)
    browser = await open_browser(talk.served.url)
    page = await browser.open("/dashboard#/usage")
    await page.get_by_role("radio", name="Route").check()
    heads = page.locator("#usage tbody th")
    await expect(heads).to_have_text(["summary"])
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("184")
    await page.get_by_role("link", name="summary").click()
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("4")
    await expect(heads).to_have_count(2)
    for name in ("User", "Outcome"):
        await expect(page.get_by_role("radio", name=name)).to_be_disabled()
    await page.get_by_role("link", name="m1").click()
    await expect(page.get_by_role("radio", name="Key", exact=True)).to_be_checked()
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("2")
    await page.get_by_role("button", name="Route: summary ✕").click()
    await expect(page.get_by_role("radio", name="User")).to_be_enabled()


async def test_costs_are_shown_where_there_are_prices(talk: Talk, open_browser: OpenBrowser) -> None:
    await fill(talk)
    now = time.time_ns() // 1_000_000
    price = "270000 70000 1100000 1100000 0"
    priced = entry("priced", ended=now, model="qwen3-32b", price=price, cost="456834")
    browser = await open_browser(talk.served.url)
    page = await browser.open("/dashboard#/usage")
    await expect(page.locator('[data-figure="usage-tasks"]')).to_have_text("180")
    await expect(page.locator('[data-figure="usage-cost"]')).to_be_hidden()
    await expect(page.get_by_role("columnheader", name="Cost (credits)")).to_have_count(0)
    async with talk.served.gateway.database.writing() as connection:
        assert await UsageTable(lambda queue: "paid").write(connection, [priced]) == 1
    await page.reload()
    await expect(page.locator('[data-figure="usage-cost"]')).to_have_text("0.456834")
    await expect(page.get_by_role("columnheader", name="Cost (credits)")).to_have_count(1)
    row = page.locator("#usage tbody tr", has_text="qwen3-32b")
    await expect(row.locator("td").last).to_have_text("0.456834")


async def test_it_fits_a_phone_and_speaks_chinese(talk: Talk, open_browser: OpenBrowser) -> None:
    await fill(talk)
    browser = await open_browser(talk.served.url, viewport=PHONE, locale="zh-CN", color_scheme="dark")
    page = await browser.open("/dashboard#/usage?by=day")
    await expect(page.locator("#usage tbody tr")).to_have_count(30)
    await expect(page.locator(".views [aria-current]")).to_have_text("用量")
    await fits(page)
    await accessible(page)


async def test_a_time_without_tasks_says_so(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open("/dashboard#/usage")
    await expect(page.get_by_text("No task has ended in this time.")).to_be_visible()
    await expect(page.get_by_text("Nothing to draw in the last 30 days.").first).to_be_visible()
