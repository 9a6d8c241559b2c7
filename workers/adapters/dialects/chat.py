"""OpenAI's chat request as types, and its answer put together from deltas: what the other dialects share."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from fairlane.workers.adapters.lenient import given_members
from fairlane.workers.adapters.quirks import ALLOW, Quirks, adapt
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Usage

ANTHROPIC = "anthropic"
"""The member of a payload that was a Messages request, or one of Responses, and holds what chat has no word for: all that is no
part of a message. Messages and tools may then hold `cache_control`, `thinking_blocks`, `is_error`, `reasoning_content`, and
results of tools images.
"""
HINTS = frozenset(
    {
        *(
            "model",
            "stream",
            "stream_options",
            "metadata",
            "store",
            "service_tier",
            "prediction",
            "verbosity",
        ),
        *("logit_bias", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", ANTHROPIC),
    }
)
"""Members that change nothing of what an answer is: left out where a provider has no word for them."""
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w-]+=[\w-]+)*;base64,", re.IGNORECASE)


class ImageUrl(Struct):
    url: str


class Audio(Struct):
    data: str
    format: str


class File(Struct):
    file_data: str | None = None
    filename: str | None = None


class Part(Struct):
    """One part of a message's content."""

    type: str = ""
    text: str | None = None
    image_url: ImageUrl | str | None = None
    input_audio: Audio | None = None
    file: File | None = None
    refusal: str | None = None
    cache_control: Raw | UnsetType = UNSET


class CalledFunction(Struct):
    name: str
    arguments: str = ""


class Google(Struct):
    thought_signature: str | None = None


class ExtraContent(Struct):
    """Where Google's own OpenAI surface puts what must come back to it."""

    google: Google | None = None


class ToolCall(Struct):
    function: CalledFunction
    id: str
    type: str = "function"
    extra_content: ExtraContent | None = None
    cache_control: Raw | UnsetType = UNSET


class Thought(Struct, omit_defaults=True):
    """A block of Anthropic's thinking, as it was sent and must be returned; a caller could name any other block."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class Message(Struct):
    role: str
    content: str | list[Part] | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    thinking_blocks: list[Thought] | None = None
    extra_content: ExtraContent | None = None
    is_error: bool | None = None
    """A tool's result, as Anthropic reports it."""
    cache_control: Raw | UnsetType = UNSET
    function_call: Raw = Raw(b"null")
    audio: Raw = Raw(b"null")

    def parts(self) -> list[Part]:
        """The content's parts that say something, a refusal as a text."""
        content = [Part("text", self.content)] if isinstance(self.content, str) else self.content or []
        if self.refusal:
            content = [*content, Part("text", self.refusal)]
        known = [
            Part("text", part.refusal, cache_control=part.cache_control) if part.type == "refusal" else part
            for part in content
        ]
        return [part for part in known if part.type != "text" or part.text]


class Function(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Raw] | None = None
    strict: bool | None = None


class Tool(Struct):
    type: str
    function: Function | None = None
    cache_control: Raw | UnsetType = UNSET


class Named(Struct):
    name: str


class ToolChoice(Struct):
    type: str
    function: Named | None = None


class JsonSchema(Struct):
    json_schema: dict[str, Raw] | None = msgspec.field(name="schema", default=None)


class ResponseFormat(Struct):
    type: str
    json_schema: JsonSchema | None = None


class Chat(Struct):
    """A chat request with members beyond OpenAI's."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    user: str | None = None

    @property
    def most_tokens(self) -> int | None:
        """The bound on output tokens."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choice_of_tools(self) -> str | Named:
        """`auto`, `none`, `required`, or the function to call."""
        choice = self.tool_choice
        if isinstance(choice, ToolChoice):
            if choice.type != "function" or choice.function is None:
                raise refused(f"tool_choice: {choice.type!r} is not supported; use a function")
            return choice.function
        if choice not in (None, "auto", "none", "required"):
            raise refused(f"tool_choice: {choice!r} is not supported; use auto, none or required")
        return choice or "auto"

    def functions(self) -> Iterable[tuple[Tool, Function]]:
        """The tools, which are functions."""
        for index, tool in enumerate(self.tools or ()):
            if tool.type != "function" or tool.function is None:
                raise refused(f"tools[{index}]: {tool.type!r} is not supported; use functions")
            yield tool, tool.function

    def schema(self) -> Raw | None:
        """The JSON schema that the answer must follow; an empty one for any object; None for free text."""
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return Raw(b"{}")
        if (
            wanted.type != "json_schema"
            or wanted.json_schema is None
            or wanted.json_schema.json_schema is None
        ):
            raise refused("response_format: use text, json_object, or json_schema with json_schema.schema")
        return Raw(msgspec.json.encode(wanted.json_schema.json_schema))


def refused(sentence: str) -> TaskError:
    """Return the failure of a request that has no form at this provider."""
    return TaskError("BAD_REQUEST", f"{sentence}.")


