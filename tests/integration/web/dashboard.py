"""What tests do on the dashboard: look at rows and cells, confirm, load the gateway."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from typing import Any

from playwright.async_api import Locator, Page, expect
from tests.integration.web.conftest import DEADLINE_MS
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk

expect.set_options(timeout=DEADLINE_MS)

ADMIN = "secret-of-ops"
CALLER = "secret-of-acme"
KEYS: list[dict[str, Any]] = [
    {"id": "ops", "scopes": ["admin"], "sha256": hashlib.sha256(ADMIN.encode()).hexdigest()},
    {"id": "acme", "tier": "paid", "sha256": hashlib.sha256(CALLER.encode()).hexdigest()},
]
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


async def audit(talk: Talk) -> list[dict[str, Any]]:
    """The audit record, newest first."""
    entries: list[dict[str, Any]] = (await talk.http.get("/api/admin/audit")).json()["entries"]
    return entries


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
