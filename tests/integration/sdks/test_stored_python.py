"""openai-python, sync and async: background responses, polled, streamed and resumed."""

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from tests.support.serving import until

from .openais import Sdk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def ask(sdk: Sdk, model: str = "talk", **more: Any) -> Response:
    response: Response = await sdk.call("responses.create", model=model, input="hi", **more)
    return response


async def reaches(sdk: Sdk, response_id: str, status: str) -> Response:
    told: list[Response] = []

    async def reached() -> bool:
        told[:] = [await sdk.call("responses.retrieve", response_id=response_id)]
        return told[0].status == status

    await until(reached, f"the response to be {status}")
    return told[0]


async def test_resumed_behind_each_event_the_rest_comes(sdk: Sdk) -> None:
    whole = await sdk.chunks("responses.create", model="talk", input="hi", background=True)
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert [event.type for event in whole[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert whole[-1].type == "response.completed"
    assert whole[-1].response.output_text == "Hello wörld"
    response_id = whole[0].response.id
    assert await sdk.chunks("responses.retrieve", response_id=response_id) == whole
    for at, event in enumerate(whole):
        rest = await sdk.chunks(
            "responses.retrieve", response_id=response_id, starting_after=event.sequence_number
        )
        assert rest == whole[at + 1 :]


async def test_the_stream_helper_by_id(sdk: Sdk) -> None:
    asked = await ask(sdk, background=True)
    await reaches(sdk, asked.id, "completed")

    def of_sync() -> tuple[list[Any], Any]:
        client: Any = sdk.client  # type: ignore[attr-defined]
        with client.responses.stream(response_id=asked.id, starting_after=4) as stream:
            return list(stream), stream.get_final_response()

    async def of_async() -> tuple[list[Any], Any]:
        client: Any = sdk.client  # type: ignore[attr-defined]
        async with client.responses.stream(response_id=asked.id, starting_after=4) as stream:
            return [event async for event in stream], await stream.get_final_response()

    is_async = isinstance(sdk.client, openai.AsyncOpenAI)  # type: ignore[attr-defined]
    events, final = await (of_async() if is_async else asyncio.to_thread(of_sync))
    assert [event.sequence_number for event in events] == list(range(5, 5 + len(events)))
    assert events[-1].type == "response.completed"
    assert final.output_text == "Hello wörld"
