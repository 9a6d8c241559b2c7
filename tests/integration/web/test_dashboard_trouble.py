"""The dashboard when something goes wrong around it: answers that do not come, rows that go, a reader in the middle of a word."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect
from sqlalchemy import text
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser
from tests.support.databases import running_postgres
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.records import reading

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)


async def pictures(talk: Talk, count: int = 2) -> None:
    """Wait until the feed has shown so many more."""
    number = talk.served.gateway.operator.live.number
    await until(lambda: talk.served.gateway.operator.live.number >= number + count, f"{count} more pictures")


async def test_the_skip_link_leads_into_the_view_that_is_shown(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open("/dashboard#/tasks")
    await expect(page.locator("#tasks")).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
    await expect(page.locator("#tasks")).to_be_visible()
    assert page.url.endswith("#/tasks")


async def test_each_view_has_a_title_and_the_focus(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]):
        task_id = await talk.submit(model="m")
    page = await (await open_browser(talk.served.url)).open("/dashboard#/tasks")
    await expect(page).to_have_title("Tasks · Dashboard · Fairlane")
    link = page.locator("#tasks tbody a.id")
    await link.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#task-title")).to_have_text(task_id)
    await expect(page.locator("#main")).to_be_focused()
    await expect(page).to_have_title(f"{task_id} · Dashboard · Fairlane")


async def test_what_has_the_focus_keeps_it_when_rows_go_and_cells_change(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    page = await (await open_browser(talk.served.url)).open("/dashboard#/audit")
    await expect(page.locator("#audit")).to_be_visible()
    focused = await page.evaluate(
        """async () => {
          const { LiveTable, rowButton } = await import("/static/common/table.js");
          const { h } = await import("/static/common/dom.js");
          const link = { name: "task.id", sign: row => row.id + row.n, draw: row => h("a", { href: "#/x" }, row.id) };
          const look = newest => rowButton("look", "look", () => (window.seen = newest().n));
          const button = { name: "", sign: () => "", draw: (_, newest) => look(newest) };
          const table = new LiveTable([link, button], "tasks.title");
          document.body.append(table.element);
          const show = (...rows) => table.update(rows, row => row.id);
          const of = id => table.element.querySelector(`[data-key=${id}]`);
          const at = () => document.activeElement.closest("tr")?.dataset.key + document.activeElement.tagName;
          const found = [];
          show({ id: "a", n: 0 }, { id: "b", n: 0 }, { id: "c", n: 0 });
          of("b").querySelector("button").focus();
          show({ id: "b", n: 0 }, { id: "c", n: 0 });
          found.push(at());
          of("c").querySelector("a").focus();
          show({ id: "b", n: 0 }, { id: "c", n: 7 });
          found.push(at());
          of("c").querySelector("button").click();
          return [...found, window.seen];
        }"""
    )
    assert focused == ["bBUTTON", "cA", 7]


async def test_changes_are_read_when_the_store_is_back_and_pages_stay(
    own_redis: Server, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(own_redis.url, tmp_path, redis_timeout_ms=300) as talk:
        for number in range(60):
            await talk.http.patch("/api/admin/models/m", json={"concurrency": 3 + number % 2})
        told = (await talk.http.get("/api/admin/audit", params={"limit": 60})).json()
        assert len(told["entries"]) == 60, "SQL has them"
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await expect(page.locator("#live[data-state=live]")).to_be_visible()
        with own_redis.frozen():
            await expect(page.locator("#view.stale")).to_be_visible()
            await page.get_by_role("link", name="Audit log").click()
            rows = page.locator("#audit tbody tr")
            await expect(rows).to_have_count(50)  # SQL has it
        await page.get_by_role("button", name="Show more").click()
        await expect(rows).to_have_count(60)
        await talk.http.patch("/api/admin/models/m", json={"concurrency": 9})
        await expect(rows).to_have_count(61)
        await expect(rows.first).to_contain_text("→ 9")


async def test_a_feed_that_is_refused_is_not_asked_for_without_a_pause(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    browser = await open_browser(talk.served.url)
    page = await browser.open()
    asked: list[float] = []

    async def refuse(route: Route) -> None:
        asked.append(time.monotonic())
        await route.fulfill(status=404, json={"error": "no such path", "code": "NOT_FOUND"})

    await page.route("**/api/admin/feed", refuse)
    await page.goto(talk.served.url + "/dashboard")
    await expect(page.locator("#problem")).to_contain_text("The gateway cannot be reached")
    await until(lambda: len(asked) >= 3, "three requests")
    assert min(later - sooner for sooner, later in itertools.pairwise(asked)) > 1


async def test_a_picture_that_cannot_be_drawn_is_no_lost_connection(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    browser = await open_browser(talk.served.url)
    page = await browser.open("/dashboard")
    await expect(page.locator("#live[data-state=live]")).to_be_visible()
    await page.evaluate(
        """async () => {
          const { Overview } = await import("/static/dashboard/overview.js");
          Overview.prototype.show = () => { throw new Error("a mistake of ours"); };
        }"""
    )
    await pictures(talk, 3)
    await expect(page.locator("#live[data-state=live]")).to_be_visible()
    assert talk.served.gateway.operator.live.watchers == 1
    await page.close()  # else the next picture is told while the browser is looked at
    assert all("a mistake of ours" in problem for problem in browser.problems)
    browser.problems.clear()


async def test_what_is_typed_stays_when_a_model_becomes_known(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open("/dashboard#/tasks")
    await page.get_by_label("Part of id, request id, user or failure").fill("somebody")
    await page.locator("h1").click()
    async with talk.worker2(["a-new-model"]):
        await expect(page.locator("#find-model option[value=a-new-model]")).to_have_count(1)
        await expect(page.get_by_label("Part of id, request id, user or failure")).to_have_value("somebody")


async def hide(page: Page, hidden: bool) -> None:
    await page.evaluate(
        """hidden => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


