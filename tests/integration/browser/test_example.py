"""The example for browsers: a page of another origin, its back end with a key, and the recipe that the README prints."""

import hashlib
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.integration.browser.test_event_source import SETTINGS, browser_page
from tests.integration.workers_sdk.sdk_bench import process
from tests.support.processes import gateway_process
from tests.support.servers import Server, free_port
from tests.support.talk import RawWorker
from websockets.asyncio.client import connect

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[3] / "examples" / "browser"
KEYS = {
    "keys": [{"id": "site", "sha256": hashlib.sha256(b"of-site").hexdigest()}],
    "workers": [{"id": "w", "sha256": hashlib.sha256(b"of-w").hexdigest(), "models": ["*"]}],
}


async def test_a_page_shows_the_text_of_its_task_and_nothing_else(own_redis: Server, tmp_path: Path) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    async with gateway_process(
        tmp_path / "gateway", own_redis.url, **SETTINGS, **KEYS, cors_origins=[origin]
    ) as gateway:
        environment = {"PORT": str(port), "FAIRLANE_GATEWAY": gateway.url, "FAIRLANE_KEY": "of-site"}
        async with process(str(EXAMPLE / "backend.py"), **environment) as child:
            assert child.stdout is not None
            assert origin in (await child.stdout.readline()).decode()
            async with browser_page(origin) as page:
                output = page.locator("#output")
                await page.get_by_role("button").click()
                await expect(output).to_contain_text("NO_WORKER")
                headers = {"Authorization": "Bearer of-w"}
                async with connect(gateway.ws, additional_headers=headers, proxy=None) as connection:
                    worker = RawWorker(connection, 1)
                    await page.get_by_role("button").click()
                    task = await worker.take()
                    await worker.chunk(task, "Half")
                    await expect(output).to_have_text("Half")
                    await worker.chunk(task, " and half")
                    await worker.answer(task)
                    await expect(output).to_have_text("Half and half")
                    await page.get_by_role("button").click()
                    await worker.answer(await worker.take(), error="No such luck")
                    await expect(output).to_have_text("Failed: No such luck")


def test_the_recipe_of_the_readme_is_the_examples() -> None:
    readme = (EXAMPLE.parents[1] / "README.md").read_text()
    (recipe,) = [block.partition("\n```")[0] for block in readme.split("```js\n")[1:]]
    assert recipe == (EXAMPLE / "follow.js").read_text().strip()
