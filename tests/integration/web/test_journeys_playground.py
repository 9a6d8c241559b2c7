"""Journeys through the playground in a real browser, on a real gateway, with workers that say exactly what the test wants."""

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import PHONE, OpenBrowser, accessible, fits
from tests.integration.web.playground import KEY, KEYS, WORDS, ask, fact, plain, say, showing, shows, state
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio


async def test_one_task_after_the_other_is_watched_to_its_end(talk: Talk, open_browser: OpenBrowser) -> None:
    """A task that completes, a chat stream, a task that fails, one read in three ways."""
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        await ask(page)
        task = await worker.take()
        assert task["payload"]["messages"] == [{"role": "user", "content": "Tell me a story"}]
        await state(page, "executing")
        await say(worker, task, WORDS)
        usage = {"inputTokens": 7, "outputTokens": 1234}
        await worker.answer(task, None, usage=usage, finishReason="stop")
        await state(page, "completed")
        await expect(page.locator("#output strong")).to_have_text("one")
        assert await fact(page, "tokens") == "7 in, 1,234 out"
        assert await fact(page, "model") == "m"
        assert await fact(page, "queue") == "free_stream"
        assert "ms" in await fact(page, "first") or "s" in await fact(page, "first")
        await expect(page.locator("#integrity")).to_contain_text("None lost, none repeated.")
        await plain(page)
        await shows(page, "".join(WORDS))
        assert await page.locator("#cut").is_disabled()
        assert await page.locator("#cancel-task").is_disabled()

        await ask(page, api="chat")
        task = await worker.take()
        await showing(page, task)
        await say(worker, task, WORDS)
        await worker.answer(task, None, usage={"inputTokens": 3, "outputTokens": 8}, finishReason="stop")
        await state(page, "completed")
        assert await fact(page, "tokens") == "3 in, 8 out"
        await plain(page)
        await shows(page, "".join(WORDS))

        await ask(page)
        task = await worker.take()
        await showing(page, task)
        await say(worker, task, WORDS[:1])
        info = {"code": "UPSTREAM_ERROR", "message": "The GPU is <b>on fire</b>", "retryable": True}
        await worker.answer(task, None, error=info["message"], errorInfo=info)
        await state(page, "failed")
        await expect(page.locator("#failure")).to_contain_text("The GPU is <b>on fire</b> [UPSTREAM_ERROR]")
        await expect(page.locator("#output")).to_have_text("Once")

        await page.locator("#side-by-side").check()
        await ask(page)
        task = await worker.take()
        await showing(page, task)
        await expect(page.locator("#reading-poll-text")).to_contain_text('"status"')
        await expect(page.locator("#reading-json-text")).to_contain_text("arrives when the task ends")
        await say(worker, task, WORDS)
        await expect(page.locator("#reading-events-text")).to_contain_text('"delta":"Once')
        await accessible(page)
        await worker.answer(task)
        await expect(page.locator("#agreed")).to_contain_text("All three contain the same text")
        result = json.loads(await page.locator("#reading-json-text").inner_text())
        polled = json.loads(await page.locator("#reading-poll-text").inner_text())
        assert result["content"] == "".join(WORDS)
        assert polled["result"] == result
        assert polled == await talk.poll(task["taskId"])


async def test_the_place_in_the_queue_moves(talk: Talk, open_browser: OpenBrowser) -> None:
    async with talk.worker2(["m"]) as worker:
        before = [await talk.submit(model="m", stream=True) for _ in range(3)]
        running = await worker.take()
        page = await (await open_browser(talk.served.url)).open()
        await ask(page)
        await state(page, "queued")
        for place in (3, 2, 1):
            await expect(page.locator("#position")).to_have_text(str(place))
            if place == 3:
                await expect(page.locator(".place-what")).to_have_text("2 tasks ahead of you in your queue")
                await expect(page.locator("#wait")).not_to_be_empty()
                await accessible(page)
            await worker.answer(running, {})
            running = await worker.take()
        assert running["taskId"] not in before
        await state(page, "executing")
        await expect(page.locator("#place")).to_be_hidden()
        await worker.answer(running, {"content": "now"})
        await state(page, "completed")
        await expect(page.locator("#output")).to_have_text("now")


