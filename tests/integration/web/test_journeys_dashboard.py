"""Journeys through the dashboard in a real browser: its values are the gateway's, and what is done there is obeyed."""

import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import Locator, Page, expect
from tests.integration.web.conftest import PHONE, OpenBrowser, accessible, fits
from tests.integration.web.dashboard import ADMIN, CALLER, HOSTILE, KEYS, audit, busy, cell, confirm, row
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.web.history.buckets import Bucket, ModelCounts, Sketch

pytestmark = pytest.mark.anyio


async def test_a_limit_is_changed_and_obeyed(talk: Talk, open_browser: OpenBrowser) -> None:
    async with busy(talk) as (worker, _):
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await row(page, "models", "m").locator("[data-action=change]").click()
        await page.get_by_label("Slots of all replicas").fill("2")
        assert await worker.idle()
        await confirm(page)
        await worker.take()
        await expect(cell(page, "models", "m", "Slots in use")).to_have_text("2 of 2")
        [entry, *_] = await audit(talk)
        assert (entry["target"], entry["before"], entry["after"]) == (
            "model m",
            {"concurrency": 1},
            {"concurrency": 2},
        )

        await row(page, "queues", "paid_batch").locator("[data-action=change]").click()
        await page.get_by_label("Weight").fill("2.5")
        await confirm(page)
        await expect(cell(page, "queues", "paid_batch", "Weight")).to_have_text("2.5")
        await page.get_by_role("link", name="Audit log").click()
        await expect(page.locator("#audit tbody tr").first).to_contain_text("Weight 4 → 2.5")
        await accessible(page)


