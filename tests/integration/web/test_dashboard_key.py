"""A key on the dashboard, in a real browser: its limits and what is left of them, its quota and ledger, and whether it signs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect
from tests.integration.native.keys import key, secret
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, accessible, fits
from tests.integration.web.test_dashboard import audit, cell, confirm, row
from tests.support.serving import until
from tests.support.signing import token
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import PriceSettings

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

M = PriceSettings.model_validate({"model": "m", "input": 0, "output": 0, "request": "0.500001"})
KEYS = [
    key("ops", admin=True),
    key("eyes", scopes=["viewer"]),
    key("filed", limits={"requests_per_minute": 60}, quota={"otherwise": "paid"}),
    key("plain"),
]


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    async with talking(redis_url, tmp_path, keys=KEYS, prices=[M]) as talk:
        talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
        yield talk


async def create(talk: Talk, key_id: str, **said: Any) -> str:
    """A key of the database; its secret."""
    answer = await talk.http.post("/api/admin/keys", json={"id": key_id, **said})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


async def settings(talk: Talk, key_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await talk.http.get(f"/api/admin/keys/{key_id}")).json()["settings"]
    return found


async def wrong(talk: Talk, path: str, method: str = "PATCH", **body: Any) -> dict[str, str]:
    """What a call finds wrong with each member of its body."""
    answer = await talk.http.request(method, path, json=body)
    assert answer.status_code == 400, answer.text
    fields: dict[str, str] = answer.json()["fields"]
    return fields


async def granted(talk: Talk, **who: str) -> list[dict[str, Any]]:
    """The grants of the ledger, newest first."""
    query = {**who, "kind": "grant"}
    rows: list[dict[str, Any]] = (await talk.http.get("/api/admin/quota/ledger", params=query)).json()["rows"]
    return rows


async def run(talk: Talk, secret: str, user: str = "") -> str:
    """A task of this caller, from its call to its end; its id."""
    headers = {"X-Fairlane-User": user} if user else {}
    async with talk.worker2(["m"]) as worker, talk.client(secret, **headers) as caller:
        call = talk.later(caller.post("/api/openai", json={"model": "m", "messages": []}))
        task = await worker.take()
        await worker.answer(task, result={"content": "hi"}, usage={"inputTokens": 3, "outputTokens": 4})
        assert (await call).status_code == 200
    return str(task["taskId"])


async def dashboard(
    open_browser: OpenBrowser, talk: Talk, path: str, who: str = "ops", **options: Any
) -> Page:
    """The dashboard of somebody, at this address."""
    browser = await open_browser(talk.served.url, **options)
    await browser.context.add_init_script(f"sessionStorage.setItem('fairlane.key', '{secret(who)}')")
    return await browser.open(f"/dashboard#{path}")


async def submit(page: Page) -> None:
    await page.locator("dialog [type=submit]").click()


async def closed(page: Page) -> None:
    """The dialog is over: what it asked is done."""
    await expect(page.locator("dialog")).to_have_count(0)


async def test_limits_are_seen_changed_and_taken_away(talk: Talk, open_browser: OpenBrowser) -> None:
    shop = await create(talk, "shop", limits={"requests_per_day": 60, "max_running": 4})
    await run(talk, shop)
    page = await dashboard(open_browser, talk, "/keys")
    await page.get_by_role("link", name="shop").click()
    await expect(page.locator("#key-name")).to_have_text("shop")
    await expect(cell(page, "limits", "requests_per_day", "At most")).to_have_text("60")
    await expect(cell(page, "limits", "requests_per_day", "Left now")).to_have_text("59")
    await expect(cell(page, "limits", "requests_per_day", "All back in")).to_contain_text("m")
    await expect(cell(page, "limits", "max_running", "Left now")).to_have_text("4")
    await expect(page.locator("#user_limits")).to_be_hidden()
    await expect(page.locator("#find-user")).to_be_hidden()
    await accessible(page)

    await page.locator("[data-action=change-limits]").click()
    await page.get_by_label("Tokens a day").fill("many")
    await page.get_by_label("Most running tasks").fill("0")
    await submit(page)
    said = await wrong(talk, "/api/admin/keys/shop", limits={"tokens_per_day": "many", "max_running": 0})
    await expect(page.locator("#limit-tokens_per_day-problem")).to_have_text(said["limits.tokens_per_day"])
    await expect(page.locator("#limit-max_running-problem")).to_have_text(said["limits.max_running"])
    await expect(page.get_by_label("Tokens a day")).to_be_focused()
    await accessible(page)
    await page.get_by_label("Tokens a day").fill("2000000")
    await page.get_by_label("Most running tasks").fill("")
    await page.keyboard.press("Enter")
    await closed(page)
    await expect(cell(page, "limits", "tokens_per_day", "At most")).to_have_text("2,000,000")
    await expect(row(page, "limits", "max_running")).to_have_count(0)
    limits = (await settings(talk, "shop"))["limits"]
    assert {name: value for name, value in limits.items() if value} == {
        "requests_per_day": 60,
        "tokens_per_day": 2_000_000,
    }
    await page.locator("[data-action=change-limits]").click()
    await submit(page)
    await expect(page.locator("dialog [role=alert]")).to_have_text("Nothing is changed yet.")
    await page.keyboard.press("Escape")

    await page.locator("[data-action=remove-limits]").click()
    await confirm(page)
    await expect(page.locator("#limits")).to_contain_text("No limits.")
    await expect(page.locator("[data-action=remove-limits]")).to_be_hidden()
    assert not any((await settings(talk, "shop"))["limits"].values())


async def test_what_is_left_is_told_of_one_user_by_name(talk: Talk, open_browser: OpenBrowser) -> None:
    site = await create(talk, "site", delegating=True, limits={"requests_per_day": 9})
    page = await dashboard(open_browser, talk, "/keys/site")
    await page.locator("[data-action=change-user_limits]").click()
    await page.get_by_label("Requests a day").fill("5")
    await submit(page)
    await closed(page)
    left = cell(page, "user_limits", "requests_per_day", "Left now")
    await expect(left).to_have_text("–")
    await run(talk, site, "ann")
    await page.get_by_label("A user of this key, by name").fill("ann")
    await page.keyboard.press("Enter")
    await expect(left).to_have_text("4")
    assert page.url.endswith("#/keys/site?user=ann")
    await expect(cell(page, "limits", "requests_per_day", "Left now")).to_have_text("8")
    await run(talk, site, "ann")
    await expect(left).to_have_text("3")  # it is looked at again and again
    await page.get_by_label("A user of this key, by name").fill("<b>ben/é?")
    await page.get_by_role("button", name="Show user").click()
    await expect(page.locator("#user_limits")).to_contain_text("What is left is that of <b>ben/é?.")
    await expect(left).to_have_text("5")
    await page.get_by_role("button", name="All users").click()
    await expect(left).to_have_text("–")


async def test_a_quota_is_set_changed_and_taken_away(talk: Talk, open_browser: OpenBrowser) -> None:
    await create(talk, "shop")
    page = await dashboard(open_browser, talk, "/keys/shop")
    quota = page.locator("#quota")
    await expect(quota).to_contain_text("nobody pays for its tasks")
    await expect(page.locator("#ledger")).to_be_hidden()
    await page.locator("[data-action=change-quota]").click()
    await page.get_by_label("Budget (credits)").fill("0.0000001")
    await submit(page)
    said = await wrong(talk, "/api/admin/keys/shop", quota={"of": "key", "budget": "0.0000001"})
    await expect(page.locator("#quota-budget-problem")).to_have_text(said["quota.budget"])
    await page.get_by_label("Budget (credits)").fill("1234.000001")
    await submit(page)
    await expect(page.locator("#quota-per-problem")).to_contain_text("a budget needs `per`")
    await page.get_by_label("Each", exact=True).select_option("day")
    await page.get_by_label("What cannot be paid").select_option("paid")
    await page.get_by_label("Who pays").select_option("user")
    await submit(page)
    await expect(page.locator("#quota-of-problem")).to_contain_text("only a delegating key has several users")
    await accessible(page)
    await page.get_by_label("Who pays").select_option("key")
    await submit(page)
    await closed(page)
    await expect(quota).to_contain_text("1,234.000001 credits are there anew each day")
    await expect(quota).to_contain_text("goes on in the tier paid")
    await expect(quota.locator('[data-fact="quota.left"]')).to_have_text("1,234.000001 of 1,234.000001")
    assert (await settings(talk, "shop"))["quota"] == {
        "of": "key",
        "budget": 1234.000001,
        "per": "day",
        "otherwise": "paid",
    }
    await page.locator("[data-action=change-quota]").click()
    await page.get_by_label("Budget (credits)").fill("")
    await page.get_by_label("Each", exact=True).select_option("not set")
    await submit(page)
    await closed(page)
    await expect(quota).to_contain_text("paid with what was granted")
    await page.locator("[data-action=remove-quota]").click()
    await confirm(page)
    await expect(quota).to_contain_text("nobody pays for its tasks")
    assert (await settings(talk, "shop"))["quota"] is None


async def test_credits_are_granted_and_stand_in_the_ledger_with_what_tasks_cost(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    shop = await create(talk, "shop", quota={})
    page = await dashboard(open_browser, talk, "/keys/shop")
    await expect(page.locator("#ledger")).to_contain_text("Nothing was granted")
    await page.locator("[data-action=grant]").click()
    await page.get_by_label("Credits", exact=True).fill("1,5")
    await submit(page)
    said = await wrong(talk, "/api/admin/quota/grants", "POST", key="shop", credits="1,5")
    await expect(page.locator("#grant-credits-problem")).to_have_text(said["credits"])
    await accessible(page)
    await page.get_by_label("Credits", exact=True).fill("123456789.123456")
    await page.get_by_label("Note").fill("<b>paid</b>")
    await submit(page)
    await closed(page)
    await expect(page.locator("#toasts")).to_contain_text("123,456,789.123456 credits are granted to shop")
    [made] = await granted(talk, key="shop")
    grant = f"grant {made['id']} granted null"
    await expect(cell(page, "ledger", grant, "What")).to_have_text("grant by ops<b>paid</b>")
    await expect(cell(page, "ledger", grant, "Amount")).to_have_text("+123,456,789.123456")

    task_id = await run(talk, shop)

    async def told() -> bool:
        return len((await talk.http.get("/api/admin/quota/ledger?key=shop")).json()["rows"]) == 2

    await until(told, "the task to be in the ledger")
    await expect(page.locator('[data-fact="quota.balance"]')).to_have_text("123,456,788.623455")
    await expect(page.locator('[data-fact="quota.available"]')).to_have_text("123,456,788.623455")
    task = f"task {task_id} granted null"
    await expect(cell(page, "ledger", task, "Amount")).to_have_text("-0.500001")
    await expect(cell(page, "ledger", task, "Held")).to_have_text("0.500001")

    await page.locator("[data-action=grant]").click()
    await page.get_by_label("Credits", exact=True).fill("-123456788.623456")
    await submit(page)
    await closed(page)
    await expect(page.locator('[data-fact="quota.balance"].bad')).to_have_text("-0.000001")
    await expect(page.locator('[data-fact="quota.available"]')).to_have_text("0")
    await accessible(page)
    await row(page, "ledger", task).get_by_role("link", name=task_id).click()
    await expect(page.locator("#task-title")).to_have_text(task_id)


async def test_a_double_click_and_an_answer_that_was_lost_grant_once(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    await create(talk, "shop", quota={})
    page = await dashboard(open_browser, talk, "/keys/shop")
    await page.locator("[data-action=grant]").click()
    await page.get_by_label("Credits", exact=True).fill("5")
    await page.locator("dialog [type=submit]").dblclick()
    await closed(page)
    await expect(page.locator("#ledger tbody tr")).to_have_count(1)

    async def lose(route: Route) -> None:
        answer = await route.fetch()
        assert answer.status == 201
        await route.abort()

    await page.route("**/api/admin/quota/grants", lose, times=1)
    await page.locator("[data-action=grant]").click()
    await page.get_by_label("Credits", exact=True).fill("7")
    await submit(page)
    await expect(page.locator("dialog [role=alert]")).to_contain_text("The gateway cannot be reached")
    await submit(page)
    await closed(page)
    await expect(page.locator('[data-fact="quota.balance"]')).to_have_text("12")
    assert [made["amount"] for made in await granted(talk, key="shop")] == [7, 5]
    assert [entry["action"] for entry in await audit(talk)] == ["grant", "grant", "create"]


async def test_users_who_pay_are_listed_and_granted_credits_by_name(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    site = await create(talk, "site", delegating=True, quota={"of": "user", "budget": 2, "per": "month"})
    await run(talk, site, "ben")
    await run(talk, site)  # of whom no name is known
    page = await dashboard(open_browser, talk, "/keys/site")
    await expect(page.locator("#ledger")).to_be_hidden()
    await expect(cell(page, "quota", "site/ben", "Left of the budget")).to_have_text("1.499999 of 2")
    await expect(row(page, "quota", "site").locator("th")).to_have_text("(no name given)")
    await page.locator("[data-action=grant]").click()
    await page.get_by_label("User", exact=True).fill("ann")
    await page.get_by_label("Credits", exact=True).fill("2.5")
    await submit(page)
    await closed(page)
    await expect(cell(page, "quota", "site/ann", "Available")).to_have_text("4.5")
    await row(page, "quota", "site/ben").get_by_role("button", name="Grant credits to site/ben").click()
    await page.get_by_label("Credits", exact=True).fill("0.25")
    await submit(page)
    await closed(page)
    await expect(cell(page, "quota", "site/ben", "Balance of grants")).to_have_text("0.25")
    for number in range(21):
        body = {"user": "site/ben", "credits": 1, "id": f"more-{number}"}
        assert (await talk.http.post("/api/admin/quota/grants", json=body)).status_code == 201
    await page.get_by_role("link", name="ben").click()
    await expect(page.get_by_label("A user of this key, by name")).to_have_value("ben")
    await expect(page.locator('[data-fact="quota.balance"]')).to_have_text("21.25")
    await expect(page.locator("#ledger tbody tr")).to_have_count(20)
    await page.get_by_role("button", name="Show more").click()
    await expect(page.locator("#ledger tbody tr")).to_have_count(23)
    await expect(page.locator("#ledger tbody tr").last).to_contain_text("budget of the month until")


async def test_a_key_signs_from_its_next_secret_on(talk: Talk, open_browser: OpenBrowser) -> None:
    await create(talk, "site")
    page = await dashboard(open_browser, talk, "/keys/site")
    signs = page.locator('[data-fact="signing"]')
    await expect(signs).to_have_text("no")
    await page.locator("[data-action=change-signing]").click()
    await page.get_by_label("It signs").check()
    await page.get_by_label("It names users").check()
    await accessible(page)
    await submit(page)
    await closed(page)
    await expect(signs).to_have_text("yes")
    await expect(page.locator("#toasts")).to_contain_text("rotate it")
    await expect(page.locator("#signing .notice")).to_contain_text("None of its secrets signs yet")
    await page.locator("[data-action=rotate-to-sign]").click()
    await submit(page)
    await expect(page.locator("dialog").last).to_contain_text("This secret signs.")
    new = await page.locator("#new-secret").inner_text()
    await page.get_by_role("button", name="I have it").click()
    await closed(page)
    assert new not in await page.content()
    await expect(page.locator("#signing .notice")).to_contain_text("Not all of its valid secrets sign")
    shown = (await talk.http.get("/api/admin/keys/site")).json()
    assert [one["signs"] for one in shown["secrets"]] == [False, True]
    bearer = {"Authorization": f"Bearer {token(new, user='ann')}"}
    assert (await talk.http.get("/api/caller", headers=bearer)).json()["user"] == "site/ann"


async def test_who_would_shut_this_very_page_out_is_warned(talk: Talk, open_browser: OpenBrowser) -> None:
    boss = await create(talk, "boss", scopes=["admin"])
    browser = await open_browser(talk.served.url)
    await browser.context.add_init_script(f"sessionStorage.setItem('fairlane.key', '{boss}')")
    page = await browser.open("/dashboard#/keys/boss")
    await page.locator("[data-action=revoke-key]").click()
    await submit(page)
    await expect(page.locator("#toasts")).to_contain_text("this very key")


async def test_who_may_only_look_is_shown_nothing_to_do_and_keys_of_the_file_stay_as_they_are(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    await create(talk, "site", delegating=True, signing=True, limits={"max_running": 3}, quota={"of": "user"})
    await talk.http.post("/api/admin/quota/grants", json={"user": "site/ann", "credits": 1})
    page = await dashboard(open_browser, talk, "/keys/site?user=ann", "eyes")
    await expect(cell(page, "limits", "max_running", "Left now")).to_have_text("3")
    await expect(page.locator("#ledger tbody tr")).to_have_count(1)
    await expect(actions_of(page)).to_have_count(0)
    await page.get_by_role("button", name="All users").click()
    await expect(row(page, "quota", "site/ann")).to_be_visible()
    await expect(actions_of(page)).to_have_count(0)

    page = await dashboard(open_browser, talk, "/keys/filed")
    await expect(page.locator("#key")).to_contain_text("The configuration file says what this key is")
    await expect(cell(page, "limits", "requests_per_minute", "Left now")).to_have_text("60")
    await expect(page.locator("#ledger")).to_be_visible()
    await expect(actions_of(page)).to_have_text(["Grant…"])  # which changes nothing that the file says
    await page.goto(f"{talk.served.url}/dashboard#/keys/site")
    await expect(actions_of(page)).to_have_count(10)

    page = await dashboard(open_browser, talk, "/keys/site", "plain")
    await expect(page.locator("#problem")).to_contain_text("not an operator's")
    await expect(page.locator("#key")).to_have_count(0)


def actions_of(page: Page) -> Locator:
    """What an operator can do there."""
    return page.locator("[data-action]:visible")


async def test_a_key_fits_a_phone_and_speaks_chinese(talk: Talk, open_browser: OpenBrowser) -> None:
    limits = {"requests_per_minute": 600, "tokens_per_day": 10_000_000}
    quota = {"of": "user", "budget": "1234567.123456", "per": "day", "otherwise": "free"}
    await create(
        talk,
        "site",
        delegating=True,
        signing=True,
        limits=limits,
        user_limits=limits,
        quota=quota,
        tier="paid",
    )
    await create(talk, "gpu", kind="worker")
    body = {"user": f"site/{'x' * 120}", "credits": "999999999.999999", "note": "y" * 400}
    assert (await talk.http.post("/api/admin/quota/grants", json=body)).status_code == 201
    options = {"viewport": {**PHONE, "width": 360}, "locale": "zh-CN", "color_scheme": "dark"}
    page = await dashboard(open_browser, talk, "/keys/site", **options)
    await expect(page.locator("#quota tbody tr")).to_have_count(1)
    await fits(page)
    await accessible(page)
    await page.locator("#quota tbody a").click()
    await expect(page.locator("#ledger tbody tr")).to_contain_text("+999,999,999.999999")
    await fits(page)
    await accessible(page)
    for action in ("change-limits", "change-quota", "grant", "change-signing"):
        await page.locator(f"[data-action={action}]").click()
        await fits(page)
        await accessible(page)
        await page.keyboard.press("Escape")
    await page.goto(f"{talk.served.url}/dashboard#/keys/gpu?kind=worker")
    await expect(page.locator("#key-name")).to_have_text("gpu")
    await expect(page.locator("#quota")).to_be_hidden()
    await page.goto(f"{talk.served.url}/dashboard#/keys/nobody")
    await expect(page.locator("#view [role=alert]").first).to_contain_text("没有此密钥")
