"""An OpenAI chat request as one for Gemini's content. Pure. docs/providers.md has the mapping."""

import mimetypes
import re
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.dialects.chat import (
    Chat,
    ExtraContent,
    Message,
    Named,
    Part,
    arguments_of,
    data_of,
    image_url,
    read_chat,
    refused,
)
from fairlane.workers.adapters.quirks import Quirks

IGNORED = frozenset({"user"})
BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
"""Thinking tokens by effort."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""The value that Google's documentation recommends for a call whose signature is not known: another model made it, or its client
has dropped it."""
_UNSIGNED = re.compile(r"(?:models/)?(?:gemini-[12]\b|gemma)")
"""Models that sign nothing, or do not insist."""


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
                f"reasoning_effort: {effort!r} is not known to Gemini; there are {', '.join(BUDGETS)}"
            )
        config["thinkingConfig"] = {"thinkingBudget": BUDGETS[effort], "includeThoughts": effort != "none"}
    return {name: value for name, value in config.items() if value is not None}


def _calling(chat: Chat) -> dict[str, Any]:
    wanted = chat.choice_of_tools
    if isinstance(wanted, Named):
        return {"mode": "ANY", "allowedFunctionNames": [wanted.name]}
    return {"mode": "ANY" if wanted == "required" else wanted.upper()}


def _conversation(
    messages: list[Message], *, sign: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The system's parts, and turns of user and model by turns. Messages that say nothing are left out."""
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    called: dict[str, tuple[int, str]] = {}
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if message.role in ("system", "developer"):
            system += _parts(message.parts(), place)
            continue
        if message.role == "user":
            role, parts = "user", _parts(message.parts(), place)
        elif message.role == "assistant":
            for call in message.tool_calls or ():
                called[call.id] = len(called), call.function.name
            role, parts = "model", _model(message, place, sign=sign)
        elif message.role == "tool":
            role, parts = "user", _tool_result(message, place, called)
        else:
            raise refused(f"{place}: the role {message.role!r} is not known")
        if turns and turns[-1]["role"] == role:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": role, "parts": parts})
    if not turns:
        raise refused("messages: there is none of a user that says something")
    for (
        turn
    ) in turns:  # results in the order of their calls: Gemini distinguishes calls of one function by it
        turn["parts"].sort(key=lambda part: _order(part, called))
    return system, turns


def _order(part: dict[str, Any], called: dict[str, tuple[int, str]]) -> int:
    """Order the parts: results first, in the order of their calls."""
    result = part.get("functionResponse")
    return 0 if result is None else called[result["id"]][0] - len(called)


def _model(message: Message, place: str, *, sign: bool) -> list[dict[str, Any]]:
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


def _tool_result(message: Message, place: str, called: dict[str, tuple[int, str]]) -> list[dict[str, Any]]:
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


def _parts(parts: list[Part], place: str) -> list[dict[str, Any]]:
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
    raise refused(f"{place}: a part of the type {part.type!r} cannot be said to Gemini")


def _media(url: str, place: str) -> dict[str, Any]:
    data = data_of(url, place)
    if data is not None:
        return {"inlineData": {"mimeType": data[0], "data": data[1]}}
    parts = urlsplit(url)
    if parts.hostname == "generativelanguage.googleapis.com":
        raise refused(f"{place}: a file of the provider's account cannot be named; send the data itself")
    kind = mimetypes.guess_type(parts.path)[0]
    return {"fileData": {"fileUri": url, **({"mimeType": kind} if kind else {})}}
