"""One conversation through every surface of the gateway, from the playground: asked, read, shown and gone on with alike."""

import json
from typing import Any

import pytest
from playwright.async_api import Page, expect
from tests.integration.web.conftest import PHONE, OpenBrowser, accessible, fits
from tests.integration.web.test_playground import (
    ask,
    choose_model,
    choose_surface,
    fact,
    plain,
    showing,
    shows,
    state,
)
from tests.support.rawworkers import RawWorker, key
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

CHATS = ["native", "chat", "messages"]
"""The surfaces that know turns, tools and thoughts."""
CALL = {"id": "call_7", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
USAGE = {"inputTokens": 80, "outputTokens": 24, "cachedTokens": 10, "reasoningTokens": 5}
HEARD = "Rain, <b>12</b> degrees"


async def call_a_tool(worker: RawWorker, task: dict[str, Any]) -> None:
    """Think, say a word, call the tool."""
    deltas: list[dict[str, Any]] = [{"reasoning": "let me <think>"}, {"content": "A moment."}]
    deltas += [{"toolCalls": [{"index": 0, **CALL}]}]
    deltas += [
        {"toolCalls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"city": ', '"Oslo"}')
    ]
    for seq, delta in enumerate(deltas, 1):
        await worker.send("taskChunk", **key(task), seq=seq, deltas=[delta])
    await worker.answer(task, None, usage=USAGE, finishReason="tool_calls")


async def offer_tools(page: Page) -> None:
    await page.locator("#more summary").click()
    await page.locator("#system").fill("Be brief.")
    await page.locator("#tools-on").check()


async def test_each_surface_shows_thoughts_tools_and_usage_like_the_others(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        await offer_tools(page)
        for surface in CHATS:
            await talk_through(surface, page, worker)
            await page.locator("#turns-clear").click()


async def talk_through(surface: str, page: Page, worker: RawWorker) -> None:
    """A question, a call of a tool, its result and the answer, all of which the page shows."""
    await ask(page, prompt="The weather?", surface=surface)
    task = await worker.take()
    await showing(page, task)
    said = task["payload"]
    assert said["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "The weather?"},
    ]
    assert [tool["function"]["name"] for tool in said["tools"]] == ["get_weather"]
    await call_a_tool(worker, task)
    await state(page, "completed")
    await expect(page.locator("#output")).to_have_text("A moment.")
    await page.locator("#reasoning summary").click()
    await expect(page.locator("#reasoning .output")).to_have_text("let me <think>")
    await expect(page.locator(".call code").first).to_have_text("get_weather")
    assert json.loads(await page.locator(".call pre").inner_text()) == {"city": "Oslo"}
    assert await fact(page, "tokens") == "80 in, 24 out"
    assert await fact(page, "cached") == "10"
    assert await fact(page, "thoughts") == "5"
    await accessible(page)

    await page.locator("#call-result-0").fill(HEARD)
    await page.locator("#go-on").click()
    task = await worker.take()
    await showing(page, task)
    asked, answered = task["payload"]["messages"][-2:]
    assert (asked["role"], asked["content"]) == ("assistant", "A moment.")
    called = asked["tool_calls"][0]
    assert (called["id"], called["function"]["name"]) == ("call_7", "get_weather")
    assert json.loads(called["function"]["arguments"]) == {"city": "Oslo"}
    assert answered == {"role": "tool", "tool_call_id": "call_7", "content": HEARD}
    await worker.chunk(task, "It rains.", 1)
    await worker.answer(task, None, finishReason="stop")
    await expect(page.locator("#output")).to_have_text("It rains.")
    await expect(page.locator("#turns li")).to_have_count(3)
    await expect(page.locator("#turns")).to_contain_text(HEARD)


async def test_a_conversation_goes_on_through_another_surface(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        said: list[dict[str, str]] = []
        for number, surface in enumerate(["chat", "messages", "native", "chat"]):
            await ask(page, prompt=f"Question {number}", surface=surface)
            task = await worker.take()
            said.append({"role": "user", "content": f"Question {number}"})
            assert task["payload"]["messages"] == said
            await worker.answer(task, {"content": f"Answer {number}"})
            await state(page, "completed")
            await expect(page.locator("#output")).to_have_text(f"Answer {number}")
            said.append({"role": "assistant", "content": f"Answer {number}"})
            await page.locator("#go-on").click()
            await expect(page.locator("#prompt")).to_be_focused()
        await expect(page.locator("#turns li")).to_have_count(8)
        await accessible(page)
        await page.locator("#turns-clear").click()
        await ask(page, prompt="Anew")
        task = await worker.take()
        assert task["payload"]["messages"] == [{"role": "user", "content": "Anew"}]
        await worker.answer(task, {})


async def test_what_a_surface_cannot_say_is_told_before_it_is_sent(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        await choose_surface(page, "completions")
        await expect(page.locator("#unsaid")).to_be_hidden()
        await offer_tools(page)
        await expect(page.locator("#unsaid")).to_contain_text("It knows no tools")
        await expect(page.locator("#unsaid")).to_contain_text("knows no turns")
        await page.locator("#tools-on").uncheck()
        await ask(page, prompt="Why?", surface="completions")
        task = await worker.take()
        assert task["payload"]["prompt"] == "Be brief.\n\nUser: Why?\n\nAssistant:"
        await worker.chunk(task, " Because.", 1)
        await worker.answer(task, None, usage={"inputTokens": 3, "outputTokens": 2}, finishReason="stop")
        await state(page, "completed")
        await plain(page)
        await shows(page, " Because.")
        assert await fact(page, "tokens") == "3 in, 2 out"


async def test_tools_that_are_no_tools_are_not_sent(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]):
        page = await (await open_browser(talk.served.url)).open()
        await choose_model(page, "m")
        await offer_tools(page)
        for text, problem in (("[{", "This is no JSON"), ('[{"name": 3}]', "A list of tools, please")):
            await page.locator("#tools-text").fill(text)
            await expect(page.locator("#tools-problem")).to_contain_text(problem)
            await page.locator("#send").click()
            await expect(page.locator("#ask-problem")).to_contain_text(problem)
        assert (await talk.state())["tasks"] == []


async def test_a_stream_that_is_left_ends_and_a_failure_is_told_on_each_surface(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        for surface in ("chat", "completions", "messages"):
            await ask(page, surface=surface)
            task = await worker.take()
            await showing(page, task)
            await worker.chunk(task, "Once", 1)
            await expect(page.locator("#output")).to_have_text("Once")
            await page.locator("#cut").click()
            await state(page, "cancelled")
            await expect(page.locator("#connection")).to_contain_text("X-Fairlane-On-Disconnect")
            assert (await worker.recv())["type"] == "cancel"
            await worker.answer(task, None, error="cancelled")

            await ask(page, surface=surface)
            task = await worker.take()
            await showing(page, task)
            await worker.chunk(task, "Once", 1)
            info = {"code": "UPSTREAM_ERROR", "message": "The GPU is <b>on fire</b>", "retryable": True}
            await worker.answer(task, None, error=info["message"], errorInfo=info)
            await state(page, "failed")
            await expect(page.locator("#failure")).to_contain_text("The GPU is <b>on fire</b>")
            await expect(page.locator("#output")).to_have_text("Once")


async def test_each_surface_tells_the_place_in_the_queue(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        await talk.submit(model="m", stream=True)
        running = await worker.take()
        page = await (await open_browser(talk.served.url)).open()
        for surface in ("chat", "messages"):
            await ask(page, surface=surface)
            await state(page, "queued")
            await expect(page.locator("#position")).to_have_text("1")
            await page.locator("#cancel-task").click()
            await state(page, "cancelled")
        await worker.answer(running, {})


async def test_the_stream_is_shown_as_it_came(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url, viewport=PHONE)).open()
        await ask(page, surface="messages")
        task = await worker.take()
        await worker.chunk(task, "<i>Once</i>" + "x" * 300, 1)
        await worker.answer(task)
        await state(page, "completed")
        await page.locator("#frames summary").click()
        frames = page.locator("#frames pre")
        await expect(frames).to_contain_text('"text":"<i>Once</i>')
        for name in ("message_start", "content_block_start", "message_delta", "message_stop"):
            await expect(frames).to_contain_text(f"event: {name}\ndata: ")
        await offer_tools(page)
        await fits(page)
        await accessible(page)


async def test_embeddings_show_how_many_of_which_size_and_how_alike(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        await choose_surface(page, "embeddings")
        await expect(page.locator("#prompt-label")).to_have_text("Inputs, one a line")
        await expect(page.locator("#more")).to_be_hidden()
        await page.locator("#prompt").fill(" \n")
        await page.locator("#send").click()
        await expect(page.locator("#ask-problem")).to_have_text("Write an input first.")
        await ask(page, prompt="<b>one</b>\n\n  two \nthree", surface="embeddings")
        task = await worker.take()
        assert task["payload"] == {"model": "m", "input": ["<b>one</b>", "two", "three"]}
        await expect(page.locator("#vectors")).to_contain_text("The vectors of 3 inputs are awaited")
        await accessible(page)
        vectors = [[3, 4], [4, 3], [-4, 3]]
        data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(vectors)]
        answer = {"object": "list", "data": data[::-1], "model": "m", "usage": {"prompt_tokens": 5}}
        await worker.answer(task, answer)
        rows = page.locator("#vectors-table tbody tr")
        await expect(rows).to_have_text(["<b>one</b>1[3, 4]", "two0.96[4, 3]", "three0[-4, 3]"])
        for name, text in (("count", "3"), ("dimensions", "2"), ("tokens", "5"), ("model", "m")):
            assert await fact(page, name) == text
        await expect(page.locator("#said")).to_have_text("3 vectors of 2 dimensions")
        await expect(page.locator("#code pre")).to_contain_text("/v1/embeddings")
        await page.locator("#code input[value=python]").check(force=True)
        await expect(page.locator("#code pre")).to_contain_text("answer = client.embeddings.create(")
        await page.locator("#code input[value=node]").check(force=True)
        await expect(page.locator("#code pre")).to_contain_text(
            "const answer = await client.embeddings.create("
        )
        await accessible(page)
        await page.set_viewport_size(PHONE)
        await fits(page)
        await page.locator("#language").select_option("zh")
        await expect(page.locator("#vectors-title")).to_have_text("向量")

        await ask(page, prompt="Why?", surface="chat")
        await expect(page.locator("#vectors")).to_be_hidden()
        await worker.answer(await worker.take(), {"content": "So."})
        await state(page, "completed")


async def test_embeddings_that_are_stopped_or_refused_leave_no_task(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        await ask(page, prompt="one", surface="embeddings")
        task = await worker.take()
        await page.locator("#vectors-stop").click()
        assert (await worker.recv())["type"] == "cancel"
        await worker.answer(task, None, error="cancelled")
        await expect(page.locator("#vectors")).to_contain_text("Nothing sent yet")
        await expect(page.locator("#send")).to_be_enabled()
        await page.locator("#send").click()
        await worker.answer(await worker.take(), {"data": [{"index": 0, "embedding": "AAAA"}]})
        await expect(page.locator("#ask-problem")).to_contain_text("no embeddings")
