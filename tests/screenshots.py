"""Takes the pictures of the web pages that the documents show: `make screenshots` writes docs/images/<shot>-<look>.png.

Each shot has a stage of its own: a gateway in this process with a private Redis, and workers that say what the scene wants. To
add a page, write its scene and name it in SHOTS.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import Page, async_playwright, expect
from tests.integration.web.conftest import ARGUMENTS, CHROMIUM, DEADLINE_MS, PHONE
from tests.support.talk import RawWorker, Talk, private_redis, talking

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "narrow": {"viewport": PHONE, "color_scheme": "light"},
}
MODEL = "deepseek-chat"
ANSWER = """\
A queue keeps a promise that a refusal breaks: **everybody gets a turn**, in an order that can be explained.

1. Nobody has to try again and again. Whoever asks more often gets no more.
2. A paying tier goes first *by weight*, and starves nobody.
3. One heavy user delays only themselves.

```python
task = client.post("/api/openai", json=body).json()
print(task["position"], task["estimatedWaitMs"])
```

And while you wait, you see where you stand.
"""


async def watched_task(page: Page, talk: Talk) -> None:
    """A task that was cut off once and is complete."""
    async with talk.worker2([MODEL]) as worker:
        await page.locator(f"#model option[value={MODEL}]").wait_for(state="attached")
        await page.locator("#tier").select_option("paid")
        await page.locator("#send").click()
        task = await worker.take()
        words = ANSWER.split(" ")
        for number, word in enumerate(words):
            if number == len(words) // 3:
                await page.locator("#cut").click()
            if number == len(words) // 2:
                await page.locator("#resume").click()
            await worker.chunk(task, word if number == 0 else f" {word}", number + 1)
            await asyncio.sleep(0.015)  # as a model would, so that the figures are not absurd
        usage = {"inputTokens": 24, "outputTokens": len(words)}
        await worker.answer(task, None, usage=usage, finishReason="stop")
        await expect(page.locator("#task-state[data-state=completed]")).to_be_visible()


async def fair_burst(page: Page, talk: Talk) -> None:
    """A flood, and two who come after it."""

    async def serve(worker: RawWorker) -> None:
        while True:
            task = await worker.next_task()
            if task["type"] == "task":
                await asyncio.sleep(0.12)
                await worker.answer(task, {"content": "ok"}, usage={"inputTokens": 9, "outputTokens": 24})

    async with talk.worker2([MODEL]) as one, talk.worker2([MODEL]) as other:
        for worker in (one, other):
            talk.later(serve(worker))
        await page.locator("#tab-burst").click()
        await page.locator(f"#burst-model option[value={MODEL}]").wait_for(state="attached")
        await page.locator("#burst-send").click()
        await expect(page.locator("#burst-progress")).to_have_text("24 of 24 ended")


@dataclass(frozen=True)
class Shot:
    """One page in one state. `scene` brings it there."""

    name: str
    path: str
    scene: Callable[[Page, Talk], Awaitable[None]]
    looks: Sequence[str] = tuple(LOOKS)


SHOTS = [Shot("playground", "/", watched_task), Shot("burst", "/", fair_burst, ["light", "dark"])]


async def take(shots: Sequence[Shot]) -> None:
    """Take all pictures of these shots."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for shot in shots:
            for look in shot.looks:
                with private_redis() as redis, tempfile.TemporaryDirectory() as folder:
                    async with talking(redis.url, Path(folder)) as talk:
                        context = await browser.new_context(**LOOKS[look], locale="en-GB")
                        page = await context.new_page()
                        page.set_default_timeout(DEADLINE_MS)
                        await page.goto(talk.served.url + shot.path)
                        await shot.scene(page, talk)
                        await page.mouse.move(0, 0)
                        await asyncio.sleep(0.5)  # let the last frame be drawn
                        await page.screenshot(path=IMAGES / f"{shot.name}-{look}.png", full_page=True)
                        await context.close()
                print(f"{shot.name}-{look}.png")
        await browser.close()


if __name__ == "__main__":
    wanted = sys.argv[1:]
    expect.set_options(timeout=DEADLINE_MS)
    asyncio.run(take([shot for shot in SHOTS if not wanted or shot.name in wanted]))
