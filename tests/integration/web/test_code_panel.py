"""The lines that the playground shows for a terminal do what the page did, on every surface: in curl, Python and JavaScript."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.integration.sdks.conftest import NODE
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser
from tests.integration.web.test_batches_view import open_batches
from tests.integration.web.test_page_parts import run, run_python, script
from tests.integration.web.test_playground import WORDS, ask, choose_surface, plain, say, shows, state
from tests.support.node import installed
from tests.support.processes import NO_PROXIES, output_of
from tests.support.rawworkers import RawWorker
from tests.support.receivers import LOCAL, receiving
from tests.support.talk import Talk, talking

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
expect.set_options(timeout=DEADLINE_MS)

PROMPT = 'It\'s "quoted" $HOME `date` \\n 小明 \U0001f600\n<b>'


@pytest.fixture(scope="session")
def packages() -> Path:
    """The folder that has the SDKs for Node."""
    return installed(NODE, ["package.json", ".npmrc"], ".")


@pytest.fixture
async def model(talk: Talk) -> None:
    """A model that repeats what it is asked."""
    ready = asyncio.Event()

    async def serve() -> None:
        async with talk.worker2(["m"], slots=4) as worker:
            ready.set()
            while True:
                task = await worker.recv(None)
                if task["type"] != "task":
                    continue
                payload = task["payload"]
                said = payload["prompt"] if "prompt" in payload else payload["messages"][-1]["content"]
                await say(worker, task, [said, "|", *WORDS])
                await worker.answer(task)

    talk.later(serve())
    await ready.wait()


async def node(packages: Path, folder: Path, text: str) -> str:
    """What a script of JavaScript prints, with the SDKs at hand."""
    program = folder / "script.mjs"
    link = folder / "node_modules"
    if not link.exists():
        link.symlink_to(packages / "node_modules")
    program.write_text(text)
    return await output_of(str(program), program="node", cwd=folder, **NO_PROXIES)


@pytest.mark.parametrize("surface", ["chat", "completions", "messages", "responses"])
@pytest.mark.usefixtures("model")
async def test_a_question_is_asked_again_in_every_language(
    talk: Talk, open_browser: OpenBrowser, packages: Path, tmp_path: Path, surface: str
) -> None:
    page = await (await open_browser(talk.served.url)).open()
    await page.locator("#user").fill("小明")
    await page.locator("#more summary").click()
    await page.locator("#system").fill("Be 'brief' \"here\".")
    if surface != "completions":
        await page.locator("#tools-on").check()
    if surface == "completions":
        await page.locator("#system").fill("")
    await ask(page, prompt=PROMPT, surface=surface)
    await state(page, "completed")
    answer = PROMPT + "|" + "".join(WORDS)
    await plain(page)
    await shows(page, answer)
    streamed = await run("sh", await script(page, "curl"))
    ends = {"messages": "message_stop", "responses": "response.completed"}
    assert ends.get(surface, "[DONE]") in streamed
    assert answer in await run_python(await script(page, "python"))
    assert answer in await node(packages, tmp_path, await script(page, "node"))
    assert {row["user"] for row in (await talk.state())["tasks"]} == {"小明"}


@pytest.mark.usefixtures("model")
async def test_a_response_is_read_again_and_read_on_in_every_language(
    talk: Talk, open_browser: OpenBrowser, packages: Path, tmp_path: Path
) -> None:
    page = await (await open_browser(talk.served.url)).open()
    await choose_surface(page, "responses")
    await page.locator("#background").check()
    await ask(page, prompt=PROMPT, surface="responses")
    await state(page, "completed")
    await page.reload()
    await state(page, "completed")
    answer = PROMPT + "|" + "".join(WORDS)
    curl = await script(page, "curl")
    assert "/v1/responses/resp_" in curl
    events = await run("sh", curl)
    deltas = re.findall(r"event: response.output_text.delta\ndata: (.*)", events)
    assert "".join(json.loads(delta)["delta"] for delta in deltas) == answer
    assert answer in await run_python(await script(page, "python"))
    assert answer in await node(packages, tmp_path, await script(page, "node"))


@pytest.mark.usefixtures("model")
async def test_a_batch_is_made_again(talk: Talk, open_browser: OpenBrowser) -> None:
    page: Page = await open_batches(open_browser, talk)
    await page.locator("#batch-model option[value=m]").wait_for(state="attached")
    await page.locator("#user").evaluate("e => e.value = '小明'")
    await page.locator("#batch-prompts").fill('It\'s "quoted" $HOME\n小明')
    await page.locator("#batch-send").click()
    await expect(page.locator("[data-batch=completed]")).to_be_visible()
    await expect(page.locator("#batch-code")).to_contain_text("/content")
    await page.locator("#batch-code input[value=python]").check(force=True)
    text = await page.locator("#batch-code pre").evaluate("e => e.textContent")
    told = await run_python(text)
    assert "completed" in told
    assert "小明|" in told
    assert "$HOME|" in told


async def test_embeddings_are_asked_for_again_in_every_language(
    talk: Talk, open_browser: OpenBrowser, packages: Path, tmp_path: Path
) -> None:
    asked = []

    async def serve(worker: RawWorker) -> None:
        while True:
            task = await worker.recv(None)
            if task["type"] == "task":
                asked.append(task["payload"]["input"])
                vectors = [{"index": index, "embedding": [index, 0.5]} for index in range(len(asked[-1]))]
                await worker.answer(task, {"data": vectors})

    async with talk.worker2(["m"]) as worker:
        talk.later(serve(worker))
        page = await (await open_browser(talk.served.url)).open()
        await page.locator("#user").fill("小明")
        await ask(page, prompt=PROMPT, surface="embeddings")
        await expect(page.locator("#vectors-table tbody tr")).to_have_count(2)
        told = json.loads(await run("sh", await script(page, "curl")))
        assert told["data"][1]["embedding"] == [1, 0.5]
        assert "1 2 [1.0, 0.5]" in await run_python(await script(page, "python"))
        assert "1 2 [ 1, 0.5 ]" in await node(packages, tmp_path, await script(page, "node"))
        assert asked == [[line.strip() for line in PROMPT.splitlines()]] * 4


async def test_a_webhook_is_made_again(redis_url: str, tmp_path: Path, open_browser: OpenBrowser) -> None:
    async with receiving() as receiver, talking(redis_url, tmp_path, webhooks=LOCAL) as talk:
        page = await (await open_browser(talk.served.url)).open("/#webhooks")
        await page.locator("#webhook-url").fill(f"{receiver.url}?it's")
        await page.locator("#webhook-send").click()
        secret = await page.locator("#webhook-secret-text").inner_text()
        panel = page.locator("#webhook-code pre")
        told = await run("sh", await panel.evaluate("e => e.textContent"))
        assert '"removed":true' in told
        await page.locator("#webhook-code input[value=python]").check(force=True)
        text = await panel.evaluate("e => e.textContent")
        assert secret not in text
        told = await run_python(text)
        assert told.startswith("whsec_")
        assert "webhook.test" in told