async def test_a_cut_connection_comes_back_behind_the_last_event(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker:
        page = await (await open_browser(talk.served.url)).open()
        asked: list[str] = []
        page.on(
            "request",
            lambda request: (
                asked.append(request.headers.get("last-event-id", "")) if "/events" in request.url else None
            ),
        )
        await ask(page)
        task = await worker.take()
        seq = await say(worker, task, WORDS[:3])
        await plain(page)
        await shows(page, "".join(WORDS[:3]))
        await page.clock.install()
        await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))  # from here on it passes by hand
        await page.locator("#cut").click()
        await page.clock.run_for(300)
        await expect(page.locator("#connection")).to_contain_text("Connection cut after event ")
        seq = await say(worker, task, WORDS[3:6], seq)

        async with talk.events(f"/api/task/{task['taskId']}/events") as events:  # they are in the log …
            text = ""
            while text != "".join(WORDS[:6]):
                text += (await events.next()).data.get("delta", "")
        await page.clock.run_for(1000)
        assert await page.locator("#output").evaluate("e => e.textContent") == "".join(
            WORDS[:3]
        )  # cut is cut
        await page.locator("#resume").click()
        await page.clock.resume()
        await shows(page, "".join(WORDS[:6]))
        await expect(page.locator("#connection")).to_be_hidden()
        await page.locator("#cut").click()
        await say(worker, task, WORDS[6:], seq)
        await worker.answer(task)
        await shows(page, "".join(WORDS))  # this time it comes back by itself
        await state(page, "completed")
        await expect(page.locator("#integrity")).to_contain_text(
            "over 3 connections. None lost, none repeated."
        )
        assert [bool(last_id) for last_id in asked] == [False, True, True]
        poll = await talk.poll(task["taskId"])
        assert poll["result"]["content"] == "".join(WORDS)


async def test_a_key_is_asked_for_and_a_wrong_one_is_refused(
    redis_url: str, tmp_path: Path, open_browser: OpenBrowser
) -> None:
    async with talking(redis_url, tmp_path, keys=KEYS) as talk, talk.worker2(["m"]) as worker:
        watched = await open_browser(talk.served.url)
        page = await watched.open()
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        await expect(page.locator("#page-problem")).to_contain_text("This gateway requires a key.")
        await page.locator("#page-problem button").click()
        await page.locator("#key-input").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog .notice")).to_have_text("The gateway rejected this key.")
        await accessible(page)
        await page.locator("#key-input").fill(KEY)
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog")).to_have_count(0)
        await expect(page.locator("#key-button")).to_have_text("API key set · acme")
        await expect(page.locator("#user")).to_be_hidden()  # the key is the user
        await ask(page)
        task = await worker.take()
        await say(worker, task, WORDS[:1])
        await expect(page.locator("#output")).to_have_text("Once")
        await page.locator("#prompt").fill("Another story")
        await page.locator("#api").select_option("messages")
        await page.reload()  # the tab keeps its key and what the reader has entered
        await expect(page.locator("#key-button")).to_have_text("API key set · acme")
        await expect(page.locator("#prompt")).to_have_value("Another story")
        await expect(page.locator("#api")).to_have_value("messages")
        await expect(page.locator("#model")).to_have_value("m")
        await state(page, "executing")
        assert not any(KEY in url for url in [*urls, page.url])
        assert KEY not in await page.locator("#code").inner_text()

        stranger = await (await open_browser(talk.served.url)).open(page.url.removeprefix(talk.served.url))
        await expect(stranger.locator("#output")).to_have_text("Once")  # the link reads …
        await stranger.locator("#cancel-task").click()
        await expect(stranger.locator("#toasts")).to_contain_text("A link gives read access only")  # … alone
        await worker.answer(task)
        await state(stranger, "completed")
        forged = page.url.replace("token=", "token=x").removeprefix(talk.served.url)
        refused = await (await open_browser(talk.served.url)).open(forged)
        await expect(refused.locator("#connection")).to_contain_text("This link is invalid or has expired")


