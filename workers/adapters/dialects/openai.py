"""OpenAI's own API format, as many servers speak it: the body is sent unchanged except a few members."""

from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.dialects.base import Call, Dialect, Reader
from fairlane.workers.adapters.dialects.chat import ANTHROPIC, Head
from fairlane.workers.adapters.dialects.chat_only import plain_messages, plain_tools
from fairlane.workers.adapters.dialects.chunks import OpenAIReader
from fairlane.workers.adapters.dialects.media import CALLS, ObjectReader, media_call
from fairlane.workers.adapters.fields import sent_on
from fairlane.workers.adapters.lenient import count
from fairlane.workers.adapters.quirks import OMIT, Quirks, adapt
from fairlane.workers.sdk import Task, TaskError

PATHS = {
    "openaiLike": "/chat/completions",
    "openaiCompletion": "/completions",
    "openaiEmbedding": "/embeddings",
}


class OpenAIDialect(Dialect):
    """Everything but `model`, `stream` (as the task says) and, for a stream, `stream_options.include_usage` keeps its bytes.

    A Messages or Responses request is sent as plain chat (`chat_only.py`), and whatever the upstream takes otherwise as it takes
    it (`quirks.py`). What media are called is in `media.py`.
    """

    task_types = tuple(PATHS)
    named_types = tuple(CALLS)
    models_path = "/models"

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        try:
            members = msgspec.json.decode(task.payload_bytes, type=dict[str, Raw])
            members = sent_on(members, task.type, quirks)
        except (ValueError, RecursionError) as error:
            raise TaskError("BAD_REQUEST", f"The payload is not a request of this type: {error}.") from error
        if task.type in CALLS:
            return media_call(task, members, model)
        stream = task.stream and task.type != "openaiEmbedding"
        body: dict[str, Any] = {**members, "model": model}
        translated = task.type == "openaiLike" and body.pop(ANTHROPIC, None) is not None
        if task.type != "openaiEmbedding":
            body["stream"] = stream
            if stream:
                body["stream_options"] = _with_usage(members.get("stream_options"))
            else:
                body.pop("stream_options", None)  # upstreams reject it without a stream
        if task.type != "openaiLike":
            quirks = {
                name: instead for name, instead in quirks.items() if instead == OMIT or instead[0] == "="
            }
        adapt(body, quirks)
        for name, plain in (("messages", plain_messages), ("tools", plain_tools)):
            if name in body:
                body[name] = plain(body[name], quirks, translated=translated)
        reader: Reader = ObjectReader("data")
        if task.type != "openaiEmbedding":
            completes, legacy = task.type == "openaiCompletion", "functions" in members
            head = Head(task.task_id, model, int(now))
            reader = OpenAIReader(
                head,
                completes=completes,
                legacy=legacy,
                choices=_choices(body.get("n"), members.get("prompt")),
            )
        return Call(PATHS[task.type], msgspec.json.encode(body), reader, stream)


def _choices(n: Any, prompt: Raw | None) -> int:
    """Return how many choices a request asks for: of each of its prompts, if it has several."""
    asked, given = (msgspec.json.decode(raw or b"null") for raw in (n, prompt))
    several = isinstance(given, list) and given and not isinstance(given[0], int)
    return (count(asked) or 1) * (len(given) if several else 1)


def _with_usage(options: Raw | None) -> dict[str, Any]:
    known: Any = None if options is None else msgspec.json.decode(options)
    return {**(known if isinstance(known, dict) else {}), "include_usage": True}
