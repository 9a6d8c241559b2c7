"""The chain of a job portal, and a stage for it: callers at one gateway, workers at the same or at another."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk

Start = Callable[..., AbstractAsyncContextManager[Talk]]
MODELS: dict[str, Any] = {"eyes": {}, "sums": {"fallbacks": ["spare"]}, "chat": {}, "spare": {}}
TEMPLATES: dict[str, Any] = {
    "job_summary": {
        "messages": [{"role": "user", "content": "Sum up: {{ job }}"}],
        "json_schema": {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}},
    }
}
STAGES: list[dict[str, Any]] = [
    {
        "name": "ocr",
        "when": "pages",
        "each": "pages",
        "model": "eyes",
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "{{ item }}"}}]}
        ],
    },
    {
        "name": "summary",
        "model": "sums",
        "template": "job_summary",
        "variables": {"job": "{{ job }}{{ stages.ocr.content }}"},
    },
    {
        "name": "match",
        "model": "chat",
        "stream": True,
        "messages": [{"role": "user", "content": "{{ resume }} for {{ stages.summary.json.title }}"}],
    },
]
SETTINGS: dict[str, Any] = {
    "models": MODELS,
    "templates": TEMPLATES,
    "chains": {"job_match": {"stages": STAGES}},
}
ASK: dict[str, Any] = {"chain": "job_match", "variables": {"resume": "Ten years", "job": "A cook. "}}
SUMMARY = {
    "choices": [{"message": {"role": "assistant", "content": '{"title":"Cook"}'}, "finish_reason": "stop"}]
}


def ask(pages: int = 0, **more: Any) -> dict[str, Any]:
    """A request for the chain with so many pages."""
    listed = {"pages": [f"data:{number}" for number in range(pages)]} if pages else {}
    return {**ASK, "variables": {**ASK["variables"], **listed}, **more}


class Cast(NamedTuple):
    """Where callers are, and a worker for each model."""

    talk: Talk
    eyes: RawWorker
    sums: RawWorker
    chat: RawWorker
    at: Talk
    """Where the workers are."""

    async def submit(self, **body: Any) -> str:
        """Submit the chain; its task id."""
        answer = await self.talk.http.post("/api/tasks", json=body)
        assert answer.status_code == 202, answer.text
        task_id: str = answer.json()["taskId"]
        return task_id

    async def read(self, pages: int) -> list[dict[str, Any]]:
        """Answer so many parts of the first stage: each with its page."""
        tasks = [await self.eyes.take() for _ in range(pages)]
        for task in tasks:
            page = task["payload"]["messages"][0]["content"][0]["image_url"]["url"]
            await self.eyes.answer(task, {"content": f"[{page}]"})
        return tasks

    async def sum_up(self) -> dict[str, Any]:
        """Answer the second stage."""
        task = await self.sums.take()
        await self.sums.answer(task, SUMMARY)
        return task

    async def match(self, *texts: str) -> dict[str, Any]:
        """Answer the last stage, piece by piece."""
        task = await self.chat.take()
        for number, text in enumerate(texts, 1):
            await self.chat.chunk(task, text, number)
        await self.chat.answer(task, None)
        return task


@contextlib.asynccontextmanager
async def cast(gateway: Start, replicas: int = 1, **settings: Any) -> AsyncIterator[Cast]:
    """The chain's models, at one gateway or at another one than its callers."""
    async with contextlib.AsyncExitStack() as stack:
        talk = await stack.enter_async_context(gateway(**{**SETTINGS, **settings}))
        at = talk
        if replicas > 1:
            at = await stack.enter_async_context(gateway(**{**SETTINGS, **settings}))
        eyes = await stack.enter_async_context(at.worker2(["eyes"], slots=4))
        sums = await stack.enter_async_context(at.worker2(["sums"]))
        chat = await stack.enter_async_context(at.worker2(["chat"]))
        yield Cast(talk, eyes, sums, chat, at)