async def test_bursts_show_who_is_served_when_and_can_be_cancelled(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    async with talk.worker2(["m"]) as worker, talk.worker2(["large"], slots=2):
        page = await (await open_browser(talk.served.url)).open()
        await page.locator("#tabs label", has_text="Burst").click()
        await expect(page.locator("#burst-model")).to_have_value("m")  # it has fewer slots
        await expect(page.locator("#burst-user-0")).to_have_value("alice")
        await page.locator("#burst-count-0").fill("6")
        await page.locator("#burst-count-1").fill("2")
        await page.locator("#burst-count-2").fill("2")
        await page.locator("#burst-send").click()
        order = []
        task = await worker.take()  # before the rest: what nobody acknowledges goes back to its queue
        await talk.waiting(9)
        await expect(page.locator("#burst-bars .waited")).to_have_count(10)
        await expect(page.locator("#burst-table tbody tr")).to_have_text([re.compile(r"\d")] * 3)
        assert "–" not in await page.locator("#burst-table td:nth-child(4)").all_inner_texts()
        await accessible(page)
        for left in reversed(range(10)):
            rows = {row["taskId"]: row["user"] for row in (await talk.state())["tasks"]}
            order.append(rows[task["taskId"]])
            await worker.answer(task, {"content": "ok"}, usage={"inputTokens": 1, "outputTokens": 1})
            if left:
                task = await worker.take()
        await expect(page.locator("#burst-progress")).to_have_text("10 of 10 ended")
        turns = await page.locator("#burst-table td:nth-child(6)").all_inner_texts()
        assert [int(turn) for turn in turns] == [order.index(user) + 1 for user in ("alice", "bob", "carol")]
        assert sorted(order) == ["alice"] * 6 + ["bob"] * 2 + ["carol"] * 2
        assert order.index("carol") < 3, "the paid tier does not wait behind a flood"
        assert order.index("bob") < 6, "nor does another user of the same tier"
        await expect(page.locator("#burst-table tbody tr").first).to_contain_text("6 / 6")
        await expect(page.locator("#burst-send")).to_be_enabled()

        for index, count in enumerate((16, 4, 4)):
            await page.locator(f"#burst-count-{index}").fill(str(count))
        await page.locator("#burst-send").click()
        task = await worker.take()
        await talk.waiting(23)
        await page.locator("#burst-stop").click()
        await expect(page.locator("#burst-progress")).to_have_text("24 of 24 ended")
        assert (await talk.state())["counts"]["cancelled"] == 24
        assert (await worker.recv())["type"] == "cancel"
        await worker.answer(task, None, error="cancelled")


async def test_a_chain_shows_its_stages(redis_url: str, tmp_path: Path, open_browser: OpenBrowser) -> None:
    """A line of stages with how each stands: from the first on, and as the task's link is opened elsewhere."""
    say = {"role": "user", "content": "{{ stages.look.content }} {{ topic }}"}
    stages = [
        {
            "name": "look",
            "when": "picture",
            "model": "m",
            "messages": [{"role": "user", "content": "{{ picture }}"}],
        },
        {"name": "sum_up", "model": "m", "messages": [say]},
        {"name": "write", "model": "m", "messages": [say]},
    ]
    settings = {"chains": {"article": {"stages": stages}}}
    async with talking(redis_url, tmp_path, **settings) as talk, talk.worker2(["m"]) as worker:
        opened = await open_browser(talk.served.url)
        page = await opened.open()
        await page.locator("#template option[value='chain article']").wait_for(state="attached")
        await page.locator("#template").select_option("chain article")
        await expect(page.locator("#model")).to_be_hidden()
        await expect(page.locator("#variables")).to_contain_text("look → sum_up → write")
        await page.locator("textarea[name=topic]").fill("queues")
        await page.locator("#send").click()
        first = await worker.take()
        line = page.locator("#stages li")
        await expect(line).to_have_text(["look skipped", "sum_up executing", "write waiting"])
        await worker.answer(first, {"content": "short"})
        second = await worker.take()
        assert second["taskId"] == first["taskId"]
        await worker.chunk(second, "All of it")
        await expect(line).to_have_text(["look skipped", "sum_up completed", "write executing"])
        await expect(page.locator("#output")).to_have_text("All of it")
        await expect(page.locator("#facts")).not_to_contain_text(
            "Attempt"
        )  # the second start is another stage's first
        other = await opened.open(f"/{await page.evaluate('location.hash')}")
        await expect(other.locator("#stages li")).to_have_text(
            ["1 skipped", "sum_up completed", "write executing"]
        )
        await worker.answer(second, None)
        await state(page, "completed")
        for one in (page, other):
            await expect(one.locator("#stages li")).to_have_text(
                ["look skipped", "sum_up completed", "write completed"]
            )
        await expect(page.locator("#code")).to_contain_text('"chain"')
        await accessible(page)
        await page.set_viewport_size(PHONE)
        await fits(page)
        await opened.check()
