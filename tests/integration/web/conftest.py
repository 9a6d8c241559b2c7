"""Fixtures: one headless Chromium for all tests, pages that watch themselves, gateways beside them.

All tests of this folder share one event loop (anyio keeps it as long as the browser lives), so a gateway in this process, its
workers and the browser take turns.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, TimeoutError
from tests.support.browser import chromium
from tests.support.talk import Talk, talking

DEADLINE_MS = 15_000
DESKTOP = {"width": 1280, "height": 900}
PHONE = {"width": 375, "height": 780}

_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


@dataclass
class Watched:
    """A browser's context whose pages write down what must not happen."""

    context: BrowserContext
    base: str
    problems: list[str] = field(default_factory=list)
    """Errors in the console, uncaught exceptions, violations of the pages' policy. Answers that are no success are not
    among them (Chromium logs those as errors too): a page may be refused."""

    async def open(self, path: str = "/") -> Page:
        """A new tab at this path, loaded, and drawn by its scripts."""
        page = await self.context.new_page()
        page.set_default_timeout(DEADLINE_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"uncaught: {error}"))
        await page.goto(self.base + path)
        await page.locator("#header .brand").wait_for()
        return page

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.problems.append(f"console: {message.text}")

    async def check(self) -> None:
        """Assert that nothing of it happened so far."""
        for page in self.context.pages:
            if page.url.startswith(self.base):
                self.problems += await page.evaluate("window.violations")
        assert self.problems == []


OpenBrowser = Callable[..., Awaitable[Watched]]


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium; every test opens contexts of its own in it."""
    async with chromium() as browser:
        yield browser


@contextlib.asynccontextmanager
async def new_browser(browser: Browser, base: str, **options: Any) -> AsyncIterator[Watched]:
    """A new context, as of another browser. Nothing moves in it: an animation is drawn with every frame."""
    async with await browser.new_context(
        **{"viewport": DESKTOP, "locale": "en-GB", "reduced_motion": "reduce", **options}
    ) as context:
        await context.add_init_script(_WATCH_POLICY)
        yield Watched(context, base)


@pytest.fixture
async def open_browser(browser: Browser) -> AsyncIterator[OpenBrowser]:
    """`await open_browser(url, locale="zh-CN", color_scheme="dark", viewport=PHONE, …)`: a new context, as of another browser.

    At the end of the test each is asked whether anything happened that must not.
    """
    async with contextlib.AsyncExitStack() as stack:
        opened: list[Watched] = []

        async def open_one(base: str, **options: Any) -> Watched:
            opened.append(await stack.enter_async_context(new_browser(browser, base, **options)))
            return opened[-1]

        yield open_one
        for watched in opened:
            await watched.check()


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    """An open gateway in this process, a caller of it, and workers that do what the test says (`talk.worker2`)."""
    async with talking(redis_url, tmp_path, stream_flush_interval_ms=10) as talk:
        yield talk


_FIND_SERIOUS = """async () => {
  const lesser = axe._audit.rules.filter(rule => ["minor", "moderate"].includes(rule.impact));
  const rules = Object.fromEntries(lesser.map(rule => [rule.id, { enabled: false }]));
  const { violations } = await axe.run({ resultTypes: ["violations"], rules });
  return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(node => node.html.slice(0, 160))}`);
}"""
"""Rules whose violations would be of a lesser impact than serious are not run: they take time."""


async def accessible(page: Page) -> None:
    """Assert that axe-core finds nothing serious on the page as it is now."""
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE_SCRIPT)
    assert await page.evaluate(_FIND_SERIOUS) == []


WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def fits(page: Page) -> None:
    """Assert that nothing makes the page wider than its window, once it has been drawn for it: charts hear of a new width by
    an observer, after the layout."""
    with contextlib.suppress(TimeoutError):
        await page.wait_for_function(f"{WIDE} <= 0", timeout=5000)
    wide = await page.evaluate(WIDE)
    assert wide <= 0, f"the page is {wide} px too wide"