def read_chat(
    payload: bytes, provider: str, *, own: Collection[str], ignored: Collection[str], quirks: Quirks
) -> tuple[Chat, dict[str, Raw]]:
    """A payload as a chat, and its members that go out as they came: the provider's `own`, and those that `quirks` allow.

    `ignored` are hints that this provider has no word for, in addition to `HINTS`. Raise `TaskError` for anything else: a
    member that is not read would be silently ignored.
    """
    try:
        members = msgspec.json.decode(payload, type=dict[str, Raw])
        known = given_members(members)
        adapt(known, quirks)
        if quirks or len(known) < len(members):
            payload = msgspec.json.encode(known)
        through = {name: raw for name, raw in known.items() if name in own or quirks.get(name) == ALLOW}
        for name in known.keys() - through.keys() - HINTS - set(ignored) - set(Chat.__struct_fields__):
            raise refused(f"{provider} does not support {name!r}; leave it out")
        chat = msgspec.json.decode(payload, type=Chat)
    except (ValueError, RecursionError) as error:
        raise TaskError("BAD_REQUEST", f"The payload is not a chat request: {error}") from error
    for number, message in enumerate(chat.messages):
        for name in ("function_call", "audio"):
            if bytes(getattr(message, name)) != b"null":
                raise refused(f"messages[{number}]: {provider} does not support {name!r}; leave it out")
    if chat.logprobs or chat.top_logprobs:
        raise refused(f"{provider} does not support log probabilities; leave logprobs out")
    if chat.modalities is not None and set(chat.modalities) != {"text"}:
        raise refused(f"{provider} supports only text output; leave modalities out")
    return chat, through


Blocks = list[dict[str, Any]]


def conversation(
    messages: list[Message],
    blocks: Callable[[list[Part], str], Blocks],
    assistant: Callable[[Message, str], Blocks],
    result: Callable[[Message, str], Blocks],
) -> tuple[Blocks, list[tuple[str, Blocks]]]:
    """Return the blocks of the system, and turns of `user` and `assistant` by turns: parts, messages of the assistant and results
    of tools become blocks, with their place. Messages that say nothing are left out."""
    system: Blocks = []
    turns: list[tuple[str, Blocks]] = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if message.role in ("system", "developer"):
            system += blocks(message.parts(), place)
            continue
        if message.role == "user":
            role, said = "user", blocks(message.parts(), place)
        elif message.role == "assistant":
            role, said = "assistant", assistant(message, place)
        elif message.role == "tool":
            role, said = "user", result(message, place)
        else:
            raise refused(f"{place}: the role {message.role!r} is not known")
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(said)
        elif said:
            turns.append((role, said))
    if not turns:
        raise refused("messages: at least one user message with content is needed")
    return system, turns


def arguments_of(call: ToolCall, place: str) -> Raw:
    """The arguments of a call as the JSON object that they are."""
    text = call.function.arguments.strip() or "{}"
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except (ValueError, RecursionError) as error:
        raise refused(f"{place}: the arguments of {call.function.name!r} are not a JSON object") from error
    return Raw(text.encode())


def data_of(url: str, place: str) -> tuple[str, str] | None:
    """Media type and base64 of a data URL; None for one of the web. Raise `TaskError` for any other."""
    if url[:5].lower() == "data:":
        found = _DATA_URL.match(url[:500])
        if found is None:
            raise refused(f"{place}: a data URL looks like data:image/png;base64,…")
        return found[1].lower(), url[found.end() :]
    if not url.lower().startswith(("https://", "http://")):
        raise refused(f"{place}: {url[:40]!r} is neither a web URL nor a data URL")
    return None


def image_url(part: Part, place: str) -> str:
    """Where the image of a part is."""
    if part.image_url is None:
        raise refused(f"{place}: image_url is missing")
    return part.image_url if isinstance(part.image_url, str) else part.image_url.url


@dataclass(frozen=True, slots=True)
class Head:
    """Members of an answer that are known before it: the task in its id, the model, and the time (s since 1970)."""

    task_id: str
    model: str
    created: int


def calls_delta(
    index: int, call_id: str | None, name: str, arguments: str, more: dict[str, Any] | None = None
) -> Raw:
    """The `tool_calls` of a delta that begins a call. The log makes an id that is missing."""
    function = {"name": name, "arguments": arguments}
    named = {"id": call_id} if call_id else {}
    call = {"index": index, **named, "type": "function", "function": function, **(more or {})}
    return Raw(msgspec.json.encode([call]))


def usage_from(prompt: int, completion: int, *, cached: int = 0, reasoning: int = 0, **more: int) -> Usage:
    """Usage in OpenAI's words: cached tokens lie inside the prompt's, reasoning tokens inside the completion's."""
    details: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached, **more},
    }
    if reasoning:
        details["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return Usage(prompt, completion, details)
