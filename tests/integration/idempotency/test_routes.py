"""Routes, templates and fallbacks: whoever joins is told the model that runs, and the template that was used."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.talk import Talk

from .asking import CHAT, NATIVE, Asking, promised

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
MODELS = {"m": {"fallbacks": ["b"], "fallback_after_ms": 0}}
BROKEN: dict[str, Any] = {
    "error": "it broke",
    "errorInfo": {"code": "UPSTREAM_ERROR", "retryable": True},
    "lastSeq": 0,
}


@pytest.mark.parametrize(
    "asking",
    [
        Asking("/api/openai", NATIVE),
        Asking("/v1/chat/completions", CHAT),
        Asking("/v1/chat/completions", {**CHAT, "stream": True}),
    ],
    ids=str,
)
async def test_who_joins_before_a_task_goes_on_to_another_model_gets_the_same(
    gateway: Start, asking: Asking
) -> None:
    async with gateway(models=MODELS) as talk, talk.worker2(["m"]) as first, talk.worker2(["b"]) as second:
        one = talk.later(asking(talk.http))
        task = await first.take()
        other = talk.later(asking(talk.http))
        await first.answer(task, None, **BROKEN)
        task = await second.take()
        await second.chunk(task, "from b")
        await second.answer(task, None, lastSeq=1)
        answers = [await one, await other, await asking(talk.http)]
        assert {answer.status_code for answer in answers} == {200}
        assert {promised(answer) for answer in answers} == {promised(answers[0])}
        assert {answer.headers.get("x-fairlane-model") for answer in answers} in ({"b"}, {None})
        assert "from b" in answers[0].text


async def test_a_202_tells_the_first_tasks_model_and_template(gateway: Start) -> None:
    templates = {"greet": {"messages": [{"role": "user", "content": "Greet {{ name }}"}]}}
    asking = Asking(
        "/api/tasks", {"template": "greet", "variables": {"name": "Ann"}, "model": "m", "async": True}
    )
    async with gateway(models=MODELS, templates=templates) as talk, talk.worker2(["m"]) as worker:
        first = (await asking(talk.http)).json()
        again = (await asking(talk.http)).json()
        assert (await worker.take())["payload"]["messages"][0]["content"] == "Greet Ann"
        for name in ("taskId", "requestedModel", "model", "template"):
            assert again[name] == first[name], name
        other = await asking(talk.http, variables={"name": "Bob"})
        assert other.status_code == 422