async def test_a_tasks_page_that_nobody_sees_holds_no_connection(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        task = await worker.take()
        await worker.chunk(task, "one")
        page = await (await open_browser(talk.served.url)).open(f"/dashboard#/tasks/{task_id}")
        await expect(page.locator("#events tbody")).to_contain_text("one")
        await hide(page, hidden=True)
        await until(lambda: not talk.served.gateway.hub.feeds(), "nobody to read the task")
        await worker.chunk(task, "two", 2)
        await hide(page, hidden=False)
        await expect(page.locator("#events tbody")).to_contain_text("two")
        await expect(page.locator("#events .panel-head")).to_contain_text("3 events")


async def test_a_call_that_stalls_in_the_middle_is_given_up(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open()
    code: Any = await page.evaluate(
        """async () => {
          const { call } = await import("/static/common/api.js");
          window.fetch = (_, { signal }) => {
            const body = new ReadableStream({ start: out => signal.addEventListener("abort", () => out.error(signal.reason)) });
            return Promise.resolve(new Response(body, { headers: { "Content-Type": "application/json" } }));
          };
          return call("/api/caller", { timeoutMs: 200 }).catch(problem => problem.code);
        }"""
    )
    assert code == "TIMEOUT_HERE"


async def test_while_the_database_is_away_each_view_says_what_of_it_is_missing(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "REPORT_S", 0.5)
    with running_postgres() as server:
        url = server.new("dashboard")
        async with talking(redis_url, tmp_path, database_url=url, outbox_max_entries=3) as talk:
            browser = await open_browser(talk.served.url)
            other = Database(parse_address(url, tmp_path))
            async with other.writing(60) as connection:
                await connection.execute(text("LOCK TABLE usage_sums IN ACCESS EXCLUSIVE MODE"))
                page = await browser.open("/dashboard#/usage")
                await expect(page.locator("#usage .notice")).to_contain_text("ask for fewer days")
            await other.close()
            server.stop()
            await expect(page.locator("#problem")).to_contain_text("The SQL database is away since")
            await page.get_by_role("radio", name="7 days").check()
            await expect(page.locator("#usage .notice")).to_contain_text("database does not answer.")
            await page.get_by_role("link", name="Keys").click()
            await page.get_by_role("button", name="Create a key").click()
            await page.get_by_label("Id", exact=True).fill("boss")
            await page.get_by_label("May", exact=True).select_option("admin")
            await page.locator("dialog [type=submit]").click()
            problem = page.locator("dialog [role=alert]")
            await expect(problem).to_contain_text("whether the change was made is not known")
            async with talk.worker2(["m"]) as worker:

                async def serve() -> None:
                    while True:
                        await worker.answer(await worker.take(), result={"content": "hi"})

                talk.later(serve())
                ask = {"model": "m", "messages": []}
                told = [(await talk.http.post("/api/openai", json=ask)).status_code for _ in range(4)]
            assert (told[0], told[-1]) == (200, 503), "a minute's refusals may be among the records that wait"
            await expect(page.locator("#problem")).to_contain_text("New requests are refused with 503")
            await expect(page.locator("#problem")).to_contain_text("It is away since")
            await expect(page.locator("#problem")).not_to_contain_text("tasks go on")
            server.start()
            await expect(page.locator("#problem .notice")).to_have_count(0)
