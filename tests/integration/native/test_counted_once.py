"""The end of a task is counted once, and its caller does not wait for that."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.queues.metrics import TASKS_ENDED, TaskEnd

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
CHAT = {"model": "m", "messages": [], "stream": True}


@pytest.mark.parametrize("streams", [False, True])
async def test_an_end_is_counted_once_behind_its_answer_and_is_not_lost_where_the_gateway_stops(
    gateway: Start, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    under_way = []
    async with gateway() as talk, talk.worker2(["m"]) as worker:
        metrics, open_answers = talk.served.gateway.metrics, talk.served.gateway.tasks.open_answers
        ended = metrics.ended

        def count(end: TaskEnd) -> None:
            under_way.append(len(open_answers))
            ended(end)

        monkeypatch.setattr(metrics, "ended", count)
        answer = talk.later(talk.http.post("/v1/chat/completions", json={**CHAT, "stream": streams}))
        task = await worker.take()
        await until(lambda: len(open_answers) == 1)
        await worker.answer(task, "all")
        assert (await answer).status_code == 200
    assert under_way == [0]
    assert list(metrics.values[TASKS_ENDED.name].values()) == [1]
