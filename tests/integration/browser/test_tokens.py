"""A page of another origin that submits by itself: with a token that a back end has signed, and the code of docs/apps.md."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from playwright.async_api import Browser
from tests.integration.browser.test_event_source import BROWSER_S, browser_page
from tests.integration.docs.blocks import blocks
from tests.integration.native.keys import key
from tests.support.serving import until
from tests.support.signing import derived, token
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

IN_PAGE = """async ([code, token]) => {
  const { ask } = await import("data:text/javascript," + encodeURIComponent(code));
  window.shown = [];
  await ask(token, "hello", task => window.shown.push([task.status, task.text]));
}"""


async def test_a_page_submits_and_reads_with_a_token_and_is_told_when_it_is_not_good(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]], browser: Browser, page_origin: str
) -> None:
    site = key("site", delegating=True, signing=True, signing_key=derived("s").hex())
    async with (
        gateway(keys=[site], cors_origins=[page_origin]) as talk,
        talk.worker2(["m"]) as worker,
        browser_page(browser, page_origin) as page,
    ):
        [shown] = [block for block in blocks("docs/apps.md") if "export async function ask(" in block.text]
        code = shown.text.replace("https://gateway.example", talk.served.url)
        [program] = [block for block in blocks("docs/apps.md") if block.note == "file sign_token.py"]
        back_end: dict[str, Any] = {"__name__": "sign_token"}
        exec(program.text, back_end)
        good = back_end["token"]("site", "s", user="ann", models=["m"], max_tokens=9, jti="a", uses=1)
        await page.evaluate(IN_PAGE, [code, good])
        task = await worker.take()
        assert task["payload"]["messages"] == [{"role": "user", "content": "hello"}]
        assert (task["payload"]["max_tokens"], task["model"]) == (9, "m")
        await worker.chunk(task, "hi there")
        await worker.answer(task, "hi there")

        async def done() -> bool:
            return bool(await page.evaluate("window.shown.at(-1)?.[0] === 'completed'"))

        await until(done, "the page to show the answer", BROWSER_S)
        assert await page.evaluate("window.shown.at(-1)[1]") == "hi there"
        for bad, code_of in ((good, "TOKEN_USED_UP"), (token("s", user="ann", ends_s=-100), "TOKEN_EXPIRED")):
            failed = await page.evaluate(
                f"args => ({IN_PAGE})(args).then(() => '', error => error.message)", [code, bad]
            )
            assert failed.startswith(code_of)
