"""Keys on the dashboard, in a real browser: created, shown once, rotated, revoked."""

from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, accessible, fits
from tests.integration.web.test_dashboard import ADMIN, KEYS, audit, cell, row
from tests.support.talk import talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)


async def test_a_key_is_created_shown_once_rotated_and_revoked(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS) as talk:
        talk.http.headers["Authorization"] = f"Bearer {ADMIN}"
        browser = await open_browser(talk.served.url, permissions=["clipboard-read", "clipboard-write"])
        page = await browser.open("/dashboard")
        await page.get_by_label("Key", exact=True).fill(ADMIN)
        await page.get_by_role("button", name="Use this key").click()
        await page.get_by_role("link", name="Keys").click()
        await expect(cell(page, "keys", "caller ops configuration", "State")).to_have_text("configuration")
        await expect(row(page, "keys", "caller ops configuration").locator("button")).to_have_count(0)
        await expect(page.locator("#keys tbody tr")).to_have_count(3)
        await accessible(page)

        await page.get_by_role("button", name="Create a key").click()
        await page.get_by_label("Id", exact=True).fill("a shop")
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("#key-id-problem")).to_contain_text("id must be 1 to 64 letters")
        await expect(page.get_by_label("Id", exact=True)).to_be_focused()
        await page.get_by_label("Id", exact=True).fill("shop")
        await page.get_by_label("Note", exact=True).fill("<b>the shop</b>")
        await page.get_by_label("Tier", exact=True).select_option("paid")
        await page.get_by_label("Models", exact=True).fill("m, n")
        await page.get_by_label("Weight", exact=True).fill("2.5")
        await page.get_by_label("Expires", exact=True).fill("2031-05-06")
        await accessible(page)
        await page.locator("dialog [type=submit]").click()
        secret = await page.locator("#new-secret").inner_text()
        assert secret.startswith("fl_shop_")
        await accessible(page)
        await page.get_by_role("button", name="Copy the secret").click()
        await expect(page.locator("#toasts")).to_contain_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == secret
        account = await talk.http.get("/api/caller", headers={"Authorization": f"Bearer {secret}"})
        assert account.json()["tier"] == "paid"
        await page.get_by_role("button", name="I have it").click()
        await expect(page.locator("dialog")).to_have_count(0)
        assert secret not in await page.content()
        shop = "caller shop database"
        await expect(cell(page, "keys", shop, "Id")).to_contain_text("<b>the shop</b>")
        await expect(cell(page, "keys", shop, "Tier, weight, models")).to_have_text("paid · × 2.5 · m, n")
        await expect(cell(page, "keys", shop, "Expires")).to_contain_text("2031")

        await row(page, "keys", shop).get_by_role("button", name="A new secret for shop").click()
        await page.get_by_label("The old ones stay valid for").select_option("no longer at all")
        await page.locator("dialog [type=submit]").click()
        second = await page.locator("#new-secret").inner_text()
        assert second != secret
        for token, status in ((secret, 401), (second, 200)):
            answer = await talk.http.get("/api/caller", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == status
        await page.get_by_role("button", name="I have it").click()

        await row(page, "keys", shop).get_by_role("button", name="Revoke shop").click()
        await page.get_by_label("Also end its open calls").check()
        await accessible(page)
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("dialog")).to_have_count(0)
        await expect(cell(page, "keys", shop, "State")).to_have_text("revoked")
        await expect(row(page, "keys", shop).locator("button")).to_have_count(0)
        [revoked, rotated, created] = await audit(talk)
        assert [entry["action"] for entry in (revoked, rotated, created)] == ["revoke", "rotate", "create"]
        assert revoked["after"]["now"] is True

        await page.get_by_label("Part of the id").fill("THE SHOP")
        await page.get_by_role("button", name="Find").click()
        await expect(page.locator("#keys tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="Audit log").click()
        await expect(page.locator("#audit tbody tr").first).to_contain_text("revoked")


async def test_a_worker_token_is_made_and_revoked_and_what_others_do_is_seen(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS) as talk:
        talk.http.headers["Authorization"] = f"Bearer {ADMIN}"
        browser = await open_browser(talk.served.url, viewport=PHONE, locale="zh-CN", color_scheme="dark")
        page = await browser.open("/dashboard#/keys")
        await page.locator("#key-input").fill(ADMIN)
        await page.locator("dialog [type=submit]").click()
        await page.get_by_role("button", name="新建密钥").click()
        await page.locator("#key-kind").select_option("worker")
        await expect(page.locator("#key-tier")).to_be_hidden()
        await page.locator("#key-id").fill("gpu")
        await fits(page)
        await page.locator("dialog [type=submit]").click()
        assert (await page.locator("#new-secret").inner_text()).startswith("flw_gpu_")
        await fits(page)
        await page.get_by_role("button", name="已保存").click()
        await talk.http.post("/api/admin/keys", json={"id": "elsewhere"})
        await expect(row(page, "keys", "caller elsewhere database")).to_be_visible()
        await row(page, "keys", "worker gpu database").locator("[data-action=revoke-key]").click()
        await page.locator("dialog .actions button").first.click()
        await expect(row(page, "keys", "worker gpu database")).to_contain_text("已吊销")
        await accessible(page)
        await fits(page)


async def test_the_first_key_closes_the_gateway_and_its_secret_stays_to_be_read(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path) as talk:
        page = await (await open_browser(talk.served.url)).open("/dashboard#/keys")
        await expect(page.locator("#keys")).to_contain_text("There are no keys.")
        await page.get_by_role("button", name="Create a key").click()
        await page.get_by_label("Id", exact=True).fill("boss")
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("dialog [role=alert]")).to_contain_text("must be an admin's")
        await page.get_by_label("May", exact=True).select_option("admin")
        await page.locator("dialog [type=submit]").click()
        secret = await page.locator("#new-secret").inner_text()
        await expect(page.locator("dialog")).to_contain_text("Workers need tokens, too")
        await expect(page.locator("#keys")).to_have_count(0)  # the page is nobody's any more
        await expect(page.locator("#new-secret")).to_have_text(secret)
        await page.get_by_role("button", name="I have it").click()
        await page.locator("#key-input").fill(secret)
        await page.get_by_role("button", name="Use this key").click()
        await expect(row(page, "keys", "caller boss database")).to_be_visible()
        await row(page, "keys", "caller boss database").locator("[data-action=revoke-key]").click()
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("#toasts")).to_contain_text("this very key")