async def test_an_adapted_limit_is_shown_with_its_bounds(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    auto = {"auto": True, "target_first_token": "10m", "max": 64}
    models = {"m": {"concurrency": auto}}
    async with talking(redis_url, tmp_path, models=models) as talk, talk.worker2(["m"], slots=9) as worker:
        await talk.http.post("/api/openai", json={"model": "m", "async": True, "messages": []})
        await worker.chunk(await worker.take(), "Hello")
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await expect(cell(page, "models", "m", "Slots in use")).to_have_text("1 of 2auto 2/64")


async def test_a_disabled_feature_has_no_page_no_panel_and_no_button(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    off = ["webhooks", "overrides", "credits", "chains", "messages"]
    async with talking(redis_url, tmp_path, keys=KEYS, disabled_features=off, models={"m": {}}) as talk:
        page = await (await open_browser(talk.served.url)).open("/dashboard#/keys/acme")
        await sign_in(page, ADMIN)
        await expect(page.locator("#limits")).to_be_visible()
        await expect(page.locator("#quota, #ledger, #payers")).to_have_count(0)
        await expect(page.locator("#views [data-view=batches]")).to_be_visible()
        await expect(
            page.locator("#views").locator("[data-view=webhooks], [data-view=overrides]")
        ).to_have_count(0)
        await page.goto(f"{talk.served.url}/dashboard#/webhooks")
        await expect(row(page, "models", "m")).to_be_visible()
        await expect(page.locator("[data-action=change]")).to_have_count(0)
        await page.goto(talk.served.url)
        await expect(page.locator("#api option[value=responses]")).to_have_count(1)
        await expect(page.locator("#api option[value=messages]")).to_have_count(0)


async def test_who_caused_a_backlog_is_shown_throttled_and_cancelled(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with busy(talk) as (worker, task):
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        users = page.locator("#users tbody tr")
        await expect(users.first.locator("th")).to_have_text("ben")
        await expect(cell(page, "users", "ben", "Waiting")).to_have_text("3")
        await expect(cell(page, "users", "ann", "Running")).to_have_text("1")
        not_emptied = re.compile(
            r"never at this rate|Backlog: \+\d/min"
        )  # the second once history has the tasks
        await expect(cell(page, "models", "m", "Time to drain")).to_contain_text(not_emptied)
        await expect(page.locator("[data-figure=drain]")).to_have_text(not_emptied)

        await row(page, "users", "ben").locator("[data-action=throttle]").click()
        await expect(page.locator("#field-max_running_per_user")).to_be_focused()
        await expect(page.locator("dialog")).to_contain_text("apply to every user of m")
        await page.locator("#field-max_waiting_per_user").fill("5")
        await confirm(page)
        await expect(page.locator(".toast").last).to_contain_text("m is changed")
        assert (await talk.state())["models"][0]["maxWaitingPerUser"] == 5

        await cell(page, "users", "ben", "Waiting").locator("a").click()
        await expect(page.locator("#tasks tbody tr")).to_have_count(3)
        await page.locator("[data-view=overview]").click()
        await row(page, "users", "ben").locator("[data-action=cancel]").click()
        await confirm(page)
        await expect(page.locator(".toast").last).to_contain_text("3 tasks cancelled.")
        await expect(page.locator("[data-figure=drain]")).to_have_text("–")
        await expect(row(page, "users", "ben")).to_have_count(0)
        assert {row["user"]: row["status"] for row in (await talk.state())["tasks"]} == {
            "ann": "executing",
            "ben": "cancelled",
        }
        await worker.answer(task, {})
        await accessible(page)


async def test_tasks_are_found_followed_and_cancelled(talk: Talk, open_browser: OpenBrowser) -> None:
    async with busy(talk) as (worker, task):
        page = await (await open_browser(talk.served.url)).open("/dashboard#/tasks")
        rows = page.locator("#tasks tbody tr")
        await expect(rows).to_have_count(4)
        await page.get_by_label("Status").focus()
        await page.get_by_label("Status").select_option("executing")
        await expect(rows).to_have_count(1)
        await expect(page.get_by_label("Status")).to_be_focused()
        assert page.url.endswith("#/tasks?status=executing")
        await expect(rows).to_contain_text("ann")
        await page.get_by_label("Status").select_option("")
        await page.get_by_label("Part of task id, request id, user or code").fill("ben")
        await page.keyboard.press("Enter")
        await expect(rows).to_have_count(3)
        await expect(page.locator("#tasks .chip[data-status=queued]")).to_have_count(3)
        await accessible(page)
        await rows.first.locator("[data-action=cancel]").click()
        await confirm(page)
        await expect(page.locator("#tasks .chip[data-status=cancelled]")).to_have_count(1)
        await talk.waiting(2)

        [running] = (await talk.http.get("/api/admin/tasks?status=executing")).json()["tasks"]
        await page.get_by_label("Part of task id, request id, user or code").fill(running["taskId"])
        await page.keyboard.press("Enter")
        await expect(page.locator("#task-title")).to_have_text(running["taskId"])
        await expect(page.locator("#timeline [data-step]")).to_have_count(3)
        await expect(page.locator("#events tbody tr")).to_have_count(2)
        await worker.chunk(task, " world", 2)
        await expect(page.locator("#events tbody tr")).to_have_count(3)
        await expect(page.locator("#events tbody")).to_contain_text("3")
        await accessible(page)
        await page.get_by_role("button", name="Cancel task").click()
        await confirm(page)
        frame = await worker.recv()
        assert (frame["type"], frame["reason"]) == ("cancel", "admin")
        await expect(page.locator("#task .chip")).to_have_text("cancelled")
        await expect(page.locator("#timeline [data-step=end]")).to_contain_text("cancelled")
        await expect(page.locator("#events tbody tr").last).to_contain_text("admin")
        assert [entry["action"] for entry in await audit(talk)][:2] == ["cancel", "cancel"]


async def test_only_an_admins_key_opens_it_and_it_stands_in_no_url(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS) as talk:
        browser = await open_browser(talk.served.url)
        urls: list[str] = []
        browser.context.on("request", lambda request: urls.append(request.url))
        page = await browser.open("/dashboard")
        await page.locator("#key-input").fill("wrong")
        await page.get_by_role("button", name="Use key").click()
        await expect(page.locator("dialog")).to_contain_text("rejected this key")
        await accessible(page)
        await page.locator("#key-input").fill(CALLER)
        await page.get_by_role("button", name="Use key").click()
        await expect(page.locator("#problem")).to_contain_text("acme has neither scope admin nor viewer")
        await expect(page.locator("#queues")).to_have_count(0)
        await page.locator("#enter-key").click()
        await page.locator("#key-input").fill(ADMIN)
        await page.get_by_role("button", name="Use key").click()
        await expect(page.locator("#live[data-state=live]")).to_be_visible()
        await expect(row(page, "queues", "paid_stream")).to_be_visible()
        assert not [url for url in urls if "secret" in url]
        assert "secret" not in await page.evaluate("JSON.stringify(localStorage)")

        gateway = talk.served.gateway  # the key is taken away: the feed ends and the page asks again
        fewer = gateway.current.settings.model_copy(update={"keys": gateway.current.settings.keys[1:]})
        await gateway.reconfigure(fewer)
        await expect(page.locator("#problem")).to_contain_text("needs a key")
        await expect(page.locator("#queues")).to_have_count(0)
        assert gateway.operator.live.watchers == 0


async def test_redis_may_go_and_come_back(
    own_redis: Server, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with (
        talking(own_redis.url, tmp_path, redis_timeout_ms=300) as talk,
        talk.worker2(["m"], name="gpu"),
    ):
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await expect(page.locator("#live[data-state=live]")).to_be_visible()
        with own_redis.frozen():
            await expect(page.locator("#problem .notice")).to_contain_text("Redis has been unavailable since")
            await expect(page.locator("#live[data-state=lost]")).to_contain_text("Redis unavailable for")
            assert talk.served.gateway.store.first.monitor.down_since is not None
            await expect(row(page, "queues", "paid_stream")).to_be_visible()
            await expect(page.locator("#workers tbody tr")).to_contain_text("gpu")
            fresh = await (await open_browser(talk.served.url)).open("/dashboard")
            await expect(fresh.locator("#problem .notice")).to_contain_text(
                "Redis has been unavailable since"
            )
            await expect(fresh.locator("#workers tbody tr")).to_contain_text("gpu")
            await accessible(fresh)
        await expect(page.locator("#problem .notice")).to_have_count(0)
        await expect(page.locator("#live[data-state=live]")).to_be_visible()


async def test_hostile_names_are_text(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2([HOSTILE], name=f"<script>{HOSTILE}</script>") as worker:
        async with talk.client(**{"X-Fairlane-User": f'"{HOSTILE}'}) as villain:
            answer = await villain.post(
                "/api/openai",
                json={"model": HOSTILE, "async": True, "messages": [], "metadata": {HOSTILE: [HOSTILE]}},
            )
        task = await worker.take()
        await worker.chunk(task, HOSTILE + "\x1b[31m" + "x" * 100_000)
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await expect(page.locator("#models tbody tr")).to_contain_text(HOSTILE)
        await expect(page.locator("#workers tbody tr")).to_contain_text(f"<script>{HOSTILE}</script>")
        await page.locator("#models").get_by_role("link", name=HOSTILE).click()
        await expect(page.locator("#tasks tbody tr")).to_contain_text(f'"{HOSTILE}')
        await page.locator("#tasks").get_by_role("link", name=answer.json()["taskId"]).click()
        await expect(page.locator("#metadata")).to_contain_text(HOSTILE)
        await expect(page.locator("#events tbody")).to_contain_text(HOSTILE)
        info = {"code": HOSTILE[:60], "retryable": False}
        await worker.answer(task, error=HOSTILE, errorInfo=info)
        await expect(page.locator("#task .chip")).to_have_text("failed")
        await page.get_by_role("link", name="Audit log").click()
        await expect(page.locator("#audit .empty")).to_be_visible()
        assert await page.locator("img, main script").count() == 0


async def test_the_keyboard_is_enough_and_keeps_its_place(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    await expect(row(page, "queues", "paid_stream")).to_be_visible()
    pause = row(page, "queues", "paid_stream").locator("[data-action=pause]")
    await tab_to(page, pause)
    await page.keyboard.press("Enter")
    await expect(page.locator("dialog")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog")).to_have_count(0)
    await expect(pause).to_be_focused()
    number = talk.served.gateway.operator.live.number
    await until(lambda: talk.served.gateway.operator.live.number > number + 2, "two more pictures")
    await expect(pause).to_be_focused()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Shift+Tab")
    await expect(page.locator("dialog .actions button").first).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(row(page, "queues", "paid_stream").locator("[data-action=resume]")).to_be_focused()


async def tab_to(page: Page, target: Locator) -> None:
    """Press the tabulator until the target has the focus."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await target.evaluate("e => e === document.activeElement"):
            return
    raise AssertionError("it cannot be reached by the tabulator")


COLOURED = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.filter((red, at) => at % 4 === 0 && Math.abs(red - data[at + 2]) > 60 && data[at + 3] > 200).length;
}"""
"""How many pixels of a canvas have a colour: a line's, not an axis's."""


async def test_the_last_hour_is_drawn(talk: Talk, open_browser: OpenBrowser) -> None:
    gateway = talk.served.gateway
    command, key = gateway.link.command, gateway.keys("history")
    now = int((await command("TIME"))[0]) * 1000
    told = msgspec.json.encode(
        Bucket(
            accepted=12,
            completed=8,
            waiting=40,
            failures={"UPSTREAM_ERROR": 2, HOSTILE: 1},
            rejections={"full": 3},
            models={"m": ModelCounts(accepted=10, ended=7, cancelled=2, output_tokens=1200)},
            wait=Sketch({50: 11}),
            first=Sketch({60: 10}),
            total=Sketch({100: 11}),
        )
    )
    for _ in range(2):
        await command("XADD", key, "*", "at", now - 30_000, "bucket", told)
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    await expect(page.locator("[data-figure=failed]")).to_have_text("6")
    await expect(page.locator("[data-figure=rejected]")).to_have_text("6")
    history = (await talk.http.get("/api/admin/timeseries")).json()
    assert history["total"]["completed"] == 16
    assert history["total"]["totalMs"]["p50"] == pytest.approx(1.05**100, rel=0.03)
    assert history["models"]["m"] == {
        "acceptedLastMinute": 20,
        "endedLastMinute": 14,
        "cancelledLastMinute": 4,
        "outputTokensLastMinute": 2400,
    }
    async with talk.worker2(["m"]):
        await expect(page.locator("#models tbody tr")).to_contain_text("10 tasks/min40 tokens/s")
    await expect(page.locator("#codes li")).to_have_count(3)
    await expect(page.locator("#codes")).to_contain_text(HOSTILE)
    assert max(history["waiting"]) == 40  # each replica tells of all
    await expect(page.locator(".plot canvas")).to_have_count(3)
    await expect(page.locator(".plot-key").nth(2)).to_contain_text("median 128ms")
    dots = await page.locator(".plot canvas").nth(2).evaluate(COLOURED)
    assert dots > 9  # one bucket alone: no line, but a dot
    await page.locator("label", has_text="Waiting").click()
    await expect(page.locator(".plot-key").nth(2)).to_contain_text("11ms")
    await accessible(page)


async def sign_in(page: Page, key: str) -> None:
    """Use this key from now on."""
    await page.evaluate("key => sessionStorage.setItem('fairlane.key', key)", key)
    await page.reload()


async def fill(page: Page, **values: str) -> None:
    """Fill fields of the form that is open, and send it."""
    for name, value in values.items():
        await page.locator(f"[id='field-{name.replace('__', '.')}']").fill(value)
    await page.locator("dialog [type=submit]").click()


async def test_a_key_is_created_limited_granted_credits_rotated_and_revoked(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS) as talk, talk.client(ADMIN) as admin:
        page = await (await open_browser(talk.served.url)).open("/dashboard#/keys")
        await sign_in(page, ADMIN)
        await expect(page.locator("#keys tbody tr")).to_have_count(3)
        await expect(row(page, "keys", "caller ops configuration").locator("button")).to_have_count(0)
        await page.locator("[data-action=create-key]").click()
        await fill(page, id="a shop")
        await expect(page.locator("#field-id-problem")).to_contain_text("1 to 64 letters")
        await expect(page.locator("#field-id")).to_be_focused()
        await page.locator("#field-tier").select_option("paid")
        await accessible(page)
        await fill(page, id="shop", note="<b>the shop</b>", models="m, n", weight="2.5", expires="2031-05-06")
        secret = await page.locator("#new-secret").inner_text()
        await page.locator("dialog:has(#new-secret) .actions button").click()
        await expect(page.locator("dialog")).to_have_count(0)
        assert secret not in await page.content()
        shop = row(page, "keys", "caller shop database")
        await expect(shop).to_contain_text("<b>the shop</b>")
        await expect(shop).to_contain_text("paid · × 2.5 · m, n")

        await page.get_by_role("link", name="shop", exact=True).click()
        await page.locator("[data-action=change-limits]").click()
        await fill(page, limits__requests_per_minute="many")
        await expect(page.locator("dialog .field-problem").first).not_to_be_empty()
        await fill(page, limits__requests_per_minute="600", limits__max_running="20")
        await expect(page.locator("#limits")).to_contain_text("600 of 600 left")
        await page.locator("[data-action=change-quota]").click()
        await page.locator("[id='field-quota.of']").select_option("key")
        await page.locator("[id='field-quota.per']").select_option("month")
        await fill(page, quota__budget="5")
        await page.locator("[data-action=grant]").click()
        await fill(page, credits="12.5", note="invoice 7")
        await expect(page.locator("#ledger tbody tr")).to_contain_text("grant by ops: invoice 7")
        await expect(page.locator("[data-fact='quota.reserved']")).to_have_text("0")
        await expect(page.locator("#quota")).to_contain_text("17.5")
        await accessible(page)
        settings = (await admin.get("/api/admin/keys/shop")).json()["settings"]
        assert (settings["limits"]["requests_per_minute"], settings["quota"]["budget"]) == (600, 5)

        await page.locator("[data-action=rotate-key]").click()
        await page.locator("#field-keepMs").select_option("0")
        await fill(page)
        second = await page.locator("#new-secret").inner_text()
        await page.locator("dialog:has(#new-secret) .actions button").click()
        for token, status in ((secret, 401), (second, 200)):
            async with talk.client(token) as caller:
                assert (await caller.get("/api/me")).status_code == status
        await page.locator("[data-action=revoke-key]").click()
        await fill(page)
        await expect(page.locator("#one_key .flag")).to_have_text("revoked")
        await expect(page.locator("#view [data-action]")).to_have_count(0)
        entries = (await admin.get("/api/admin/audit")).json()["entries"]
        actions = ["revoke", "rotate", "grant", "update", "update", "create"]
        assert [one["action"] for one in entries] == actions


async def test_each_page_of_records_fits_a_phone_in_both_languages_and_shows_viewers_nothing_to_do(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    viewer = {"id": "eyes", "scopes": ["viewer"], "sha256": hashlib.sha256(b"secret-of-eyes").hexdigest()}
    async with talking(redis_url, tmp_path, keys=[*KEYS, viewer]) as talk, talk.client(ADMIN) as admin:
        await admin.patch("/api/admin/queues/free_batch", json={"weight": 2})
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await sign_in(page, "secret-of-eyes")
        for view, shown in RECORDS.items():
            await page.locator(f"[data-view={view}]").click()
            for section, count in shown.items():
                await expect(page.locator(f"#{section} tbody tr")).to_have_count(count)
            await expect(page.locator("#view [data-action]:visible")).to_have_count(0)
            await accessible(page)
        await page.locator("[data-view=settings]").click()
        await page.locator("#filter-source").focus()
        await page.locator("#filter-source").select_option("changed")
        await expect(page.locator("#settings tbody tr")).to_contain_text("queues.free_batch.weight")
        await expect(page.locator("#filter-source")).to_be_focused()
        await page.set_viewport_size(PHONE)
        await page.locator("#language").select_option("zh")
        for view in ("overview", "tasks", *RECORDS):
            await page.locator(f"[data-view={view}]").click()
            await fits(page)
            await accessible(page)


RECORDS: dict[str, dict[str, int]] = {
    "batches": {"batches": 0},
    "webhooks": {"webhooks": 0},
    "usage": {"usage": 0},
    "keys": {"keys": 4},
    "overrides": {"overrides": 1},
    "audit": {"audit": 1, "rejections": 0},
}
"""Rows by view and section."""


async def test_a_batch_is_seen_and_cancelled_a_webhook_disabled_and_usage_counted(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": []},
    }
    text = "\n".join(json.dumps({**line, "custom_id": str(n)}) for n in range(3))
    await talk.http.post(
        "/api/webhooks", json={"url": "https://hooks.example/x", "events": ["task.completed"]}
    )
    async with talk.worker2(["m"]) as worker:
        files = {"file": ("a.jsonl", text), "purpose": (None, "batch")}
        file = (await talk.http.post("/v1/files", files=files)).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = (await talk.http.post("/v1/batches", json=body)).json()
        usage = {"inputTokens": 1200, "outputTokens": 34}
        await worker.answer(await worker.take(), {"content": "x"}, usage=usage)
        await worker.take()
        page = await (await open_browser(talk.served.url)).open("/dashboard#/batches")
        await expect(row(page, "batches", batch["id"])).to_contain_text("1 of 3, 0 failed")
        await row(page, "batches", batch["id"]).locator("[data-action=cancel-batch]").click()
        await page.locator("dialog [type=submit]").click()
        await expect(row(page, "batches", batch["id"]).locator("[data-batch=cancelled]")).to_be_visible()
        await page.locator("#filter-status").select_option("completed")
        await expect(page.locator("#batches .empty")).to_be_visible()
        await page.locator("[data-view=webhooks]").click()
        await page.locator("[data-action=webhook-off]").click()
        await page.locator("dialog [type=submit]").click()
        await expect(page.locator("#webhooks [data-webhook=off]")).to_be_visible()
        await page.locator("[data-view=usage]").click()
        await expect(page.locator("#usage tbody tr")).to_contain_text("1,200")
        async with page.expect_download() as waiting:
            await page.get_by_role("button", name="Save as CSV").click()
        assert (await waiting.value).suggested_filename == "usage.csv"
