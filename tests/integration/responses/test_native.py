"""Responses that go as they are to an upstream that has them and keeps nothing: official SDK, real sockets."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import SecretStr
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.integration.native.keys import key, secret
from tests.support.responses_upstream import (
    SEAL,
    ResponsesUpstream,
    call,
    message,
    responses_upstream,
    thought,
)
from tests.support.serving import WORKER_TOKEN, until
from tests.support.talk import Talk, talking

from fairlane.workers.adapters.openai import OpenAIAdapter
from fairlane.workers.sdk import Worker

from .asking import Asker, answer_with, events_of, good, refused, text_of, told_events

pytestmark = pytest.mark.anyio

Start = Callable[..., contextlib.AbstractAsyncContextManager[Talk]]
ACCOUNTS = [key("acme"), key("ops", admin=True)]
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
SEARCHED = {
    "id": "ws_u7",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "news"},
}
CITED = {"type": "url_citation", "url": "https://example.com", "title": "T", "start_index": 0, "end_index": 4}


@pytest.fixture
async def upstream() -> AsyncIterator[ResponsesUpstream]:
    async with responses_upstream() as server:
        yield server


@pytest.fixture
async def talk(shared_gateway: Start) -> AsyncIterator[Talk]:
    async with shared_gateway(keys=ACCOUNTS) as talk:
        yield talk


@contextlib.asynccontextmanager
async def works(
    talk: Talk, upstream: ResponsesUpstream, model: str = "m", **options: Any
) -> AsyncIterator[None]:
    """A worker of an upstream with Responses, as long as the block."""
    worker = Worker("native", gateway=talk.served.ws, token=WORKER_TOKEN, slots=4)
    options = {"task_types": ["openaiLike", "openaiResponses"], **options}
    OpenAIAdapter(base_url=upstream.url, models={model: "theirs"}, **options).attach(worker)
    stop = asyncio.Event()
    running = talk.later(worker.serve(stop))
    pool = talk.served.gateway.dispatcher.pool
    await until(lambda: any(worker.serves(model) for worker in pool), "the worker to come")
    try:
        yield
    finally:
        stop.set()
        await running


@pytest.fixture
async def native(talk: Talk, upstream: ResponsesUpstream) -> AsyncIterator[None]:
    async with works(talk, upstream):
        yield


@pytest.fixture
async def sdk(talk: Talk) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{talk.served.url}/v1", api_key=secret("acme"), max_retries=0) as client:
        yield client


async def create(acme: Asker, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "input": "what?", **fields}
    return good(await acme.http.post("/v1/responses", json=body, headers=headers))


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_the_request_goes_to_the_upstream_as_it_came(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    told = await create(
        acme,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "what?"}]}],
        instructions="Be short.",
        truncation="auto",
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low"},
        metadata={"of": "mine"},
        include=["message.output_text.logprobs"],
    )
    assert upstream.asked == [
        {
            "model": "theirs",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "what?"}]}],
            "instructions": "Be short.",
            "truncation": "auto",
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "low"},
            "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
            "store": False,
            "stream": False,
        }
    ]
    assert kinds(told) == ["reasoning", "message"]
    task = told["id"].removeprefix("resp_")
    assert [item["id"] for item in told["output"]] == [f"rs_{task}_0", f"msg_{task}_0"]
    assert told["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm"}]
    assert told["output"][0]["encrypted_content"] == SEAL + "1"
    assert told["output"][1]["content"][0]["text"] == "Hello there"
    assert told["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert told["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    assert (told["truncation"], told["metadata"], told["store"]) == ("auto", {"of": "mine"}, True)
    assert told["text"] == {"verbosity": "low"}
    assert told["model"] == "m"


async def test_a_stream_and_the_whole_say_the_same(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    items = [
        thought("One|Two", "a"),
        SEARCHED,
        thought("", "b", number=1),
        message("See here", annotations=[CITED], phase="final_answer"),
    ]
    upstream.answers = [items, items]
    whole = await acme.ask()
    answer = await acme.post(stream=True)
    told = events_of(answer.content)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [asked["stream"] for asked in upstream.asked] == [False, True]
    last = told[-1]["response"]
    assert told[-1]["type"] == "response.completed"

    def bare(response: dict[str, Any]) -> str:
        task = response["id"].removeprefix("resp_")
        return json.dumps(response["output"]).replace(task, "TASK")

    assert bare(whole) == bare(last)
    assert kinds(whole) == ["reasoning", "web_search_call", "reasoning", "message"]
    assert [item.get("encrypted_content") for item in whole["output"]] == [SEAL + "a", None, SEAL + "b", None]
    task = whole["id"].removeprefix("resp_")
    assert whole["output"][1] == {**SEARCHED, "id": f"ws_{task}_0"}
    assert whole["output"][3]["phase"] == "final_answer"
    assert whole["output"][3]["content"][0]["annotations"] == [CITED]
    assert [event["annotation"] for event in told if event["type"].endswith("annotation.added")] == [CITED]
    assert await acme.get(last["id"]) == last | {"completed_at": last["completed_at"]}


async def test_a_loop_of_tools_with_openai_s_own_client(
    native: None, sdk: AsyncOpenAI, upstream: ResponsesUpstream
) -> None:
    upstream.answers = [
        [thought("Look", "a"), call("weather", '{"city": "Oslo"}')],
        [message("Rain")],
        [message("Bring a coat")],
    ]
    asked: Any = {"model": "m", "tools": [TOOL]}
    first = await sdk.responses.create(input="What is the weather?", **asked)
    function = next(item for item in first.output if item.type == "function_call")
    assert (function.name, function.arguments) == ("weather", '{"city": "Oslo"}')
    result = {"type": "function_call_output", "call_id": function.call_id, "output": "rain"}
    items = [item.model_dump(exclude_none=True) for item in first.output]
    async with sdk.responses.stream(
        input=[{"role": "user", "content": "What is the weather?"}, *items, result], **asked
    ) as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        second: Response = await stream.get_final_response()
    assert ("".join(texts), second.output_text) == ("Rain", "Rain")
    back = upstream.asked[1]["input"]
    assert [item.get("type", "message") for item in back] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert back[1]["encrypted_content"] == SEAL + "a"
    third = await sdk.responses.create(input="And now?", previous_response_id=second.id, **asked)
    assert third.output_text == "Bring a coat"
    again = upstream.asked[2]["input"]
    assert [item.get("type", "message") for item in again][-3:] == [
        "function_call_output",
        "message",
        "message",
    ]
    assert not any("id" in item for item in again)


async def test_pydantic_ai_s_loop_of_tools_takes_sealed_thoughts_back(
    talk: Talk, sdk: AsyncOpenAI, upstream: ResponsesUpstream
) -> None:
    """(It sends them back for models of which it knows that they think.)"""
    upstream.answers = [
        [thought("Look", "a"), call("weather", '{"city": "Oslo"}')],
        [thought("Now", "b"), message("Rain")],
        [message("Bring a coat")],
    ]
    agent = Agent(OpenAIResponsesModel("gpt-5-mini", provider=OpenAIProvider(openai_client=sdk)))

    @agent.tool_plain
    def weather(city: str) -> str:
        return f"rain in {city}"

    async with works(talk, upstream, "gpt-5-mini"):
        first = await agent.run("What is the weather?")
        assert first.output == "Rain"
        async with agent.run_stream("And now?", message_history=first.all_messages()) as stream:
            assert await stream.get_output() == "Bring a coat"
    back = [item.get("type", item.get("role")) for item in upstream.asked[2]["input"]]
    assert [kind for kind in back if kind in ("reasoning", "function_call", "function_call_output")] == [
        *("reasoning", "function_call", "function_call_output"),
        "reasoning",
    ]
    sealed = [item["encrypted_content"] for item in upstream.asked[2]["input"] if "encrypted_content" in item]
    assert sealed == [SEAL + "a", SEAL + "b"]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def test_langchain_s_loop_of_tools_takes_sealed_thoughts_back(
    native: None, talk: Talk, upstream: ResponsesUpstream
) -> None:
    upstream.answers = [[thought("Look", "a"), call("weather", '{"city": "Oslo"}')], [message("Rain")]]
    chat = ChatOpenAI(
        model="m",
        base_url=f"{talk.served.url}/v1",
        api_key=SecretStr(secret("acme")),
        use_responses_api=True,
        output_version="responses/v1",
        include=["reasoning.encrypted_content"],
        store=False,
    )
    bound = chat.bind_tools([weather])
    whole: Any = None
    async for chunk in bound.astream("What is the weather?"):
        whole = chunk if whole is None else whole + chunk
    result = await weather.ainvoke(whole.tool_calls[0])
    answer = await bound.ainvoke(["What is the weather?", whole, result])
    assert answer.text == "Rain"
    kinds_back = [item.get("type", item.get("role")) for item in upstream.asked[1]["input"]]
    assert kinds_back[-3:] == ["reasoning", "function_call", "function_call_output"]
    assert upstream.asked[1]["input"][-3]["encrypted_content"] == SEAL + "a"


async def test_what_is_kept_goes_on_natively_and_items_are_referred_to(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    upstream.answers = [[thought("Hm", "a"), SEARCHED, message("One")]]
    first = await acme.ask("first")
    await acme.ask("second", previous_response_id=first["id"])
    assert [item.get("type", item.get("role")) for item in upstream.asked[1]["input"]] == [
        *("message", "reasoning", "web_search_call", "message"),
        "user",
    ]
    referred = [{"type": "item_reference", "id": first["output"][n]["id"]} for n in (0, 1)]
    await acme.ask([*referred, {"role": "user", "content": "third"}])
    assert [item.get("type", item.get("role")) for item in upstream.asked[2]["input"]] == [
        *("reasoning", "web_search_call"),
        "user",
    ]
    page = good(await acme.call("GET", first["id"], "/input_items"))
    assert [item["content"][0]["text"] for item in page["data"]] == ["first"]


async def test_one_in_the_background_is_resumed_behind_any_event(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    upstream.answers = [[thought("Hm"), SEARCHED, message("Hello there"), call("weather", "{}")]]
    upstream.goes_on.clear()
    asked = await acme.ask(background=True, stream=None)
    assert asked["status"] in ("queued", "in_progress")
    upstream.goes_on.set()
    done = await acme.reaches(asked["id"], "completed")
    assert kinds(done) == ["reasoning", "web_search_call", "message", "function_call"]
    whole = await acme.stream(asked["id"])
    assert whole[-1]["response"]["output"] == done["output"]
    for after in range(len(whole) - 1):
        assert await acme.stream(asked["id"], after) == whole[after + 1 :]
    await acme.forget(asked["id"])
    assert await acme.stream(asked["id"]) == whole
    assert await acme.get(asked["id"]) == done


async def test_where_no_worker_takes_it_so_it_is_said_as_a_chat(talk: Talk, acme: Asker) -> None:
    async with talk.worker2(["m"]) as worker:
        waiting = talk.later(acme.ask())
        task = await answer_with(worker, "chat")
        assert (task["taskType"], "messages" in task["payload"]) == ("openaiLike", True)
        await waiting
        assert "truncation" in refused(await acme.post(truncation="auto"), 400, param="truncation")


async def test_a_worker_at_another_gateway_is_known_soon(
    upstream: ResponsesUpstream, redis_url: str, tmp_path: Path
) -> None:
    async with (
        talking(redis_url, tmp_path, keys=ACCOUNTS) as talk,
        talking(redis_url, tmp_path / "there", keys=ACCOUNTS) as there,
        talk.client(secret("acme")) as http,
    ):
        acme = Asker(http, talk)
        refused(await acme.post(truncation="auto", store=False), 400, param="truncation")
        async with works(there, upstream):

            async def taken() -> bool:
                return (await acme.post(truncation="auto", store=False)).status_code == 200

            await until(taken, "the worker to be known here")
    assert upstream.asked


async def test_one_that_was_submitted_natively_is_for_no_other_worker(talk: Talk, acme: Asker) -> None:
    async with talk.worker2(["m"]) as chat:
        async with talk.worker2(["m"], taskTypes=["openaiResponses"]) as worker:
            busy = talk.later(acme.ask())
            task = await worker.take()
            assert (task["taskType"], task["payload"]["input"]) == (
                "openaiResponses",
                [{"role": "user", "content": "what?"}],
            )
            await worker.answer(task, result={"content": "a result of a handler's own"})
            assert text_of(await busy) == "a result of a handler's own"
            waiting = talk.later(acme.post())
            await worker.skip_to("task")
        refused(await waiting, 503, "NO_WORKER")
        await chat.nothing_more()


async def test_every_model_that_may_run_it_must_take_it_so(
    redis_url: str, tmp_path: Path, upstream: ResponsesUpstream
) -> None:
    models: Any = {"m": {}, "chat": {}}
    routes = {"either": {"model": "m", "fallbacks": ["chat"]}}
    async with (
        talking(redis_url, tmp_path, keys=ACCOUNTS, models=models, routes=routes) as talk,
        works(talk, upstream),
        talk.worker2(["chat"]),
        talk.client(secret("acme")) as http,
    ):
        asker = Asker(http, talk)
        await asker.ask()
        assert len(upstream.asked) == 1
        answer = await asker.post(model="either", truncation="auto")
        assert "truncation" in refused(answer, 400, param="truncation")


async def test_thoughts_of_an_upstream_do_not_keep_a_conversation_from_going_on_as_a_chat(
    talk: Talk, acme: Asker, upstream: ResponsesUpstream
) -> None:
    async with works(talk, upstream):
        first = await acme.ask("first", reasoning={"summary": "auto"})
    pool = talk.served.gateway.dispatcher.pool
    await until(lambda: not list(pool), "the worker to go")
    async with talk.worker2(["m"]) as worker:
        waiting = talk.later(acme.ask("second", previous_response_id=first["id"]))
        task = await answer_with(worker, "chat")
        await waiting
        said = task["payload"]["messages"]
        assert [(one["role"], one["content"]) for one in said] == [
            *(("user", "first"), ("assistant", "Hello there"), ("user", "second"))
        ]
        assert said[1]["reasoning_content"] == "Hm"
        items = [{**first["output"][0]}, {"role": "user", "content": "third"}]
        answer = await acme.post(items)
        assert refused(answer, 400, param="input[0].encrypted_content")


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "mcp", "server_label": "x", "server_url": "https://evil.example"}]},
            "tools[0].type",
        ),
        ({"tools": [TOOL, {"type": "file_search", "vector_store_ids": ["vs_1"]}]}, "tools[1].type"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"seed": 7}, "seed"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]}, "file_id"),
    ],
)
async def test_what_costs_more_than_tokens_or_reads_the_account_is_refused(
    native: None, acme: Asker, upstream: ResponsesUpstream, request_: dict[str, Any], names: str
) -> None:
    assert names in refused(await acme.post(request_.pop("input", "hi"), **request_), 400, "BAD_REQUEST")
    assert upstream.asked == []


async def test_an_operator_allows_tools_of_the_upstream_by_their_names(
    talk: Talk, acme: Asker, upstream: ResponsesUpstream
) -> None:
    tool = {"type": "web_search", "authorization": "of-the-caller"}
    async with works(talk, upstream, allow_fields=["tools.web_search"]):
        told = await acme.ask(tools=[tool])
        assert upstream.asked[0]["tools"] == [tool]
        assert told["tools"] == [{"type": "web_search"}], "what opens another server is not repeated"
        answer = await acme.post(tools=[{"type": "mcp", "server_url": "https://evil.example"}])
        assert "mcp" in refused(answer, 400, "BAD_REQUEST")


async def test_structured_output_is_checked_and_asked_for_again(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    upstream.answers = [[message('{"a": "x"}')], [message('{"a": 1}')]]
    told = await create(acme, {"X-Fairlane-Repair": "1"}, text=text)
    assert told["output"][0]["content"][0]["text"] == '{"a": 1}'
    assert len(upstream.asked) == 2
    again = upstream.asked[1]["input"]
    assert [item["role"] for item in again] == ["user", "assistant", "user"]
    upstream.answers = [[message('{"a": "x"}')]]
    body = {"model": "m", "input": "what?", "text": text}
    refused(await acme.http.post("/v1/responses", json=body), 502, "JSON_PARSE_FAILED")


async def test_images_count_as_vision(native: None, acme: Asker, talk: Talk) -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    told = await acme.ask([{"role": "user", "content": [part]}])
    record = await talk.http.get(
        f"/api/task/{told['id'].removeprefix('resp_')}/events",
        headers={"Authorization": f"Bearer {secret('acme')}"},
    )
    assert '"queue":"free_vision"' in record.text


async def test_a_failing_upstream_is_told_as_of_a_chat(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    upstream.failing = {"code": "server_error", "message": "out of luck"}
    answer = await acme.post(stream=True)
    told = told_events(answer.content)
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["error"]["error_code"] == "UPSTREAM_ERROR"
    assert "out of luck" in told[-1]["response"]["error"]["message"]


async def test_a_stream_that_ends_half_fails(native: None, acme: Asker, upstream: ResponsesUpstream) -> None:
    upstream.cut_after = 9
    told = told_events((await acme.post(stream=True)).content)
    assert told[-1]["type"] == "response.failed"
    assert told[-1]["response"]["error"]["error_code"] == "UPSTREAM_TRUNCATED"
    assert kinds(told[-1]["response"]) == ["reasoning", "message"]
    assert told[-1]["response"]["output"][1]["status"] == "incomplete"


async def test_events_that_nobody_knows_are_passed_over(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    upstream.strange = [
        {"type": "response.invented.delta", "delta": {"x": [1]}, "output_index": 900},
        {"type": "response.output_text.annotation.added", "annotation": CITED},
        {"no": "type"},
    ]
    upstream.answers = [[message("Hello")]]
    told = events_of((await acme.post(stream=True)).content)
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"


async def test_an_upstream_without_responses_is_told_to_its_operator(
    native: None, acme: Asker, upstream: ResponsesUpstream
) -> None:
    upstream.missing = True
    sentence = refused(await acme.post(), 404, "TYPE_NOT_OFFERED")
    assert "openaiResponses" in sentence


async def test_what_the_upstream_refuses_is_the_caller_s_error(
    native: None, sdk: AsyncOpenAI, upstream: ResponsesUpstream
) -> None:
    item: Any = {"type": "reasoning", "summary": [], "encrypted_content": "of-another-account"}
    with pytest.raises(openai.BadRequestError, match="could not be verified"):
        await sdk.responses.create(model="m", input=[item, {"role": "user", "content": "hi"}])


async def test_the_lines_of_a_batch_go_natively(
    native: None, sdk: AsyncOpenAI, upstream: ResponsesUpstream
) -> None:
    body = {"model": "m", "input": "hi", "truncation": "auto"}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    file = await sdk.files.create(file=("b.jsonl", json.dumps(line).encode() + b"\n"), purpose="batch")
    batch = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")

    async def ended() -> bool:
        return (await sdk.batches.retrieve(batch.id)).status in ("completed", "failed")

    await until(ended, "the batch to end")
    found = await sdk.batches.retrieve(batch.id)
    assert found.output_file_id is not None, await sdk.batches.retrieve(batch.id)
    output = json.loads((await sdk.files.content(found.output_file_id)).text)
    assert kinds(output["response"]["body"]) == ["reasoning", "message"]
    assert upstream.asked[0]["truncation"] == "auto"
