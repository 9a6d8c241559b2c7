"""The example for browsers: a page of another origin, its back end with a key, the same in React."""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect
from tests.integration.browser.test_event_source import SETTINGS, browser_page
from tests.support.node import installed
from tests.support.processes import GatewayProcess, gateway_process, process
from tests.support.rawworkers import worker_v1
from tests.support.servers import Server, free_port

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[3]
KEYS = {
    "keys": [
        {"id": "site", "sha256": hashlib.sha256(b"of-site").hexdigest()},
        {"id": "ops", "scopes": ["admin"], "sha256": hashlib.sha256(b"of-ops").hexdigest()},
    ],
    "workers": [{"id": "w", "sha256": hashlib.sha256(b"of-w").hexdigest(), "models": ["*"]}],
}


def as_it_is() -> Path:
    return REPOSITORY


def built() -> Path:
    return installed(REPOSITORY, ["examples/browser", "web/client"], "examples/browser/react", "run", "build")


@contextlib.asynccontextmanager
async def example(
    redis: Server, browser: Browser, tmp_path: Path, checkout: Path, path: str
) -> AsyncIterator[tuple[GatewayProcess, Page]]:
    """A gateway with keys, the example's back end with one of them, and its page in a browser."""
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    async with gateway_process(
        tmp_path / "gateway", redis.url, **SETTINGS, **KEYS, cors_origins=[origin]
    ) as gateway:
        environment = {"PORT": str(port), "FAIRLANE_GATEWAY": gateway.url, "FAIRLANE_KEY": "of-site"}
        async with process(str(checkout / "examples" / "browser" / "backend.py"), **environment) as child:
            assert child.stderr is not None
            while origin not in (line := (await child.stderr.readline()).decode()):
                assert line, "the back end ended"
            async with browser_page(browser, origin + path) as page:
                yield gateway, page


@pytest.mark.parametrize(
    ("path", "checkout"),
    [
        pytest.param("/", as_it_is, id="page"),
        pytest.param("/react/", built, id="react", marks=pytest.mark.slow),
    ],
)
async def test_a_page_shows_the_text_of_its_task_and_how_it_stands(
    own_redis: Server, browser: Browser, tmp_path: Path, path: str, checkout: Callable[[], Path]
) -> None:
    async with example(own_redis, browser, tmp_path, checkout(), path) as (gateway, page):
        send, status, output = (
            page.get_by_role("button"),
            page.get_by_role("status"),
            page.locator("p[style*=pre-wrap]"),
        )
        await send.click()
        await expect(status).to_have_text("No worker available")
        async with worker_v1(gateway.ws, "of-w") as worker:
            await send.click()
            task = await worker.take()
            assert task["payload"]["stream"]
            await expect(status).to_have_text("executing")
            await worker.chunk(task, "Half")
            await expect(output).to_have_text("Half")
            await worker.chunk(task, " and half")
            await worker.answer(task)
            await expect(status).to_have_text("completed")
            await expect(output).to_have_text("Half and half")

            await send.click()
            await worker.answer(await worker.take(), {"choices": [{"message": {"content": "In one piece"}}]})
            await expect(output).to_have_text("In one piece")

            await send.click()
            await worker.answer(await worker.take(), error="No such luck")
            await expect(status).to_have_text("No such luck")
