"""An OpenAI chat request as one of Anthropic's messages. Pure. docs/http-api.md has the mapping."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from fairlane.workers.adapters.dialects.anthropic.answer import AnthropicReader
from fairlane.workers.adapters.dialects.base import Call, Dialect
from fairlane.workers.adapters.dialects.chat import (
    ANTHROPIC,
    Blocks,
    Chat,
    Head,
    Message,
    Named,
    Part,
    arguments_of,
    conversation,
    data_of,
    image_url,
    read_chat,
    refused,
)
from fairlane.workers.adapters.quirks import Quirks
from fairlane.workers.sdk.values import Task

VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 8192
"""Where the caller sets no bound: Anthropic wants one."""
OWN = frozenset({"thinking", "output_config", "cache_control"})
"""Anthropic's members that callers may send as they are; `top_k` is one of `Chat`."""
ONLY_HERE = (*OWN, "service_tier")
"""The same in a request that was one of Messages (`ANTHROPIC`)."""
_SAYS_EFFORT = frozenset({"thinking", "output_config"})
"""`reasoning_effort` has the same meaning in chat's words."""
IGNORED = frozenset({"seed", "presence_penalty", "frequency_penalty"})
JSON_ONLY = "Answer with one JSON object and nothing else."
"""Said at the end of `system` for `json_object`: Anthropic has no such mode."""
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32000}
"""Thinking tokens by effort, for models that want them said."""
MIN_BUDGET = 1024
_OLD_THINKERS = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[015])?(?:-20\d{6}|-latest|$|@))")
"""Models whose thinking is bounded by a budget; later ones take an effort, and refuse a budget."""


class AnthropicDialect(Dialect):
    """Chat completions as messages."""

    models_path = "/models?limit=1000"

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {"anthropic-version": VERSION, **({} if api_key is None else {"x-api-key": api_key})}

    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        body = messages_request(task.payload_bytes, model, stream=task.stream, quirks=quirks)
        reader = AnthropicReader(Head(task.task_id, model, int(now)))
        return Call("/messages", msgspec.json.encode(body), reader, task.stream)


def messages_request(payload: bytes, model: str, *, stream: bool, quirks: Quirks) -> dict[str, Any]:
    """Return the body of `/messages`. Raise `TaskError` for a request that has no form there."""
    chat, through = read_chat(payload, "Anthropic", own=OWN | {ANTHROPIC}, ignored=IGNORED, quirks=quirks)
    if (chat.n or 1) != 1:
        raise refused("n: Anthropic supports only one choice")
    system, turns = conversation(chat.messages, _blocks, _assistant, _result)
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": role, "content": content} for role, content in turns],
        "max_tokens": min(DEFAULT_MAX_TOKENS, int(quirks.get("max_output_tokens", DEFAULT_MAX_TOKENS))),
        "stream": stream,
    }
    if chat.most_tokens is not None:
        body["max_tokens"] = chat.most_tokens
    schema = chat.schema()
    if schema is not None and bytes(schema) == b"{}":
        system.append({"type": "text", "text": JSON_ONLY})
    elif schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if system:
        body["system"] = system
    for name in ("temperature", "top_p", "top_k"):
        if (value := getattr(chat, name)) is not None:
            body[name] = value
    if chat.stops:
        body["stop_sequences"] = chat.stops
    if chat.user:
        body["metadata"] = {"user_id": chat.user}
    if chat.tools:
        body["tools"] = [_tool(tool.cache_control, function) for tool, function in chat.functions()]
        body["tool_choice"] = _tool_choice(chat)
    given = _members(through.pop(ANTHROPIC)) if ANTHROPIC in through else {}
    if not given.keys() & _SAYS_EFFORT:
        _think(chat, body, model)
    through = {name: given[name] for name in ONLY_HERE if name in given} | through
    for name, raw in through.items():
        members = msgspec.json.decode(raw) if name == "output_config" else None
        body[name] = {**body.get(name, {}), **members} if isinstance(members, dict) else raw
    return body


def _members(raw: Raw) -> dict[str, Raw]:
    try:
        found: dict[str, Raw] = msgspec.json.decode(raw, type=dict[str, Raw])
    except (ValueError, RecursionError) as error:
        raise refused(f"{ANTHROPIC}: it must be an object") from error
    return found


