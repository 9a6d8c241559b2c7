"""The dashboard in a real browser: its values are the gateway's, what is done there is obeyed, and it stays useful."""

import asyncio
import contextlib
import csv
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import msgspec
import psutil
import pytest
from playwright.async_api import Locator, Page, expect
from tests.integration.web.conftest import DEADLINE_MS, PHONE, OpenBrowser, accessible, fits
from tests.support.processes import gateway_process, tireless
from tests.support.rawworkers import RawWorker, key
from tests.support.servers import Server
from tests.support.serving import http_client, until
from tests.support.talk import Talk, talking

from fairlane.gateway.database.address import FILE
from fairlane.queues.ids import new_task_id
from fairlane.queues.tasks import TaskSpec
from fairlane.web.history.buckets import Bucket, Series, Sketch

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

ADMIN = "secret-of-ops"
CALLER = "secret-of-acme"
KEYS: list[dict[str, Any]] = [
    {"id": "ops", "admin": True, "sha256": hashlib.sha256(ADMIN.encode()).hexdigest()},
    {"id": "acme", "tier": "paid", "sha256": hashlib.sha256(CALLER.encode()).hexdigest()},
]
SENTENCE = "+1+1, no such luck"
HOSTILE = "<img src=x onerror=alert(1)>"


def row(page: Page, section: str, key: str) -> Locator:
    """A table's row, by its key."""
    return page.locator(f'#{section} tr[data-key="{key}"]')


def cell(page: Page, section: str, key: str, label: str) -> Locator:
    """What a row says under a heading."""
    return row(page, section, key).locator(f'[data-label="{label}"]')


async def confirm(page: Page) -> None:
    """Say yes to the question."""
    await page.locator("dialog .actions button").first.click()


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


async def audit(talk: Talk) -> list[dict[str, Any]]:
    """The audit record, newest first."""
    entries: list[dict[str, Any]] = (await talk.http.get("/api/admin/audit")).json()["entries"]
    return entries


async def worker_id(talk: Talk, name: str) -> str:
    """The id of the worker of this name."""
    [found] = [row["workerId"] for row in (await talk.state())["workers"] if row["name"] == name]
    return str(found)


@contextlib.asynccontextmanager
async def busy(talk: Talk) -> AsyncIterator[tuple[RawWorker, dict[str, Any]]]:
    """A worker with two slots of which one runs a task of ann's, that task, and three tasks of ben's that wait."""
    async with talk.worker2(["m"], slots=2, name="gpu") as worker:
        await talk.http.patch("/api/admin/models/m", json={"concurrency": 1})
        body = {"model": "m", "async": True, "messages": []}
        async with talk.client(**{"X-Fairlane-User": "ann"}) as ann:
            await ann.post("/api/openai", json=body)
        task = await worker.take()
        await worker.chunk(task, "Hello")
        async with talk.client(**{"X-Fairlane-User": "ben", "X-Fairlane-Tier": "paid"}) as ben:
            for _ in range(3):
                await ben.post("/api/openai", json=body)
        await talk.waiting(3)
        yield worker, task


async def test_it_shows_what_the_gateway_and_redis_say(talk: Talk, open_browser: OpenBrowser) -> None:
    async with busy(talk):
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await expect(page.locator("#live[data-state=live]")).to_contain_text(talk.served.gateway.replica)
        state = await talk.state()
        keys, command = talk.served.gateway.keys, talk.served.gateway.link.command
        held = await command("ZCARD", keys("slots", model="m"))
        waiting = int(await command("HGET", keys("queue", queue="paid_batch"), "n"))
        assert (held, waiting) == (1, 3) == (state["counts"]["executing"], state["counts"]["queued"])

        await expect(page.locator("[data-figure=waiting]")).to_have_text("3")
        await expect(page.locator("[data-figure=running]")).to_have_text("1")
        await expect(cell(page, "queues", "paid_batch", "Waiting")).to_have_text("3 of 1,000")
        await expect(cell(page, "queues", "paid_batch", "Weight")).to_have_text("4")
        await expect(cell(page, "queues", "paid_batch", "Oldest wait")).not_to_have_text("–")
        await expect(cell(page, "queues", "free_batch", "Running")).to_have_text("1")
        await expect(cell(page, "queues", "paid_stream", "Oldest wait")).to_have_text("–")
        await expect(cell(page, "models", "m", "Slots in use")).to_have_text("1 of 1")
        await expect(cell(page, "models", "m", "Waiting")).to_have_text("3")
        known = await worker_id(talk, "gpu")
        await expect(row(page, "workers", known)).to_contain_text("gpu")
        await expect(cell(page, "workers", known, "Slots in use")).to_have_text("1 of 2")
        await expect(cell(page, "workers", known, "Protocol")).to_have_text("v2")
        await accessible(page)


