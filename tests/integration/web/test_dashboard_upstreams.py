"""Upstreams and their breakers on the dashboard: seen by all operators, forced by admins."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser, accessible
from tests.integration.web.dashboard import ADMIN, CALLER, KEYS, confirm, row
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)

EYES = "secret-of-eyes"
VIEWER = {"id": "eyes", "scopes": ["viewer"], "sha256": hashlib.sha256(EYES.encode()).hexdigest()}
DEAD: dict[str, Any] = {"error": "no", "errorInfo": {"code": "UPSTREAM_ERROR", "retryable": False}}


async def break_it(talk: Talk, worker: RawWorker, key: str | None = None) -> None:
    """Have so many tasks fail through a worker, the only one, that the breaker of its upstream opens."""
    async with talk.client(key) as caller:
        for _ in range(5):
            call = talk.later(caller.post("/api/openai", json={"model": "m", "messages": []}))
            await worker.answer(await worker.take(), None, **DEAD)
            assert (await call).status_code == 500


def upstream(page: Page, name: str) -> Locator:
    """The row of an upstream."""
    return page.locator("#upstreams tbody tr").filter(has_text=name)


def says(page: Page, name: str, label: str) -> Locator:
    """What the row of an upstream says under a heading."""
    return upstream(page, name).locator(f'[data-label="{label}"]')


async def press(page: Page, name: str, action: str) -> None:
    await upstream(page, name).locator(f"[data-action=breaker-{action}]").click()


async def test_a_breaker_is_seen_by_viewers_and_forced_by_admins(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    models = {"m": {"breaker_open_ms": 600_000}}
    async with (
        talking(redis_url, tmp_path, keys=[*KEYS, VIEWER], models=models) as talk,
        talk.worker2(["m"], name="one", upstream="gpu-a:8000") as first,
    ):
        await break_it(talk, first, CALLER)
        async with talk.worker2(["m"], name="two", upstream="gpu-b:8000"), talk.client(ADMIN) as http:
            page = await (await open_browser(talk.served.url)).open("/dashboard")
            await page.evaluate("key => sessionStorage.setItem('fairlane.key', key)", EYES)
            await page.reload()
            await expect(says(page, "gpu-a", "Circuit breaker")).to_contain_text("open")
            await expect(says(page, "gpu-a", "Circuit breaker")).to_contain_text("probe in ")
            await expect(says(page, "gpu-a", "Reason")).to_have_text("UPSTREAM_ERROR")
            await expect(says(page, "gpu-a", "Openings")).to_have_text("1")
            await expect(says(page, "gpu-a", "Since")).to_contain_text("ago")
            await expect(says(page, "gpu-a", "Workers")).to_have_text("1")
            await expect(says(page, "gpu-b", "Circuit breaker")).to_have_text("closed")
            badge = row(page, "models", "m").locator(".flag.bad")
            await expect(badge).to_have_text("1 circuit breaker open")
            await expect(badge).to_have_attribute(
                "title", "No task of this model starts through tests/gpu-a:8000"
            )
            buttons = page.locator("#upstreams [data-action]:visible")
            await expect(buttons).to_have_count(0)
            await accessible(page)

            await page.evaluate("key => sessionStorage.setItem('fairlane.key', key)", ADMIN)
            await page.reload()
            await expect(buttons).to_have_count(5)
            await expect(upstream(page, "gpu-b").locator("[data-action=breaker-auto]")).to_have_count(0)
            await press(page, "gpu-a", "closed")
            await expect(page.locator("dialog")).to_contain_text(
                "Keep the circuit breaker of m through tests/gpu-a:8000 closed?"
            )
            await confirm(page)
            await expect(says(page, "gpu-a", "Circuit breaker")).to_have_text("closedmanual override")
            await expect(badge).to_have_count(0)
            await press(page, "gpu-b", "open")
            await expect(page.locator("dialog")).to_contain_text("on any replica")
            await accessible(page)
            await confirm(page)
            await expect(says(page, "gpu-b", "Circuit breaker")).to_have_text("openmanual override")
            await expect(badge).to_have_text("1 circuit breaker open")
            await press(page, "gpu-a", "auto")
            await confirm(page)
            await expect(says(page, "gpu-a", "Circuit breaker")).to_have_text("closed")

            entries = (await http.get("/api/admin/audit?target=upstream")).json()["entries"]
            assert [(entry["target"], entry["before"], entry["after"]) for entry in entries] == [
                ("upstream m tests/gpu-a:8000", {"breaker": "closed"}, {"breaker": "auto"}),
                ("upstream m tests/gpu-b:8000", {"breaker": "auto"}, {"breaker": "open"}),
                ("upstream m tests/gpu-a:8000", {"breaker": "auto"}, {"breaker": "closed"}),
            ]
            await page.locator("[data-view=audit]").click()
            newest = page.locator("#audit tbody tr").first
            await expect(newest).to_contain_text("changed")
            await expect(newest).to_contain_text("m tests/gpu-a:8000")
            await expect(newest).to_contain_text("Circuit breaker closed → auto")
