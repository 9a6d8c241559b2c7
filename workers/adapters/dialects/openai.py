"""OpenAI's own API format, as many servers speak it: the body is sent unchanged except a few members."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.chunks import ChunkReader, ended, is_null, reported_usage
from fairlane.workers.adapters.dialects.base import Call, Output
from fairlane.workers.adapters.dialects.chat import ANTHROPIC
from fairlane.workers.adapters.dialects.chat_only import plain_messages, plain_tools
from fairlane.workers.adapters.dialects.media import PATHS as MEDIA_PATHS
from fairlane.workers.adapters.dialects.media import media_call
from fairlane.workers.adapters.forbidden_members import forbidden_member
from fairlane.workers.sdk import Result, Task, TaskError

PATHS = {
    "openaiLike": "/chat/completions",
    "openaiCompletion": "/completions",
    "openaiEmbedding": "/embeddings",
}


@dataclass(frozen=True)
class OpenAIDialect:
    """Everything but `model`, `stream` (as the task says) and, for a stream, `stream_options.include_usage` keeps its bytes.

    A Messages or Responses request is sent as plain chat (`chat_only.py`). `renamed` are members that this
    upstream knows by another name only. With `plain_roles`, messages of the role `developer` go out as `system`: older servers
    know no other. What media are called is in `media.py`.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    plain_roles: bool = False
    task_types: tuple[str, ...] = tuple(PATHS)
    named_types: tuple[str, ...] = tuple(MEDIA_PATHS)
    models_path: str = "/models"

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    def call(self, task: Task, model: str, *, allowed: Collection[str], now: float) -> Call:  # noqa: ARG002
        try:
            members = msgspec.json.decode(task.payload_bytes, type=dict[str, Raw])
        except msgspec.DecodeError as error:
            raise TaskError("BAD_REQUEST", f"The payload is not a JSON object: {error}") from error
        if (name := forbidden_member(members, allowed)) is not None:
            raise TaskError(
                "BAD_REQUEST",
                f"{name!r} is not taken from callers: it would direct the request to another server, key or model.",
            )
        if task.type in MEDIA_PATHS:
            return media_call(task, members, model, secrets.token_hex(16))
        stream = task.stream and task.type != "openaiEmbedding"
        body: dict[str, Any] = {**members, "model": model}
        if ANTHROPIC in members and task.type == "openaiLike":
            del body[ANTHROPIC]
            for name, plain in (("messages", plain_messages), ("tools", plain_tools)):
                if name in members:
                    body[name] = plain(members[name])
        for theirs, name in self.renamed.items():
            if not is_null(body.get(theirs, Raw(b"null"))):
                body[name] = body.pop(theirs)
        if self.plain_roles and "messages" in members:
            body["messages"] = _with_plain_roles(body["messages"])
        if task.type != "openaiEmbedding":
            body["stream"] = stream
            if stream:
                body["stream_options"] = _with_usage(members.get("stream_options"))
            else:
                body.pop("stream_options", None)  # upstreams reject it without a stream
        return Call(PATHS[task.type], msgspec.json.encode(body), OpenAIReader(), stream)


class OpenAIReader(ChunkReader):
    """Reads chunks, or a whole answer, which is the result as it came."""

    def whole(self, body: bytes) -> list[Output]:
        return [*reported_usage(body), Result(Raw(ended(body)))]


def _with_usage(options: Raw | None) -> dict[str, Any]:
    known: Any = None if options is None else msgspec.json.decode(options)
    return {**(known if isinstance(known, dict) else {}), "include_usage": True}


def _with_plain_roles(messages: Raw) -> Raw:
    """Return the messages with `developer` as `system`; invalid messages are left to the upstream, which rejects them."""
    if b"developer" not in bytes(messages):
        return messages
    try:
        known = msgspec.json.decode(messages, type=list[dict[str, Raw]])
    except (msgspec.DecodeError, RecursionError):
        return messages
    for message in known:
        if bytes(message.get("role", b"")) == b'"developer"':
            message["role"] = Raw(b'"system"')
    return Raw(msgspec.json.encode(known))
