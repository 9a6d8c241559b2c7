"""The calls of the Gemini API."""

from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from fairlane.workers.adapters.dialects.base import Call
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.gemini.answer import GeminiReader
from fairlane.workers.adapters.dialects.gemini.request import content_request
from fairlane.workers.adapters.quirks import Quirks
from fairlane.workers.sdk.values import Task


@dataclass(frozen=True)
class GeminiDialect:
    """Chat completions as generated content."""

    task_types: tuple[str, ...] = ("openaiLike",)
    named_types: tuple[str, ...] = ()
    models_path: str = "/models?pageSize=1000"

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {} if api_key is None else {"x-goog-api-key": api_key}

    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        body, one_call = content_request(task.payload_bytes, model, quirks=quirks)
        reader = GeminiReader(Head(task.task_id, model, int(now)), one_call=one_call)
        verb = "streamGenerateContent?alt=sse" if task.stream else "generateContent"
        path = f"/models/{quote(model.removeprefix('models/'), safe='')}:{verb}"
        return Call(path, msgspec.json.encode(body), reader, task.stream)
