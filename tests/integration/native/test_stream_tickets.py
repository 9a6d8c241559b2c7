"""The links that are given to browsers: for one task, for a while, and for as long as they are used."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.queues.clock import now_ms

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
KEYS = [key("back-end")]
TOKENS = [key("w")]


def link(talk: Talk, task_id: str, expiry: int) -> str:
    """A link whose own time ends then."""
    return (
        f"/api/task/{task_id}/events?token={talk.served.gateway.tasks.links.tickets.issue(task_id, expiry)}"
    )


async def test_a_link_is_good_for_the_configured_time_from_its_issue(gateway: Start) -> None:
    async with gateway(keys=KEYS, workers=TOKENS, stream_token_ms=60_000) as talk:
        before = now_ms()
        url = talk.served.gateway.tasks.links.url("01a2027d-b287-800e-988d-e0422471a2ca")
        token = url.partition("token=")[2]
        expiry = talk.served.gateway.tasks.links.tickets.expiry(token, "01a2027d-b287-800e-988d-e0422471a2ca")
        assert expiry is not None
        assert before + 60_000 <= expiry <= now_ms() + 60_000


async def test_an_old_link_that_nobody_used_opens_nothing(shared_gateway: Start) -> None:
    async with (
        shared_gateway(keys=KEYS, workers=TOKENS) as talk,
        talk.worker(secret("w")),
        talk.client(secret("back-end")) as http,
    ):
        task_id = (await http.post("/api/openai", json={"async": True})).json()["taskId"]
        answer = await talk.http.get(link(talk, task_id, now_ms() - 1))
        assert (answer.status_code, answer.json()["code"]) == (401, "LINK_INVALID")


async def test_a_link_that_is_used_outlives_its_own_time_on_every_connection(shared_gateway: Start) -> None:
    async with (
        shared_gateway(keys=KEYS, workers=TOKENS) as talk,
        talk.worker(secret("w")) as worker,
        talk.client(secret("back-end")) as http,
    ):
        task_id = (await http.post("/api/openai", json={"async": True})).json()["taskId"]
        task = await worker.take()
        expiry = now_ms() + 500
        url, unused = link(talk, task_id, expiry), link(talk, task_id, expiry + 1)
        async with talk.events(url) as one:
            assert (await one.next()).event == "start"
            await until(lambda: now_ms() > expiry + 1, "its own time to pass")
            async with talk.events(url) as other:
                assert (await other.next()).event == "start"
        async with talk.events(url) as again:
            assert (await again.next()).event == "start"
            assert (await talk.http.get(unused)).status_code == 401
            await worker.answer(task, {})
            assert (await again.rest())[-1].event == "done"
        name = talk.served.gateway.keys("ticket", id=task_id, until=str(expiry))
        left: Any = await talk.served.gateway.link.command("PTTL", name)
        assert 0 < left <= talk.served.gateway.current.settings.tuning.stream_token_ms
        await talk.served.gateway.link.command("DEL", name)
        assert (await talk.http.get(url)).status_code == 401


async def test_every_answer_that_names_a_link_gives_a_new_one(shared_gateway: Start) -> None:
    async with (
        shared_gateway(keys=KEYS, workers=TOKENS) as talk,
        talk.worker(secret("w")),
        talk.client(secret("back-end")) as http,
    ):
        accepted = (await http.post("/api/openai", json={"async": True})).json()
        polled = (await http.get(accepted["statusUrl"])).json()
        assert polled["streamUrl"] != accepted["streamUrl"]
        for url in (accepted["streamUrl"], polled["streamUrl"]):
            async with talk.events(url) as stream:
                assert (await stream.next()).event == "start"
