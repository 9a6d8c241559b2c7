"""anthropic-python, sync and async, unmodified: messages, streams, tools, thoughts, models, refusals and retries."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.support.serving import http_client

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.settings import CallerKey

from .anthropics import ASKED, AnthropicSdk, anthropic_sdk
from .cast import CALLS, TOO_LONG
from .stage import MESSAGES, MakeStage, Stage, staged

pytestmark = pytest.mark.anyio
CREATE = "messages.create"
TOOLS: list[Any] = [
    {"name": name, "description": f"The {name}.", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}
    for name in ("weather", "clock")
]  # fmt: skip
USED = [{"type": "tool_use", "id": call["id"], "name": call["function"]["name"]} for call in CALLS]
INPUTS: list[Any] = [json.loads(call["function"]["arguments"]) for call in CALLS]


@pytest.fixture
async def claude(stage: Stage, kind: str) -> AsyncIterator[AnthropicSdk]:
    """A Python client of the stage, without retries."""
    async with anthropic_sdk(kind, stage.served.url) as sdk:
        yield sdk


def blocks(message: Any) -> list[Any]:
    return [block.model_dump(exclude_none=True) for block in message.content]


# ---- answers ----------


async def test_a_message(stage: Stage, claude: AnthropicSdk) -> None:
    message = await claude.call(CREATE, **ASKED)
    assert (message.type, message.role, message.model) == ("message", "assistant", "talk")
    assert blocks(message) == [{"type": "text", "text": "Hello wörld"}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 3)
    assert message.id.startswith("msg_")
    assert message._request_id.startswith("req_")
    assert stage.cast.seen == [{"model": "talk", "messages": MESSAGES, "max_completion_tokens": 64}]


async def test_a_stream_and_its_helper(stage: Stage, claude: AnthropicSdk) -> None:
    events = await claude.events(**ASKED)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert (
        "".join(event.delta.text for event in events if event.type == "content_block_delta") == "Hello wörld"
    )
    text, final = await claude.helper(**ASKED)
    assert text == "Hello wörld"
    assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("end_turn", 5, 3)
    chat = {"model": "talk", "messages": MESSAGES, "max_completion_tokens": 64}
    streamed = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    assert stage.cast.seen == [streamed, streamed]


async def test_thoughts_come_before_the_text(claude: AnthropicSdk) -> None:
    told = [{"type": "thinking", "thinking": "Let me see", "signature": ""}, {"type": "text", "text": "Yes"}]
    for model in ("thinker", "whole"):
        asked = {**ASKED, "model": model}
        assert blocks(await claude.call(CREATE, **asked)) == told
        _, final = await claude.helper(**asked)
        assert blocks(final) == told


async def test_tools_are_called_and_their_results_told(stage: Stage, claude: AnthropicSdk) -> None:
    for model in ("tools", "whole-tools"):
        asked = {**ASKED, "model": model, "tools": TOOLS, "tool_choice": {"type": "any"}}
        _, final = await claude.helper(**asked)
        for message in (await claude.call(CREATE, **asked), final):
            expected = [{**use, "input": given} for use, given in zip(USED, INPUTS, strict=True)]
            assert blocks(message) == expected
            assert message.stop_reason == "tool_use"
    asked = stage.cast.seen[-1]
    assert asked["tool_choice"] == "required"
    assert asked["tools"][0] == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather.",
            "parameters": TOOLS[0]["input_schema"],
        },
    }
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "7"} for use in USED]
    conversation = [
        *MESSAGES,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]
    await claude.call(CREATE, **{**ASKED, "messages": conversation, "tools": TOOLS})
    called, *told = stage.cast.seen[-1]["messages"][1:]
    assert [json.loads(call["function"]["arguments"]) for call in called["tool_calls"]] == INPUTS
    assert told == [{"role": "tool", "content": "7", "tool_call_id": use["id"]} for use in USED]


async def test_tokens_are_counted_as_an_estimate(stage: Stage, claude: AnthropicSdk) -> None:
    short = await claude.call("messages.count_tokens", model="talk", messages=MESSAGES)
    long = await claude.call(
        "messages.count_tokens", model="talk", messages=MESSAGES, system="word " * 400, tools=TOOLS
    )
    assert 1 <= short.input_tokens < 50
    assert short.input_tokens + 500 <= long.input_tokens <= short.input_tokens + 700
    assert stage.cast.seen == []


async def test_models_are_listed_as_pages(claude: AnthropicSdk) -> None:
    first = await claude.call("models.list", limit=3)
    assert (len(first.data), first.has_more, first.first_id) == (3, True, first.data[0].id)
    names = [model.id for model in first.data]
    page = first
    while page.has_more:
        page = await claude.call("models.list", limit=3, after_id=page.last_id)
        names += [model.id for model in page.data]
    assert {"talk", "thinker", "vectors"} <= set(names)
    assert names == sorted(set(names))
    before = await claude.call("models.list", limit=2, before_id=names[3])
    assert [model.id for model in before.data] == names[1:3]
    one = await claude.call("models.retrieve", model_id="talk")
    assert (one.type, one.id, one.display_name, one.lifecycle) == ("model", "talk", "talk", "active")
    with pytest.raises(anthropic.NotFoundError) as caught:
        await claude.call("models.retrieve", model_id="nobody-has-this")
    assert (caught.value.type, caught.value.error_code) == ("not_found_error", "MODEL_NOT_FOUND")
    for limit in (0, 1001, "²"):
        with pytest.raises(anthropic.BadRequestError, match="limit must be a whole number from 1 to 1000"):
            await claude.call("models.list", limit=limit)


# ---- refusals ----------


@pytest.mark.parametrize("header", ["api_key", "auth_token"])
async def test_keys_come_in_either_header(shared_stage: MakeStage, kind: str, header: str) -> None:
    key = CallerKey(id="team", sha256=digest("right"))
    async with shared_stage(keys=[key], key="right") as stage:
        for text in ("wrong", "right"):
            options = {"api_key": None, header: text}
            async with anthropic_sdk(kind, stage.served.url, **options) as sdk:
                if text == "right":
                    assert (await sdk.call(CREATE, **ASKED)).stop_reason == "end_turn"
                    continue
                with pytest.raises(anthropic.AuthenticationError, match="x-api-key") as caught:
                    await sdk.call(CREATE, **ASKED)
                assert (caught.value.type, caught.value.error_code) == (
                    "authentication_error",
                    "UNAUTHORIZED",
                )
                assert caught.value.request_id
                with pytest.raises(anthropic.AuthenticationError):
                    await sdk.call("models.list")
                with pytest.raises(anthropic.AuthenticationError):
                    await sdk.call("messages.count_tokens", model="talk", messages=MESSAGES)


async def test_a_key_in_its_own_header_is_for_v1_alone(shared_stage: MakeStage) -> None:
    key = CallerKey(id="team", sha256=digest("right"))
    async with (
        shared_stage(keys=[key], key="right") as stage,
        http_client(stage.served.url, headers={"x-api-key": "right"}) as http,
    ):
        assert (await http.get("/v1/models")).status_code == 200
        assert (await http.get("/api/me")).status_code == 401
        both = {"authorization": "Bearer wrong"}
        assert (await http.get("/v1/models", headers=both)).status_code == 401


async def test_an_unknown_model_and_a_wrong_path(stage: Stage, claude: AnthropicSdk, kind: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        await claude.call(CREATE, **{**ASKED, "model": "nobody-has-this"})
    assert (caught.value.type, caught.value.error_code) == ("not_found_error", "MODEL_NOT_FOUND")
    async with anthropic_sdk(kind, f"{stage.served.url}/v1") as sdk:
        with pytest.raises(
            anthropic.NotFoundError, match="The call is /v1/messages: the client's base URL must be"
        ):
            await sdk.call(CREATE, **ASKED)
    with pytest.raises(anthropic.NotFoundError, match="does not offer message batches"):
        await claude.call("messages.batches.list")


async def test_failures_before_any_output_are_statuses(claude: AnthropicSdk) -> None:
    for ask in (
        claude.call(CREATE, **{**ASKED, "model": "refuses"}),
        claude.events(**{**ASKED, "model": "refuses"}),
    ):
        with pytest.raises(anthropic.BadRequestError, match=re.escape(TOO_LONG)) as caught:
            await ask
        assert caught.value.error_code == "CONTEXT_LENGTH"
    with pytest.raises(anthropic.OverloadedError) as overloaded:
        await claude.call(CREATE, **{**ASKED, "model": "busy"})
    assert (overloaded.value.type, overloaded.value.error_code) == ("overloaded_error", "MODEL_TOO_BUSY")
    with pytest.raises(anthropic.InternalServerError) as crashed:
        await claude.call(CREATE, **{**ASKED, "model": "crash"})
    assert (crashed.value.status_code, crashed.value.type) == (500, "api_error")


async def test_a_failure_in_the_middle_is_an_error_event(claude: AnthropicSdk) -> None:
    with pytest.raises(anthropic.APIStatusError, match="The model fell over") as caught:
        await claude.helper(**{**ASKED, "model": "breaks"})
    assert (caught.value.type, caught.value.error_code) == ("api_error", "UPSTREAM_ERROR")


async def test_a_full_queue_is_an_overload_that_the_client_comes_back_from(
    shared_stage: MakeStage, kind: str
) -> None:
    async with shared_stage(slots=1, max_queue_length=1) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        stage.beside(stage.fill())
        await stage.queued(1)
        async with anthropic_sdk(kind, stage.served.url) as sdk:
            with pytest.raises(anthropic.OverloadedError) as caught:
                await sdk.call(CREATE, **ASKED)
            assert (caught.value.status_code, caught.value.error_code) == (529, "QUEUE_FULL")
            assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
            assert "x-should-retry" not in caught.value.response.headers
        release = stage.cast.release.set
        async with anthropic_sdk(kind, stage.served.url, lambda status: release(), max_retries=5) as sdk:
            assert (await sdk.call(CREATE, **ASKED)).stop_reason == "end_turn"
            assert sdk.statuses[0] == 529
            assert sdk.statuses[-1] == 200


async def test_a_deadline_is_a_timeout_that_is_not_tried_again(shared_stage: MakeStage, kind: str) -> None:
    async with shared_stage(min_task_timeout_ms=100) as stage:
        async with anthropic_sdk(kind, stage.served.url, max_retries=3) as sdk:
            with pytest.raises(anthropic.GatewayTimeoutError) as caught:
                await sdk.call(
                    CREATE, **{**ASKED, "model": "patient"}, extra_headers={"x-fairlane-timeout": "200"}
                )
        assert caught.value.type == "timeout_error"
        assert sdk.statuses == [504]


async def test_limits_are_told_in_anthropics_headers(redis_url: str, tmp_path: Path) -> None:
    key = CallerKey(id="team", sha256=digest("right"), limits={"requests_per_minute": 1})
    async with (
        staged(redis_url, tmp_path, keys=[key], key="right") as stage,
        anthropic_sdk("async", stage.served.url, api_key="right") as sdk,
    ):
        raw = await sdk.call("messages.with_raw_response.create", **ASKED)
        assert raw.headers["anthropic-ratelimit-requests-limit"] == "1"
        assert raw.headers["anthropic-ratelimit-requests-remaining"] == "0"
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", raw.headers["anthropic-ratelimit-requests-reset"]
        )
        with pytest.raises(anthropic.RateLimitError) as caught:
            await sdk.call(CREATE, **ASKED)
        assert (caught.value.type, caught.value.error_code) == ("rate_limit_error", "RATE_LIMITED")
        assert caught.value.response.headers["retry-after"]


# ---- those who leave ----------


async def test_who_leaves_a_stream_cancels_its_task(stage: Stage, claude: AnthropicSdk) -> None:
    assert await claude.leave(**{**ASKED, "model": "endless"}) == "first "
    await stage.reached(stage.cast.cancelled, "the cancellation")
