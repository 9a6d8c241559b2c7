"""What tests do on the playground: send its form, and wait for what it shows."""

import hashlib
from typing import Any

from playwright.async_api import Page, expect
from tests.integration.web.conftest import DEADLINE_MS
from tests.support.rawworkers import RawWorker

expect.set_options(timeout=DEADLINE_MS)

WORDS = ["Once", " upon", " a\n\ntime", " \U0001f600", " there", " was", " **one**", " end"]
KEY = "secret-of-acme"
KEYS = [
    {"id": "acme", "tier": "paid", "sha256": hashlib.sha256(KEY.encode()).hexdigest()},
    {"id": "site", "delegating": True, "sha256": hashlib.sha256(b"secret-of-site").hexdigest()},
]


async def ask(page: Page, model: str = "m", prompt: str = "Tell me a story", api: str = "fairlane") -> None:
    """Fill the form and send it."""
    await choose_model(page, model)
    await page.locator("#prompt").fill(prompt)
    await page.locator("#api").select_option(api)
    await page.locator("#send").click()


async def choose_model(page: Page, model: str) -> None:
    await page.locator(f"#model option[value={model}]").wait_for(state="attached")
    await page.locator("#model").select_option(model)


async def plain(page: Page) -> None:
    """Show the output as the text it is, once there is any."""
    await page.locator("#output-box").wait_for()
    await page.locator("input[name=output-mode][value=plain]").check(force=True)


async def shows(page: Page, text: str) -> None:
    """Return when the page shows exactly this output, as plain text."""
    same = "text => document.querySelector('#output')?.textContent === text"
    await page.wait_for_function(same, arg=text, polling=50)


async def showing(page: Page, task: dict[str, Any]) -> None:
    """Return when the page shows this task, and no longer the one before."""
    await expect(page.locator("#task-id")).to_have_text(task["taskId"])


async def state(page: Page, name: str) -> None:
    await expect(page.locator(f"#task-state[data-status={name}]")).to_be_visible()


async def say(worker: RawWorker, task: dict[str, Any], words: list[str], seq: int = 1) -> int:
    """Stream these words; the number of the next."""
    for word in words:
        await worker.chunk(task, word, seq)
        seq += 1
    return seq


async def fact(page: Page, name: str) -> str:
    return await page.locator(f"[data-fact={name}]").inner_text()
