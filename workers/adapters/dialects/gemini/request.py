"""An OpenAI chat request as one for Gemini's content. Pure. docs/http-api.md has the mapping."""

import mimetypes
import re
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.dialects.base import Call, Dialect
from fairlane.workers.adapters.dialects.chat import (
    Blocks,
    Chat,
    ExtraContent,
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
from fairlane.workers.adapters.dialects.gemini.answer import GeminiReader
from fairlane.workers.adapters.quirks import Quirks
from fairlane.workers.sdk.values import Task

IGNORED = frozenset({"user"})
BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
"""Thinking tokens by effort."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""The value that Google's documentation recommends for a call whose signature is not known: another model made it, or its client
has dropped it."""
_UNSIGNED = re.compile(r"(?:models/)?(?:gemini-[12]\b|gemma)")
"""Models that sign nothing, or do not insist."""


class GeminiDialect(Dialect):
    """Chat completions as generated content."""

    models_path = "/models?pageSize=1000"

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {} if api_key is None else {"x-goog-api-key": api_key}

    def call(self, task: Task, model: str, *, quirks: Quirks, now: float) -> Call:
        body, one_call = content_request(task.payload_bytes, model, quirks=quirks)
        reader = GeminiReader(Head(task.task_id, model, int(now)), one_call=one_call)
        verb = "streamGenerateContent?alt=sse" if task.stream else "generateContent"
        path = f"/models/{quote(model.removeprefix('models/'), safe='')}:{verb}"
        return Call(path, msgspec.json.encode(body), reader, task.stream)


def content_request(payload: bytes, model: str, *, quirks: Quirks) -> tuple[dict[str, Any], bool]:
    """Return the body of `generateContent`, and whether only the first of several tool calls is wanted. Raise `TaskError` for a
    request that has no form there."""
    chat, through = read_chat(payload, "Gemini", own=(), ignored=IGNORED, quirks=quirks)
    system, contents = _conversation(chat.messages, sign=_UNSIGNED.match(model) is None)
    body: dict[str, Any] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    if config := _config(chat):
        body["generationConfig"] = config
    if chat.tools:
        declarations = []
        for _, function in chat.functions():
            declaration: dict[str, Any] = {"name": function.name}
            if function.description is not None:
                declaration["description"] = function.description
            if function.parameters:
                declaration["parametersJsonSchema"] = function.parameters
            declarations.append(declaration)
        body["tools"] = [{"functionDeclarations": declarations}]
        body["toolConfig"] = {"functionCallingConfig": _calling(chat)}
    return {**body, **through}, chat.parallel_tool_calls is False


def _config(chat: Chat) -> dict[str, Any]:
    schema = chat.schema()
    config: dict[str, Any] = {
        "maxOutputTokens": chat.most_tokens,
        "temperature": chat.temperature,
        "topP": chat.top_p,
        "topK": chat.top_k,
        "stopSequences": chat.stops or None,
        "candidateCount": None if chat.n == 1 else chat.n,
        "seed": chat.seed,
        "presencePenalty": chat.presence_penalty,
        "frequencyPenalty": chat.frequency_penalty,
        "responseMimeType": None if schema is None else "application/json",
        "responseJsonSchema": None if schema is None or bytes(schema) == b"{}" else schema,
    }
    if (effort := chat.reasoning_effort) is not None:
        if effort not in BUDGETS:
            raise refused(
                f"reasoning_effort: {effort!r} is not supported by Gemini; use {', '.join(BUDGETS)}"
            )
        config["thinkingConfig"] = {"thinkingBudget": BUDGETS[effort], "includeThoughts": effort != "none"}
    return {name: value for name, value in config.items() if value is not None}


def _calling(chat: Chat) -> dict[str, Any]:
    wanted = chat.choice_of_tools
    if isinstance(wanted, Named):
        return {"mode": "ANY", "allowedFunctionNames": [wanted.name]}
    return {"mode": "ANY" if wanted == "required" else wanted.upper()}


def _conversation(messages: list[Message], *, sign: bool) -> tuple[Blocks, list[dict[str, Any]]]:
    """Return the system's parts, and turns of user and model."""
    called: dict[str, tuple[int, str]] = {}

    def model(message: Message, place: str) -> Blocks:
        for call in message.tool_calls or ():
            called[call.id] = len(called), call.function.name
        return _model(message, place, sign=sign)

    system, turns = conversation(
        messages, _parts, model, lambda message, place: _tool_result(message, place, called)
    )
    # results in the order of their calls: Gemini distinguishes calls of one function by it
    for _, parts in turns:
        parts.sort(key=lambda part: _order(part, called))
    roles = {"user": "user", "assistant": "model"}
    return system, [{"role": roles[role], "parts": parts} for role, parts in turns]


def _order(part: dict[str, Any], called: dict[str, tuple[int, str]]) -> int:
    """Order the parts: results first, in the order of their calls."""
    result = part.get("functionResponse")
    return 0 if result is None else called[result["id"]][0] - len(called)


def _model(message: Message, place: str, *, sign: bool) -> Blocks:
    parts = _parts(message.parts(), place)
    if (signature := _signature(message.extra_content)) is not None:
        if not parts:
            parts.append({"text": ""})
        parts[-1]["thoughtSignature"] = signature
    signed = any(_signature(call.extra_content) for call in message.tool_calls or ())
    for call in message.tool_calls or ():
        function = {"id": call.id, "name": call.function.name, "args": arguments_of(call, place)}
        part: dict[str, Any] = {"functionCall": function}
        if (signature := _signature(call.extra_content)) is not None:
            part["thoughtSignature"] = signature
        elif sign and not signed:
            part["thoughtSignature"], signed = NO_SIGNATURE, True
        parts.append(part)
    return parts


def _signature(extra: ExtraContent | None) -> str | None:
    return None if extra is None or extra.google is None else extra.google.thought_signature


def _tool_result(message: Message, place: str, called: dict[str, tuple[int, str]]) -> Blocks:
    call_id = message.tool_call_id
    if call_id is None or call_id not in called:
        raise refused(f"{place}: no message before it calls a tool with the id {call_id!r}")
    parts = message.parts()
    text = "".join(part.text or "" for part in parts if part.type == "text")
    others = [part for part in parts if part.type != "text"]
    response = {
        "name": called[call_id][1],
        "id": call_id,
        "response": {"error": text} if message.is_error else _object(text),
    }
    return [{"functionResponse": response}, *_parts(others, place)]


def _object(text: str) -> Raw | dict[str, str]:
    """A tool's text as the object that it must be here."""
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except (ValueError, RecursionError):
        return {"result": text}
    return Raw(text.encode())


def _parts(parts: list[Part], place: str) -> Blocks:
    return [_part(part, f"{place}.content[{number}]") for number, part in enumerate(parts)]


def _part(part: Part, place: str) -> dict[str, Any]:
    if part.type == "text":
        return {"text": part.text}
    if part.type == "image_url":
        return _media(image_url(part, place), place)
    if part.type == "input_audio" and part.input_audio is not None:
        kind = part.input_audio.format.lower()
        return {"inlineData": {"mimeType": f"audio/{kind}", "data": part.input_audio.data}}
    if part.type == "file" and part.file is not None and part.file.file_data:
        return _media(part.file.file_data, place)
    raise refused(f"{place}: Gemini does not support parts of type {part.type!r}")


def _media(url: str, place: str) -> dict[str, Any]:
    data = data_of(url, place)
    if data is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    parts = urlsplit(url)
    if parts.hostname == "generativelanguage.googleapis.com":
        raise refused(f"{place}: a file of the provider's account is not supported; send the data itself")
    kind = mimetypes.guess_type(parts.path)[0]
    return {"fileData": {"fileUri": url, **({"mimeType": kind} if kind else {})}}
