"""Responses from the playground: streamed, in the background cut and read on, looked up again, cancelled."""

import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import DEADLINE_MS, OpenBrowser, accessible
from tests.integration.web.test_playground import WORDS, ask, choose_surface, fact, plain, say, shows, state
from tests.integration.web.test_surfaces import HEARD, USAGE, call_a_tool, offer_tools
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio
expect.set_options(timeout=DEADLINE_MS)


async def test_a_response_shows_thoughts_tools_and_usage_like_the_other_surfaces(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        await offer_tools(page)
        await ask(page, prompt="The weather?", surface="responses")
        task = await worker.take()
        assert [(turn["role"], turn["content"]) for turn in task["payload"]["messages"]] == [
            ("system", "Be brief."),
            ("user", "The weather?"),
        ]
        assert [tool["function"]["name"] for tool in task["payload"]["tools"]] == ["get_weather"]
        await call_a_tool(worker, task)
        await state(page, "completed")
        await expect(page.locator("#output")).to_have_text("A moment.")
        await page.locator("#reasoning summary").click()
        await expect(page.locator("#reasoning .output")).to_have_text("let me <think>")
        await expect(page.locator(".call code").first).to_have_text("get_weather")
        assert await fact(page, "tokens") == "80 in, 24 out"
        assert await fact(page, "cached") == "10"
        assert await fact(page, "thoughts") == "5"
        await expect(page.locator("#integrity")).to_contain_text("None lost, none doubled.")
        await accessible(page)
        await page.locator("#call-result-0").fill(HEARD)
        await page.locator("#go-on").click()
        task = await worker.take()
        answered = task["payload"]["messages"][-1]
        assert (answered["role"], answered["tool_call_id"], answered["content"]) == ("tool", "call_7", HEARD)
        await worker.answer(task, {"content": "It rains."})
        await expect(page.locator("#output")).to_have_text("It rains.")


async def test_a_response_in_the_background_is_cut_read_on_and_looked_up_again(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await choose_surface(page, "responses")
        await page.locator("#background").check()
        await expect(page.locator("#surface-hint")).to_contain_text("starting_after")
        await ask(page, surface="responses")
        task = await worker.take()
        seq = await say(worker, task, WORDS[:3])
        await plain(page)
        await shows(page, "".join(WORDS[:3]))
        await page.locator("#cut").click()
        await expect(page.locator("#connection")).to_contain_text("The response goes on in the background")
        await say(worker, task, WORDS[3:], seq)
        await page.locator("#resume").click()
        await shows(page, "".join(WORDS))
        await worker.answer(task, None, usage=USAGE, finishReason="stop")
        await state(page, "completed")
        await expect(page.locator("#integrity")).to_contain_text(
            "over 2 connections. None lost, none doubled."
        )
        response = f"resp_{task['taskId']}"
        assert page.url.endswith(f"#response={response}")
        resumed = [url for url in asked if "starting_after=" in url]
        assert len(resumed) == 1
        assert f"/v1/responses/{response}?stream=true&starting_after=" in resumed[0]
        await page.reload()
        await page.wait_for_function("document.querySelector('#background')?.checked")
        await state(page, "completed")
        await plain(page)
        await shows(page, "".join(WORDS))
        assert await fact(page, "tokens") == "80 in, 24 out"
        await expect(page.locator("#go-on")).to_be_hidden()
        await expect(page.locator("#facts")).not_to_contain_text("In all")


async def test_a_response_that_waits_tells_its_place_and_is_cancelled(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        await talk.submit(model="m", stream=True)
        running = await worker.take()
        page = await (await open_browser(talk.served.url)).open()
        await choose_surface(page, "responses")
        await page.locator("#background").check()
        await ask(page, surface="responses")
        await state(page, "queued")
        await expect(page.locator("#position")).to_have_text("1")
        await page.locator("#cancel-task").click()
        await state(page, "cancelled")
        await expect(page.locator("#code")).to_contain_text("/cancel")
        await worker.answer(running, {})


async def test_a_response_that_is_gone_says_so(talk: Talk, open_browser: OpenBrowser) -> None:
    gone = "resp_01a1fc22-94cf-8002-ba85-cea7a54f7ce5"
    page = await (await open_browser(talk.served.url)).open(f"/#response={gone}")
    await expect(page.locator("#ask-problem")).to_contain_text("404")
