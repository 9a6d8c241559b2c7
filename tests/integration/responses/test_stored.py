"""What is kept of responses, for whom and for how long: `store`, `previous_response_id`, input items, forgetting."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk, talking

from fairlane.gateway.database.database import Trouble
from fairlane.gateway.responses import responses as module

from .asking import Asker, answer_with, events_of, good, refused, text_of

pytestmark = pytest.mark.anyio
ACCOUNTS = [key("acme"), key("site", delegating=True), key("ops", scopes=["admin"])]


@pytest.fixture
def gateway(
    redis_url: str, tmp_path: Path, database_url: str
) -> Callable[..., AbstractAsyncContextManager[Talk]]:
    def make(**settings: Any) -> AbstractAsyncContextManager[Talk]:
        return talking(redis_url, tmp_path, **{"keys": ACCOUNTS, "database_url": database_url, **settings})

    return make


@pytest.fixture
async def talk(gateway: Callable[..., AbstractAsyncContextManager[Talk]]) -> AsyncIterator[Talk]:
    async with gateway() as talk:
        yield talk


@pytest.fixture
async def worker(talk: Talk) -> AsyncIterator[RawWorker]:
    async with talk.worker2(["m"]) as worker:
        yield worker


async def said(
    asker: Asker, worker: RawWorker, answer: str, text: Any = "what?", **fields: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A whole response, and its task."""
    call = asker.talk.later(asker.ask(text, **fields))
    task = await answer_with(worker, answer)
    return await call, task


def messages_of(task: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in task["payload"]["messages"]]


async def test_what_was_waited_for_or_streamed_is_kept_as_well(
    talk: Talk, acme: Asker, worker: RawWorker
) -> None:
    waited, _ = await said(acme, worker, "that")
    assert waited["store"] is True
    assert await acme.get(waited["id"]) == waited
    streamed = talk.later(acme.post(stream=True))
    await answer_with(worker, "a ", "stream")
    events = events_of((await streamed).content)
    response_id = events[0]["response"]["id"]
    for _ in range(2):
        assert await acme.get(response_id) == events[-1]["response"]
        assert await acme.stream(response_id) == events
        await acme.forget(response_id)
    await acme.forget(waited["id"])
    assert await acme.get(waited["id"]) == waited


async def test_what_is_not_to_be_stored_is_not(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    asked, _ = await said(acme, worker, "that", store=False)
    assert asked["store"] is False
    refused(await acme.call("GET", asked["id"]), 404, "RESPONSE_NOT_FOUND")
    refused(await acme.post(background=True, store=False), 400, param="store")


async def test_where_nothing_is_kept_what_needs_it_is_refused(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]],
) -> None:
    async with gateway(responses={"ttl_ms": 0}) as talk, talk.client(secret("acme")) as http:
        asker = Asker(http, talk)
        async with talk.worker2(["m"]) as worker:
            asked, _ = await said(asker, worker, "that")
            assert asked["store"] is False
            refused(await asker.call("GET", asked["id"]), 404)
            refused(await asker.post(store=True), 400, param="store")
            refused(await asker.post(background=True), 400, param="background")
            refused(await asker.post(previous_response_id=asked["id"]), 400, param="previous_response_id")
            asked, _ = await said(asker, worker, "that", store=False)
            assert asked["store"] is False


