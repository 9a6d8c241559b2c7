"""Callers' own webhooks in the playground: made, tried, changed, switched off, given another secret, removed; what they told."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import standardwebhooks
from playwright.async_api import Page, Route, expect
from tests.integration.native.keys import key, secret
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, accessible, fits
from tests.integration.webhooks.test_receivers import DAY_MS
from tests.support.receivers import LOCAL, receiving
from tests.support.serving import until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

FAR = "https://app.example.com/hook"
SETTINGS = {**LOCAL, "retry_ms": DAY_MS // 24, "max_per_caller": 2}
"""What is not taken at first waits for whoever sends it again."""


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    """An open gateway that sends to this machine."""
    async with talking(redis_url, tmp_path, webhooks=SETTINGS) as talk:
        yield talk


async def open_webhooks(open_browser: OpenBrowser, talk: Talk, **options: object) -> Page:
    page = await (await open_browser(talk.served.url, **options)).open("/#webhooks")
    await expect(page.locator("#webhooks-title")).to_be_visible()
    return page


async def make(page: Page, url: str) -> str:
    """Make a webhook by the form; the secret that is shown."""
    await page.locator("#webhook-url").fill(url)
    await page.locator("#webhook-send").click()
    return await page.locator("#webhook-secret-text").inner_text()


async def agree(page: Page) -> None:
    await page.locator("dialog .actions button").first.click()


async def test_a_webhook_is_made_tells_of_a_task_and_its_secret_is_shown_once(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with receiving() as receiver, talk.worker2(["m"]) as worker:
        page = await open_webhooks(open_browser, talk)
        await expect(page.locator("#webhooks")).to_contain_text("No webhooks yet.")
        await page.locator("#webhook-note").fill("<i>mine</i>")
        told = await make(page, f"{receiver.url}?token=hidden")
        await expect(page.locator("#webhook-secret-title")).to_be_focused()
        await expect(page.locator("#webhooks tbody tr")).to_contain_text("<i>mine</i>")
        await expect(page.locator("#webhooks tbody tr .name")).to_have_text(receiver.url)
        await expect(page.locator("#webhook-code pre")).to_contain_text("/api/webhooks")
        await accessible(page)

        await page.locator("#tab-ask").click()  # it is shown until its reader has it
        await page.locator("#tab-webhooks").click()
        await expect(page.locator("#webhook-secret-text")).to_have_text(told)
        await page.locator("#webhook-secret-kept").click()
        await expect(page.locator("#webhook-secret")).to_be_hidden()
        assert told not in await page.content()

        task = await talk.submit(model="m")
        await worker.answer(await worker.take(), {"content": "ok"})
        await until(lambda: bool(receiver.got), "the receiver to be told")
        [got] = receiver.got
        standardwebhooks.Webhook(told).verify(got.body.decode(), got.headers)
        await page.locator("#webhooks [data-action=deliveries]").click()
        await expect(page.locator("#deliveries tbody tr")).to_contain_text(task)
        await expect(page.locator("#deliveries [data-delivery=delivered]")).to_be_visible()
        await page.locator("#deliveries [data-action=tries]").click()
        await expect(page.locator("dialog tbody tr")).to_contain_text("taken")
        await expect(page.locator("dialog")).to_contain_text(got.id)
        await accessible(page)


async def test_what_was_not_taken_says_why_and_is_sent_again(talk: Talk, open_browser: OpenBrowser) -> None:
    async with receiving(lambda _: 500) as receiver:
        page = await open_webhooks(open_browser, talk)
        await make(page, receiver.url)
        await page.locator("#webhooks [data-action=test]").click()
        await expect(page.locator("#deliveries-title")).to_be_focused()
        row = page.locator("#deliveries tbody tr")
        await expect(row.locator("[data-delivery=waiting]")).to_be_visible()
        await expect(row).to_contain_text("500")
        await expect(page.locator("#webhooks [data-webhook=failing]")).to_be_visible()
        await expect(page.locator("#webhooks .sub.bad")).to_contain_text("500")
        await accessible(page)
        receiver.reply = lambda _: 204
        await row.locator("[data-action=again]").click()
        await expect(row.locator("[data-delivery=delivered]")).to_be_visible()
        await expect(page.locator("#webhooks [data-webhook=on]")).to_be_visible()
        await row.locator("[data-action=tries]").click()
        tries = page.locator("dialog tbody tr")
        await expect(tries).to_have_count(2)
        await expect(tries.first).to_contain_text("500")
        await expect(tries.last).to_contain_text("taken")
        await page.keyboard.press("Escape")

        async def too_soon(route: Route) -> None:
            body = {"error": "It was sent just now: wait 5 seconds", "code": "TOO_SOON"}
            await route.fulfill(status=429, headers={"Retry-After": "5"}, json=body)

        await page.route("**/redeliver", too_soon)
        await row.locator("[data-action=again]").click()
        await expect(page.locator(".toast.bad")).to_contain_text("That was done just now. Try again in 5")
        await page.locator("#deliveries-state").select_option("failed")
        await expect(page.locator("#deliveries")).to_contain_text("No deliveries.")


async def test_a_webhook_is_changed_switched_off_and_on_and_deleted(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    page = await open_webhooks(open_browser, talk)
    first = await make(page, FAR)
    row = page.locator("#webhooks tbody tr")
    await row.locator("[data-action=change]").click()
    await expect(page.locator("#webhook-url")).to_have_value(FAR)
    await page.locator("input[name=webhook-which][value=some]").check(force=True)
    await page.locator("#webhook-send").click()
    await expect(page.locator("#webhook-problem")).to_have_text("Choose one event at least.")
    await accessible(page)
    await page.get_by_label("batch.completed").check()
    await page.get_by_label("task.failed").check()
    await page.locator("#webhook-send").click()
    await expect(row).to_contain_text("task.failed, batch.completed")
    await expect(page.locator("#webhook-form-title")).to_have_text("New webhook")

    await row.locator("[data-action=rotate]").click()
    await agree(page)
    await expect(page.locator("#webhook-secret .hint")).to_contain_text(
        "are signed with the secret before, too"
    )
    assert await page.locator("#webhook-secret-text").inner_text() != first

    await row.locator("[data-action=switch]").click()
    await agree(page)
    await expect(row.locator("[data-webhook=off]")).to_be_visible()
    await expect(row).to_contain_text("Its owner switched it off.")
    await expect(row.locator("[data-action=test]")).to_have_count(0)
    await row.locator("[data-action=switch]").click()
    await expect(row.locator("[data-webhook=on]")).to_be_visible()

    await row.locator("[data-action=deliveries]").click()
    await row.locator("[data-action=delete]").click()
    await expect(page.locator("dialog")).to_contain_text(FAR)
    await agree(page)
    await expect(row).to_have_count(0)
    await expect(page.locator("#deliveries")).to_be_hidden()
    await expect(page.locator("#webhook-secret")).to_be_hidden()
    assert (await talk.http.get("/api/webhooks")).json()["webhooks"] == []


async def test_what_cannot_be_made_is_refused_with_what_to_do(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await open_webhooks(open_browser, talk)
    await page.locator("#webhook-send").click()
    problem = page.locator("#webhook-problem")
    await expect(problem).to_have_text("Write the URL first.")
    await expect(page.locator("#webhook-url")).to_be_focused()
    await page.locator("#webhook-url").fill("https://10.0.0.1/hook")
    await page.locator("#webhook-send").click()
    await expect(problem).to_contain_text(
        "a private address: an operator has to allow its network (webhooks.allow_private)"
    )
    await expect(page.locator("#webhook-url")).to_have_value("https://10.0.0.1/hook")
    for number in range(2):
        await make(page, f"{FAR}/{number}")
        await page.locator("#webhook-secret-kept").click()
    await page.locator("#webhook-url").fill(FAR)
    await page.locator("#webhook-send").click()
    await expect(problem).to_contain_text("delete one first")
    await expect(page.locator("#webhooks tbody tr")).to_have_count(2)


async def test_a_delegating_key_has_one_for_all_its_users_or_for_a_named_one(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=[key("site", delegating=True)]) as talk:
        watched = await open_browser(talk.served.url)
        page = await watched.open("/")
        await page.evaluate("key => sessionStorage.setItem('fairlane.key', key)", secret("site"))
        await page.reload()
        await page.locator("#tab-webhooks").click()
        await expect(page.locator("#webhooks")).to_contain_text("No webhooks yet.")
        await page.locator("#webhook-every-user").check()
        await make(page, FAR)
        await expect(page.locator("#webhooks tbody tr")).to_contain_text("of all users of the key")

        await page.locator("#tab-ask").click()
        await page.locator("#user").fill("zoë")
        await page.locator("#tab-webhooks").click()
        await expect(page.locator("#webhooks")).to_contain_text("No webhooks yet.")
        await expect(page.locator("#webhook-secret")).to_be_hidden()  # it was not hers
        await expect(page.locator("#webhook-every")).to_be_hidden()
        await expect(page.locator("#webhook-whose")).to_contain_text("zoë")
        await make(page, f"{FAR}/zoe")
        await expect(page.locator("#webhooks tbody tr")).to_have_count(1)
        await accessible(page)


async def test_the_view_fits_a_phone_speaks_chinese_and_is_used_by_keyboard(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with receiving(lambda _: 503) as receiver:
        page = await open_webhooks(open_browser, talk, viewport=PHONE, color_scheme="dark")
        await page.locator("#tab-webhooks").focus()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator("#tab-ask")).to_be_focused()
        await page.keyboard.press("ArrowLeft")
        await expect(page.locator("#view-webhooks")).to_be_visible()
        await page.locator("#webhook-url").fill(receiver.url)
        await page.keyboard.press("Enter")
        await expect(page.locator("#webhook-secret-title")).to_be_focused()
        await fits(page)
        await page.locator("#webhook-secret-kept").focus()
        await page.keyboard.press("Enter")
        await page.locator("#webhooks [data-action=test]").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#deliveries [data-delivery=waiting]")).to_be_visible()
        await expect(page.locator("#webhooks [data-webhook=failing]")).to_be_visible()
        await fits(page)
        await accessible(page)
        await page.locator("#deliveries [data-action=tries]").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog tbody tr")).to_have_count(1)
        await fits(page)
        await page.keyboard.press("Escape")
        await page.locator("#language").select_option("zh")
        await expect(page.locator("#webhooks-title")).to_have_text("您的 webhook")
        await expect(page.locator("#deliveries-title")).to_have_text("投递")
        await expect(page.locator("#webhooks [data-webhook=failing]")).to_have_text("失败中")
        await page.locator("#deliveries-close").click()
        await expect(page.locator("#webhooks [data-action=deliveries]")).to_be_focused()