async def test_a_limit_is_changed_and_obeyed(talk: Talk, open_browser: OpenBrowser) -> None:
    async with busy(talk) as (worker, _):
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await row(page, "models", "m").locator("[data-action=change]").click()
        await page.get_by_label("Slots over all replicas").fill("2")
        await page.get_by_role("button", name="Review…").click()
        await expect(page.locator("dialog")).to_contain_text("Slots over all replicas: 1 → 2")
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
        await page.get_by_role("button", name="Review…").click()
        await confirm(page)
        await expect(cell(page, "queues", "paid_batch", "Weight")).to_have_text("2.5")
        await page.get_by_role("link", name="Audit log").click()
        await expect(page.locator("#audit tbody tr").first).to_contain_text("Weight 4 → 2.5")
        await accessible(page)


async def test_a_queue_and_a_model_are_paused_and_resumed(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        for section, key in (("queues", "free_batch"), ("models", "m")):
            await row(page, section, key).locator("[data-action=pause]").click()
            await confirm(page)
            await expect(row(page, section, key).locator(".flag")).to_have_text("paused")
            await talk.submit(model="m")
            await expect(page.locator("[data-figure=waiting]")).to_have_text("1")
            assert await worker.idle()
            await row(page, section, key).locator("[data-action=resume]").click()
            await confirm(page)
            await worker.answer(await worker.take(), {})
            assert (await worker.recv())["type"] == "resultAck"
            await expect(row(page, section, key).locator(".flag")).to_have_count(0)
        actions = [(entry["target"], entry["after"]["paused"]) for entry in await audit(talk)]
        assert [(target, bool(paused)) for target, paused in actions] == [
            ("model m", False),
            ("model m", True),
            ("queue free_batch", False),
            ("queue free_batch", True),
        ]


async def test_what_is_wrong_with_a_limit_stands_at_its_field_and_what_was_typed_stays(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    await talk.http.patch("/api/admin/models/m", json={"concurrency": 2})
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    await row(page, "queues", "free_batch").locator("[data-action=change]").click()
    dialog, review = page.locator("dialog"), page.get_by_role("button", name="Review…")
    problem = dialog.locator(".field-problem:not(:empty)")
    await expect(dialog.locator("#setting-weight-help")).to_have_text(
        "weight: Share of a contended model, relative to the other queues with waiting tasks. At least 0.001."
    )
    await accessible(page)
    for setting, typed, sentence in (
        ("weight", "0", "At least 0.001."),
        ("weight", "4", ""),
        ("max_running", "1.5", "A whole number."),
        ("max_running", "3", ""),
        ("lendable", "5", "lendable (5) is above reserved (0)"),
    ):
        await dialog.locator(f"#setting-{setting}").fill(typed)
        if sentence:
            await review.click()
            await expect(problem).to_have_text(sentence)
            await expect(dialog.locator(f"#setting-{setting}")).to_be_focused()
    await expect(page.locator(".toast")).to_have_count(0)
    assert len(await audit(talk)) == 1, "the model's, and no more"
    assert await dialog.locator("#setting-weight").input_value() == "4"

    await dialog.locator("#setting-reserved").fill("6")
    await review.click()
    await expect(dialog.locator(".notice")).to_contain_text("m has 2 slots, and the queues reserve 6 of them")
    await accessible(page)
    await dialog.get_by_role("button", name="Back").click()
    await dialog.locator("#setting-reserved").fill("7")
    await review.click()
    await expect(dialog.get_by_role("button", name="Back")).to_be_visible()
    await talk.http.patch("/api/admin/queues/free_batch", json={"max_running": 9, "reserved": 7})
    await confirm(page)
    await expect(dialog).to_have_count(0)
    [entry, *_] = await audit(talk)
    assert entry["after"] == {"weight": 4.0, "max_running": 3, "reserved": 7, "lendable": 5}


async def test_windows_of_a_model_are_typed_as_text_and_shown_with_its_pace(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    await talk.http.patch("/api/admin/models/m", json={"concurrency": 2})
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    await row(page, "models", "m").locator("[data-action=change]").click()
    dialog, review = page.locator("dialog"), page.get_by_role("button", name="Review…")
    await dialog.locator("#setting-windows").fill("50 a second")
    await review.click()
    await expect(dialog.locator(".field-problem:not(:empty)")).to_contain_text(
        "windows should be like `50/1s`"
    )
    await dialog.locator("#setting-windows").fill("50/1s, 1000/1m")
    await review.click()
    await confirm(page)
    await expect(dialog).to_have_count(0)
    await expect(cell(page, "models", "m", "Pace")).to_have_text("at most 50/1s, 1000/1m")
    [entry, *_] = await audit(talk)
    assert entry["after"] == {"windows": "50/1s, 1000/1m"}


async def test_who_may_only_look_is_shown_nothing_to_do(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    keys = [
        *KEYS,
        {"id": "eyes", "scopes": ["viewer"], "sha256": hashlib.sha256(b"secret-of-eyes").hexdigest()},
    ]
    async with talking(redis_url, tmp_path, keys=keys) as talk, talk.worker2(["m"]) as worker:
        async with talk.client(CALLER) as caller:
            for _ in range(2):
                await caller.post("/api/openai", json={"model": "m", "async": True, "messages": []})
        task = await worker.take()
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        actions = page.locator(":is([data-action], #cancel-found):visible")
        for secret, number in (("secret-of-eyes", 0), (ADMIN, 17)):
            await page.evaluate("key => sessionStorage.setItem('fairlane.key', key)", secret)
            await page.goto(f"{talk.served.url}/dashboard#/")
            await page.reload()
            await expect(row(page, "users", "acme")).to_be_visible()
            await expect(actions).to_have_count(number)
            await page.goto(f"{talk.served.url}/dashboard#/tasks?state=queued&user=acme")
            await expect(page.locator("#tasks tbody tr")).to_have_count(1)
            await expect(actions).to_have_count(2 if number else 0)
            await page.goto(f"{talk.served.url}/dashboard#/tasks/{task['taskId']}")
            await expect(page.locator("#task-title")).to_be_visible()
            await expect(actions).to_have_count(1 if number else 0)
        await worker.answer(task, {})


async def test_why_nothing_starts_is_shown_instead_of_a_time(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        await talk.warm(worker, "m")  # so much is known of how long a task takes
        await talk.http.patch("/api/admin/queues/free_batch", json={"paused": True})
        waiting = await talk.submit(model="m")
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        drained = cell(page, "models", "m", "Drained in")
        await expect(drained).to_have_text("not as it isfree_batch is paused")
        await expect(page.locator("[data-figure=drain]")).to_have_text("not as it is")
        await talk.http.patch("/api/admin/models/m", json={"concurrency": 1})
        queues = {"paid_stream": {"reserved": 9, "lendable": 0}, "free_batch": {"paused": None}}
        for name, values in queues.items():
            assert (await talk.http.patch(f"/api/admin/queues/{name}", json=values)).status_code == 200
        reserved = "free_batch: all slots are reserved for other queues"
        await expect(drained).to_have_text(f"not as it is{reserved}")
        await expect(row(page, "queues", "free_batch").locator(".flag").first).to_have_text(reserved)
        place = await talk.poll(waiting)
        assert (place["estimatedWaitMs"], place["estimating"]) == (None, True)
        await talk.http.patch("/api/admin/queues/paid_stream", json={"lendable": None})
        await worker.answer(await worker.take(), {})


async def test_who_caused_a_backlog_is_shown_throttled_and_cancelled(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with busy(talk) as (worker, task):
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        users = page.locator("#users tbody tr")
        await expect(users.first.locator("th")).to_have_text("ben")
        await expect(cell(page, "users", "ben", "Waiting")).to_have_text("3")
        await expect(cell(page, "users", "ann", "Running")).to_have_text("1")
        await expect(cell(page, "models", "m", "Drained in")).to_contain_text(
            "not as it is"
        )  # nothing has ended
        await expect(page.locator("[data-figure=drain]")).to_have_text("not as it is")

        await row(page, "users", "ben").locator("[data-action=throttle]").click()
        await expect(page.locator("#setting-max_running_per_user")).to_be_focused()
        await expect(page.locator("dialog .notice")).to_contain_text("for every user of m, not for one alone")
        await page.locator("#setting-max_waiting_per_user").fill("5")
        await confirm(page)
        await confirm(page)
        await expect(page.locator(".toast").last).to_contain_text("m is changed")
        assert (await talk.state())["models"][0]["maxWaitingPerUser"] == 5

        await cell(page, "users", "ben", "Waiting").locator("a").click()
        await expect(page.locator("#tasks tbody tr")).to_have_count(3)
        await page.locator("[data-view=overview]").click()
        await row(page, "users", "ben").locator("[data-action=cancel]").click()
        await confirm(page)
        await expect(page.locator(".toast").last).to_contain_text("3 tasks are cancelled.")
        await expect(page.locator("[data-figure=drain]")).to_have_text("–")
        await expect(row(page, "users", "ben")).to_have_count(0)
        assert {row["user"]: row["status"] for row in (await talk.state())["tasks"]} == {
            "ann": "executing",
            "ben": "cancelled",
        }
        await worker.answer(task, {})
        await accessible(page)


async def test_a_worker_of_another_replica_is_drained(
    talk: Talk, redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with (
        talking(redis_url, tmp_path / "other", database_url=f"sqlite:///{tmp_path / FILE}") as other,
        other.worker2(["m"], name="going") as going,
        talk.worker2(["m"], name="staying") as staying,
    ):
        await talk.workers(2)
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        known = await worker_id(talk, "going")
        await expect(cell(page, "workers", known, "Replica")).to_contain_text(other.served.gateway.replica)
        await row(page, "workers", known).locator("[data-action=drain]").click()
        await expect(page.locator("dialog")).to_contain_text("Drain the worker going?")
        await confirm(page)
        frame = await going.recv()
        assert (frame["type"], frame.get("reconnect", False)) == ("drain", False)
        await expect(row(page, "workers", known).locator(".flag")).to_have_text("drained")
        await expect(row(page, "workers", known).locator("[data-action=drain]")).to_be_disabled()
        for _ in range(3):
            await other.submit(model="m")
            await staying.answer(await staying.take(), {})
        assert await going.idle()
        [entry] = await audit(talk)
        [entry] = await audit(talk)
        assert (entry["action"], entry["target"]) == ("drain", f"worker {known}")


async def test_a_worker_is_marked_whose_task_gives_no_sign(talk: Talk, open_browser: OpenBrowser) -> None:
    dispatcher = talk.served.gateway.dispatcher
    async with talk.worker2(["m"], name="hangs") as worker:
        await talk.workers(1)
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await talk.submit(model="m")
        task = await worker.take()
        flags = row(page, "workers", await worker_id(talk, "hangs")).locator(".flag")
        await expect(flags).to_have_count(0)
        [attempt] = dispatcher.attempts.values()
        attempt.output_at -= 130
        dispatcher.offers.offer_soon()
        await expect(flags).to_contain_text("a task silent for 2m ")
        await worker.send("taskProgress", **key(task), pct=1)
        await until(lambda: attempt.progress_at > 0, "its progress")
        dispatcher.offers.offer_soon()
        await expect(flags).to_have_count(0)


async def test_tasks_are_found_followed_and_cancelled(talk: Talk, open_browser: OpenBrowser) -> None:
    async with busy(talk) as (worker, task):
        page = await (await open_browser(talk.served.url)).open("/dashboard#/tasks")
        rows = page.locator("#tasks tbody tr")
        await expect(rows).to_have_count(4)
        await page.get_by_label("State").focus()
        await page.get_by_label("State").select_option("executing")
        await expect(rows).to_have_count(1)
        await expect(page.get_by_label("State")).to_be_focused()
        assert page.url.endswith("#/tasks?state=executing")
        await expect(rows).to_contain_text("ann")
        await page.get_by_label("State").select_option("")
        await page.get_by_label("Part of id, request id, user or failure").fill("ben")
        await page.get_by_role("button", name="Find").click()
        await expect(rows).to_have_count(3)
        await expect(page.locator("#tasks .chip[data-state=queued]")).to_have_count(3)
        await accessible(page)
        await rows.first.locator("[data-action=cancel]").click()
        await confirm(page)
        await expect(page.locator("#tasks .chip[data-state=cancelled]")).to_have_count(1)
        await talk.waiting(2)

        [running] = (await talk.http.get("/api/admin/tasks?state=executing")).json()["tasks"]
        await page.get_by_label("Part of id, request id, user or failure").fill(running["taskId"])
        await page.get_by_role("button", name="Find").click()
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


async def test_tasks_are_found_by_a_part_of_what_is_known_ordered_saved_and_cancelled_together(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with busy(talk) as (worker, task):
        await worker.answer(task, error=SENTENCE)
        running = await worker.take()  # the first one of ben's
        page = await (await open_browser(talk.served.url)).open("/dashboard#/tasks?text=AN&state=failed")
        rows = page.locator("#tasks tbody tr")
        await expect(rows).to_have_count(1)
        async with page.expect_download() as waiting:
            await page.get_by_role("button", name="Save as CSV").click()
        download = await waiting.value
        assert download.suggested_filename == "tasks.csv"
        [saved] = await asyncio.to_thread(read_csv, await download.path())
        assert (saved["user"], saved["status"]) == ("ann", "failed")
        assert saved["enqueuedAt"].endswith("Z")

        await page.goto(talk.served.url + "/dashboard#/tasks?user=ben")
        await expect(rows).to_have_count(3)
        await expect(page.locator("main .tag")).to_have_text("User ben ✕")
        await page.get_by_role("button", name="Waited").click()
        await expect(page.get_by_role("columnheader", name="Waited")).to_have_attribute(
            "aria-sort", "descending"
        )
        assert page.url.endswith("user=ben&sort=-task.waited")
        await expect(rows.last.locator("th")).to_have_text(running["taskId"])  # it waited least
        await page.reload()
        await expect(rows.last.locator("th")).to_have_text(running["taskId"])
        await page.get_by_role("button", name="Cancel all found").click()
        await expect(page.locator("dialog")).to_contain_text("user = ben")
        await confirm(page)
        await expect(page.locator("#tasks .chip[data-state=cancelled]")).to_have_count(3)
        assert (await worker.recv())["type"] == "cancel"
        await accessible(page)
        await page.set_viewport_size(PHONE)
        await fits(page)


async def test_the_address_of_a_list_of_tasks_holds_all_that_was_asked(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with busy(talk) as (worker, task):
        await worker.answer(task, error=SENTENCE, errorInfo={"code": "UPSTREAM_ERROR"})
        await worker.take()  # the first one of ben's
        browser = await open_browser(talk.served.url, timezone_id="Asia/Shanghai")
        page = await browser.open("/dashboard#/tasks")
        rows, find = page.locator("#tasks tbody tr"), page.get_by_role("button", name="Find")
        await expect(rows).to_have_count(4)
        await page.get_by_label("Worker").select_option(label="gpu")
        await expect(rows).to_have_count(2)
        await page.get_by_label("Failure code").fill("UPSTREAM_ERROR")
        await find.click()
        await expect(rows).to_have_count(1)
        known = await worker_id(talk, "gpu")
        assert page.url.endswith(f"#/tasks?code=UPSTREAM_ERROR&worker={known}")

        [failed] = (await talk.http.get("/api/admin/tasks?state=failed")).json()["tasks"]
        minute = failed["enqueuedAt"] // 60_000 * 60_000
        shanghai = datetime.fromtimestamp(minute / 1000, ZoneInfo("Asia/Shanghai"))
        await page.get_by_label("Submitted before").fill(f"{shanghai:%Y-%m-%dT%H:%M}")
        await find.click()
        await expect(page.get_by_text("No task matches.")).to_be_visible()
        assert f"&to={minute}&" in page.url
        await page.get_by_label("Submitted before").fill("")
        await page.get_by_label("Submitted from").fill(f"{shanghai:%Y-%m-%dT%H:%M}")
        await find.click()
        await expect(rows).to_have_count(1)
        assert page.url.endswith(f"&from={minute}&worker={known}")
        await accessible(page)

        sent = page.url.removeprefix(talk.served.url)  # to somebody elsewhere
        other = await (await open_browser(talk.served.url, timezone_id="UTC")).open(sent)
        await expect(other.locator("#tasks tbody tr")).to_have_count(1)
        utc = datetime.fromtimestamp(minute / 1000, UTC)
        await expect(other.get_by_label("Submitted from")).to_have_value(f"{utc:%Y-%m-%dT%H:%M}")
        await expect(other.get_by_label("Worker")).to_have_value(known)

        await page.go_back()
        await expect(page.get_by_text("No task matches.")).to_be_visible()
        await page.go_back()
        await expect(rows).to_have_count(1)
        await expect(page.get_by_label("Submitted before")).to_have_value("")
        await page.go_back()
        await expect(page.get_by_label("Failure code")).to_have_value("")
        await expect(rows).to_have_count(2)
        waited = page.get_by_role("columnheader", name="Waited")
        await page.get_by_role("button", name="Waited").click()
        await expect(waited).to_have_attribute("aria-sort", "descending")
        await expect(page.get_by_role("button", name="Waited")).to_be_focused()
        await rows.first.locator("a.id").click()
        await expect(page.locator("#task-title")).to_be_visible()
        await page.go_back()
        await expect(waited).to_have_attribute("aria-sort", "descending")
        await page.go_back()
        await expect(rows).to_have_count(2)
        await expect(page.locator("#tasks [aria-sort]")).to_have_count(0)

        await page.goto(talk.served.url + "/dashboard#/tasks?from=yesterday")  # mistyped
        await expect(page.locator("#tasks .notice.bad")).to_be_visible()
        await page.get_by_role("button", name="Find").click()
        await expect(rows).to_have_count(4)
        await page.set_viewport_size(PHONE)
        await fits(page)


async def test_only_an_admins_key_opens_it_and_it_stands_in_no_url(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS) as talk:
        browser = await open_browser(talk.served.url)
        urls: list[str] = []
        browser.context.on("request", lambda request: urls.append(request.url))
        page = await browser.open("/dashboard")
        await page.get_by_label("Key", exact=True).fill("wrong")
        await page.get_by_role("button", name="Use this key").click()
        await expect(page.locator("dialog")).to_contain_text("does not accept this key")
        await accessible(page)
        await page.get_by_label("Key", exact=True).fill(CALLER)
        await page.get_by_role("button", name="Use this key").click()
        await expect(page.locator("#problem")).to_contain_text("acme is not an operator's")
        await expect(page.locator("#queues")).to_have_count(0)
        await page.locator("#enter-key").click()
        await page.get_by_label("Key", exact=True).fill(ADMIN)
        await page.get_by_role("button", name="Use this key").click()
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
            await expect(page.locator("#problem .notice")).to_contain_text("Redis has been away since")
            await expect(page.locator("#live[data-state=lost]")).to_contain_text("Redis away for")
            assert talk.served.gateway.store.down_since is not None
            await expect(row(page, "queues", "paid_stream")).to_be_visible()
            await expect(page.locator("#workers tbody tr")).to_contain_text("gpu")
            fresh = await (await open_browser(talk.served.url)).open("/dashboard")
            await expect(fresh.locator("#problem .notice")).to_contain_text("Redis has been away since")
            await expect(fresh.locator("#workers tbody tr")).to_contain_text("gpu")
            await accessible(fresh)
        await expect(page.locator("#problem .notice")).to_have_count(0)
        await expect(page.locator("#live[data-state=live]")).to_be_visible()


async def test_a_redis_that_refuses_writes_is_shown_with_what_it_answers(
    own_redis: Server, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(own_redis.url, tmp_path) as talk, talk.worker():
        with own_redis.client() as store:
            store.config_set("maxmemory", "1mb")
            try:
                assert (await talk.sync()).status_code == 503
                page = await (await open_browser(talk.served.url)).open("/dashboard")
                await expect(page.locator("#problem .notice")).to_contain_text(
                    "OOM command not allowed when used memory"
                )
                await expect(page.locator("#live[data-state=lost]")).to_have_text("Redis refuses writes")
            finally:
                store.config_set("maxmemory", "0")
        await expect(page.locator("#problem .notice")).to_have_count(0)
        await expect(page.locator("#live[data-state=live]")).to_be_visible()


async def test_ten_thousand_tasks_may_wait(redis_url: str, tmp_path: Path, open_browser: OpenBrowser) -> None:
    async with talking(redis_url, tmp_path, max_queue_length=20_000) as talk, talk.worker2(["m"]) as worker:
        await talk.http.patch("/api/admin/models/m", json={"paused": True})
        scheduler, now = talk.served.gateway.scheduler, time.time_ns() // 1_000_000
        tasks = [
            TaskSpec(new_task_id(now), "m", "free_batch", f"user {n % 500}", b"{}") for n in range(10_000)
        ]
        for at in range(0, len(tasks), 200):
            await asyncio.gather(*(scheduler.submit(t, 0, scheduler.nonce()) for t in tasks[at : at + 200]))
        page = await (await open_browser(talk.served.url)).open("/dashboard")
        await expect(page.locator("[data-figure=waiting]")).to_have_text("10,000")
        await expect(cell(page, "queues", "free_batch", "Waiting")).to_have_text("10,000 of 20,000")
        await page.get_by_role("link", name="Tasks").click()
        await expect(page.locator("#tasks tbody tr")).to_have_count(50)
        await page.get_by_role("button", name="Show more").click()
        await expect(page.locator("#tasks tbody tr")).to_have_count(100)
        await page.get_by_label("Part of id, request id, user or failure").fill("user 499")
        await page.get_by_role("button", name="Find").click()
        await expect(page.locator("#tasks tbody tr")).to_have_count(20)
        await page.get_by_label("State").select_option("failed")
        await expect(page.locator("#tasks .empty")).to_be_visible()
        assert await worker.idle(0.01)


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


async def test_a_task_whose_link_has_expired_behind_a_hidden_tab_is_followed_by_another_one(
    talk: Talk, open_browser: OpenBrowser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m", stream=True)
        await worker.chunk(await worker.take(), "Hello", 1)
        links = talk.served.gateway.tasks.links
        url = links.url
        told = iter([f"/api/task/{task_id}/events?token={links.tickets.issue(task_id, 1)}"])
        monkeypatch.setattr(links, "url", lambda task_id: next(told, "") or url(task_id))
        page = await (await open_browser(talk.served.url)).open(f"/dashboard#/tasks/{task_id}")
        await expect(page.locator("#events tbody")).to_contain_text("Hello")


async def test_a_hidden_tab_lets_go_of_its_connection(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    live = talk.served.gateway.operator.live
    for hidden, watchers in ((True, 0), (False, 1)):
        await page.evaluate(
            """hidden => {
              Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )
        await until(lambda watchers=watchers: live.watchers == watchers, f"{watchers} to watch")
        shown = "paused" if hidden else "live ·"
        await expect(page.locator("#live")).to_contain_text(shown)


async def tab_to(page: Page, target: Locator) -> None:
    """Press the tabulator until the target has the focus."""
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await target.evaluate("e => e === document.activeElement"):
            return
    raise AssertionError("it cannot be reached by the tabulator")


async def test_it_fits_a_phone_in_chinese_and_in_the_dark(talk: Talk, open_browser: OpenBrowser) -> None:
    async with busy(talk):
        browser = await open_browser(talk.served.url, locale="zh-CN", color_scheme="dark", viewport=PHONE)
        page = await browser.open("/dashboard")
        await expect(page.locator("#queues h2")).to_have_text("队列")
        await expect(row(page, "queues", "paid_batch")).to_contain_text("3 / 1,000")
        await fits(page)
        await accessible(page)
        for view in ("任务", "审计日志"):
            await page.get_by_role("link", name=view, exact=True).click()
            await expect(page.locator("#view tbody tr").first).to_be_visible()
            await fits(page)
        await accessible(page)
        [running] = (await talk.http.get("/api/admin/tasks?state=executing")).json()["tasks"]
        await page.goto(f"{talk.served.url}/dashboard#/tasks/{running['taskId']}")
        await expect(page.locator("#timeline h2")).to_have_text("时间线")
        await fits(page)
        await accessible(page)


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
            refusals={"full": 3},
            models={
                "m": Series(accepted=10, completed=5, cancelled=2, output_tokens=1200),
                HOSTILE: Series(completed=4),
            },
            wait=Sketch({50: 11}),
            first=Sketch({60: 10}),
            total=Sketch({100: 11}),
        )
    )
    for replica in ("one", "two"):
        await command("XADD", key, "*", "from", replica, "at", now - 30_000, "bucket", told)
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    await expect(page.locator("[data-figure=failed]")).to_have_text("6")
    await expect(page.locator("[data-figure=refused]")).to_have_text("6")
    history = (await talk.http.get("/api/admin/history")).json()
    assert history["total"]["completed"] == 16
    assert history["total"]["totalMs"]["p50"] == pytest.approx(1.05**100, rel=0.03)
    assert history["models"]["m"] == {
        "acceptedLastMinute": 20,
        "endedLastMinute": 14,
        "cancelledLastMinute": 4,
        "outputTokensLastMinute": 2400,
    }
    assert history["models"][HOSTILE] == {
        "acceptedLastMinute": 0,
        "endedLastMinute": 8,
        "cancelledLastMinute": 0,
        "outputTokensLastMinute": 0,
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


async def test_days_are_drawn_of_everything_or_of_one_and_the_address_says_so(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    gateway = talk.served.gateway
    now = time.time_ns() // 1_000_000
    tokens = {"input_tokens": 300, "output_tokens": 600}
    told = msgspec.json.encode(
        Bucket(
            accepted=30,
            completed=24,
            waiting=9,
            failures={"UPSTREAM_ERROR": 6},
            models={
                "m": Series(accepted=20, completed=16, failed=4, waiting=9, **tokens),
                HOSTILE: Series(accepted=10, completed=8, failed=2, input_tokens=9, output_tokens=9),
            },
            queues={"free_batch": Series(accepted=30, completed=24, failed=6)},
            workers={"gpu": Series(completed=24, failed=6, **tokens)},
            total=Sketch({100: 11}),
        )
    )
    for step, kept in ((60_000, 21_600_000), (600_000, 86_400_000), (3_600_000, 604_800_000)):
        for back in (1, 2, 3):
            at = now - now % step - back * step
            await gateway.link.run("tally", step, at, kept, "gone.1", told)
    page = await (await open_browser(talk.served.url)).open("/dashboard")
    keys = page.locator("section:not([hidden]) > div > .plot-key")
    width, shown = page.locator("#period .muted"), page.get_by_label("What the charts show")
    await expect(width).to_have_text("one point per 10 seconds")
    await expect(page.locator(".plot canvas:visible")).to_have_count(0)  # nothing happened in this hour

    await page.get_by_role("radio", name="24 h").check()
    await expect(width).to_have_text("one point per 10 minutes")
    assert page.url.endswith("/dashboard#/?range=24h")
    await expect(page.locator(".plot canvas:visible")).to_have_count(3)
    await expect(keys.nth(1)).to_contain_text("completed")
    await expect(keys.nth(1)).to_contain_text("/min")
    await expect(page.locator("#codes")).to_contain_text("18")
    await expect(page.locator("[data-figure=failed]")).to_have_text("0")  # in the last hour
    plotted = await page.locator(".plot").first.evaluate("box => box.getAttribute('aria-label')")
    assert plotted == "Tasks that waited, last 24 hours"

    await shown.focus()
    await shown.select_option(f"model:{HOSTILE}")
    await expect(keys.nth(2)).to_contain_text("output")  # there are no durations of one model
    await expect(page.locator("#codes")).to_be_hidden()
    await accessible(page)
    await shown.select_option("worker:gpu")
    await expect(keys).to_have_count(2)  # it has no queue
    await expect(keys.first).not_to_contain_text("accepted")
    assert page.url.endswith("#/?range=24h&worker=gpu")
    await page.get_by_role("radio", name="7 days").check()
    await expect(width).to_have_text("one point per hour")
    await expect(keys.first).to_contain_text("/h")

    await page.reload()
    await expect(shown).to_have_value("worker:gpu")
    await expect(page.get_by_role("radio", name="7 days")).to_be_checked()
    await expect(keys).to_have_count(2)
    await page.go_back()
    await expect(page.get_by_role("radio", name="24 h")).to_be_checked()
    await page.go_back()
    await expect(shown).to_have_value(f"model:{HOSTILE}")
    await page.set_viewport_size(PHONE)
    await fits(page)
    await page.get_by_role("link", name="Overview").click()
    await expect(page.get_by_role("radio", name="1 h", exact=True)).to_be_checked()
    await expect(shown).to_have_value("")
    await page.goto(talk.served.url + "/dashboard#/?range=century")  # of another release, or mistyped
    await expect(width).to_have_text("one point per 10 seconds")


@pytest.mark.slow
async def test_ten_open_tabs_cost_little(redis_url: str, tmp_path: Path, open_browser: OpenBrowser) -> None:
    """CPU time of the gateway's process beyond what it uses without them, with ten models and 200 tasks that wait.

    One tab is a browser's; nine more ask the gateway for the same.
    """
    models = {f"m{n}": {"concurrency": 1} for n in range(10)}
    async with (
        gateway_process(tmp_path, redis_url, models=models, drain_ms=200) as gateway,
        tireless(4, lambda: gateway.ws, hold) as workers,
        http_client(gateway.url) as http,
    ):
        for n in range(200):
            body = {"model": f"m{n % 10}", "async": True, "messages": []}
            await http.post("/api/openai", json=body, headers={"X-Fairlane-User": f"u{n}"})
        await until(lambda: all(worker.busy for worker in workers), "the workers to be busy")
        idle = await cpu_share(gateway.pid, 3.0)
        async with contextlib.AsyncExitStack() as stack:
            browser = await open_browser(gateway.url)
            asked: list[str] = []
            browser.context.on("request", lambda request: asked.append(request.url.removeprefix(gateway.url)))
            page = await browser.open("/dashboard")
            await expect(page.locator("[data-figure=waiting]")).to_have_text("196")
            calls = {url.partition("?")[0] for url in asked if "/api/admin" in url}
            assert calls == {"/api/admin/feed", "/api/admin/history", "/api/admin/users"}
            readers = [await stack.enter_async_context(reading(http)) for _ in range(9)]
            watched = await cpu_share(gateway.pid, 8.0)  # their coming included
            assert all(len(pictures) > 3 for pictures in readers)
    print(f"{idle:.2%} of a core alone, {watched:.2%} with ten tabs")
    assert watched - idle < 0.05


@contextlib.asynccontextmanager
async def reading(http: httpx2.AsyncClient) -> AsyncIterator[list[str]]:
    """What an open tab asks of the gateway: the feed; the last hour and the users every ten seconds. Yields its pictures."""
    pictures: list[str] = []

    async def feed() -> None:
        async with http.stream("GET", "/api/admin/feed", timeout=DEADLINE_MS / 1000) as response:
            async for line in response.aiter_lines():
                pictures.extend([line] if line.startswith("data: ") else [])

    async def history() -> None:
        while True:
            for call in ("history", "users"):
                assert (await http.get(f"/api/admin/{call}")).status_code == 200
            await asyncio.sleep(10)

    tasks = [asyncio.create_task(feed()), asyncio.create_task(history())]
    try:
        yield pictures
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def hold(send: Callable[..., Awaitable[None]], task: dict[str, Any]) -> None:
    await asyncio.Event().wait()


async def cpu_share(pid: int, seconds: float) -> float:
    """What part of a core a process uses over so long."""
    process = psutil.Process(pid)
    before, begun = process.cpu_times(), time.monotonic()
    await asyncio.sleep(seconds)
    after, ended = process.cpu_times(), time.monotonic()
    return (after.user + after.system - before.user - before.system) / (ended - begun)
