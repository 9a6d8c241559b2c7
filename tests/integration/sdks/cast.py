"""The models of these tests: a worker of the SDK whose handlers each show one behaviour."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from tests.support.serving import WORKER_TOKEN

from fairlane.workers.sdk import Context, Delta, Task, TaskError, Usage, Worker

VECTOR = [0.5, -0.25, 0.125]
LOGPROBS = {
    "content": [{"token": "Yes", "logprob": -0.5, "bytes": [89], "top_logprobs": []}],
    "refusal": None,
}
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
CALLS: list[dict[str, Any]] = [
    {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
    {"id": "call_b", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}},
]
TOO_LONG = "This model's maximum context length is 8192 tokens; the prompt has 9000"


class Cast:
    """What the models have seen and what they wait for."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        """The payload of every task, in order."""
        self.begun = asyncio.Event()
        """`patient` or `endless` runs."""
        self.release = asyncio.Event()
        """Lets `patient` answer."""
        self.cancelled = asyncio.Event()
        """`endless` was cancelled."""

    def worker(self, gateway: str, slots: int) -> Worker:
        worker = Worker("cast", gateway=gateway, token=WORKER_TOKEN, slots=slots)
        for handler in (
            *(
                self.talk,
                self.whole,
                self.tools,
                self.whole_tools,
                self.tools_once,
                self.choices,
                self.thinker,
            ),
            *(self.refuses, self.busy, self.crash, self.breaks, self.endless, self.patient),
        ):
            worker.handler([handler.__name__.replace("_", "-")], ["openaiLike"])(handler)
        worker.handler(["talk"], ["openaiCompletion"])(self.completion)
        worker.handler(["vectors"], ["openaiEmbedding"])(self.embedding)
        return worker

    # ---- those that answer ----------

    async def talk(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Three pieces of text and a usage."""
        self.seen.append(task.payload)
        for text in ("Hel", "lo ", "wörld"):
            yield text
        yield Usage(5, 3)

    async def whole(self, task: Task, _: Context) -> dict[str, Any]:
        """A result in one piece, with members that this project does not know."""
        self.seen.append(task.payload)
        message = {"role": "assistant", "content": "Yes", "refusal": None, "reasoning_content": "Let me see"}
        choice = {"index": 0, "message": message, "logprobs": LOGPROBS, "finish_reason": "stop"}
        return {
            "id": "chatcmpl-whole",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "upstream-name",
            "choices": [choice],
            "usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 2}},
            "system_fingerprint": "fp_1",
            "weather_on_the_moon": {"calm": True},
        }

    async def tools(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Two tool calls, their arguments in pieces that take turns."""
        self.seen.append(task.payload)
        for index, call in enumerate(CALLS):
            head = {"index": index, "id": call["id"], "type": "function"}
            yield _tool_calls({**head, "function": {**call["function"], "arguments": ""}})
        texts = [call["function"]["arguments"] for call in CALLS]
        for at in range(0, max(map(len, texts)), 4):
            for index, text in enumerate(texts):
                if text[at : at + 4]:
                    yield _tool_calls({"index": index, "function": {"arguments": text[at : at + 4]}})
        yield Delta(finish_reason="tool_calls")
        yield Usage(5, 3)

    async def whole_tools(self, task: Task, _: Context) -> dict[str, Any]:
        """The same two tool calls in one piece."""
        self.seen.append(task.payload)
        message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": CALLS}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
        return {
            "id": "chatcmpl-tools",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "whole-tools",
            "choices": [choice],
            "usage": USAGE,
        }

    async def tools_once(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Calls a tool; once there is a result, that is the answer."""
        self.seen.append(task.payload)
        last = task.payload["messages"][-1]
        if last["role"] == "tool":
            yield last["content"]
        else:
            yield _tool_calls({"index": 0, **CALLS[0]})
            yield Delta(finish_reason="tool_calls")

    async def choices(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Choices that take turns, as many as were asked for."""
        self.seen.append(task.payload)
        number = task.payload["n"]
        for text in ("one ", "two"):
            for index in range(number):
                yield Delta(index=index, content=f"{text}/{index} ")
        for index in range(number):
            yield Delta(index=index, finish_reason="length" if index else "stop")

    async def thinker(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Reasoning before the text, log probabilities with it."""
        self.seen.append(task.payload)
        yield Delta(reasoning="Let me ")
        yield Delta(reasoning="see")
        yield Delta(content="Yes", extra=msgspec.Raw(msgspec.json.encode({"logprobs": LOGPROBS})))
        yield Delta(finish_reason="stop")

    async def completion(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Goes on where the prompt ends."""
        self.seen.append(task.payload)
        yield " upon"
        yield " a time"
        yield Usage(1, 3)

    async def embedding(self, task: Task, _: Context) -> dict[str, Any]:
        """The same vector for each input, as floats."""
        self.seen.append(task.payload)
        texts = task.payload["input"]
        number = 1 if isinstance(texts, str) else len(texts)
        data = [{"object": "embedding", "index": index, "embedding": VECTOR} for index in range(number)]
        usage = {"prompt_tokens": number, "total_tokens": number}
        return {"object": "list", "data": data, "model": "vectors", "usage": usage}

    # ---- those that do not ----------

    async def refuses(self, task: Task, _: Context) -> None:
        self.seen.append(task.payload)
        raise TaskError("CONTEXT_LENGTH", TOO_LONG)

    async def busy(self, task: Task, _: Context) -> None:
        self.seen.append(task.payload)
        raise TaskError("MODEL_TOO_BUSY", "The upstream asks to slow down", retryable=False)

    async def crash(self, task: Task, _: Context) -> None:
        self.seen.append(task.payload)
        raise RuntimeError("a bug in the handler")

    async def breaks(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Fails in the middle of its output."""
        self.seen.append(task.payload)
        yield "half of "
        raise TaskError("UPSTREAM_ERROR", "The model fell over", retryable=False)

    async def endless(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Says a word, then nothing until it is cancelled."""
        self.seen.append(task.payload)
        try:
            self.begun.set()
            yield "first "
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def patient(self, task: Task, _: Context) -> AsyncIterator[Any]:
        """Answers when it is allowed to."""
        self.seen.append(task.payload)
        self.begun.set()
        await self.release.wait()
        yield "at "
        yield "last"


def _tool_calls(*calls: dict[str, Any]) -> Delta:
    return Delta(tool_calls=msgspec.Raw(msgspec.json.encode(list(calls))))
