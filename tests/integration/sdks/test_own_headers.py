"""What the gateway adds to OpenAI's surface, used through the SDK: X-Fairlane headers, X-Task-Id, cancel."""

from pathlib import Path
from typing import Any

import openai
import pytest
from tests.support.serving import http_client, until

from .openais import Sdk, python_sdk
from .stage import MESSAGES, Stage, staged

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Fairlane-Timeout", "soon"),
        ("X-Fairlane-Timeout", "nan"),
        ("X-Fairlane-Timeout", "inf"),
        ("X-Fairlane-Priority", "1e999"),
        ("X-Fairlane-Priority", "9"),
        ("X-Fairlane-Priority", "1.5"),
        ("X-Fairlane-Mode", "express"),
        ("X-Fairlane-On-Disconnect", "shrug"),
        ("X-Fairlane-Result-Ttl", "-1"),
        ("X-Fairlane-Metadata", "[1]"),
        ("X-Fairlane-Metadata", '{"a":'),
    ],
)
async def test_a_header_that_makes_no_sense_is_a_bad_request(stage: Stage, name: str, value: str) -> None:
    async with python_sdk("async", stage.base_url) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.call(CHAT, model="talk", messages=MESSAGES, extra_headers={name: value})
    assert caught.value.type == "invalid_request_error"
    assert stage.cast.seen == []


async def test_a_time_out_of_the_callers_own(redis_url: str, tmp_path: Path, kind: str) -> None:
    async with (
        staged(redis_url, tmp_path, min_task_timeout_ms=1) as stage,
        python_sdk(kind, stage.base_url, max_retries=2) as sdk,
    ):
        limit = {"X-Fairlane-Timeout": "300"}
        with pytest.raises(openai.InternalServerError) as caught:
            await sdk.call(CHAT, model="patient", messages=MESSAGES, extra_headers=limit)
        assert caught.value.status_code == 504
        assert sdk.statuses == [504]


async def test_a_task_may_outlive_its_caller(stage: Stage) -> None:
    headers = {"X-Fairlane-On-Disconnect": "continue", "X-Fairlane-Metadata": '{"job": "blue"}'}
    async with python_sdk("async", stage.base_url) as sdk:
        calling: Any = stage.beside(sdk.call(CHAT, model="patient", messages=MESSAGES, extra_headers=headers))
        await stage.reached(stage.cast.begun, "the task")
        task_id = await running_task(stage)
        calling.cancel()
    stage.cast.release.set()
    async with http_client(stage.served.url) as http:

        async def completed() -> bool:
            return bool((await http.get(f"/api/task/{task_id}")).json()["status"] == "completed")

        await until(completed, "the answer")
        body = (await http.get(f"/api/task/{task_id}")).json()
    assert body["result"]["content"] == "at last"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_task_that_somebody_cancels_raises_and_is_not_tried_again(
    stage: Stage, kind: str, stream: bool
) -> None:
    async with python_sdk(kind, stage.base_url, max_retries=2) as sdk:
        call = sdk.chunks if stream else sdk.call
        calling = stage.beside(call(CHAT, model="patient", messages=MESSAGES))
        await stage.reached(stage.cast.begun, "the task")
        task_id = await running_task(stage)
        async with http_client(stage.served.url) as http:
            answer = await http.post(f"/api/task/{task_id}/cancel", json={})
        assert answer.json()["status"] == "cancelled"
        with pytest.raises(openai.APIStatusError) as caught:
            await calling
        assert caught.value.status_code == 499
        assert caught.value.code == "cancelled"
        assert sdk.statuses == [499]


async def test_a_stream_that_somebody_cancels_raises(stage: Stage, sdk: Sdk) -> None:
    calling = stage.beside(sdk.chunks(CHAT, model="endless", messages=MESSAGES))
    await stage.reached(stage.cast.begun, "the task")
    await until(lambda: sdk.statuses == [200], "the stream")
    task_id = await running_task(stage)
    async with http_client(stage.served.url) as http:
        await http.post(f"/api/task/{task_id}/cancel", json={})
    with pytest.raises(openai.APIError, match="cancelled") as caught:
        await calling
    assert caught.value.code == "cancelled"
    await stage.reached(stage.cast.cancelled, "the cancel at the worker")


async def running_task(stage: Stage) -> str:
    """The id of the only task that runs."""
    (attempt,) = stage.served.gateway.dispatcher.attempts.values()
    return attempt.grant.task_id
