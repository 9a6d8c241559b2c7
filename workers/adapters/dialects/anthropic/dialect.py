"""The calls of Anthropic's Messages API."""

from dataclasses import dataclass

import msgspec

from fairlane.workers.adapters.dialects.anthropic.answer import AnthropicReader
from fairlane.workers.adapters.dialects.anthropic.request import messages_request
from fairlane.workers.adapters.dialects.base import Call
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.quirks import Quirks
from fairlane.workers.sdk.values import Task

VERSION = "2023-06-01"


@dataclass(frozen=True)
class AnthropicDialect:
    """Chat completions as messages."""

    task_types: tuple[str, ...] = ("openaiLike",)
    named_types: tuple[str, ...] = ()
    models_path: str = "/models?limit=1000"

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({} if api_key is None else {"x-api-key": api_key})}

    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        body = messages_request(task.payload_bytes, model, stream=task.stream, quirks=quirks)
        reader = AnthropicReader(Head(task.task_id, model, int(now)))
        return Call("/messages", msgspec.json.encode(body), reader, task.stream)
