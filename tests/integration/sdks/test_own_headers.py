"""Fairlane's own headers and its cancel call, used with the SDK: a task that outlives its client, and one that is cancelled."""

from typing import Any

import openai
import pytest
from tests.support.serving import http_client, until

from .openais import python_sdk
from .stage import MESSAGES, Stage

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"


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


async def running_task(stage: Stage) -> str:
    """The id of the only task that runs."""
    (attempt,) = stage.served.gateway.dispatcher.attempts.values()
    return attempt.grant.task_id