async def test_a_conversation_goes_on_by_its_last_id(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    first, task = await said(acme, worker, "blue", "my colour?", instructions="be brief")
    assert messages_of(task) == [("system", "be brief"), ("user", "my colour?")]
    second, task = await said(acme, worker, "yes", "sure?", previous_response_id=first["id"])
    talked = [("user", "my colour?"), ("assistant", "blue"), ("user", "sure?")]
    assert messages_of(task) == talked, "instructions are of one response alone"
    assert second["previous_response_id"] == first["id"]
    await acme.forget(first["id"])
    third, task = await said(acme, worker, "quite", "really?", previous_response_id=second["id"])
    assert messages_of(task) == [*talked, ("assistant", "yes"), ("user", "really?")]
    _, task = await said(acme, worker, "no", "or red?", previous_response_id=first["id"])
    assert messages_of(task) == [*talked[:2], ("user", "or red?")]
    await acme.forget(third["id"])
    background = await acme.ask("and now?", previous_response_id=third["id"], background=True)
    task = await answer_with(worker, "still")
    assert messages_of(task)[-2:] == [("assistant", "quite"), ("user", "and now?")]
    assert text_of(await acme.reaches(background["id"], "completed")) == "still"


async def test_calls_of_tools_and_their_results_are_a_part_of_it(
    talk: Talk, acme: Asker, worker: RawWorker
) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    call = talk.later(acme.ask("look!", tools=tools))
    task = await worker.take()
    called = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [called]}
    await worker.answer(task, result={"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    first = await call
    assert [item["type"] for item in first["output"]] == ["function_call"]
    await acme.forget(first["id"])
    output = [{"type": "function_call_output", "call_id": "call_1", "output": "a cat"}]
    _, task = await said(acme, worker, "a cat!", output, previous_response_id=first["id"], tools=tools)
    told = task["payload"]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert told[1]["tool_calls"][0]["function"] == called["function"]
    assert (told[2]["tool_call_id"], told[2]["content"]) == ("call_1", "a cat")
    # the same by references, as the AI SDK says it
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    asked = [{"role": "user", "content": "look!"}, *references, *output]
    _, task = await said(acme, worker, "so", asked, tools=tools)
    assert task["payload"]["messages"] == told
    refused(await acme.post([{"type": "item_reference", "id": "msg_unknown_0"}]), 400)
    async with talk.client(secret("site")) as http:
        refused(await Asker(http, talk).post(asked, tools=tools), 400)


async def test_only_what_has_ended_well_and_is_there_whole_can_be_gone_on_from(
    talk: Talk, acme: Asker, worker: RawWorker
) -> None:
    param = "previous_response_id"
    running = await acme.ask(background=True)
    task = await worker.take()
    assert "in_progress" in refused(await acme.post(previous_response_id=running["id"]), 400, param=param)
    await worker.answer(task, error="no such luck")
    for _ in range(2):
        await acme.reaches(running["id"], "failed")
        assert "failed" in refused(await acme.post(previous_response_id=running["id"]), 400, param=param)
        await acme.forget(running["id"])
    first, _ = await said(acme, worker, "one")
    second, _ = await said(acme, worker, "two", previous_response_id=first["id"])
    third, _ = await said(acme, worker, "three", previous_response_id=second["id"])
    good(await acme.call("DELETE", first["id"]))
    for response in (second, third):
        sentence = refused(
            await acme.post(previous_response_id=response["id"]), 400, "previous_response_not_found", param
        )
        assert first["id"] in sentence
    for unknown in ("resp_unknown", "nothing", first["id"]):
        sentence = refused(
            await acme.post(previous_response_id=unknown), 400, "previous_response_not_found", param
        )
        assert unknown in sentence


async def test_a_conversation_that_is_too_long_is_refused(
    gateway: Callable[..., AbstractAsyncContextManager[Talk]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        gateway(max_body_bytes=20_000) as talk,
        talk.client(secret("acme")) as http,
        talk.worker2(["m"]) as worker,
    ):
        asker = Asker(http, talk)
        before: dict[str, Any] = {}
        for _ in range(3):
            asked, _ = await said(asker, worker, "that", "x" * 6400, **before)
            before = {"previous_response_id": asked["id"]}
        assert "bytes" in refused(await asker.post(**before), 400, param="previous_response_id")
        monkeypatch.setattr(module, "MAX_TURNS", 2)
        before = {}
        for _ in range(3):
            asked, _ = await said(asker, worker, "that", **before)
            before = {"previous_response_id": asked["id"]}
        assert "more than 2" in refused(await asker.post(**before), 400, param="previous_response_id")


async def test_input_items_are_listed_by_pages(talk: Talk, acme: Asker, worker: RawWorker) -> None:
    text = "one question"
    asked, _ = await said(acme, worker, "that", text)
    page = good(await acme.call("GET", asked["id"], "/input_items"))
    [item] = page["data"]
    assert (item["type"], item["role"], item["content"]) == (
        *("message", "user"),
        [{"type": "input_text", "text": text}],
    )
    assert page["first_id"] == page["last_id"] == item["id"]
    many = [{"role": "user", "content": f"{n}"} for n in range(5)]
    asked, _ = await said(acme, worker, "that", many, previous_response_id=asked["id"])
    found, after = [], {}
    for more in (True, True, False):
        page = good(await acme.call("GET", asked["id"], "/input_items", limit=2, order="asc", **after))
        found += [item["content"][0]["text"] for item in page["data"]]
        after = {"after": page["last_id"]}
        assert page["has_more"] is more
    assert found == ["0", "1", "2", "3", "4"], "without those of the response before"
    newest = good(await acme.call("GET", asked["id"], "/input_items", limit=1))
    assert newest["data"][0]["content"][0]["text"] == "4"
    for query in ({"limit": 0}, {"limit": 101}, {"order": "no"}, {"after": "item_other"}):
        [param] = query
        refused(await acme.call("GET", asked["id"], "/input_items", **query), 400, param=param)


async def test_users_of_one_key_do_not_see_each_others(talk: Talk, worker: RawWorker) -> None:
    async with (
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as of_ann,
        talk.client(secret("site"), **{"X-Fairlane-User": "bob"}) as of_bob,
    ):
        ann, bob = Asker(of_ann, talk), Asker(of_bob, talk)
        asked, _ = await said(ann, worker, "mine")
        await ann.get(asked["id"])
        refused(await bob.call("GET", asked["id"]), 404)
        refused(await bob.post(previous_response_id=asked["id"]), 400, "previous_response_not_found")


async def test_a_user_is_forgotten_with_all_responses(talk: Talk, worker: RawWorker) -> None:
    async with (
        talk.client(secret("site"), **{"X-Fairlane-User": "ann"}) as of_ann,
        talk.client(secret("site"), **{"X-Fairlane-User": "bob"}) as of_bob,
        talk.client(secret("ops")) as ops,
    ):
        ann, bob = Asker(of_ann, talk), Asker(of_bob, talk)
        hers, _ = await said(ann, worker, "hers")
        in_redis, _ = await said(ann, worker, "hers, too")
        his, _ = await said(bob, worker, "his")
        await ann.forget(hers["id"])
        told = good(await ops.delete("/api/admin/users/site/ann"))
        assert (told["responses"], told["more"]) == (2, False)
        refused(await ann.call("GET", hers["id"]), 404)
        refused(await ann.call("GET", in_redis["id"]), 404)
        assert await bob.get(his["id"]) == his


async def test_its_time_is_over(gateway: Callable[..., AbstractAsyncContextManager[Talk]]) -> None:
    async with (
        gateway(responses={"ttl_ms": 1}) as talk,
        talk.client(secret("acme")) as http,
        talk.worker2(["m"]) as worker,
    ):
        asker = Asker(http, talk)
        asked, _ = await said(asker, worker, "that")
        refused(await asker.call("GET", asked["id"]), 404, "RESPONSE_NOT_FOUND")
        refused(await asker.post(previous_response_id=asked["id"]), 400, "previous_response_not_found")


async def test_while_sql_takes_nothing_only_what_asks_for_it_is_refused(
    talk: Talk, acme: Asker, worker: RawWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = talk.served.gateway.database
    writing = database.writing
    monkeypatch.setattr(database, "writing", lambda *_: writing(0.0))
    database.trouble = None  # nobody has noticed yet
    asked, _ = await said(acme, worker, "that")
    assert asked["store"] is False
    refused(await acme.call("GET", asked["id"]), 404)
    refused(await acme.post(store=True), 503, "DATABASE_UNAVAILABLE")
    refused(await acme.post(background=True), 503, "DATABASE_UNAVAILABLE")
    assert database.trouble is not None
    asked, _ = await said(acme, worker, "that")
    assert asked["store"] is False
    monkeypatch.setattr(database, "writing", writing)
    database.trouble = Trouble(0, "tests", writes=True)
    asked, _ = await said(acme, worker, "that", store=True)
    assert (await acme.get(asked["id"]))["store"] is True