def _result(message: Message, place: str) -> Blocks:
    if not message.tool_call_id:
        raise refused(f"{place}: a tool message needs the tool_call_id of its call")
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    if blocks := _blocks(message.parts(), place):
        result["content"] = blocks
    if message.is_error:
        result["is_error"] = True
    if message.cache_control is not UNSET:
        result["cache_control"] = message.cache_control
    return [result]


def _assistant(message: Message, place: str) -> Blocks:
    blocks: Blocks = [msgspec.to_builtins(thought) for thought in message.thinking_blocks or ()]
    blocks += _blocks(message.parts(), place)
    for call in message.tool_calls or ():
        arguments = arguments_of(call, place)
        block = {"type": "tool_use", "id": call.id, "name": call.function.name, "input": arguments}
        if call.cache_control is not UNSET:
            block["cache_control"] = call.cache_control
        blocks.append(block)
    return blocks


def _blocks(parts: list[Part], place: str) -> Blocks:
    blocks = []
    for number, part in enumerate(parts):
        block = _block(part, f"{place}.content[{number}]")
        if part.cache_control is not UNSET:
            block["cache_control"] = part.cache_control
        blocks.append(block)
    return blocks


def _block(part: Part, place: str) -> dict[str, Any]:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    if part.type == "image_url":
        url = image_url(part, place)
        data = data_of(url, place)
        if data is None:
            return {"type": "image", "source": {"type": "url", "url": url}}
        return {"type": "image", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}
    if part.type == "file" and part.file is not None and part.file.file_data:
        data = data_of(part.file.file_data, place)
        if data is None or data[0] != "application/pdf":
            raise refused(f"{place}: Anthropic supports only PDF files, as data URLs")
        block = {"type": "document", "source": {"type": "base64", "media_type": data[0], "data": data[1]}}
        return {**block, "title": part.file.filename} if part.file.filename else block
    raise refused(f"{place}: Anthropic does not support parts of type {part.type!r}")


def _tool(cache_control: Any, function: Any) -> dict[str, Any]:
    schema = function.parameters or {"type": "object", "properties": {}}
    tool: dict[str, Any] = {"name": function.name, "input_schema": schema}
    if function.description is not None:
        tool["description"] = function.description
    if function.strict:
        tool["strict"] = True
    if cache_control is not UNSET:
        tool["cache_control"] = cache_control
    return tool


def _tool_choice(chat: Chat) -> dict[str, Any]:
    wanted = chat.choice_of_tools
    if isinstance(wanted, Named):
        choice: dict[str, Any] = {"type": "tool", "name": wanted.name}
    else:
        choice = {"type": "any" if wanted == "required" else wanted}
    if chat.parallel_tool_calls is False and wanted != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def _think(chat: Chat, body: dict[str, Any], model: str) -> None:
    """Return the form of `reasoning_effort`. There is no thinking in the middle of a tool loop whose earlier thinking is missing,
    nor where a call is forced: Anthropic rejects that."""
    effort = chat.reasoning_effort
    if effort is None or (effort == "none" and _OLD_THINKERS.match(model)):
        return
    if effort not in BUDGETS and effort != "none":
        raise refused(f"reasoning_effort: {effort!r} is not supported; use none, {', '.join(BUDGETS)}")
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    if effort == "none":
        body["thinking"] = {"type": "disabled"}
    elif forced or not _may_think(chat.messages):
        return
    elif _OLD_THINKERS.match(model):
        budget = min(BUDGETS[effort], body["max_tokens"] // 2)
        if chat.most_tokens is None:
            budget = BUDGETS[effort]
            body["max_tokens"] += budget
        if budget >= MIN_BUDGET:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    else:
        body["thinking"] = {"type": "adaptive", "display": "summarized"}
        known = body.get("output_config", {})
        body["output_config"] = {**known, "effort": "low" if effort == "minimal" else effort}


def _may_think(messages: list[Message]) -> bool:
    """Whether no tool was called since the last user message, or the thinking before came back."""
    for message in reversed(messages):
        if message.role == "user":
            return True
        if message.role == "assistant" and message.tool_calls and not message.thinking_blocks:
            return False
    return True
