"""Large bodies wait for their turn before they are queued. Nothing of their call is lost meanwhile."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.serving import until
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/api/openai", "/v1/chat/completions"])
async def test_a_task_that_waits_to_be_queued_is_not_taken_for_lost(
    shared_gateway: Start, path: str, stream: bool
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        hub, bodies = talk.served.gateway.hub, talk.served.gateway.tasks.bodies
        fields = {"model": "m", "messages": [{"role": "user", "content": "x" * 300_000}], "stream": stream}
        async with bodies.turn(1, "another"):
            call = talk.later(talk.http.post(path, json=fields))
            await until(lambda: bodies._waiting.total > 300_000, "the body to wait for its turn to be read")
        async with bodies.turn(1, "another"):
            await until(lambda: len(hub._feeds) == 1, "the call to wait for its turn to be queued")
            for _ in range(2):  # the second look begins when the first is over
                hub.check_soon()
                await until(lambda: not hub._check_now.is_set(), "feeds to be compared with their logs")
        await worker.answer(await worker.take(), {"content": "fine"})
        answer = await call
        assert answer.status_code == 200
        assert "fine" in answer.text
